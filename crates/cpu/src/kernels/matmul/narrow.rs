//! Operands that are copied before micro-kernels read them: operands with fewer bits than their accumulators, unless
//! they are multiplied in place, and rows that would collide in the caches.

use super::packed::READ_ROWS;
use super::{Args, MatMul, Materialised, split};
use crate::kernels::terms::Terms;
use kiln_base::DType;
use kiln_jit::contraction::{Matrix, pack};
use kiln_kernel::error::Result;
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::convert::widen;
use kiln_kernel::simd::{Isa, Kernel, compiled};

/// The padding between rows of a copy, in words.
const APART: i64 = 16;
/// A pitch of A's rows that is a multiple of this many bytes makes rows collide in cache sets.
const MEETS: i64 = 2048;
/// The least number of columns for which such rows are copied.
const OFTEN: i64 = 256;
/// The most columns of a panel.
pub(super) const PANEL: usize = 64;
/// The words of each column that are transposed at once.
const WORDS: usize = 32;

/// The last packed f16 or bf16 panel that a thread widened, kept for other blocks that read it.
#[derive(Default)]
pub(super) struct Wide {
    storage: Option<Storage>,
    holds: Option<*const u8>,
}

impl MatMul {
    /// Returns the steps of K: the words of a row's terms.
    pub(super) fn steps(&self) -> i64 {
        self.terms.words(self.k)
    }

    /// True if micro-kernels read rows of A in place, with a stride of `col` between their elements.
    fn reads_terms(&self, col: i64) -> bool {
        let whole = self.k % self.terms.count() == 0;
        !self.terms.converts(0) && col == 1 && whole
    }

    /// True if micro-kernels read a copy of A, which is made for all of them.
    pub(super) fn copies_left(&self) -> bool {
        let size = self.terms.operand(0).size() as i64;
        let meets = (size * self.lhs.row) % MEETS == 0 && self.m > 1 && self.n >= OFTEN;
        let other = self.terms.are_narrow() && !self.reads_terms(self.lhs.col);
        self.lhs.prologue.is_none() && size <= 4 && (other || meets)
    }

    /// Returns the pitch of the copy of A, in words; rows that are far apart must not collide in the caches.
    fn pitch(&self) -> i64 {
        self.steps() + APART
    }

    /// Returns the number of words of the copy of A.
    pub(super) fn copied_words(&self) -> i64 {
        match self.copies_left() {
            true => self.batch.iter().product::<i64>() * self.m * self.pitch(),
            false => 0,
        }
    }

    /// Returns the address of an element of an operand, whatever its size.
    fn element(&self, i: usize, args: &[*mut u8], b: i64, row: i64, column: i64) -> *const u8 {
        let x = [&self.lhs, &self.rhs][i];
        match self.terms.operand(i).size() {
            1 => self.at::<u8>(x, args, b, row, column),
            2 => self.at::<u16>(x, args, b, row, column).cast(),
            _ => self.at::<u32>(x, args, b, row, column).cast(),
        }
    }

