//! Copies of operands. B is packed into panels of columns, each in the order in which micro-kernels read it; one that
//! depends on parameters alone in *prepare*. A is copied where its elements have fewer bits than their accumulators,
//! unless they are multiplied in place, and where its rows would collide in the caches.

use super::{MatMul, Materialised, split};
use crate::kernels::terms::Terms;
use kiln_base::DType;
use kiln_jit::contraction::{Columns, Matrix, PanelSource, pack};
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::convert::widen;
use kiln_kernel::simd::{Features, Isa, Vectorized, vectorized};
use kiln_kernel::view::{Arguments, Plain, View, ViewMut};

/// The padding between rows of a copy, in words.
const ROW_PADDING: i64 = 16;
/// A pitch of A's rows that is a multiple of this many bytes makes rows collide in cache sets.
const CONFLICTING_PITCH: i64 = 2048;
/// The minimum number of columns for which such rows are copied.
const OFTEN: i64 = 256;
/// The maximum number of columns of a panel of words.
pub(super) const PANEL: usize = 64;
/// The words of each column that are transposed at once.
const WORDS: usize = 32;
/// The cost of reading an element of B, as a number of rows, where there are fewer rows.
pub(super) const READ_ROWS: i64 = 8;

/// All packed matrices of B, as bytes.
#[derive(Copy, Clone)]
pub(super) struct PackedRight<'a>(pub View<'a, u8>);

/// The copied matrices of A.
#[derive(Copy, Clone)]
pub(super) struct CopiedLeft<'a>(View<'a, u8>);

/// The last packed f16 or bf16 panel that a thread widened, kept for other blocks that read it.
#[derive(Default)]
pub(super) struct Wide {
    storage: Option<Storage>,
    holds: Option<usize>,
}

/// Packed f16 or bf16 panels of `len` elements, each widened to f32 when it is reached.
pub(super) struct WidenedPanels<'a> {
    pub panels: Columns<'a>,
    pub dtypes: (DType, Features),
    pub len: i64,
    pub wide: &'a mut Wide,
}

impl PanelSource for WidenedPanels<'_> {
    fn panel(&mut self, column: i64) -> Result<View<'_, u8>> {
        let ((half, level), panel) = (self.dtypes, self.panels.panel(column)?);
        let mut to = ViewMut::room(&mut self.wide.storage, self.len)?;
        if self.wide.holds.replace(panel.id()) != Some(panel.id()) {
            let from = panel.cast().slice(0, self.len);
            widen(level, half, from, to.slice_mut(0, self.len));
        }
        Ok(*to.bytes())
    }
}

impl MatMul {
    /// Returns the steps of K: the words of a row's terms.
    pub(super) fn steps(&self) -> i64 {
        self.terms.words(self.k)
    }

    /// True if micro-kernels read rows of A in place, with a stride of `col` between their elements.
    fn reads_terms(&self, col: i64) -> bool {
        let whole = self.k % self.terms.count() == 0;
        !self.terms.are_narrow() || !self.terms.converts(0) && col == 1 && whole
    }

    /// True if micro-kernels read a copy of A, which is made for all of them.
    fn copies_left(&self) -> bool {
        let size = self.terms.operands[0].size() as i64;
        let conflicts =
            (size * self.lhs.row) % CONFLICTING_PITCH == 0 && self.m > 1 && self.n >= OFTEN;
        let other = self.terms.are_narrow() && !self.reads_terms(self.lhs.col);
        self.lhs.prologue.is_none() && size <= 4 && (other || conflicts)
    }

    /// Returns the strides of rows of A, as micro-kernels read them, and of their steps, in bytes.
    pub(super) fn left_strides(&self) -> [i64; 2] {
        let size = self.terms.operands[0].size() as i64;
        let [row, col] = match (&self.lhs.prologue, self.lhs.col) {
            (None, col) => [self.lhs.row, col],
            (Some(_), 1) => [self.k, 1],
            (Some(_), _) => [1, self.left_lines()],
        };
        match self.copies_left() || !self.reads_terms(col) {
            true => [4 * self.pitch(), 4],
            false if self.terms.are_narrow() => [size * row, 4],
            false => [size * row, size * col],
        }
    }

    /// Returns the most rows of A that a block reads.
    fn left_lines(&self) -> i64 {
        self.grid.block.0.min(self.m)
    }

