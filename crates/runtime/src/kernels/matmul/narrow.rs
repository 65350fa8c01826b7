//! Operands that are copied before register tiles read them: such as have fewer bits than their sums, unless tiles
//! multiply them as they lie, and rows that would meet in the caches.

use super::{Args, Made, MatMul, split};
use crate::error::Result;
use crate::kernels::terms::put;
use crate::memory::{Storage, room};
use crate::tile::Failures;

/// Words between rows of a copy.
const APART: i64 = 16;
/// Rows that are a multiple of so many bytes apart meet in the same sets of a cache...
const MEETS: i64 = 2048;
/// ...and are copied where there are so many columns to read them for.
const OFTEN: i64 = 256;
/// Columns of a panel, at most.
const PANEL: usize = 64;

impl MatMul {
    /// Steps of a sum: words of its terms.
    pub(super) fn steps(&self) -> i64 {
        self.terms.words(self.k)
    }

    /// Whether register tiles read rows as they are, whose elements are so far apart.
    fn reads_terms(&self, col: i64) -> bool {
        let whole = self.k % self.terms.count() == 0;
        !self.terms.converts(0) && col == 1 && whole
    }

    /// Whether they read a copy of the left matrix, which is made for all of them.
    pub(super) fn copies_left(&self) -> bool {
        let size = self.terms.operand(0).size() as i64;
        let meets = (size * self.lhs.row) % MEETS == 0 && self.m > 1 && self.n >= OFTEN;
        let other = self.terms.are_narrow() && !self.reads_terms(self.lhs.col);
        self.lhs.made.is_none() && size <= 4 && (other || meets)
    }

    /// Words from row to row of the copy of the left matrix: rows that are far apart must not meet in the caches.
    fn pitch(&self) -> i64 {
        self.steps() + APART
    }

    /// Words of the copy of the left matrix.
    pub(super) fn copied_words(&self) -> i64 {
        match self.copies_left() {
            true => self.batch.iter().product::<i64>() * self.m * self.pitch(),
            false => 0,
        }
    }

    /// The address of an element of an operand, in bytes.
    fn element(&self, i: usize, args: &[*mut u8], b: i64, row: i64, column: i64) -> *const u8 {
        let x = [&self.lhs, &self.rhs][i];
        match self.terms.operand(i).size() {
            1 => self.at::<u8>(x, args, b, row, column),
            2 => self.at::<u16>(x, args, b, row, column).cast(),
            _ => self.at::<u32>(x, args, b, row, column).cast(),
        }
    }

    /// Copies the left matrices as register tiles read them, where they do.
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

    /// Packs a right matrix.
    ///
    /// # Safety
    /// As [`MatMul::pack`].
    pub(super) unsafe fn pack_terms(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        let args = Args(&[from, to]);
        let panel = self.panel();
        let work = panel * self.k;
        split(self.panels_across(), work, parallel, |first, until| {
            let args = &args;
            let size = self.terms.operand(1).size() as i64;
            for column in (first..until).map(|i| i * panel) {
                let at = self.rhs.offset + column * self.rhs.col;
                let from = args.0[0].wrapping_offset((at * size) as isize);
                let apart = [self.rhs.row, self.rhs.col];
                // SAFETY: linking proved the operand within its buffer; panels are apart.
                unsafe { self.pack_panel((from, apart), column, args.0[1]) };
            }
        });
    }

    /// The same of one that a prologue makes, the columns of a panel at a time.
    ///
    /// # Safety
    /// As [`MatMul::run`]; `to` has room for what is packed.
    pub(super) unsafe fn pack_made(
        &self,
        args: &[*mut u8],
        to: *mut u8,
        parallel: bool,
        failures: &Failures,
    ) {
        let (args, to) = (Args(args), Args(&[to]));
        let panel = self.panel();
        let work = panel * self.k;
        split(self.panels_across(), work, parallel, |first, until| {
            let (args, to) = (&args, &to);
            let mut made = Made::default();
            for column in (first..until).map(|i| i * panel) {
                let columns = (0, column, panel.min(self.n - column));
                // SAFETY: the caller's; panels are apart.
                let packed = unsafe {
                    let found = match self.terms.operand(1).size() {
                        1 => {
                            let found = self.columns::<u8>(args.0, columns, &mut made, failures);
                            found.map(|(from, row, col)| (from, [row, col]))
                        }
                        _ => {
                            let found = self.columns::<u16>(args.0, columns, &mut made, failures);
                            found.map(|(from, row, col)| (from.cast(), [row, col]))
                        }
                    };
                    found.map(|from| self.pack_panel(from, column, to.0[0]))
                };
                if let Err(e) = packed {
                    failures.broken(e);
                }
            }
        });
    }

