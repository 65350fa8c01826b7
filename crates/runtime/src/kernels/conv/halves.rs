//! Operands that are halves. Where the level multiplies pairs of bf16, register tiles read these, else all of an
//! operand is copied as f32 first.

use super::Conv;
use crate::error::Result;
use crate::kernels::matmul::{Args, split};
use crate::memory::{Storage, room};
use crate::simd::compiled;
use crate::simd::convert::{pair, widen};
use crate::simd::transpose::{Transpose, Turn};
use crate::tile::affine::ceil;
use crate::tile::{Failures, Linked, Runner};
use kiln_base::DType;
use kiln_plan::ConvRole;
use smallvec::SmallVec;

/// Elements that a part widens.
const PART: i64 = 1 << 12;

impl Conv {
    /// Whether an operand is read as f32 that was copied from halves.
    pub(super) fn widens(&self, i: usize) -> bool {
        let in_pairs = self.pairs && (i == 0 || self.role == ConvRole::Weight);
        self.halves.is_some() && !in_pairs
    }

    /// The arguments without what is widened.
    pub(super) fn given<'a>(&self, args: &'a [*mut u8]) -> &'a [*mut u8] {
        &args[..self.args]
    }

    /// What register tiles multiply: numbers, or pairs of bf16.
    pub(super) fn terms(&self) -> DType {
        if self.pairs { DType::BF16 } else { self.dtype }
    }

    /// What makes the images a part at a time.
    pub(super) fn made_in_parts(&self) -> Option<&Linked> {
        self.made.as_deref().filter(|_| !self.widens(0))
    }

    /// Elements of an operand.
    pub(super) fn operand_len(&self, i: usize) -> i64 {
        let g = &self.geometry;
        let images = self.batch * self.groups;
        let filters = self.groups * self.cout * self.cin * g.kernels();
        match (self.role, i) {
            (ConvRole::Result, 0) | (ConvRole::Weight, 0) => images * self.cin * g.inputs(),
            (ConvRole::Input, 0) | (ConvRole::Weight, _) => images * self.cout * g.outputs(),
            _ => filters,
        }
    }

    /// The arguments, and behind them what is widened of the operands: of weights only what is not `packed`.
    ///
    /// # Safety
    /// As [`Conv::run`].
    pub(super) unsafe fn widened(
        &self,
        args: &[*mut u8],
        (half, packed): (DType, bool),
        [made, images, other]: &mut [Option<Storage>; 3],
        parallel: bool,
        failures: &Failures,
    ) -> Result<SmallVec<[*mut u8; 12]>> {
        let mut all: SmallVec<[*mut u8; 12]> = args.iter().copied().collect();
        for (i, to) in [images, other].into_iter().enumerate() {
            if !self.widens(i) || i == 1 && packed {
                all.push(std::ptr::null_mut());
                continue;
            }
            let len = self.operand_len(i);
            // SAFETY: the caller's; linking checked the operands' lengths.
            let wide = unsafe {
                let from = match &self.made {
                    Some(program) if i == 0 => {
                        make(program, (args, len), made, parallel, failures)?
                    }
                    _ => args[self.operands[i]],
                };
                self.widen((half, from, len), to, parallel)?
            };
            all.push(wide);
        }
        Ok(all)
    }

    /// Puts pairs of channels of `n` positions that lie side by side, as [`join`] does.
    ///
    /// # Safety
    /// The channels exist, `apart` elements from one to the next, and there is room for their pairs.
    pub(super) unsafe fn turn_pairs(
        &self,
        from: *const u16,
        (apart, channels): (i64, i64),
        (n, to): (i64, *mut u32),
    ) {
        const ROWS: i64 = 8;
        const SOME: i64 = 64;
        let pairs = ceil(channels, 2);
        let mut rows = [[0u32; SOME as usize]; ROWS as usize];
        for first in (0..n).step_by(SOME as usize) {
            let count = SOME.min(n - first) as usize;
            for top in (0..pairs).step_by(ROWS as usize) {
                let some = ROWS.min(pairs - top);
                // SAFETY: the caller's.
                let line = |channel: i64| unsafe {
                    let from = from.offset((channel * apart + first) as isize);
                    std::slice::from_raw_parts(from, count)
                };
                for (row, i) in rows.iter_mut().zip(top..top + some) {
                    for (word, a) in row.iter_mut().zip(line(2 * i)) {
                        *word = u32::from(*a);
                    }
                    if 2 * i + 1 < channels {
                        for (word, b) in row.iter_mut().zip(line(2 * i + 1)) {
                            *word |= u32::from(*b) << 16;
                        }
                    }
                }
                // SAFETY: the caller's.
                unsafe {
                    compiled::<Turn<u32>, _>(self.level)(Transpose {
                        from: rows.as_ptr().cast(),
                        pitch: SOME as isize,
                        rows: some as usize,
                        columns: count,
                        to: to.offset((first * pairs + top) as isize),
                        to_pitch: pairs as isize,
                    });
                }
            }
        }
    }

    /// Halves as f32.
    ///
    /// # Safety
    /// There are as many.
    pub(super) unsafe fn widen(
        &self,
        (half, from, len): (DType, *mut u8, i64),
        storage: &mut Option<Storage>,
        parallel: bool,
    ) -> Result<*mut u8> {
        let to = room::<f32>(storage, len)?.cast::<u8>();
        let both = Args(&[from, to]);
        split(ceil(len, PART), PART, parallel, |first, end| {
            let both = &both;
            let (first, end) = (first * PART, (end * PART).min(len));
            let count = (end - first) as usize;
            // SAFETY: the caller's; parts are apart.
            unsafe {
                let from = both.0[0].cast::<u16>().add(first as usize);
                let to = both.0[1].cast::<f32>().add(first as usize);
                let from = std::slice::from_raw_parts(from, count);
                widen(half, from, std::slice::from_raw_parts_mut(to, count));
            }
        });
        Ok(to)
    }
}

