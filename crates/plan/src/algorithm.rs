//! The ways in which the CPU engine computes a matrix product or a convolution.
//!
//! All ways of one kernel read and write the same arguments. They differ in time, in scratch memory and,
//! where [`Algorithm::error_growth`] is above 1, in the bound of their rounding error.

use crate::{Conv, ConvRole, Epilogue, FftTile, Images, Kernel, MatMul};
use kiln_base::{DType, Dim};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How a [`MatMul`] or a [`Conv`] is computed on the CPU. Whatever it is, results do not depend on the
/// number of threads: how work is cut follows from the algorithm and the sizes.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Algorithm {
    /// The engine chooses by the sizes, when these are known, among those that only sum.
    #[default]
    Auto,
    /// A product in blocks of about two to this many multiply-adds, each by the packing kernels of the
    /// `gemm` crates.
    Panels(u8),
    /// A product with a vector: one walk over the matrix, nothing is packed.
    Vector,
    /// A product of few rows, or a small one, in register tiles: nothing is packed.
    Small,
    /// A product whose right matrix, which the whole batch shares, is packed into panels of columns: once, if
    /// it depends on parameters alone.
    Packed,
    /// A convolution, or a gradient of one, as products with columns that are gathered from the images (im2col), or
    /// added up to them.
    Columns,
    /// A convolution as sums in register tiles over a padded copy of some image rows; the gradient of its images,
    /// where the filter doesn't step, as such a convolution; that of its weights in tiles of filters by channels.
    Direct,
    /// A convolution of one channel a group, as sums over taps along the rows.
    Depthwise,
    /// Winograd's F(2×2, 3×3): 16 products a tile of 2×2 results instead of 36.
    Winograd2,
    /// Winograd's F(4×4, 3×3): 36 products a tile of 4×4 results instead of 144.
    Winograd4,
    /// A convolution of many taps as products of Fourier transforms; see [`FftTile`].
    Fft,
    /// A product of few results with long sums: parts of the sums on their own, which are added in their order.
    Parts,
}

impl Algorithm {
    /// All but [`Algorithm::Panels`], which has sizes.
    pub const PLAIN: [Algorithm; 11] = [
        Algorithm::Auto,
        Algorithm::Vector,
        Algorithm::Small,
        Algorithm::Packed,
        Algorithm::Columns,
        Algorithm::Direct,
        Algorithm::Depthwise,
        Algorithm::Winograd2,
        Algorithm::Winograd4,
        Algorithm::Fft,
        Algorithm::Parts,
    ];

    /// The sizes of [`Algorithm::Panels`] that are worth trying.
    pub const PANELS: [u8; 4] = [21, 23, 25, 27];

    /// Multiply-adds up to which [`Algorithm::Small`] is legal, as a power of two...
    pub const SMALL: u32 = 21;

    /// ...and rows of the result up to which it is, whatever the other sizes.
    pub const FEW: i64 = 32;

    /// Terms of a sum from which on [`Algorithm::Parts`] is legal...
    pub const LONG: i64 = 4096;

    /// ...for so many results of the whole batch at most.
    pub const FEW_RESULTS: i64 = 1 << 16;

    /// By how much the bound of the error exceeds that of a plain sum.
    ///
    /// A plain sum of k products of numbers up to a and b is off by at most γ(k) · k · a · b, where
    /// γ(k) = k · u / (1 − k · u) and u is half the distance of 1 to the next number. Other algorithms
    /// multiply sums of inputs with sums of weights, which are larger and cancel: for Winograd's the
    /// factor is the largest row of (|Aᵀ| (|G| 1 ∘ |Bᵀ| 1) / 3)², with the matrices of Lavin and Gray,
    /// "Fast Algorithms for Convolutional Neural Networks" (2015), section 4. Their sums have k + 28 terms
    /// at most. For transforms see [`FftTile::error_growth`]. All of these also carry NaN and infinities to the
    /// other results of a tile.
    pub fn error_growth(self) -> f64 {
        match self {
            Algorithm::Winograd2 => 64.0 / 9.0,
            Algorithm::Winograd4 => 256.0,
            Algorithm::Fft => FftTile::GROWTH,
            _ => 1.0,
        }
    }

    /// Whether it only sums products, so that nothing is lost against the other such algorithms but the
    /// order of the sums.
    pub fn only_sums(self) -> bool {
        self.error_growth() == 1.0
    }
}

impl Kernel {
    /// How it is computed, where there are several ways.
    pub fn algorithm(&self) -> Option<Algorithm> {
        match self {
            Kernel::MatMul(MatMul { algorithm, .. }) | Kernel::Conv(Conv { algorithm, .. }) => {
                Some(*algorithm)
            }
            _ => None,
        }
    }

