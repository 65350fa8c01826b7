//! Copies of operands. B is packed into panels of columns, each in the order in which micro-kernels read it; one that
//! depends on parameters alone in *prepare*. A is copied where its elements have fewer bits than their accumulators,
//! unless they are multiplied in place, and where its rows would collide in the caches.

use super::{MatMul, Materialised, split};
use crate::kernels::pack::Packer;
use kiln_base::DType;
use kiln_jit::contraction::{Columns, PanelSource};
use kiln_kernel::bugs::bug;
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::simd::convert::widen;
use kiln_kernel::view::{Arguments, View, ViewMut};

/// The padding between rows of a copy, in words.
const ROW_PADDING: i64 = 16;
/// A pitch of A's rows that is a multiple of this many bytes makes rows collide in cache sets.
const CONFLICTING_PITCH: i64 = 2048;
/// The minimum number of columns for which such rows are copied.
const OFTEN: i64 = 256;
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
        let rows = self.matrices() * self.m;
        split(rows, self.k, parallel, |first, until| {
            let mut row = first;
            while row < until {
                let (b, i) = (row / self.m, row % self.m);
                let count = (until - row).min(self.m - i);
                let from = self.element(0, args, (b, i, 0));
                let to = to.shift(4 * row * self.pitch());
                self.pack_rows((from, [self.lhs.row, self.lhs.col]), count, to);
                row += count;
            }
        });
        Ok(Some(CopiedLeft(*to)))
    }

    /// Packs some rows of A with these strides.
    fn pack_rows(&self, (from, [row, col]): (View<u8>, [i64; 2]), count: i64, to: ViewMut<u8>) {
        let packer = self.terms.packer(0, self.terms.operands[0]);
        let to = (to, [1, self.pitch()]);
        packer.pack((from, [col, row]), (self.k, count), to);
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
                        Ok(from) => self.pack_panel(from, (b, column), to),
                        Err(e) => failures.report_error(e),
                    }
                }
            },
        );
    }

    /// Packs the panel that starts with a column of matrix `b`; strides are in elements.
    fn pack_panel(
        &self,
        (from, strides): (View<u8>, [i64; 2]),
        (b, column): (i64, i64),
        to: ViewMut<u8>,
    ) {
        let (panel, size) = (self.panel, self.packed_size());
        let at = b * self.matrix_elements() + column * self.panel_rows();
        let (to, columns) = (to.shift(at * size), panel.min(self.n - column));
        if columns < panel || self.panel_rows() > self.steps() {
            to.fill(0, panel * self.panel_rows() * size, 0);
        }
        let terms = self.terms.packer(1, self.terms.operands[1]);
        let packer = match self.half_dtype() {
            Some(half) => Packer {
                dtypes: [half; 2],
                ..terms
            },
            None => terms,
        };
        let words = to.shift((self.panel_rows() - self.steps()) * panel * size);
        let columns = bug("a panel misses its last column", columns, |n| n - 1);
        packer.pack((from, strides), (self.k, columns), (words, [panel, 1]));
        if self.terms.is_flipped() {
            self.terms
                .add_to_initial_row(*words, (self.steps(), panel), to.cast());
        }
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
        let (from, [row, col]) = self.lines(0, args, (b, first, count), materialised, failures)?;
        if self.reads_terms(col) {
            return Ok((from, strides));
        }
        let to = ViewMut::room(copies, count * pitch)?;
        self.pack_rows((from, [row, col]), count, to);
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
        let to = materialised.materialise(program, args, (b, first), at, parts, failures)?;
        Ok((to, strides))
    }
}