    /// Packs the panel that begins with a column, whose rows and columns are so many elements apart.
    ///
    /// # Safety
    /// The columns exist; `to` has room for what is packed.
    unsafe fn pack_panel(
        &self,
        (from, [row, col]): (*const u8, [i64; 2]),
        column: i64,
        to: *mut u8,
    ) {
        let (panel, steps) = (self.panel(), self.steps());
        let columns = panel.min(self.n - column);
        let size = self.terms.operand(1).size() as i64;
        // SAFETY: the caller's.
        unsafe {
            let starts = to
                .cast::<u32>()
                .offset((column * self.panel_rows()) as isize);
            let to = starts.offset((panel * (self.panel_rows() - steps)) as isize);
            if columns < panel || to != starts {
                starts.write_bytes(0, (panel * self.panel_rows()) as usize);
            }
            for term in 0..self.k {
                let from = from.wrapping_offset((term * row * size) as isize);
                let step = term / self.terms.count();
                let to = to.offset((step * panel) as isize);
                self.put_row((from, col), columns, (to, starts.cast()), term);
            }
        }
    }

    /// Packs a term of each of some columns, and has their sums begin with what it adds to these.
    ///
    /// # Safety
    /// As [`MatMul::pack`]; there is room for the words.
    unsafe fn put_row(
        &self,
        from: (*const u8, i64),
        columns: i64,
        (to, starts): (*mut u32, *mut i32),
        term: i64,
    ) {
        let mut row = [0u32; PANEL];
        let row = row.as_mut_ptr();
        let bits = 8 * self.terms.size() * (term % self.terms.count());
        let to = (to, columns);
        // SAFETY: the caller's; a panel has no more columns.
        unsafe {
            self.terms.make(1, from, columns, row.cast());
            match self.terms.size() {
                1 => put(row.cast::<u8>(), bits, to, u32::from),
                2 => put(row.cast::<u16>(), bits, to, u32::from),
                _ => put(row, bits, to, |x| x),
            }
            if self.terms.is_flipped() {
                for i in 0..columns as usize {
                    let term = *row.cast::<i8>().add(i);
                    let start = self.terms.start(term.into());
                    *starts.add(i) = (*starts.add(i)).wrapping_add(start);
                }
            }
        }
    }

    /// Some rows of left matrix number `b` as register tiles read them, and how many bytes rows and steps are apart.
    ///
    /// # Safety
    /// As [`MatMul::run`]; the rows exist, and `copied` is what [`MatMul::copy_left`] gave.
    pub(super) unsafe fn term_rows(
        &self,
        args: &[*mut u8],
        (b, first, count): (i64, i64, i64),
        copied: *const f32,
        (made, copies): (&mut Made, &mut Option<Storage>),
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
                1 => self.rows::<u8>(args, rows, made, failures)?,
                _ => {
                    let (from, row, col) = self.rows::<u16>(args, rows, made, failures)?;
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

    /// Copies the terms of a sum as register tiles read them.
    ///
    /// # Safety
    /// The terms exist, and there is room for whole words.
    unsafe fn line(&self, from: (*const u8, i64), to: *mut u8) {
        // SAFETY: the caller's.
        unsafe {
            self.terms.make(0, from, self.k, to);
            let made = self.k * self.terms.size();
            let rest = 4 * self.steps() - made;
            to.offset(made as isize).write_bytes(0, rest as usize);
        }
    }
}