    /// How it is computed, to change.
    pub fn algorithm_mut(&mut self) -> Option<&mut Algorithm> {
        match self {
            Kernel::MatMul(MatMul { algorithm, .. }) | Kernel::Conv(Conv { algorithm, .. }) => {
                Some(algorithm)
            }
            _ => None,
        }
    }

    /// Every algorithm that can compute it where symbols have these values; none for a kernel that has
    /// no choice, or whose sizes have no value.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        match self {
            Kernel::MatMul(m) => m.algorithms(values),
            Kernel::Conv(c) => c.algorithms(values),
            _ => Vec::new(),
        }
    }
}

impl MatMul {
    /// Every algorithm that can compute it where symbols have these values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        let all = || {
            let size = |d: &Dim| d.eval_checked(values);
            let (m, k, n) = (size(&self.m)?, size(&self.k)?, size(&self.n)?);
            let [left, right] = self.prologues.each_ref().map(Option::is_none);
            let mut legal = Algorithm::PANELS.map(Algorithm::Panels).to_vec();
            if (m == 1 || n == 1) && left && right && !self.reduces_rows() {
                legal.push(Algorithm::Vector);
            }
            let work = m.checked_mul(k).and_then(|w| w.checked_mul(n));
            let small = m <= Algorithm::FEW || work.is_some_and(|w| w <= 1 << Algorithm::SMALL);
            if small && left && right {
                legal.push(Algorithm::Small);
            }
            if self.shares_right() && right {
                legal.push(Algorithm::Packed);
            }
            let sizes = self.batch.iter().chain([&self.m, &self.n]).map(size);
            let results = sizes.reduce(|a, b| a?.checked_mul(b?)).flatten();
            let few = results.is_some_and(|r| r <= Algorithm::FEW_RESULTS);
            if k >= Algorithm::LONG && few && left && right && !self.reduces_rows() {
                legal.push(Algorithm::Parts);
            }
            Some(legal)
        };
        all().unwrap_or_default()
    }

    /// Whether what is behind it works on whole rows.
    pub fn reduces_rows(&self) -> bool {
        self.epilogue.as_ref().is_some_and(Epilogue::over_rows)
    }

    /// Whether all products of the batch have one right matrix.
    pub fn shares_right(&self) -> bool {
        let mut strides = self.rhs.batch_strides.iter().zip(&self.batch);
        strides.all(|(stride, extent)| stride.is(0) || extent.is(1))
    }
}

impl Conv {
    /// Every algorithm that can compute it where symbols have these values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        if self.images != Images::ChannelsFirst {
            return Vec::new();
        }
        let all = || {
            let size = |d: &Dim| d.eval_checked(values);
            let (cin, cout) = (size(&self.in_channels)?, size(&self.out_channels)?);
            let list = |d: &[Dim]| d.iter().map(size).collect::<Option<Vec<i64>>>();
            let (kernel, stride) = (list(&self.kernel)?, list(&self.stride)?);
            let dilation = list(&self.dilation)?;
            let steps = |n: &[i64]| n.iter().all(|s| *s == 1);
            let result = match self.role {
                ConvRole::Result => true,
                // It is the result of a convolution too, of filters that are turned.
                ConvRole::Input => steps(&stride) && self.reads_weights_alone(),
                ConvRole::Weight => false,
            };
            let mut legal = vec![Algorithm::Columns];
            if result || self.role == ConvRole::Weight {
                legal.push(Algorithm::Direct);
            }
            if self.prologue.is_some() {
                return Some(legal);
            }
            if result && cin == 1 && cout == 1 {
                legal.push(Algorithm::Depthwise);
            }
            let plain = kernel == [3, 3] && steps(&stride) && steps(&dilation);
            if result && self.dtype == DType::F32 && plain {
                legal.extend([Algorithm::Winograd2, Algorithm::Winograd4]);
            }
            if self.fft_tile(values).is_some() {
                legal.push(Algorithm::Fft);
            }
            Some(legal)
        };
        all().unwrap_or_default()
    }

    /// Whether nothing but the convolution reads its weights.
    fn reads_weights_alone(&self) -> bool {
        let [other, weights] = self.operands;
        let programs = self.epilogue.iter().map(|e| &e.program);
        let mut read = programs.flat_map(|p| p.accesses.iter().map(|a| a.arg));
        other != weights && !read.any(|arg| arg == weights)
    }

    /// The tiles of [`Algorithm::Fft`], where that can compute it: results in f32 without steps, of one or two
    /// spatial axes, and of taps enough.
    pub fn fft_tile(&self, values: &[i64]) -> Option<FftTile> {
        let size = |d: &Dim| d.eval_checked(values);
        let dense = |d: &Dim| size(d) == Some(1);
        let rank = self.kernel.len();
        let plain = self.role == ConvRole::Result
            && self.dtype == DType::F32
            && self.images == Images::ChannelsFirst
            && (1..=2).contains(&rank)
            && self.stride.iter().chain(&self.dilation).all(dense);
        if !plain {
            return None;
        }
        let pair = |d: &[Dim]| {
            Some([
                d[..rank - 1].first().map_or(Some(1), size)?,
                size(&d[rank - 1])?,
            ])
        };
        let channels = [size(&self.in_channels)?, size(&self.out_channels)?];
        FftTile::new(pair(&self.output)?, pair(&self.kernel)?, channels)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Algorithm::Auto => "auto",
            Algorithm::Panels(work) => return write!(f, "panels_{work}"),
            Algorithm::Vector => "vector",
            Algorithm::Small => "small",
            Algorithm::Packed => "packed",
            Algorithm::Columns => "columns",
            Algorithm::Direct => "direct",
            Algorithm::Depthwise => "depthwise",
            Algorithm::Winograd2 => "winograd_2",
            Algorithm::Winograd4 => "winograd_4",
            Algorithm::Fft => "fft",
            Algorithm::Parts => "parts",
        };
        f.write_str(name)
    }
}

