//! Schedules of contractions, as data.
//!
//! A matrix product, a convolution or a gradient of one sums `out[m, n] = Σ_k a[m, k] · b[k, n]`. The rows M are those
//! of A, or positions of images; the columns N those of B, or channels. In the gradient
//! of a convolution's weights M are taps of input channels and K are positions.

mod gpu;

use crate::Algorithm;
pub use gpu::{
    AttentionSizes, ContractionSizes, Gpu, Multiply, ROW_PADDING, WARP_RESULT, kernel_cycles,
    transfer_cycles,
};
use kiln_base::{DType, Features, Instruction};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The schedule of a contraction on the CPU: an algorithm, and the sizes of its blocks and tiles. Sizes that are not
/// given follow from the shapes and the machine.
///
/// Its text is the algorithm's name and the given sizes, such as `packed tile=6x2 block=48x128`. Results depend only on
/// the algorithm, `terms` and `parts`, since an element is summed in order whatever the tile or block.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cpu {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The maximum number of rows, and vectors of columns, of a register tile (MR, NR in vectors); panels are packed
    /// this wide.
    pub tile: Option<[u8; 2]>,
    /// The rows and columns of a block, which one thread computes at a time (MC, NC), in elements. Blocks are rounded
    /// to whole tiles, lines or rows if the algorithm needs these.
    pub block: Option<[u32; 2]>,
    /// The number of terms that are summed at a time (KC).
    pub terms: Option<u32>,
    /// The number of parts of sums that are computed separately, and then added in order (split-K).
    pub parts: Option<u16>,
}

/// The rows, and words of a row, of a register of AMX.
pub const TILE: u32 = 16;

/// The maximum number of vectors of columns of a tile of AMX. Four registers hold accumulators, so four products are in
/// flight, and each load of B is multiplied more than once.
pub const TILE_VECTORS: i64 = 4;

/// The vectors of columns of a register tile, unless a schedule sets them.
pub const VECTORS: i64 = 2;

/// The maximum number of vectors of columns of a register tile.
pub const MAX_VECTORS: i64 = 8;

/// Returns the lanes of a vector of accumulators of a dtype.
#[inline]
pub fn lanes(level: Features, dtype: DType) -> u16 {
    let bytes = match level.width() {
        Features::AVX512 => 64,
        _ => 32,
    };
    bytes / dtype.size() as u16
}

/// Returns the maximum number of rows of a register tile of at most [`MAX_VECTORS`] vectors. The registers hold the
/// accumulators, a vector of each column and a term of A. They also hold a product that is still to be added, the
/// instruction's other values, and with VEX the mask of the last vector. A single row always fits, because it multiplies
/// columns from memory.
#[inline]
pub fn max_rows(level: Features, by: Instruction, vectors: u8) -> u8 {
    let registers: u8 = match level.width() {
        _ if by.has_tiles() => return TILE as u8,
        Features::AVX512 => 32,
        _ => 15,
    };
    let used = vectors + 1 + u8::from(by.has_product && vectors > 1) + by.extra_registers;
    (registers.saturating_sub(used) / vectors.max(1)).max(1)
}

/// Returns the vectors of columns of a register tile and panel, unless a schedule sets them.
#[inline]
fn usual_vectors(by: Instruction) -> i64 {
    match by.has_tiles() {
        true => TILE_VECTORS,
        false => VECTORS,
    }
}

/// Returns the columns of a panel of a B with `columns` columns, unless a schedule sets them: whole
/// vectors.
#[inline]
pub fn panel_columns(level: Features, by: Instruction, columns: i64) -> i64 {
    vector_columns(level, by, columns, usual_vectors(by))
}

fn vector_columns(level: Features, by: Instruction, columns: i64, vectors: i64) -> i64 {
    let lanes = i64::from(lanes(level, by.sums));
    let max_vectors = (columns.max(1) + lanes - 1) / lanes;
    vectors.min(max_vectors) * lanes
}

impl From<Algorithm> for Cpu {
    fn from(algorithm: Algorithm) -> Cpu {
        Cpu {
            algorithm,
            tile: None,
            block: None,
            terms: None,
            parts: None,
        }
    }
}

impl Cpu {
    /// Returns the vectors of columns of a register tile and panel.
    #[inline]
    fn vectors(&self, by: Instruction) -> i64 {
        match self.tile {
            Some([_, vectors]) => vectors.into(),
            None => usual_vectors(by),
        }
    }

    /// Returns the columns of a panel of B, which has `columns` columns: whole vectors.
    #[inline]
    pub fn panel_columns(&self, level: Features, by: Instruction, columns: i64) -> i64 {
        vector_columns(level, by, columns, self.vectors(by))
    }

    /// Returns the rows of a register tile; the registers hold at most `max_rows`.
    #[inline]
    pub fn rows(&self, max_rows: u8) -> u8 {
        self.tile.map_or(max_rows, |[rows, _]| rows.min(max_rows))
    }

    /// Returns the rows of a block.
    pub fn block_rows(&self) -> Option<i64> {
        self.block.map(|[rows, _]| rows.into())
    }

    /// Returns the columns of a block.
    pub fn block_columns(&self) -> Option<i64> {
        self.block.map(|[_, columns]| columns.into())
    }

