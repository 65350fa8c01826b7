//! Sums of products in register tiles: some rows by some vectors of positions, over channels and taps.
//!
//! Nothing is packed: weights are broadcast from where they lie, positions lie side by side. Convolutions,
//! small products and those with a vector all come down to this loop. An element is summed in order, whatever
//! the tile.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use crate::kernels::matmul::Number;
use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel, Level, fma32, fma64};
use std::marker::PhantomData;

/// Rows that share a walk over the values, at most.
pub(crate) const ROWS: i64 = 8;
/// Rows of a register tile of a level: with its vectors of positions they fill the registers, and leave room for
/// what is multiplied.
pub(crate) fn rows_of(level: Level) -> i64 {
    match level {
        Level::Avx2 => 6,
        _ => ROWS,
    }
}
/// Elements behind the last position that are read and written: no vector has more lanes.
pub(crate) const SLACK: i64 = kiln_plan::cost::geometry::LANES;

/// A number that vectors hold.
pub(crate) trait Lane: Number + std::ops::Add<Output = Self> {
    /// A level's widest vector of it.
    type Vector<I: Isa>: Vector<Lane = Self>;
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    fn is_finite(self) -> bool;
}
impl Lane for f32 {
    type Vector<I: Isa> = I::F32;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f32, c: f32) -> f32 {
        fma32::<I>(self, b, c)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }
}
impl Lane for f64 {
    type Vector<I: Isa> = I::F64;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f64, c: f64) -> f64 {
        fma64::<I>(self, b, c)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }
}

/// `dst[r, p] = Σ_c Σ_t weights[r, c, t] · x[c, p + taps[t]]`.
pub(crate) struct Sums<'a, T> {
    /// The values, and the distance of two channels.
    pub x: *const T,
    pub x_pitch: isize,
    pub channels: isize,
    pub taps: &'a [isize],
    /// The weights of the first row, the distance of two rows, and that of two weights of one.
    pub weights: *const T,
    pub weight_row: isize,
    pub weight_step: isize,
    /// How many rows, up to [`rows_of`] of the level.
    pub rows: usize,
    /// How many positions. Whole vectors are read and written: up to [`SLACK`] elements behind the last.
    pub positions: usize,
    /// The results, rows `pitch` apart.
    pub dst: *mut T,
    pub pitch: usize,
}

pub(crate) struct RegisterSums<T>(PhantomData<T>);
impl<T: Lane> Kernel<Sums<'_, T>> for RegisterSums<T> {
    #[inline(always)]
    unsafe fn run<I: Isa>(s: Sums<'_, T>) {
        let lanes = T::Vector::<I>::LANES;
        let vectors = s.positions.div_ceil(lanes);
        let mut at = 0;
        // SAFETY: operands and results have room for these rows and for whole vectors of the positions: what is read has
        // slack behind the last.
        unsafe {
            while at < vectors {
                let left = vectors - at;
                let from = at * lanes;
                at += match (I::LEVEL, s.rows) {
                    (_, 1) if left >= 8 => tile::<T, T::Vector<I>, 1, 8>(&s, from, 0),
                    (_, 1) if left >= 4 => tile::<T, T::Vector<I>, 1, 4>(&s, from, 0),
                    (_, 1) => tile::<T, T::Vector<I>, 1, 1>(&s, from, 0),
                    (Level::Avx512, 5..) if left >= 3 => tile::<T, T::Vector<I>, 8, 3>(&s, from, 0),
                    (Level::Avx512, 5..) if left >= 2 => tile::<T, T::Vector<I>, 8, 2>(&s, from, 0),
                    (Level::Avx512, 5..) => tile::<T, T::Vector<I>, 8, 1>(&s, from, 0),
                    (Level::Avx2, 2) if left >= 4 => tile::<T, T::Vector<I>, 2, 4>(&s, from, 0),
                    (Level::Avx2, 5..) if left >= 2 => tile::<T, T::Vector<I>, 6, 2>(&s, from, 0),
                    (Level::Avx2, 5..) => tile::<T, T::Vector<I>, 6, 1>(&s, from, 0),
                    (Level::Avx2, _) if left >= 2 => tile::<T, T::Vector<I>, 4, 2>(&s, from, 0),
                    (_, rows) => {
                        for row in (4..rows).step_by(4) {
                            match left {
                                1 | 2 => tile::<T, T::Vector<I>, 4, 1>(&s, from, row),
                                _ => tile::<T, T::Vector<I>, 4, 3>(&s, from, row),
                            };
                        }
                        match left {
                            1 | 2 => tile::<T, T::Vector<I>, 4, 1>(&s, from, 0),
                            _ => tile::<T, T::Vector<I>, 4, 3>(&s, from, 0),
                        }
                    }
                };
            }
        }
    }
}

/// Adds to each row's sums the product of its weight number `w` and the vectors at `x`.
///
/// # Safety
/// As [`Vector::load`] for everything that is read.
#[inline(always)]
unsafe fn add_products<T: Lane, V: Vector<Lane = T>, const R: usize, const N: usize>(
    sums: &mut [[V; N]; R],
    x: *const T,
    weights: &[*const T; R],
    w: isize,
) {
    // SAFETY: `N` vectors can be loaded at `x`, and each row has a weight `w`.
    unsafe {
        let mut values = [V::splat(T::ZERO); N];
        for n in 0..N {
            values[n] = V::load(x.add(n * V::LANES));
        }
        for r in 0..R {
            let weight = V::splat(*weights[r].offset(w));
            for n in 0..N {
                sums[r][n] = values[n].mul_add(weight, sums[r][n]);
            }
        }
    }
}

/// `R` rows from `row` on by `N` vectors of positions from `from` on. Where there are fewer rows, the last
/// one is computed again. Gives `N`.
///
/// # Safety
/// As [`Vector::load`] for everything that is read, and room for what is written.
#[inline(always)]
unsafe fn tile<T: Lane, V: Vector<Lane = T>, const R: usize, const N: usize>(
    s: &Sums<'_, T>,
    from: usize,
    row: usize,
) -> usize {
    // SAFETY: rows stop at the last, and the vectors can be loaded and have room.
    unsafe {
        let mut sums = [[V::splat(T::ZERO); N]; R];
        let mut weights = [s.weights; R];
        for r in 0..R {
            let row = (row + r).min(s.rows - 1);
            weights[r] = s.weights.offset(row as isize * s.weight_row);
        }
        let mut x = s.x.add(from);
        let mut w = 0;
        match s.taps {
            // A walk of at least one step, and a loop by itself: its sums have one way in, so none is moved or
            // spilled.
            [tap] if s.channels > 0 => {
                x = x.offset(*tap);
                let mut c = 0;
                loop {
                    add_products(&mut sums, x, &weights, w);
                    x = x.wrapping_offset(s.x_pitch);
                    w += s.weight_step;
                    c += 1;
                    if c >= s.channels {
                        break;
                    }
                }
            }
            _ => {
                for _ in 0..s.channels {
                    for tap in s.taps {
                        add_products(&mut sums, x.offset(*tap), &weights, w);
                        w += s.weight_step;
                    }
                    x = x.wrapping_offset(s.x_pitch);
                }
            }
        }
        for r in 0..R {
            if row + r < s.rows {
                for n in 0..N {
                    let dst = s.dst.add((row + r) * s.pitch + from + n * V::LANES);
                    sums[r][n].store(dst);
                }
            }
        }
    }
    N
}
