//! Register tiles on processors without emission.

use super::depthwise::Depthwise;
use super::tile::{Call, Tile};
use super::transform::Transform;
use kiln_base::DType;
use kiln_kernel::simd::Baseline;
use kiln_kernel::simd::convert;
use kiln_kernel::simd::convert::Mem;
use kiln_kernel::sums::Lane;
use kiln_plan::schedule::lanes;

/// The rows and columns that are computed at once.
const ROWS: usize = 4;
const COLUMNS: usize = 16;

/// Calls a function whose last argument is the multiply-add of an instruction.
macro_rules! by_terms {
    ($instruction:expr, $function:path, $($argument:expr),*) => {
        match $instruction.terms[0] {
            DType::F64 => $function($($argument,)* portable::add::<f64>),
            DType::BF16 => $function($($argument,)* portable::add_pair::<kiln_kernel::simd::convert::BF16>),
            DType::F16 => $function($($argument,)* portable::add_pair::<kiln_kernel::simd::convert::F16>),
            DType::U8 => $function($($argument,)* portable::add_bytes),
            DType::I16 => $function($($argument,)* portable::add_shorts),
            DType::I32 => $function($($argument,)* portable::add_words),
            DType::I64 => $function($($argument,)* portable::add_longs),
            _ => $function($($argument,)* portable::add::<f32>),
        }
    };
}
pub(super) use by_terms;

/// `sum + x · y`.
#[inline(always)]
pub(super) fn add<T: Lane>(sum: T, x: T, y: T) -> T {
    x.mul_add::<Baseline>(y, sum)
}

/// `sum + x · y` of pairs of f16 or bf16, the second ones first.
#[inline(always)]
pub(super) fn add_pair<H: Mem<Raw = u16, C = f32>>(sum: f32, x: f32, y: f32) -> f32 {
    let pair = |x: f32| [16, 0].map(|shift| H::load((x.to_bits() >> shift) as u16));
    let ([x2, x1], [y2, y1]) = (pair(x), pair(y));
    add(add(sum, x2, y2), x1, y1)
}

/// `sum + x · y` of i32, whose bits the arguments hold.
#[inline(always)]
pub(super) fn add_words(sum: f32, x: f32, y: f32) -> f32 {
    let [sum, x, y] = [sum, x, y].map(f32::to_bits);
    f32::from_bits(sum.wrapping_add(x.wrapping_mul(y)))
}

/// `sum + x · y` of i64, whose bits the arguments hold.
#[inline(always)]
pub(super) fn add_longs(sum: f64, x: f64, y: f64) -> f64 {
    let [sum, x, y] = [sum, x, y].map(f64::to_bits);
    f64::from_bits(sum.wrapping_add(x.wrapping_mul(y)))
}

/// `sum + x · y` of pairs of i16.
#[inline(always)]
pub(super) fn add_shorts(sum: f32, x: f32, y: f32) -> f32 {
    let shorts = |x: f32| [0, 16].map(|shift| i32::from((x.to_bits() >> shift) as i16));
    add_dot_product(sum, shorts(x), shorts(y))
}

/// Returns `sum` plus the dot product of four u8 of `x` and four i8 of `y`.
#[inline(always)]
pub(super) fn add_bytes(sum: f32, x: f32, y: f32) -> f32 {
    let bytes = |x: f32| x.to_bits().to_le_bytes();
    add_dot_product(
        sum,
        bytes(x).map(i32::from),
        bytes(y).map(|y| i32::from(y as i8)),
    )
}

#[inline(always)]
fn add_dot_product<const N: usize>(sum: f32, x: [i32; N], y: [i32; N]) -> f32 {
    let products = (0..N).map(|i| x[i].wrapping_mul(y[i]));
    let sum = products.fold(sum.to_bits() as i32, i32::wrapping_add);
    f32::from_bits(sum as u32)
}