    /// True if packed f16 or bf16 panels are widened for several register tiles, and for the blocks below.
    pub(super) fn widens_panels(&self) -> bool {
        self.left_lines() > self.tile_rows()
    }

    /// Returns the pitch of the copy of A, in words; rows that are far apart must not collide in the caches.
    fn pitch(&self) -> i64 {
        self.steps() + ROW_PADDING
    }

    /// Returns the number of words of the copy of A.
    pub(super) fn copied_words(&self) -> i64 {
        match self.copies_left() {
            true => self.matrices() * self.m * self.pitch(),
            false => 0,
        }
    }

    /// Returns the number of elements of all packed matrices.
    pub(super) fn packed_elements(&self) -> i64 {
        self.right_matrices() * self.matrix_elements()
    }

    /// Returns the number of elements of a packed matrix of B.
    pub(super) fn matrix_elements(&self) -> i64 {
        self.panels_across() * self.panel * self.panel_rows()
    }

    /// Returns the number of packed matrices of B: one, or one for each product of the batch.
    pub(super) fn right_matrices(&self) -> i64 {
        match self.rhs.is_one(&self.batch) {
            true => 1,
            false => self.matrices(),
        }
    }

    /// Returns the number of rows of a panel: the steps of K, and a first one that accumulators start with, if any.
    pub(super) fn panel_rows(&self) -> i64 {
        self.steps() + i64::from(self.terms.is_flipped())
    }

    /// Returns the 16-bit float dtype of packed matrices, if they are widened later.
    pub(super) fn half_dtype(&self) -> Option<DType> {
        let dtype = self.terms.operands[1];
        (dtype.is_half() && self.terms.converts(1)).then_some(dtype)
    }

    /// Returns the size of an element of a packed matrix in bytes.
    pub(super) fn packed_size(&self) -> i64 {
        self.half_dtype().unwrap_or(self.dtype).size() as i64
    }