    /// Copies the matrices of A as micro-kernels read them, if they read a copy.
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn copy_left(
        &self,
        args: &[*mut u8],
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*const f32> {
        if !self.copies_left() {
            return Ok(std::ptr::null());
        }
        let to = room::<f32>(storage, self.copied_words())?;
        let rows = self.batch.iter().product::<i64>() * self.m;
        let args = Args(args);
        let copy = Args(&[to.cast()]);
        split(rows, self.k, parallel, |first, until| {
            let (args, copy) = (&args, &copy);
            for row in first..until {
                let from = self.element(0, args.0, row / self.m, row % self.m, 0);
                // SAFETY: linking proved the operand within its buffer; rows of the copy are apart.
                unsafe {
                    let to = copy.0[0].offset((4 * row * self.pitch()) as isize);
                    self.line((from, self.lhs.col), to);
                }
            }
        });
        Ok(to)
    }

    /// Packs the matrices of B.
    ///
    /// # Safety
    /// As [`MatMul::pack`].
    pub(super) unsafe fn pack_terms(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        let args = Args(&[from, to]);
        let work = self.panel() * self.k * READ_ROWS;
        split(self.all_panels(), work, parallel, |first, until| {
            let args = &args;
            let size = self.terms.operand(1).size() as i64;
            for (b, column) in (first..until).map(|i| self.panel_at(i)) {
                let at = self.rhs.index(&self.batch, b, 0, column);
                let from = args.0[0].wrapping_offset((at * size) as isize);
                let apart = [self.rhs.row, self.rhs.col];
                // SAFETY: linking proved the operand within its buffer; panels are apart.
                unsafe { self.pack_panel((from, apart), (b, column), args.0[1]) };
            }
        });
    }

    /// Packs the B of a prologue, the columns of a panel at a time.
    ///
    /// # Safety
    /// As [`MatMul::run`]; `to` has room for the packed matrices.
    pub(super) unsafe fn pack_prologue(
        &self,
        args: &[*mut u8],
        to: *mut u8,
        parallel: bool,
        failures: &Failures,
    ) {
        let (args, to) = (Args(args), Args(&[to]));
        let panel = self.panel();
        let work = panel * self.k * READ_ROWS;
        split(self.all_panels(), work, parallel, |first, until| {
            let (args, to) = (&args, &to);
            let mut materialised = Materialised::default();
            for (b, column) in (first..until).map(|i| self.panel_at(i)) {
                let columns = (b, column, panel.min(self.n - column));
                // SAFETY: the caller's; panels are apart.
                let packed = unsafe {
                    let found = match self.terms.operand(1).size() {
                        1 => {
                            let found =
                                self.columns::<u8>(args.0, columns, &mut materialised, failures);
                            found.map(|(from, row, col)| (from, [row, col]))
                        }
                        _ => {
                            let found =
                                self.columns::<u16>(args.0, columns, &mut materialised, failures);
                            found.map(|(from, row, col)| (from.cast(), [row, col]))
                        }
                    };
                    found.map(|from| self.pack_panel(from, (b, column), to.0[0]))
                };
                if let Err(e) = packed {
                    failures.broken(e);
                }
            }
        });
    }

    /// Returns the number of panels of all matrices of B.
    fn all_panels(&self) -> i64 {
        self.right_matrices() * self.panels_across()
    }

    /// Returns the matrix and the first column of a panel.
    fn panel_at(&self, i: i64) -> (i64, i64) {
        let across = self.panels_across();
        (i / across, i % across * self.panel())
    }

    /// Packs the panel that starts with a column of matrix `b`; `row` and `col` are the strides of its elements.
    ///
    /// # Safety
    /// The columns exist; `to` has room for the packed matrices.
    unsafe fn pack_panel(
        &self,
        (from, [row, col]): (*const u8, [i64; 2]),
        (b, column): (i64, i64),
        to: *mut u8,
    ) {
        let (panel, steps) = (self.panel(), self.steps());
        let columns = panel.min(self.n - column);
        let size = self.terms.operand(1).size() as i64;
        // SAFETY: the caller's.
        unsafe {
            if self.half_dtype().is_some() {
                let at = b * self.matrix_elements() + column * steps;
                let to = to.cast::<u16>().offset(at as isize);
                if columns < panel {
                    to.write_bytes(0, (panel * steps) as usize);
                }
                return pack(
                    self.level,
                    (from.cast(), row, col),
                    (steps, columns),
                    (to, panel),
                );
            }
            let starts = to
                .cast::<u32>()
                .offset((b * self.matrix_elements() + column * self.panel_rows()) as isize);
            let to_words = starts.offset((panel * (self.panel_rows() - steps)) as isize);
            if columns < panel || to_words != starts {
                starts.write_bytes(0, (panel * self.panel_rows()) as usize);
            }
            if row == 1 {
                return self.pack_columns((from, col), columns, (to_words, starts.cast()));
            }
            let mut rows = [[0; PANEL]; 4];
            for (step, to) in (0..steps).zip((0..).step_by(panel as usize)) {
                let first = step * self.terms.count();
                let count = self.terms.count().min(self.k - first);
                let from = from.wrapping_offset((first * row * size) as isize);
                let to = (to_words.offset(to), starts.cast());
                self.put_rows((from, row, col), (count, columns), to, &mut rows);
            }
        }
    }

    /// Returns a packed f16 or bf16 panel, widened to f32.
    ///
    /// # Safety
    /// The panel exists, and no other panel has its address.
    pub(super) unsafe fn wide_panel(
        &self,
        half: DType,
        panel: *const u8,
        wide: &mut Wide,
    ) -> Result<*const u8> {
        let len = self.panel() * self.k;
        let to = room::<f32>(&mut wide.storage, len)?;
        if wide.holds.replace(panel) == Some(panel) {
            return Ok(to.cast_const().cast());
        }
        // SAFETY: the caller's; there is room.
        unsafe {
            let from = std::slice::from_raw_parts(panel.cast::<u16>(), len as usize);
            widen(
                self.level,
                half,
                from,
                std::slice::from_raw_parts_mut(to, len as usize),
            );
        }
        Ok(to.cast_const().cast())
    }

    /// Packs columns with contiguous terms, and adds these terms' contributions to the initial values of accumulators.
    ///
    /// # Safety
    /// As [`MatMul::pack`]; there is room for the words.
    unsafe fn pack_columns(
        &self,
        (from, apart): (*const u8, i64),
        columns: i64,
        (to, starts): (*mut u32, *mut i32),
    ) {
        let (panel, steps, count) = (self.panel(), self.steps(), self.terms.count());
        let size = self.terms.operand(1).size() as i64;
        let mut lines = [[0u32; WORDS]; PANEL];
        for first in (0..steps).step_by(WORDS) {
            let words = (steps - first).min(WORDS as i64);
            let terms = (words * count).min(self.k - first * count);
            let bytes = (terms * self.terms.size()) as usize;
            // SAFETY: the caller's; a panel has no more columns, and a line holds the words.
            unsafe {
                for (column, line) in (0..columns).zip(&mut lines) {
                    let at = (column * apart + first * count) * size;
                    line[words as usize - 1] = 0;
                    let line = line.as_mut_ptr().cast::<u8>();
                    let from = (from.offset(at as isize), 1);
                    self.terms.make(1, from, terms, line);
                    if self.terms.is_flipped() {
                        let line = std::slice::from_raw_parts(line.cast::<i8>(), bytes);
                        let start = self.terms.start(line.iter().map(|x| i32::from(*x)).sum());
                        let starts = starts.offset(column as isize);
                        *starts = (*starts).wrapping_add(start);
                    }
                }
                let lines = (lines.as_ptr().cast::<u32>(), 1, WORDS as i64);
                let to = to.offset((first * panel) as isize);
                pack(self.level, lines, (words, columns), (to, panel));
            }
        }
    }

    /// Packs the terms of one step of K for some columns, and adds their contributions to the initial values of
    /// accumulators.
    ///
    /// # Safety
    /// As [`MatMul::pack`]; there is room for the words.
    unsafe fn put_rows(
        &self,
        (from, row, col): Matrix<u8>,
        (count, columns): (i64, i64),
        (to, starts): (*mut u32, *mut i32),
        rows: &mut [[u32; PANEL]; 4],
    ) {
        let size = self.terms.operand(1).size() as i64;
        rows[count as usize..self.terms.count() as usize].fill([0; PANEL]);
        // SAFETY: the caller's; a panel has no more columns, and a step no more terms.
        unsafe {
            if self.terms.size() == 4 {
                return self.terms.make(1, (from, col), columns, to.cast());
            }
            for (i, line) in (0..count).zip(rows.iter_mut()) {
                let from = from.wrapping_offset((i * row * size) as isize);
                self.terms
                    .make(1, (from, col), columns, line.as_mut_ptr().cast());
            }
            let starts = self.terms.is_flipped().then_some(starts);
            let joined = Joined {
                rows,
                terms: self.terms,
                columns: columns as usize,
                to,
                starts,
            };
            compiled::<Join, _>(self.level)(joined);
        }
    }

    /// Returns some rows of A's matrix number `b` as micro-kernels read them, and the strides of rows and steps in
    /// bytes.
    ///
    /// # Safety
    /// As [`MatMul::run`]; the rows exist, and `copied` is the result of [`MatMul::copy_left`].
    pub(super) unsafe fn term_rows(
        &self,
        args: &[*mut u8],
        (b, first, count): (i64, i64, i64),
        copied: *const f32,
        (materialised, copies): (&mut Materialised, &mut Option<Storage>),
        failures: &Failures,
    ) -> Result<(*const u8, [i64; 2])> {
        if self.copies_left() {
            let row = (b * self.m + first) * self.pitch();
            let rows = copied.wrapping_offset(row as isize);
            return Ok((rows.cast(), [4 * self.pitch(), 4]));
        }
        let rows = (b, first, count);
        let size = self.terms.operand(0).size() as i64;
        // SAFETY: the caller's; there is room for the copy.
        unsafe {
            let (from, row, col) = match size {
                1 => self.rows::<u8>(args, rows, materialised, failures)?,
                _ => {
                    let (from, row, col) = self.rows::<u16>(args, rows, materialised, failures)?;
                    (from.cast(), row, col)
                }
            };
            if self.reads_terms(col) {
                return Ok((from, [size * row, 4]));
            }
            let pitch = self.pitch();
            let to = room::<f32>(copies, count * pitch)?;
            for i in 0..count {
                let from = from.offset((i * row * size) as isize);
                let to = to.offset((i * pitch) as isize).cast();
                self.line((from, col), to);
            }
            Ok((to.cast_const().cast(), [4 * pitch, 4]))
        }
    }

    /// Copies the terms of a row as micro-kernels read them.
    ///
    /// # Safety
    /// The terms exist, and there is room for whole words.
    unsafe fn line(&self, from: (*const u8, i64), to: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            self.terms.make(0, from, self.k, to);
            let bytes = self.k * self.terms.size();
            let rest = 4 * self.steps() - bytes;
            to.offset(bytes as isize).write_bytes(0, rest as usize);
        }
    }
}