/// Computes a tile; `add` is its multiply-add.
///
/// # Safety
/// As [`Kernel::run`](super::Kernel::run); the elements are words of its instruction's terms.
pub(super) unsafe fn run<T: Lane>(tile: &Tile, call: &Call, add: impl Fn(T, T, T) -> T + Copy) {
    for row in (0..usize::from(tile.rows.count)).step_by(ROWS) {
        for column in (0..usize::from(tile.columns)).step_by(COLUMNS) {
            // SAFETY: the caller's; rows and columns are the tile's.
            unsafe { block(tile, call, (row, column), add) }
        }
    }
}

/// Computes `ROWS` × `COLUMNS` of the tile from `row`, `column`. Missing rows are replaced with the last one.
///
/// # Safety
/// As [`run`].
unsafe fn block<T: Lane>(
    tile: &Tile,
    call: &Call,
    (row, column): (usize, usize),
    add: impl Fn(T, T, T) -> T,
) {
    let rows: [u8; ROWS] =
        std::array::from_fn(|r| (row + r).min(usize::from(tile.rows.count) - 1) as u8);
    let columns = COLUMNS.min(usize::from(tile.columns) - column);
    let out = |r: usize| {
        let out = call
            .out
            .wrapping_offset((tile.rows.result(rows[r]) * tile.out) as isize);
        out.cast::<T>().wrapping_add(column)
    };
    let mut accumulators = [[T::ZERO; COLUMNS]; ROWS];
    // SAFETY: taps, steps of K, rows and columns are those of the operands.
    unsafe {
        if tile.adds {
            for (r, accumulators) in accumulators.iter_mut().enumerate() {
                std::ptr::copy_nonoverlapping(out(r), accumulators.as_mut_ptr(), columns);
            }
        }
        let lanes = usize::from(lanes(tile.level, tile.instruction.sums));
        let vector = tile.right_vector((column / lanes) as u8);
        let first = call.right.wrapping_offset(vector as isize);
        let mut right = first.wrapping_add(column % lanes * tile.right_size());
        if tile.has_initial_row {
            for accumulators in &mut accumulators {
                std::ptr::copy_nonoverlapping(right.cast(), accumulators.as_mut_ptr(), columns);
            }
            right = right.wrapping_offset(tile.right.step as isize);
        }
        for tap in 0..tile.taps as usize {
            let tap_offset = if tile.taps == 1 {
                0
            } else {
                *call.taps.add(tap)
            };
            let left = rows.map(|r| {
                call.left
                    .wrapping_offset((tap_offset + tile.rows.left(r)) as isize)
            });
            for step in 0..tile.steps as isize {
                let mut values = [T::ZERO; COLUMNS];
                match (tile.right.half_dtype, columns) {
                    (Some(half), _) => {
                        let values = values.iter_mut().enumerate().take(columns);
                        values.for_each(|(j, value)| *value = element(half, right, j));
                    }
                    (None, COLUMNS) => values = right.cast::<[T; COLUMNS]>().read_unaligned(),
                    _ => std::ptr::copy_nonoverlapping(right.cast(), values.as_mut_ptr(), columns),
                }
                for r in 0..ROWS {
                    // Words of 16-bit elements may be unaligned.
                    let x = left[r].wrapping_offset(step * tile.step as isize);
                    let x = x.cast::<T>().read_unaligned();
                    for j in 0..COLUMNS {
                        accumulators[r][j] = add(accumulators[r][j], x, values[j]);
                    }
                }
                right = right.wrapping_offset(tile.right.step as isize);
            }
        }
        for (r, accumulators) in accumulators.iter().enumerate() {
            std::ptr::copy_nonoverlapping(accumulators.as_ptr(), out(r), columns);
        }
    }
}

