//! Products of few rows, or small ones, in register tiles. Both matrices are read where they lie; of the right
//! one only the columns that fill no vector are copied, or all of them where columns lie in memory side by side.

use super::{MatMul, Work, ceil, run_blocks};
use crate::error::Result;
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::sums::{Lane, ROWS, RegisterSums, SLACK, Sums};
use crate::tile::Failures;

/// Multiply-adds of a block.
const BLOCK_WORK: i64 = 1 << 18;

/// What a thread keeps from block to block.
#[derive(Default)]
struct Scratch {
    /// The copied columns of a right matrix, and of which one.
    rhs: Option<Storage>,
    holds: Option<i64>,
    /// Raw results of some rows.
    flat: Option<Storage>,
}

impl MatMul {
    /// Runs a product in register tiles.
    ///
    /// # Safety
    /// As [`MatMul::run`].
    pub(super) unsafe fn small<T: Lane>(
        &self,
        args: &[*mut u8],
        parallel: bool,
        failures: &Failures,
    ) {
        let batch: i64 = self.batch.iter().product();
        let row = (self.k * self.n).max(1);
        let rows = ceil(BLOCK_WORK / row, ROWS).max(1) * ROWS;
        let rows = rows.min(self.m.max(1));
        let down = ceil(self.m, rows);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks(
            (batch * down, rows * row),
            launch,
            |i, args, scratch, work| unsafe {
                let from = i % down * rows;
                let part = (i / down, from, rows.min(self.m - from));
                self.small_block::<T>(args, part, scratch, work)
            },
        );
    }

    unsafe fn small_block<T: Lane>(
        &self,
        args: &[*mut u8],
        (b, from, rows): (i64, i64, i64),
        scratch: &mut Scratch,
        work: &mut Work,
    ) -> Result<()> {
        let rhs = self.at::<T>(&self.rhs, args, b, 0, 0);
        // Columns up to here are read in place, the others in the copy.
        let whole = match self.rhs.col {
            1 => self.n / SLACK * SLACK,
            _ => 0,
        };
        let copied = self.n - whole + SLACK;
        let copy = room::<T>(&mut scratch.rhs, self.k * copied)?;
        let pitch = self.n + SLACK;
        let flat = room::<T>(&mut scratch.flat, ROWS * pitch)?;
        let first = (b * self.m + from) * self.n;
        let dst = match self.epilogue {
            Some(_) => work.scratch::<T>(rows * self.n)?,
            None => args[self.out].cast::<T>().wrapping_offset(first as isize),
        };
        if scratch.holds != Some(b) {
            // SAFETY: linking proved the operand within its buffer; the copy has the room.
            unsafe { self.copy_rest(rhs, whole, copy, copied) };
            scratch.holds = Some(b);
        }
        for row in (0..rows).step_by(ROWS as usize) {
            let count = ROWS.min(rows - row);
            let sums = |x: *const T, x_pitch: i64, from_col: i64, to: i64| Sums {
                x,
                x_pitch: x_pitch as isize,
                channels: self.k as isize,
                taps: &[0],
                weights: self.at(&self.lhs, args, b, from + row, 0),
                weight_row: self.lhs.row as isize,
                weight_step: self.lhs.col as isize,
                rows: count as usize,
                positions: (to - from_col) as usize,
                dst: flat.wrapping_offset(from_col as isize),
                pitch: pitch as usize,
            };
            // SAFETY: linking proved the operands within their buffers; the copy and the raw results have
            // slack for whole vectors.
            unsafe {
                let run = compiled::<RegisterSums<T>, _>(self.level);
                if whole > 0 {
                    run(sums(rhs, self.rhs.row, 0, whole));
                }
                run(sums(copy, copied, whole, self.n));
                for r in 0..count {
                    let from = flat.offset((r * pitch) as isize);
                    let to = dst.offset(((row + r) * self.n) as isize);
                    std::ptr::copy_nonoverlapping(from, to, self.n as usize);
                }
            }
        }
        // SAFETY: the raw results are there.
        unsafe { work.finish((dst, self.n), first, (rows, self.n), self.n) };
        Ok(())
    }

    /// Copies the columns of a right matrix from `first` on to rows that far apart.
    ///
    /// # Safety
    /// Both have their elements.
    unsafe fn copy_rest<T: Lane>(&self, from: *const T, first: i64, to: *mut T, pitch: i64) {
        for k in 0..self.k {
            for j in first..self.n {
                // SAFETY: the caller's.
                unsafe {
                    let from = from.offset((k * self.rhs.row + j * self.rhs.col) as isize);
                    *to.offset((k * pitch + j - first) as isize) = *from;
                }
            }
        }
    }
}