/// Rows of terms that share words, and their columns; and the initial values of accumulators to adjust, if any.
struct Joined<'a> {
    rows: &'a [[u32; PANEL]; 4],
    terms: Terms,
    columns: usize,
    to: *mut u32,
    starts: Option<*mut i32>,
}

/// Packs terms of the same column into a word, the first in its lowest bits.
struct Join;

impl Kernel<Joined<'_>> for Join {
    #[inline(always)]
    unsafe fn run<I: Isa>(j: Joined<'_>) {
        // SAFETY: there are `columns` words, and a row has at least as many terms; nobody else uses the words.
        unsafe {
            let words = std::slice::from_raw_parts_mut(j.to, j.columns);
            let rows = j.rows.each_ref().map(|row| row.as_ptr());
            if j.terms.size() == 2 {
                let [a, b, ..] = rows.map(|row| &*row.cast::<[u16; PANEL]>());
                for (word, (a, b)) in words.iter_mut().zip(a.iter().zip(b)) {
                    *word = u32::from(*a) | u32::from(*b) << 16;
                }
                return;
            }
            let rows = rows.map(|row| &*row.cast::<[u8; PANEL]>());
            for (i, word) in words.iter_mut().enumerate().take(PANEL) {
                *word = u32::from_le_bytes(rows.map(|row| row[i]));
            }
            let Some(starts) = j.starts else {
                return;
            };
            let starts = std::slice::from_raw_parts_mut(starts, j.columns);
            for (i, start) in starts.iter_mut().enumerate().take(PANEL) {
                let term: i32 = rows.iter().map(|row| i32::from(row[i] as i8)).sum();
                *start = start.wrapping_add(j.terms.start(term));
            }
        }
    }
}