/// Computes a tile whose columns each have their own A.
///
/// # Safety
/// As [`run`]; `add` adds the products of its instruction.
pub(super) unsafe fn run_depthwise<T: Lane>(
    depthwise: &Depthwise,
    call: &Call,
    add: impl Fn(T, T, T) -> T,
) {
    let tile = &depthwise.tile;
    let list = call.left.cast::<*const T>();
    let size = size_of::<T>() as i64;
    let [pitch, out] = [tile.right.step, tile.out].map(|n| n / size);
    for (row, column) in (0..tile.rows.count).flat_map(|r| (0..tile.columns).map(move |c| (r, c))) {
        let column = usize::from(column);
        let weight = |at: usize, tap: u32| {
            // SAFETY: the list has the line, and each line its weights.
            unsafe {
                *(*list.add(at))
                    .offset(tap as isize * pitch as isize)
                    .add(column)
            }
        };
        // SAFETY: the list ends with a zero for either kind of lines; lines and results have the elements that are
        // accessed.
        unsafe {
            let to = (call.out.cast::<T>())
                .offset(i64::from(row) as isize * out as isize)
                .add(column);
            let (mut accumulator, mut at) = (if tile.adds { *to } else { T::ZERO }, 0);
            while !(*list.add(at)).is_null() {
                for tap in 0..tile.taps {
                    let from = u64::from(depthwise.stride) * u64::from(row)
                        + u64::from(depthwise.dilation) * u64::from(tap);
                    let x = match depthwise.is_inside(row, tap) {
                        true => {
                            let from = (from as i64 * depthwise.position) as isize;
                            let line = (*list.add(at)).cast::<u8>().wrapping_offset(from);
                            element(depthwise.reads, line, column)
                        }
                        false => T::ZERO,
                    };
                    accumulator = add(accumulator, x, weight(at + 1, tap));
                }
                at += 2;
            }
            while !(*list.add(at + 1)).is_null() {
                at += 1;
                // For integers, padding adds nothing.
                if tile.instruction.sums.is_float() {
                    accumulator = accumulator + weight(at, tile.taps);
                }
            }
            *to = accumulator;
        }
    }
}

/// Computes a transform, channel by channel.
///
/// # Safety
/// As [`run`].
pub(super) unsafe fn run_transform(t: &Transform, call: &Call) {
    let side = t.matrix[0].len();
    let dot_product = |row: &[f64], x: &mut dyn Iterator<Item = f32>| -> f32 {
        row.iter().zip(x).map(|(c, x)| *c as f32 * x).sum()
    };
    let offset =
        |[row, column]: [i64; 2], i: usize, j: usize| (i as i64 * row + j as i64 * column) as isize;
    for channel in 0..t.channels as usize {
        let x = |i: usize, j: usize| {
            let from = call.left.wrapping_offset(offset(t.from, i, j));
            // SAFETY: the caller's.
            unsafe { element::<f32>(t.reads, from, channel) }
        };
        for (i, row) in t.matrix.iter().take(t.kept[0].into()).enumerate() {
            let column_sum = |j: usize| dot_product(row, &mut (0..side).map(|i| x(i, j)));
            let sums: Vec<f32> = (0..side).map(column_sum).collect();
            for (j, row) in t.matrix.iter().take(t.kept[1].into()).enumerate() {
                let to = call.out.wrapping_offset(offset(t.to, i, j)).cast::<f32>();
                // SAFETY: the caller's.
                unsafe { *to.add(channel) = dot_product(row, &mut sums.iter().copied()) };
            }
        }
    }
}

/// Returns element `index` after an address, widened if it has fewer bits.
///
/// # Safety
/// The element exists.
unsafe fn element<T: Lane>(dtype: DType, from: *const u8, index: usize) -> T {
    // SAFETY: the caller's.
    unsafe {
        let bits16 = || *from.cast::<u16>().add(index);
        // Narrow elements have accumulators of 32 bits.
        let integer = |x: i32| std::mem::transmute_copy::<i64, T>(&i64::from(x));
        match dtype {
            DType::U8 => integer((*from.add(index)).into()),
            DType::I8 => integer((*from.cast::<i8>().add(index)).into()),
            DType::I16 => integer((bits16() as i16).into()),
            DType::F16 => T::from_f32(convert::F16::load(bits16())),
            DType::BF16 => T::from_f32(convert::BF16::load(bits16())),
            _ => *from.cast::<T>().add(index),
        }
    }
}
