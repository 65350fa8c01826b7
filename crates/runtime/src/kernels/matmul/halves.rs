//! Operands that are halves. Where the level multiplies pairs of bf16 these are the elements of what register tiles
//! read, else they are copied as f32.

use super::{Args, Made, MatMul, split};
use crate::error::Result;
use crate::memory::{Storage, room};
use crate::simd::convert::{pair, widen};
use crate::tile::Failures;
use crate::tile::affine::ceil;
use kiln_base::DType;

/// Words between rows of a copy.
const APART: i64 = 16;
/// Halves that are widened at a time.
const SOME: usize = 64;

impl MatMul {
    /// Steps of a sum: its terms, or pairs of these.
    pub(super) fn steps(&self) -> i64 {
        if self.pairs { ceil(self.k, 2) } else { self.k }
    }

    /// The dtype of its operands.
    fn operands(&self) -> DType {
        self.halves.unwrap_or(self.dtype)
    }

    /// Whether register tiles read rows as they are, whose elements are so far apart.
    fn reads_pairs(&self, col: i64) -> bool {
        self.pairs && col == 1 && self.k % 2 == 0
    }

    /// Whether they read a copy of the left matrix, which is made for all of them.
    fn copies_left(&self) -> bool {
        self.halves.is_some() && self.lhs.made.is_none() && !self.reads_pairs(self.lhs.col)
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
                let from = self.at(&self.lhs, args.0, row / self.m, row % self.m, 0);
                // SAFETY: linking proved the operand within its buffer; rows of the copy are apart.
                unsafe {
                    let to = copy.0[0]
                        .cast::<f32>()
                        .offset((row * self.pitch()) as isize);
                    self.line((from, self.lhs.col), (to, 1));
                }
            }
        });
        Ok(to)
    }

    /// Packs a right matrix of halves.
    ///
    /// # Safety
    /// As [`MatMul::pack`].
    pub(super) unsafe fn pack_halves(&self, from: *mut u8, to: *mut u8, parallel: bool) {
        let args = Args(&[from, to]);
        let (panel, steps) = (self.panel(), self.steps());
        split(
            self.panels_across(),
            panel * self.k,
            parallel,
            |first, until| {
                let args = &args;
                let from = args.0[0]
                    .cast::<u16>()
                    .wrapping_offset(self.rhs.offset as isize);
                for column in (first..until).map(|i| i * panel) {
                    let columns = panel.min(self.n - column);
                    // SAFETY: linking proved the operand within its buffer; panels are apart.
                    unsafe {
                        let from = from.offset((column * self.rhs.col) as isize);
                        let to = args.0[1].cast::<f32>().offset((column * steps) as isize);
                        if columns < panel {
                            to.write_bytes(0, (panel * steps) as usize);
                        }
                        if self.rhs.col == 1 {
                            self.pack_rows(from, columns as usize, to);
                            continue;
                        }
                        for j in 0..columns {
                            let from = from.offset((j * self.rhs.col) as isize);
                            self.line((from, self.rhs.row), (to.offset(j as isize), panel));
                        }
                    }
                }
            },
        );
    }

    /// Packs columns that lie side by side, a step at a time.
    ///
    /// # Safety
    /// As [`MatMul::pack`]; there is room for a panel.
    unsafe fn pack_rows(&self, from: *const u16, columns: usize, to: *mut f32) {
        let (panel, terms) = (self.panel(), if self.pairs { 2 } else { 1 });
        let half = self.operands();
        for step in 0..self.steps() {
            // SAFETY: the caller's.
            unsafe {
                let row = |term: i64| {
                    let from = from.wrapping_offset((term * self.rhs.row) as isize);
                    (term < self.k).then(|| std::slice::from_raw_parts(from, columns))
                };
                let to = to.offset((step * panel) as isize);
                let to = std::slice::from_raw_parts_mut(to, columns);
                match (row(step * terms), row(step * terms + 1)) {
                    (Some(a), Some(b)) if self.pairs => {
                        for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                            *to = word(*a, *b);
                        }
                    }
                    (Some(a), _) if self.pairs => {
                        for (to, a) in to.iter_mut().zip(a) {
                            *to = word(*a, 0);
                        }
                    }
                    (Some(a), _) => widen(half, a, to),
                    (None, _) => {}
                }
            }
        }
    }

    /// Some rows of left matrix number `b` as register tiles read them, and how many bytes rows and steps are apart.
    ///
    /// # Safety
    /// As [`MatMul::run`]; the rows exist, and `copied` is what [`MatMul::copy_left`] gave.
    pub(super) unsafe fn half_rows(
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
        // SAFETY: the caller's; there is room for the copy.
        unsafe {
            let (from, row, col) = self.rows::<u16>(args, rows, made, failures)?;
            if self.reads_pairs(col) {
                return Ok((from.cast(), [2 * row, 4]));
            }
            let pitch = self.pitch();
            let to = room::<f32>(copies, count * pitch)?;
            for i in 0..count {
                let from = from.offset((i * row) as isize);
                self.line((from, col), (to.offset((i * pitch) as isize), 1));
            }
            Ok((to.cast_const().cast(), [4 * pitch, 4]))
        }
    }

    /// Copies the terms of a sum as register tiles read them. Both distances are in elements.
    ///
    /// # Safety
    /// The terms exist, and there is room.
    unsafe fn line(&self, (from, apart): (*const u16, i64), (to, step): (*mut f32, i64)) {
        // SAFETY: the caller's.
        let term = |i: i64| unsafe { *from.offset((i * apart) as isize) };
        // SAFETY: the caller's.
        let put = |i: i64, word: f32| unsafe { *to.offset((i * step) as isize) = word };
        if self.pairs {
            (0..self.k / 2).for_each(|i| put(i, word(term(2 * i), term(2 * i + 1))));
            if self.k % 2 == 1 {
                put(self.k / 2, word(term(self.k - 1), 0));
            }
            return;
        }
        let half = self.operands();
        let (mut halves, mut words) = ([0; SOME], [0.0; SOME]);
        for first in (0..self.k).step_by(SOME) {
            let count = (self.k - first).min(SOME as i64);
            let (halves, words) = (&mut halves[..count as usize], &mut words[..count as usize]);
            (0..)
                .zip(&mut *halves)
                .for_each(|(i, x)| *x = term(first + i));
            widen(half, halves, words);
            (0..).zip(words).for_each(|(i, x)| put(first + i, *x));
        }
    }
}

/// Two halves as a word of what is packed.
fn word(first: u16, second: u16) -> f32 {
    f32::from_bits(pair(first, second))
}
