//! The tile of a product that a block computes: what multiplies, its sizes, and its text.

use super::gemm::Operand;
use crate::Approximation;
use kiln_base::DType;
use std::fmt::Write;

/// Extents of a block's tile, of the part of a thread (or of a warp of tensor cores), and threads.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct Tile {
    pub m: i64,
    pub n: i64,
    pub part: [i64; 2],
    pub threads: u32,
}

/// The tiles that the default is chosen from, largest first.
const FMA: [Tile; 3] = [
    tile(64, 64, [8, 4], 128),
    tile(64, 64, [4, 4], 256),
    tile(32, 32, [4, 4], 64),
];
const MMA: [Tile; 3] = [
    tile(128, 64, [32, 32], 256),
    tile(64, 64, [32, 32], 128),
    tile(32, 32, [16, 16], 128),
];
/// Further ones: for large results, for few rows, for few columns.
const MORE_FMA: [&[Tile]; 3] = [
    &[tile(128, 64, [8, 4], 256)],
    &[
        tile(8, 64, [2, 4], 64),
        tile(16, 64, [4, 4], 64),
        tile(32, 64, [4, 4], 128),
    ],
    &[
        tile(64, 8, [4, 2], 64),
        tile(64, 16, [4, 4], 64),
        tile(64, 32, [4, 4], 128),
    ],
];
const MORE_MMA: [&[Tile]; 3] = [
    &[tile(64, 128, [32, 32], 256)],
    &[tile(16, 64, [16, 32], 64), tile(32, 128, [32, 32], 128)],
    &[tile(64, 16, [32, 16], 64), tile(128, 32, [32, 32], 128)],
];
/// Those of results of which a block holds whole rows: short ones, and longer ones.
const ROWS_FMA: [&[Tile]; 2] = [
    &[
        tile(64, 64, [8, 4], 128),
        tile(64, 64, [4, 4], 256),
        tile(32, 64, [4, 4], 128),
        tile(16, 64, [4, 4], 64),
        tile(32, 32, [4, 4], 64),
    ],
    &[
        tile(64, 128, [8, 4], 256),
        tile(32, 128, [4, 4], 256),
        tile(16, 128, [4, 4], 128),
    ],
];
const ROWS_MMA: [&[Tile]; 2] = [
    &[
        tile(128, 64, [32, 32], 256),
        tile(64, 64, [32, 32], 128),
        tile(16, 64, [16, 32], 64),
        tile(32, 32, [16, 16], 128),
    ],
    &[tile(64, 128, [32, 32], 256), tile(32, 128, [32, 32], 128)],
];

/// What multiplies.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum Arithmetic {
    /// Multiply-adds of f32, f64, i32 or i64.
    Fma,
    /// Tensor cores, f16 or bf16.
    Half,
    /// Tensor cores, f32 rounded to TF32.
    Tf32,
    /// Tensor cores, f32 as sums of two numbers of TF32.
    Tf32x3,
}

impl Arithmetic {
    /// What loses nothing of a dtype's numbers.
    pub fn of(dtype: DType) -> Arithmetic {
        match dtype {
            DType::F16 | DType::BF16 => Arithmetic::Half,
            _ => Arithmetic::Fma,
        }
    }

    pub fn approximation(self) -> Option<Approximation> {
        match self {
            Arithmetic::Fma | Arithmetic::Half => None,
            Arithmetic::Tf32 => Some(Approximation::Tf32),
            Arithmetic::Tf32x3 => Some(Approximation::Tf32x3),
        }
    }

    /// The tiles that the default is chosen from, and further ones.
    pub fn tiles(self) -> (&'static [Tile], [&'static [Tile]; 3]) {
        match self {
            Arithmetic::Fma => (&FMA, MORE_FMA),
            _ => (&MMA, MORE_MMA),
        }
    }

    /// The tiles of which a block holds whole rows of so many elements, largest first.
    pub fn tiles_of_rows(self, columns: i64) -> Vec<Tile> {
        let all = match self {
            Arithmetic::Fma => ROWS_FMA,
            _ => ROWS_MMA,
        };
        let holds = |t: &&Tile| t.n >= columns;
        let all = all.iter().find(|list| list.iter().any(|t| holds(&t)));
        all.map_or_else(Vec::new, |list| {
            list.iter().filter(holds).copied().collect()
        })
    }

    /// How many products pass through shared memory at a time.
    pub fn depth(self) -> i64 {
        match self {
            Arithmetic::Fma => 8,
            Arithmetic::Half => 32,
            Arithmetic::Tf32 | Arithmetic::Tf32x3 => 16,
        }
    }
}

const fn tile(m: i64, n: i64, part: [i64; 2], threads: u32) -> Tile {
    Tile {
        m,
        n,
        part,
        threads,
    }
}

/// The constants in front of [`tile_text`]: a block's tile, the part of a thread (or warp), and how the two
/// operands are best read.
pub(super) fn tile_constants(
    [m, n]: [i64; 2],
    part: [i64; 2],
    dtype: DType,
    arithmetic: Arithmetic,
    [a, b]: [&Operand; 2],
) -> String {
    let letter = match arithmetic {
        Arithmetic::Fma => 'T',
        _ => 'W',
    };
    let mut text = format!(
        "constexpr int BM = {m}, BN = {n}, BK = {};\n\
         constexpr int {letter}M = {}, {letter}N = {};\n\
         constexpr bool A_ALONG_K = {}, B_ALONG_K = {};\n",
        arithmetic.depth(),
        part[0],
        part[1],
        a.along_k,
        b.along_k
    );
    if arithmetic != Arithmetic::Fma {
        let (a, b) = (a.vector, b.vector);
        let _ = writeln!(text, "constexpr bool A_VECTOR = {a}, B_VECTOR = {b};");
    }
    match arithmetic {
        Arithmetic::Fma => {}
        Arithmetic::Half => text += &format!("#define MMA_TYPE \"{dtype}\"\n"),
        Arithmetic::Tf32 => text += "constexpr bool SPLIT = false;\n",
        Arithmetic::Tf32x3 => text += "constexpr bool SPLIT = true;\n",
    }
    text
}

/// The product of a block's tile.
pub(super) fn tile_text(arithmetic: Arithmetic) -> &'static str {
    match arithmetic {
        Arithmetic::Fma => concat!(include_str!("multiply_add.cu"), include_str!("gemm_fma.cu")),
        Arithmetic::Half => concat!(
            include_str!("gemm_stage.cu"),
            include_str!("gemm_half.cu"),
            include_str!("gemm_mma.cu"),
            "#undef MMA_TYPE\n"
        ),
        Arithmetic::Tf32 | Arithmetic::Tf32x3 => concat!(
            include_str!("gemm_stage.cu"),
            include_str!("gemm_tf32.cu"),
            include_str!("gemm_mma.cu")
        ),
    }
}
