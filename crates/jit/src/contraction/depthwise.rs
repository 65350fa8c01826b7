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

use super::footprint::Footprint;
use super::tile::Tile;
use kiln_base::{DType, Features, Instruction};
use kiln_kernel::bugs::bug;

/// A tile of positions by columns.
#[derive(Clone, Debug, Hash)]
pub struct Depthwise {
    /// The tile: its rows are positions, its taps those of a line. It does not describe A.
    pub tile: Tile,
    /// The strides of rows and of taps, in positions.
    pub stride: u32,
    pub dilation: u32,
    /// The dtype of A. Elements with fewer bits than the accumulators are widened as they are loaded. With integers of
    /// fewer bits, weights are i16, each followed by a zero.
    pub reads: DType,
    /// The stride of positions, in bytes.
    pub position: i64,
    /// The range of taps of each row that are within the line; empty if all are. The other taps read zeros.
    pub inside: Vec<[u32; 2]>,
}

/// The maximum number of taps of a line that code is emitted for; they are unrolled.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
const MAX_TAPS: u32 = 64;

/// Returns the number of taps of a line whose weights are in registers at once.
fn held_taps(level: Features, taps: u32) -> u8 {
    let max = if level.width() == Features::AVX512 {
        8
    } else {
        5
    };
    taps.clamp(1, max) as u8
}

/// Returns the maximum number of rows of a tile. Beside the accumulators, registers hold weights, two elements, for
/// integers also a product that is still to be added, and with VEX the mask of the last vector. More rows than the
/// limit make code longer but not faster.
pub fn max_depthwise_rows(level: Features, dtype: DType, taps: u32) -> u8 {
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
    pub(super) fn is_inside(&self, row: u8, tap: u32) -> bool {
        let taps = self.inside.get(usize::from(row));
        let limit = |limit: &u32| {
            bug(
                "a tap after a line is left out too early",
                *limit,
                |limit| limit.max(1) - 1,
            )
        };
        taps.is_none_or(|[from, last]| (*from..limit(last)).contains(&tap))
    }

    /// True if code is emitted for the level, and all strides fit into instructions.
    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    pub(super) fn is_emitted(&self) -> bool {
        let (rows, taps) = (i64::from(self.tile.rows.count), i64::from(self.tile.taps));
        let last = rows * i64::from(self.stride) + taps * i64::from(self.dilation);
        let fits = |n: i64, bytes: i64| i32::try_from(n.saturating_mul(bytes)).is_ok();
        self.tile.level != Features::BASELINE
            && self.tile.taps <= MAX_TAPS
            && fits(last, self.position)
            && fits(taps + 1, self.tile.right.step)
            && fits(rows, self.tile.out)
    }

    /// Returns the bytes that a call accesses, of each of its lines.
    pub(super) fn footprint(&self) -> Footprint {
        let tile = &self.tile;
        let taps = i64::from(tile.taps);
        let inside = |row: u8| (0..tile.taps).filter(move |tap| self.is_inside(row, *tap));
        let position = |row: u8, tap: u32| {
            let start = u64::from(self.stride) * u64::from(row);
            (start + u64::from(self.dilation) * u64::from(tap)) as i64
        };
        let positions = (0..tile.rows.count).flat_map(|row| {
            let taps = [inside(row).next(), inside(row).next_back()];
            taps.into_iter()
                .flatten()
                .map(move |tap| position(row, tap))
        });
        let positions: Vec<i64> = positions.collect();
        let bounds = positions.iter().min().zip(positions.iter().max());
        let bytes = i64::from(tile.columns) * self.reads.size() as i64;
        let left = bounds.map_or([0; 2], |(first, last)| {
            [first * self.position, last * self.position + bytes]
        });
        let (step, bytes) = (tile.right.step, tile.right_bytes());
        let weights = [0, (taps - 1).max(0) * step + bytes];
        let padding = [taps * step, taps * step + bytes];
        Footprint {
            left,
            weights: Some([weights, padding]),
            ..tile.footprint()
        }
    }
}