/// A text that names no algorithm.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no algorithm {0:?}")]
pub struct UnknownAlgorithm(pub String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    /// Reads what `Display` writes.
    fn from_str(text: &str) -> Result<Algorithm, UnknownAlgorithm> {
        let found = Algorithm::PLAIN.into_iter().find(|a| a.to_string() == text);
        let panels = || text.strip_prefix("panels_")?.parse().ok();
        (found.or_else(|| panels().map(Algorithm::Panels)))
            .filter(|a| a.to_string() == text)
            .ok_or_else(|| UnknownAlgorithm(text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest row of (|Aᵀ| (|G| 1 ∘ |Bᵀ| 1) / 3)².
    fn growth(a: &[&[f64]], g: &[&[f64]], b: &[&[f64]]) -> f64 {
        let sum = |row: &[f64]| row.iter().map(|v| v.abs()).sum::<f64>();
        let row = |row: &&[f64]| {
            let terms = row.iter().zip(g.iter().zip(b));
            let sum: f64 = terms.map(|(a, (g, b))| a.abs() * sum(g) * sum(b)).sum();
            (sum / 3.0).powi(2)
        };
        a.iter().map(row).fold(0.0, f64::max)
    }

    #[test]
    fn the_growth_of_the_error_follows_from_the_matrices() {
        let two = growth(
            &[&[1., 1., 1., 0.], &[0., 1., -1., -1.]],
            &[&[1., 0., 0.], &[0.5; 3], &[0.5, -0.5, 0.5], &[0., 0., 1.]],
            &[
                &[1., 0., -1., 0.],
                &[0., 1., 1., 0.],
                &[0., -1., 1., 0.],
                &[0., 1., 0., -1.],
            ],
        );
        assert_eq!(Algorithm::Winograd2.error_growth(), two);
        let four = growth(
            &[
                &[1., 1., 1., 1., 1., 0.],
                &[0., 1., -1., 2., -2., 0.],
                &[0., 1., 1., 4., 4., 0.],
                &[0., 1., -1., 8., -8., 1.],
            ],
            &[
                &[0.25, 0., 0.],
                &[-1. / 6.; 3],
                &[-1. / 6., 1. / 6., -1. / 6.],
                &[1. / 24., 1. / 12., 1. / 6.],
                &[1. / 24., -1. / 12., 1. / 6.],
                &[0., 0., 1.],
            ],
            &[
                &[4., 0., -5., 0., 1., 0.],
                &[0., -4., -4., 1., 1., 0.],
                &[0., 4., -4., -1., 1., 0.],
                &[0., -2., -1., 2., 1., 0.],
                &[0., 2., -1., -2., 1., 0.],
                &[0., 4., 0., -5., 0., 1.],
            ],
        );
        assert!(
            (Algorithm::Winograd4.error_growth() / four - 1.0).abs() < 1e-9,
            "{four}"
        );
    }

    #[test]
    fn names_parse_back() {
        for a in Algorithm::PLAIN.into_iter().chain([Algorithm::Panels(23)]) {
            assert_eq!(a.to_string().parse(), Ok(a));
        }
        for wrong in [
            "",
            "panels",
            "panels_",
            "panels_999",
            "panels_023",
            "Direct",
        ] {
            assert!(wrong.parse::<Algorithm>().is_err(), "{wrong}");
        }
    }
}