    /// Checks that the machine has registers for its tile, and that no size is 0.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn check(&self, level: Features, by: Instruction) -> Result<(), String> {
        if let Some([rows, vectors]) = self.tile {
            let max_vectors = match by.has_tiles() {
                true => TILE_VECTORS,
                false => MAX_VECTORS,
            };
            let max = match (1..=max_vectors).contains(&i64::from(vectors)) {
                true => max_rows(level, by, vectors),
                false => 0,
            };
            if rows == 0 || rows > max {
                return Err(format!(
                    "{self}: {} has registers for {max} rows of {vectors} vectors of {}, not for {rows}",
                    level.name(),
                    by.terms[0]
                ));
            }
        }
        let sizes = self.block.into_iter().flatten();
        let sizes = sizes.chain(self.terms).chain(self.parts.map(u32::from));
        match sizes.min() {
            Some(0) => Err(format!("{self}: a size of 0")),
            _ => Ok(()),
        }
    }

    /// Returns the ratio of the time of its register tile to that of the multiply-adds alone, from instruction counts:
    /// two multiply-adds per cycle, each of which waits four cycles for the previous one of its accumulator, and two
    /// loads.
    pub fn tile_cost(&self, level: Features, by: Instruction) -> f64 {
        let vectors = self.vectors(by) as f64;
        if by.has_tiles() {
            return 1.0;
        }
        let rows = f64::from(self.rows(max_rows(level, by, vectors as u8)));
        let multiply_cycles = rows * vectors / 2.0;
        let load_cycles = (rows + vectors) / 2.0;
        multiply_cycles.max(load_cycles).max(4.0) / multiply_cycles
    }
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.algorithm.fmt(f)?;
        if let Some([rows, vectors]) = self.tile {
            write!(f, " tile={rows}x{vectors}")?;
        }
        if let Some([rows, columns]) = self.block {
            write!(f, " block={rows}x{columns}")?;
        }
        if let Some(terms) = self.terms {
            write!(f, " terms={terms}")?;
        }
        if let Some(parts) = self.parts {
            write!(f, " parts={parts}")?;
        }
        Ok(())
    }
}

/// A text that is not a schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no schedule {0:?} (one is `packed tile=6x2 block=48x128 terms=512 parts=1`)")]
pub struct UnknownSchedule(pub String);

impl FromStr for Cpu {
    type Err = UnknownSchedule;

    /// Parses the text that `Display` writes.
    fn from_str(text: &str) -> Result<Cpu, UnknownSchedule> {
        let parsed = || {
            let mut words = text.split(' ');
            let mut schedule = Cpu::from(words.next()?.parse::<Algorithm>().ok()?);
            for word in words {
                let (name, size) = word.split_once('=')?;
                match name {
                    "tile" => schedule.tile = Some(pair(size)?),
                    "block" => schedule.block = Some(pair(size)?),
                    "terms" => schedule.terms = Some(size.parse().ok()?),
                    "parts" => schedule.parts = Some(size.parse().ok()?),
                    _ => return None,
                }
            }
            Some(schedule)
        };
        parsed()
            .filter(|s| s.to_string() == text)
            .ok_or_else(|| UnknownSchedule(text.into()))
    }
}

fn pair<T: FromStr>(text: &str) -> Option<[T; 2]> {
    let (a, b) = text.split_once('x')?;
    Some([a.parse().ok()?, b.parse().ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_parse_back() {
        let full = Cpu {
            tile: Some([6, 2]),
            block: Some([48, 128]),
            terms: Some(512),
            parts: Some(4),
            ..Cpu::from(Algorithm::Packed)
        };
        assert_eq!(
            full.to_string(),
            "packed tile=6x2 block=48x128 terms=512 parts=4"
        );
        for schedule in [
            full,
            Cpu::from(Algorithm::Direct),
            Cpu {
                terms: None,
                block: None,
                ..full
            },
        ] {
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        for wrong in [
            "",
            "packed ",
            "packed tile=6",
            "packed tile=6x256",
            "packed tile=06x2",
            "packed parts=4 terms=2",
            "packed size=3",
            "fast tile=6x2",
        ] {
            assert!(wrong.parse::<Cpu>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn tiles_must_fit_into_registers() {
        let of = |rows, vectors| Cpu {
            tile: Some([rows, vectors]),
            ..Cpu::from(Algorithm::Packed)
        };
        let fits = |level, dtype, rows, vectors| {
            let by = Instruction::of([dtype; 2], false, level, true);
            of(rows, vectors).check(level, by).is_ok()
        };
        // 16 registers: 6 x 2 accumulators, two columns, one term and the mask of the last vector.
        assert!(fits(Features::AVX2, DType::F32, 6, 2));
        assert!(!fits(Features::AVX2, DType::F32, 7, 2));
        // A single row multiplies eight columns from memory.
        assert!(fits(Features::AVX2, DType::F32, 1, 8));
        assert!(!fits(Features::AVX2, DType::F32, 2, 8));
        assert!(fits(Features::AVX512, DType::F32, 14, 2));
        assert!(!fits(Features::AVX512, DType::F32, 15, 2));
        assert!(!fits(Features::AVX512, DType::F32, 0, 2));
        assert!(!fits(Features::AVX512, DType::F32, 1, 0));
        assert!(!fits(Features::AVX512, DType::F32, 1, 9));
        assert!(fits(Features::AMX, DType::BF16, 16, 4));
        assert!(!fits(Features::AMX, DType::BF16, 16, 5));
        let none = Cpu {
            block: Some([0, 4]),
            ..Cpu::from(Algorithm::Packed)
        };
        let by = Instruction::Vfmadd231ps;
        assert!(none.check(Features::AVX2, by).is_err());
    }

    #[test]
    fn small_tiles_cost_more() {
        let cost = |rows, vectors| {
            let tile = Some([rows, vectors]);
            let schedule = Cpu {
                tile,
                ..Cpu::from(Algorithm::Packed)
            };
            schedule.tile_cost(Features::AVX512, Instruction::Vfmadd231ps)
        };
        assert_eq!(cost(14, 2), 1.0);
        assert_eq!(cost(2, 2), 2.0);
        assert!(cost(12, 1) > 1.0);
    }
}
