//! Register tiles where each column has its own A, for depthwise convolutions.
//!
//! `out[r, j] = Σ_line Σ_t a[line, r · stride + t · dilation, j] · b[line, t, j]`. The A of a call is a list. It starts
//! with pairs of addresses, up to a zero: a line of positions, and its weights. Then follow, up to another zero, the
//! weights of lines of padding. The sums of a line's weights times zero, which padding adds, follow the weights of its
//! taps.

#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod emit;
#[cfg(test)]
mod tests;

use super::tile::{Call, Tile, element};
use kiln_base::{DType, Features, Instruction};
use kiln_kernel::bugs::bug;
use kiln_kernel::sums::Lane;

/// A tile of positions by columns.
#[derive(Clone, Debug)]
pub struct Depthwise {
    /// The tile: its rows are positions, its taps those of a line. It does not describe A.
    pub tile: Tile,
    /// The distances from row to row, and from tap to tap, in positions.
    pub stride: u32,
    pub dilation: u32,
    /// The dtype of A. Elements with fewer bits than the accumulators are widened as they are loaded. With integers of
    /// fewer bits, weights are i16, each followed by a zero.
    pub reads: DType,
    /// The distance of two positions, in bytes.
    pub position: i64,
    /// The range of taps of each row that are within the line; empty if all are. The other taps read zeros.
    pub inside: Vec<[u32; 2]>,
}

/// The most taps of a line that code is emitted for; they are unrolled.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
const MOST_TAPS: u32 = 64;

/// Returns the number of taps of a line whose weights are in registers at a time.
fn held_taps(level: Features, taps: u32) -> u8 {
    let most = if level.width() == Features::AVX512 {
        8
    } else {
        5
    };
    taps.clamp(1, most) as u8
}

/// Returns the largest number of rows of a tile. Beside the accumulators, registers hold weights, two elements, for
/// integers also a product that is still to be added, and with VEX the mask of the last vector. More rows than the
/// limit make code longer but not faster.
pub fn most_depthwise_rows(level: Features, dtype: DType, taps: u32) -> u8 {
    let registers = if level.width() == Features::AVX512 {
        32
    } else {
        15
    };
    (registers - held_taps(level, taps) - 2 - u8::from(!dtype.is_float())).min(16)
}

impl Depthwise {
    /// Returns the instruction that multiplies. If A has fewer bits than integer accumulators, it multiplies pairs of
    /// i16 whose second elements are zero.
    pub(super) fn instruction(&self) -> Instruction {
        match (self.tile.instruction.sums, self.reads) {
            (DType::I32, DType::U8 | DType::I8 | DType::I16) => {
                Instruction::of([DType::I16; 2], false, self.tile.level, true)
            }
            _ => self.tile.instruction,
        }
    }

    /// True if a tap of a row is within the line.
    fn is_inside(&self, row: u8, tap: u32) -> bool {
        let taps = self.inside.get(usize::from(row));
        let to = |to: &u32| {
            bug("a tap behind a line is left out too early", *to, |to| {
                to.max(1) - 1
            })
        };
        taps.is_none_or(|[from, last]| (*from..to(last)).contains(&tap))
    }

    /// Returns all that emitted code depends on.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn key(&self) -> Vec<u8> {
        let taps = self.inside.as_flattened();
        let numbers = [self.stride, self.dilation, taps.len() as u32];
        let numbers = numbers.iter().chain(taps);
        let mut key = vec![b'e', self.reads as u8];
        key.extend(self.position.to_le_bytes());
        key.extend(numbers.flat_map(|n| n.to_le_bytes()));
        key.extend(self.tile.key());
        key
    }

    /// True if code is emitted for its level, and all of its distances fit into instructions.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn is_emitted(&self) -> bool {
        let (rows, taps) = (i64::from(self.tile.rows.count), i64::from(self.tile.taps));
        let last = rows * i64::from(self.stride) + taps * i64::from(self.dilation);
        let fits = |n: i64, bytes: i64| i32::try_from(n.saturating_mul(bytes)).is_ok();
        self.tile.level != Features::BASELINE
            && self.tile.taps <= MOST_TAPS
            && fits(last, self.position)
            && fits(taps + 1, self.tile.right.step)
            && fits(rows, self.tile.out)
    }

    /// Computes a tile.
    ///
    /// # Safety
    /// As [`Kernel::run`](super::Kernel::run); `add` adds the products of its instruction.
    pub(super) unsafe fn run<T: Lane>(&self, call: &Call, add: impl Fn(T, T, T) -> T) {
        let tile = &self.tile;
        let list = call.left.cast::<*const T>();
        let size = size_of::<T>() as i64;
        let [pitch, out] = [tile.right.step, tile.out].map(|n| n / size);
        for (row, column) in
            (0..tile.rows.count).flat_map(|r| (0..tile.columns).map(move |c| (r, c)))
        {
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
                let (mut sum, mut at) = (if tile.adds { *to } else { T::ZERO }, 0);
                while !(*list.add(at)).is_null() {
                    for tap in 0..tile.taps {
                        let from = u64::from(self.stride) * u64::from(row)
                            + u64::from(self.dilation) * u64::from(tap);
                        let x = match self.is_inside(row, tap) {
                            true => {
                                let from = (from as i64 * self.position) as isize;
                                let line = (*list.add(at)).cast::<u8>().wrapping_offset(from);
                                element(self.reads, line, column)
                            }
                            false => T::ZERO,
                        };
                        sum = add(sum, x, weight(at + 1, tap));
                    }
                    at += 2;
                }
                while !(*list.add(at + 1)).is_null() {
                    at += 1;
                    // For integers, padding adds nothing.
                    if tile.instruction.sums.is_float() {
                        sum = sum + weight(at, tile.taps);
                    }
                }
                *to = sum;
            }
        }
    }
}
