//! Resizing images.

use super::adaptive_pool::adaptive_average;
use super::args::{IntList, known, listable, needs_float};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

/// How [`Tensor::interpolate`] makes new elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InterpolateMode {
    /// The element at `⌊i / scale⌋`.
    Nearest,
    /// The element whose centre is nearest.
    NearestExact,
    /// A weighted mean of the two neighbours along each of 1 to 3 axes (linear, bilinear, trilinear).
    Linear {
        /// Whether the corner elements of input and output coincide.
        align_corners: bool,
    },
    /// Cubic convolution of four neighbours along both of 2 axes (Keys, 1981, a = −0.75).
    Bicubic {
        /// Whether the corner elements of input and output coincide.
        align_corners: bool,
    },
    /// The mean of the covered elements.
    Area,
}

/// How large [`Tensor::interpolate`] makes the spatial dims.
#[derive(Clone, Debug, PartialEq)]
pub enum InterpolateSize {
    /// These sizes, one for each spatial dim or one for all.
    Size(IntList),
    /// The old sizes times these factors, rounded down; positions use the factors.
    ScaleFactor(Vec<f64>),
}

/// One output element along an axis: (input element, weight) pairs.
type Taps = Vec<(i64, f64)>;

#[on_cells]
impl Tensor {
    /// `[n, c, ..]` with its spatial dims resized.
    #[track_caller]
    pub fn interpolate(&self, size: InterpolateSize, mode: InterpolateMode) -> Tensor {
        compose("interpolate", &[self], |b| {
            needs_float(self, "input")?;
            ensure!(
                (3..=5).contains(&self.ndim()),
                "the input must have 1 to 3 spatial dims after batch and channels, not {}",
                self.fact()
            );
            let spatial = self.ndim() - 2;
            let cubic = matches!(mode, InterpolateMode::Bicubic { .. });
            ensure!(
                !cubic || spatial == 2,
                "bicubic needs 2 spatial dims, not {}",
                self.fact()
            );
            let axes = axes(self, spatial, &size)?;
            if mode == InterpolateMode::Area {
                let sizes = axes.iter().map(|a| a.out).collect();
                return adaptive_average(b, spatial, self, &IntList(sizes).into());
            }
            let mut x = b.widened(self)?;
            // With 3 dims PyTorch rounds a linear weight before it takes the other one from it.
            let dtype = if spatial == 3 {
                self.dtype()
            } else {
                DType::F64
            };
            for (i, axis) in axes.iter().enumerate() {
                let taps: Vec<Taps> = (0..axis.out).map(|o| axis.taps(o, mode, dtype)).collect();
                x = blended(b, &x, i + 2, &taps, self.dtype())?;
            }
            b.cast(&x, self.dtype())
        })
    }
}

/// An axis being resized.
struct Axis {
    n: i64,
    out: i64,
    /// Input elements a step of the output, where the caller fixed it.
    scale: Option<f64>,
}

fn axes(t: &Tensor, spatial: usize, size: &InterpolateSize) -> Result<Vec<Axis>, OpError> {
    let count = match size {
        InterpolateSize::Size(s) => s.0.len(),
        InterpolateSize::ScaleFactor(f) => f.len(),
    };
    ensure!(
        count == spatial || count == 1,
        "resizing {spatial} dims needs one number or {spatial}, not {count}"
    );
    let mut out = Vec::new();
    for a in 0..spatial {
        let n = known(t, a + 2)?;
        let axis = match size {
            InterpolateSize::ScaleFactor(f) if !f[a % count].is_finite() => {
                return Err(OpError(format!("can't resize by {}", f[a % count])));
            }
            InterpolateSize::Size(s) => Axis {
                n,
                out: s.0[a % count],
                scale: None,
            },
            InterpolateSize::ScaleFactor(f) => {
                let factor = f[a % count];
                Axis {
                    n,
                    out: (n as f64 * factor).floor() as i64,
                    scale: Some(1.0 / factor),
                }
            }
        };
        ensure!(
            axis.n > 0 && axis.out > 0,
            "can't resize {} elements to {}",
            axis.n,
            axis.out
        );
        listable(
            Some(axis.out),
            &format!("resizing {} elements to {}", axis.n, axis.out),
        )?;
        out.push(axis);
    }
    Ok(out)
}

impl Axis {
    /// What output element `o` is made of; linear weights are rounded to `dtype`.
    fn taps(&self, o: i64, mode: InterpolateMode, dtype: DType) -> Taps {
        let step = self.scale.unwrap_or(self.n as f64 / self.out as f64);
        let clamped = |i: i64| i.clamp(0, self.n - 1);
        match mode {
            InterpolateMode::Nearest => vec![(clamped((o as f32 * step as f32) as i64), 1.0)],
            InterpolateMode::NearestExact => {
                vec![(clamped(((o as f32 + 0.5) * step as f32) as i64), 1.0)]
            }
            InterpolateMode::Linear { align_corners } => {
                let at = self.position(o, align_corners, step).max(0.0);
                let low = clamped(at as i64);
                let weight = kiln_base::round_float((at - low as f64).clamp(0.0, 1.0), dtype);
                vec![(low, 1.0 - weight), (clamped(low + 1), weight)]
            }
            InterpolateMode::Bicubic { align_corners } => {
                let at = self.position(o, align_corners, step);
                let low = at.floor();
                let taps = cubic(at - low);
                (0..4)
                    .map(|i| (clamped(low as i64 - 1 + i), taps[i as usize]))
                    .collect()
            }
            InterpolateMode::Area => Vec::new(), // an adaptive mean instead
        }
    }

    /// Where output element `o` lies among the input elements.
    fn position(&self, o: i64, align_corners: bool, step: f64) -> f64 {
        if !align_corners {
            return step * (o as f64 + 0.5) - 0.5;
        }
        if self.out > 1 {
            o as f64 * ((self.n - 1) as f64 / (self.out - 1) as f64)
        } else {
            0.0
        }
    }
}

/// Weights of four neighbours at distance `t` after the second.
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

/// Σ weight · element along an axis, for every output element; all have equally many taps. The weights
/// are rounded to the image's dtype, as PyTorch's are.
fn blended(b: &mut Recorder, x: &Tensor, axis: usize, taps: &[Taps], dtype: DType) -> Recorded {
    let mut sum: Option<Tensor> = None;
    for i in 0..taps.first().map_or(0, Vec::len) {
        let index: Vec<i64> = taps.iter().map(|t| t[i].0).collect();
        let index = b.constant(&index)?;
        let mut term = b.index_select(x, axis, &index)?;
        if taps.iter().any(|t| t[i].1 != 1.0) {
            let weights: Vec<f64> = taps.iter().map(|t| t[i].1).collect();
            let weights = b.constant_float(&weights, dtype)?;
            let weights = b.cast(&weights, x.dtype())?;
            let weights = b.along(&weights, axis, x.ndim())?;
            term = b.binary(Pw::Mul, &term, &weights)?;
        }
        sum = Some(match sum {
            Some(s) => b.binary(Pw::Add, &s, &term)?,
            None => term,
        });
    }
    sum.ok_or_else(|| OpError::new("an output size can't be 0"))
}