/// All that a prologue makes.
///
/// # Safety
/// See [`Runner::new`] for the arguments; it makes so many halves.
unsafe fn make(
    program: &Linked,
    (args, len): (&[*mut u8], i64),
    storage: &mut Option<Storage>,
    parallel: bool,
    failures: &Failures,
) -> Result<*mut u8> {
    let to = room::<u16>(storage, len)?.cast::<u8>();
    let all: SmallVec<[*mut u8; 12]> = args.iter().copied().chain([to]).collect();
    let all = Args(&all);
    split(ceil(len, PART), PART, parallel, |first, end| {
        let all = &all;
        // SAFETY: the caller's; parts are apart.
        match unsafe { Runner::new(program, all.0.as_ptr(), failures) } {
            // SAFETY: as above.
            Ok(mut runner) => unsafe { runner.range(first * PART, (end * PART).min(len)) },
            Err(e) => failures.broken(e),
        }
    });
    Ok(to)
}

/// Puts pairs of a position's channels, so many elements apart, one behind the other; behind an odd number of them is
/// a zero.
///
/// # Safety
/// The channels exist, and there is room for their pairs.
pub(super) unsafe fn join(from: *const u16, apart: i64, channels: i64, to: *mut u32) {
    let to = to.cast::<u16>();
    // SAFETY: the caller's.
    unsafe {
        match apart {
            1 => std::ptr::copy_nonoverlapping(from, to, channels as usize),
            _ => {
                let term = |i: i64| *from.offset((i * apart) as isize);
                (0..channels).for_each(|i| *to.offset(i as isize) = term(i));
            }
        }
        if channels % 2 == 1 {
            *to.offset(channels as isize) = 0;
        }
    }
}

/// Pairs of rows of halves: of row `i * step` and that `apart` rows behind it, for so many `i`.
///
/// # Safety
/// The rows exist, `pitch` elements from one to the next, and there is room, `to_pitch` from one to the next.
pub(super) unsafe fn join_rows(
    (from, pitch): (*const u16, i64),
    (count, step, apart): (i64, i64, i64),
    columns: i64,
    (to, to_pitch): (*mut u32, i64),
) {
    for i in 0..count {
        // SAFETY: the caller's.
        unsafe {
            let row = |row: i64| {
                let from = from.offset((row * pitch) as isize);
                std::slice::from_raw_parts(from, columns as usize)
            };
            let to = to.offset((i * to_pitch) as isize);
            let to = std::slice::from_raw_parts_mut(to, columns as usize);
            let pairs = row(i * step).iter().zip(row(i * step + apart));
            for (to, (first, second)) in to.iter_mut().zip(pairs) {
                *to = pair(*first, *second);
            }
        }
    }
}
