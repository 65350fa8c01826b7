//! The algorithms by which the CPU engine computes a matrix product or a convolution.
//!
//! All algorithms of one kernel read and write the same arguments. They differ in time, in scratch memory and, where
//! [`Algorithm::error_growth`] is above 1, in the bound of their rounding error.

use crate::FftTile;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An algorithm for a [`MatMul`](crate::MatMul) or a [`Conv`](crate::Conv) on the CPU. Results never depend on the
/// number of threads: the division of work follows from the algorithm and the sizes.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Algorithm {
    /// A product in blocks, which pack operands that are read often or are not contiguous.
    Panels,
    /// A product with a vector: one pass over the matrix, nothing is packed.
    Vector,
    /// A product of few rows, or a small one, in register tiles: nothing is packed.
    Small,
    /// A product whose B, which the whole batch shares, is packed into panels of columns: once, if it
    /// depends on parameters only.
    Packed,
    /// A convolution, or a gradient of one, as sums in register tiles, whose vectors run over channels.
    Direct,
    /// Winograd's F(2×2, 3×3): 16 products instead of 36 per tile of 2×2 results. On the CPU, only if the result has
    /// channels last.
    Winograd2,
    /// Winograd's F(4×4, 3×3): 36 products instead of 144 per tile of 4×4 results, likewise.
    Winograd4,
    /// A convolution of many taps as products of Fourier transforms; see [`FftTile`].
    Fft,
    /// A product of few results with long sums: parts of the sums are computed separately, and then added in order.
    Parts,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 9] = [
        Algorithm::Panels,
        Algorithm::Vector,
        Algorithm::Small,
        Algorithm::Packed,
        Algorithm::Direct,
        Algorithm::Winograd2,
        Algorithm::Winograd4,
        Algorithm::Fft,
        Algorithm::Parts,
    ];

    /// The maximum number of multiply-adds for which [`Algorithm::Small`] is legal, as a power of two.
    pub const MAX_SMALL_LOG2: u32 = 21;

    /// The maximum number of result rows for which [`Algorithm::Small`] is legal for any other sizes.
    pub const MAX_SMALL_ROWS: i64 = 32;

    /// The number of terms of a sum from which on [`Algorithm::Parts`] is legal.
    pub const MIN_PARTS_TERMS: i64 = 4096;

    /// The maximum number of results of a whole batch for which [`Algorithm::Parts`] is legal.
    pub const MAX_PARTS_RESULTS: i64 = 1 << 16;

    /// Returns the factor by which the error bound exceeds that of a plain sum.
    ///
    /// A plain sum of k products of numbers up to a and b is off by at most γ(k) · k · a · b, where γ(k) = k · u / (1 −
    /// k · u) and u is half the distance of 1 to the next number. Other algorithms multiply sums of inputs with sums of
    /// weights, which are larger and cancel. For Winograd's, the factor is the largest row of (|A| (|G| 1 ∘ |B| 1) /
    /// 3)², with the matrices of [`Winograd`](crate::Winograd). Their sums have at most k + 28 terms. For transforms
    /// see [`FftTile::error_growth`]. All of these also carry NaN and infinities to the other results of a tile.
    pub fn error_growth(self) -> f64 {
        match self {
            Algorithm::Winograd2 => 64.0 / 9.0,
            Algorithm::Winograd4 => 256.0,
            Algorithm::Fft => FftTile::GROWTH,
            _ => 1.0,
        }
    }

    /// True if it only sums products: compared with other such algorithms, only the order of the sums differs.
    pub fn only_sums(self) -> bool {
        self.error_growth() == 1.0
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Algorithm::Panels => "panels",
            Algorithm::Vector => "vector",
            Algorithm::Small => "small",
            Algorithm::Packed => "packed",
            Algorithm::Direct => "direct",
            Algorithm::Winograd2 => "winograd_2",
            Algorithm::Winograd4 => "winograd_4",
            Algorithm::Fft => "fft",
            Algorithm::Parts => "parts",
        })
    }
}

/// A text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no algorithm {0:?}")]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    /// Parses the text that `Display` writes.
    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let algorithm = Algorithm::ALL.into_iter().find(|a| a.to_string() == text);
        algorithm.ok_or_else(|| UnknownAlgorithm(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for a in Algorithm::ALL {
            assert_eq!(a.to_string().parse(), Ok(a));
        }
        for wrong in ["", "panels_", "Direct"] {
            assert!(wrong.parse::<Algorithm>().is_err(), "{wrong}");
        }
    }
}