    /// Copies the matrices of A as micro-kernels read them, if they read a copy.
    pub(super) fn copy_left<'a>(
        &self,
        args: &Arguments,
        storage: &'a mut Option<Storage>,
        parallel: bool,
    ) -> Result<Option<CopiedLeft<'a>>> {
        if !self.copies_left() {
            return Ok(None);
        }
        let to = ViewMut::room(storage, 4 * self.copied_words())?;
        split(
            self.matrices() * self.m,
            self.k,
            parallel,
            |first, until| {
                for row in first..until {
                    let from = self.element(0, args, (row / self.m, row % self.m, 0));
                    let to = to.shift(4 * row * self.pitch());
                    self.terms.make_row((from, self.lhs.col), self.k, to);
                }
            },
        );
        Ok(Some(CopiedLeft(*to)))
    }

    /// Packs the matrices of B: these weights, or what its prologue makes.
    pub(super) fn pack_right(
        &self,
        (weights, args): (Option<View<u8>>, &Arguments),
        to: ViewMut<u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        let (panel, across) = (self.panel, self.panels_across());
        let (panels, size) = (
            self.right_matrices() * across,
            self.terms.operands[1].size() as i64,
        );
        split(
            panels,
            panel * self.k * READ_ROWS,
            parallel,
            |first, until| {
                let mut materialised = Materialised::default();
                for (b, column) in (first..until).map(|i| (i / across, i % across * panel)) {
                    let columns = (b, column, panel.min(self.n - column));
                    let from = match weights {
                        Some(weights) => {
                            let at = self.rhs.index(&self.batch, b, 0, column);
                            Ok((weights.shift(at * size), [self.rhs.row, self.rhs.col]))
                        }
                        None => self.lines(1, args, columns, &mut materialised, failures),
                    };
                    match from {
                        Ok((from, [row, col])) => {
                            self.pack_panel((from, row, col), (b, column), to)
                        }
                        Err(e) => failures.broken(e),
                    }
                }
            },
        );
    }

    /// Packs the panel that starts with a column of matrix `b`; strides are in elements.
    fn pack_panel(&self, from: Matrix<u8>, (b, column): (i64, i64), to: ViewMut<u8>) {
        let (panel, size) = (self.panel, self.packed_size());
        let at = b * self.matrix_elements() + column * self.panel_rows();
        let (to, columns) = (to.shift(at * size), panel.min(self.n - column));
        if columns < panel || self.panel_rows() > self.steps() {
            to.fill(0, panel * self.panel_rows() * size, 0);
        }
        match size {
            _ if self.half_dtype().is_none() && self.terms.are_narrow() => {
                self.pack_words(from, columns, to.cast());
            }
            2 => self.pack_plain::<u16>(from, columns, to),
            4 => self.pack_plain::<u32>(from, columns, to),
            _ => self.pack_plain::<u64>(from, columns, to),
        }
    }

    /// Packs columns of elements as they are.
    fn pack_plain<T: Plain>(&self, (from, row, col): Matrix<u8>, columns: i64, to: ViewMut<u8>) {
        let columns = bug("a panel misses its last column", columns, |n| n - 1);
        let from = (from.cast::<T>(), row, col);
        pack(self.level, from, (self.k, columns), (to.cast(), self.panel));
    }

    /// Packs columns of words of terms.
    fn pack_words(&self, (from, row, col): Matrix<u8>, columns: i64, starts: ViewMut<u32>) {
        let panel = self.panel;
        let to = starts.shift(panel * (self.panel_rows() - self.steps()));
        if row == 1 {
            return self.pack_columns((from, col), columns, (to, starts.cast()));
        }
        let size = self.terms.operands[1].size() as i64;
        let mut rows = [[0; PANEL]; 4];
        for step in 0..self.steps() {
            let first = step * self.terms.count();
            let count = self.terms.count().min(self.k - first);
            let from = (from.shift(first * row * size), row, col);
            let to = (to.shift(step * panel), starts.cast());
            self.put_rows(from, (count, columns), to, &mut rows);
        }
    }

    /// Packs columns with contiguous terms, and adds these terms' contributions to the initial values of accumulators.
    fn pack_columns(
        &self,
        (from, stride): (View<u8>, i64),
        columns: i64,
        (to, mut starts): (ViewMut<u32>, ViewMut<i32>),
    ) {
        let (panel, steps, count) = (self.panel, self.steps(), self.terms.count());
        let size = self.terms.operands[1].size() as i64;
        let mut lines = [[0u32; WORDS]; PANEL];
        for first in (0..steps).step_by(WORDS) {
            let words = (steps - first).min(WORDS as i64);
            let terms = (words * count).min(self.k - first * count);
            for (column, line) in (0..columns).zip(&mut lines) {
                line[words as usize - 1] = 0;
                let line = ViewMut::of(line);
                let from = from.shift((column * stride + first * count) * size);
                self.terms.make(1, (from, 1), terms, line.bytes());
                if self.terms.is_flipped() {
                    let line = line.cast::<i8>();
                    let line = line.slice(0, terms * self.terms.size());
                    let start = self.terms.start(line.iter().map(|x| i32::from(*x)).sum());
                    let starts = &mut starts.slice_mut(column, 1)[0];
                    *starts = starts.wrapping_add(start);
                }
            }
            let lines = (View::of(lines.as_flattened()), 1, WORDS as i64);
            let to = (to.shift(first * panel), panel);
            pack(self.level, lines, (words, columns), to);
        }
    }

    /// Packs the terms of one step of K for some columns, and adds their contributions to the initial values of
    /// accumulators.
    fn put_rows(
        &self,
        (from, row, col): Matrix<u8>,
        (count, columns): (i64, i64),
        (mut to, mut starts): (ViewMut<u32>, ViewMut<i32>),
        rows: &mut [[u32; PANEL]; 4],
    ) {
        if self.terms.size() == 4 {
            return self.terms.make(1, (from, col), columns, to.bytes());
        }
        let size = self.terms.operands[1].size() as i64;
        rows[count as usize..self.terms.count() as usize].fill([0; PANEL]);
        for (i, line) in (0..count).zip(rows.iter_mut()) {
            let from = (from.shift(i * row * size), col);
            self.terms.make(1, from, columns, ViewMut::of(line).bytes());
        }
        let is_flipped = self.terms.is_flipped();
        let joined = Joined {
            rows,
            terms: self.terms,
            to: to.slice_mut(0, columns),
            starts: is_flipped.then(|| starts.slice_mut(0, columns)),
        };
        vectorized(self.level, joined);
    }

    /// Returns some rows of A's matrix number `b` as micro-kernels read them, and the strides of rows and steps in
    /// bytes.
    pub(super) fn left_rows<'a>(
        &self,
        args: &Arguments<'a>,
        (b, first, count): (i64, i64, i64),
        copied: Option<CopiedLeft<'a>>,
        (materialised, copies): (&'a mut Materialised, &'a mut Option<Storage>),
        failures: &Failures,
    ) -> Result<(View<'a, u8>, [i64; 2])> {
        let strides = self.left_strides();
        let pitch = strides[0];
        if let Some(CopiedLeft(copied)) = copied {
            return Ok((copied.shift((b * self.m + first) * pitch), strides));
        }
        let size = self.terms.operands[0].size() as i64;
        let (from, [row, col]) = self.lines(0, args, (b, first, count), materialised, failures)?;
        if self.reads_terms(col) {
            return Ok((from, strides));
        }
        let to = ViewMut::room(copies, count * pitch)?;
        for i in 0..count {
            let from = (from.shift(i * row * size), col);
            self.terms.make_row(from, self.k, to.shift(i * pitch));
        }
        Ok((*to, strides))
    }

    /// Returns an operand from element (i, j) of matrix number `b` on, as bytes.
    fn element<'a>(
        &self,
        side: usize,
        args: &Arguments<'a>,
        (b, i, j): (i64, i64, i64),
    ) -> View<'a, u8> {
        let x = [&self.lhs, &self.rhs][side];
        let size = self.terms.operands[side].size() as i64;
        args.view(x.arg).shift(x.index(&self.batch, b, i, j) * size)
    }

    /// Returns some rows of A's matrix number `b`, or columns of B's, as bytes, and the strides of its rows and columns,
    /// in elements.
    pub(super) fn lines<'a>(
        &self,
        side: usize,
        args: &Arguments<'a>,
        (b, first, count): (i64, i64, i64),
        materialised: &'a mut Materialised,
        failures: &Failures,
    ) -> Result<(View<'a, u8>, [i64; 2])> {
        let x = [&self.lhs, &self.rhs][side];
        let (i, j, [line, along]) = match side {
            0 => (first, 0, [x.row, x.col]),
            _ => (0, first, [x.col, x.row]),
        };
        let Some(program) = &x.prologue else {
            return Ok((self.element(side, args, (b, i, j)), [x.row, x.col]));
        };
        let at = x.index(&self.batch, b, i, j);
        // The elements of a line are contiguous; otherwise the lines are.
        let (parts, mut strides) = match along == 1 {
            true => (((count, line, self.k), self.k), [self.k, 1]),
            false => {
                let lines = if side == 0 { self.left_lines() } else { count };
                (((self.k, along, count), lines), [1, lines])
            }
        };
        if side == 1 {
            strides.reverse();
        }
        let to = materialised.bring(program, args, (b, first), at, parts, failures)?;
        Ok((to, strides))
    }
}

/// Rows of terms that share words, and the words of their columns; and the initial values of accumulators to adjust, if
/// any. Packs terms of the same column into a word, the first in its lowest bits.
struct Joined<'a> {
    rows: &'a [[u32; PANEL]; 4],
    terms: Terms,
    to: &'a mut [u32],
    starts: Option<&'a mut [i32]>,
}

impl Vectorized for Joined<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        if self.terms.size() == 2 {
            let [a, b, ..] = self.rows.each_ref().map(|row| View::of(row).cast::<u16>());
            let (a, b) = (a.slice(0, PANEL as i64), b.slice(0, PANEL as i64));
            for (word, (a, b)) in self.to.iter_mut().zip(a.iter().zip(b)) {
                *word = u32::from(*a) | u32::from(*b) << 16;
            }
            return;
        }
        let bytes = |row: &[u32; PANEL]| -> [u8; PANEL] {
            let row = View::of(row).bytes().slice(0, PANEL as i64);
            std::array::from_fn(|i| row[i])
        };
        let rows = self.rows.each_ref().map(bytes);
        for (i, word) in self.to.iter_mut().enumerate().take(PANEL) {
            *word = u32::from_le_bytes([0, 1, 2, 3].map(|row| rows[row][i]));
        }
        let starts = self.starts.into_iter().flatten();
        for (i, start) in starts.enumerate().take(PANEL) {
            let term: i32 = rows.iter().map(|row| i32::from(row[i] as i8)).sum();
            *start = start.wrapping_add(self.terms.start(term));
        }
    }
}
