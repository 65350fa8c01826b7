//! Resizing images.

use super::adaptive_pool::adaptive_average;
use super::args::{IntList, check_float, check_listable, known_dim};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure, ops};

/// The interpolation of [`Tensor::interpolate`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum InterpolateMode {
    /// The element at `⌊i / scale⌋`. Images whose size along an axis stays or doubles are copied or doubled evenly,
    /// regardless of the factor.
    Nearest,
    /// The element whose centre is nearest.
    NearestExact,
    /// A weighted mean of the two neighbours along each of 1 to 3 axes (linear, bilinear, trilinear).
    Linear {
        /// True if the corner elements of input and output coincide.
        align_corners: bool,
    },
    /// Cubic convolution of four neighbours along both of 2 axes (Keys, 1981, a = −0.75).
    Bicubic {
        /// True if the corner elements of input and output coincide.
        align_corners: bool,
    },
    /// The mean of the covered elements.
    Area,
}

/// The sizes of the spatial dims that [`Tensor::interpolate`] returns.
#[derive(Clone, Debug, PartialEq)]
pub enum InterpolateSize {
    /// These sizes, one for each spatial dim or one for all.
    Size(IntList),
    /// The old sizes times these factors, rounded down; positions use the factors. Linear modes copy along an axis
    /// whose size doesn't change.
    ScaleFactor(Vec<f64>),
}

/// One term of every output element along an axis: the index of the input element, and its weight if it is not 1.
/// Weights are rounded to the image's dtype, as in PyTorch.
type Tap = (Tensor, Option<Tensor>);

#[on_cells]
impl Tensor {
    /// `[n, c, ..]` with its spatial dims resized.
    #[autocast]
    pub fn interpolate(&self, size: InterpolateSize, mode: InterpolateMode) -> Tensor {
        compose("interpolate", &[self], |b| {
            check_float(self, "input")?;
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
            let axes = axes(self, spatial, &size, mode)?;
            if mode == InterpolateMode::Area {
                let sizes = axes.iter().map(|a| known_dim(&a.out, self));
                let sizes = sizes.collect::<Result<_, _>>()?;
                return adaptive_average(b, spatial, self, &IntList(sizes).into());
            }
            let mut x = b.widen(self)?;
            // With 3 dims PyTorch rounds a linear weight before it computes the complementary one.
            let dtype = if spatial == 3 {
                self.dtype()
            } else {
                DType::F64
            };
            for (i, axis) in axes.iter().enumerate() {
                let taps = match axis.known() {
                    Some(known) if known.is_identity() => continue,
                    Some(known) => known.listed_taps(b, mode, dtype, self.dtype())?,
                    None => axis.computed_taps(b, mode, dtype, self)?,
                };
                x = weighted_sum(b, &x, i + 2, &taps)?;
            }
            b.narrowed(&x, self.dtype())
        })
    }
}

/// An axis that is resized.
struct Axis<N> {
    n: N,
    out: N,
    /// The number of input elements for each step of the output, if the caller fixed it.
    scale: Option<f64>,
    /// The ratio of output to input for which `scale` is ignored.
    ignored_at: Option<i64>,
}

fn axes(
    t: &Tensor,
    spatial: usize,
    size: &InterpolateSize,
    mode: InterpolateMode,
) -> Result<Vec<Axis<Dim>>, OpError> {
    // As in PyTorch.
    let ignored = match mode {
        InterpolateMode::Linear { .. } => 1..2,
        InterpolateMode::Nearest if spatial == 2 => 1..3,
        _ => 0..0,
    };
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
        let n = t.dims()[a + 2].clone();
        let axis = match size {
            InterpolateSize::ScaleFactor(f) if !f[a % count].is_finite() => {
                return Err(OpError(format!("can't resize by {}", f[a % count])));
            }
            InterpolateSize::Size(s) => Axis {
                n,
                out: s.0[a % count].into(),
                scale: None,
                ignored_at: None,
            },
            InterpolateSize::ScaleFactor(f) => {
                let factor = f[a % count];
                Axis {
                    out: scale_size(&n, factor, t)?,
                    n,
                    scale: Some(1.0 / factor),
                    ignored_at: Some(factor as i64).filter(|ratio| ignored.contains(ratio)),
                }
            }
        };
        let positive = |d: &Dim| d.as_const().is_none_or(|n| n > 0);
        ensure!(
            positive(&axis.n) && positive(&axis.out),
            "can't resize {} elements to {}",
            axis.n,
            axis.out
        );
        if let Some(Axis { n, out, .. }) = axis.known() {
            check_listable(Some(out), &format!("resizing {n} elements to {out}"))?;
        }
        out.push(axis);
    }
    Ok(out)
}

/// `n · factor`, rounded down. If `n` is not known, the factor must be a multiple of a power of ½ down to 2⁻¹⁰.
fn scale_size(n: &Dim, factor: f64, t: &Tensor) -> Result<Dim, OpError> {
    const MAX_HALVINGS: i32 = 10;
    if let Some(n) = n.as_const() {
        return Ok(Dim::Const((n as f64 * factor).floor() as i64));
    }
    let is_integral = |k: &i32| (factor * 2f64.powi(*k)).fract() == 0.0;
    let halvings = (0..=MAX_HALVINGS).find(is_integral);
    let halvings = halvings.ok_or_else(|| {
        OpError(format!(
            "needs a known size, not {n} of {}, to resize it by {factor}",
            t.fact()
        ))
    })?;
    let times = (factor * 2f64.powi(halvings)) as i64;
    Ok((n * &Dim::Const(times)).div_floor(1 << halvings))
}

impl Axis<Dim> {
    /// Returns the same axis if its sizes are known.
    fn known(&self) -> Option<Axis<i64>> {
        let (n, out) = (self.n.as_const()?, self.out.as_const()?);
        let is_ignored = self.ignored_at.is_some_and(|ratio| out == n * ratio);
        Some(Axis {
            n,
            out,
            scale: self.scale.filter(|_| !is_ignored),
            ignored_at: None,
        })
    }

    /// Returns the number of input elements for each step of the output, as an f64.
    fn step(&self, b: &mut Recorder, corners: bool) -> Recorded {
        let (mut n, mut out) = (self.n.clone(), self.out.clone());
        if corners {
            // From the first element to the last; a single element takes no step.
            (n, out) = (&n - &Dim::ONE, &out - &Dim::ONE);
        } else if let Some(step) = self.scale
            && (self.ignored_at).is_none_or(|ratio| step * ratio as f64 == 1.0)
        {
            return b.full(step, DType::F64, &[]);
        }
        let [n, out] = [n, out].map(|d| {
            let shape = Shape::from_iter([d]);
            let size = b.op(ops::Numel { shape }, &[])?;
            b.cast(&size, DType::F64)
        });
        let out = b.with(Pw::Maximum, &out?, 1.0)?;
        let step = b.binary(Pw::Div, &n?, &out)?;
        match (self.scale, self.ignored_at) {
            (Some(scale), Some(ratio)) if !corners => {
                let is_ignored = b.with(Pw::Eq, &step, 1.0 / ratio as f64)?;
                let scale = b.scalar_like(scale, &step)?;
                b.select(&is_ignored, &step, &scale)
            }
            _ => Ok(step),
        }
    }

    /// Returns the terms of output elements, computed in the program; linear weights are rounded to `dtype`.
    fn computed_taps(
        &self,
        b: &mut Recorder,
        mode: InterpolateMode,
        dtype: DType,
        t: &Tensor,
    ) -> Result<Vec<Tap>, OpError> {
        let last = &self.n - &Dim::ONE;
        let clamped = |b: &mut Recorder, position: &Tensor| {
            let position = b.cast(position, DType::I64)?;
            let position = b.with(Pw::Maximum, &position, 0i64)?;
            b.with_size(Pw::Minimum, &position, &last)
        };
        // Computed from the elements after the first, so that an invalid size is an error.
        let later = b.iota(&(&self.out - &Dim::ONE))?;
        let later = b.with(Pw::Add, &later, 1i64)?;
        let o = b.pad_axis(&later, 0, 1i64, 0i64, 0i64)?;
        let o = b.cast(&o, DType::F64)?;
        let (corners, centre) = match mode {
            InterpolateMode::Nearest => (false, 0.0),
            InterpolateMode::Linear {
                align_corners: true,
            } => (true, 0.0),
            _ => (false, 0.5),
        };
        let step = self.step(b, corners)?;
        match mode {
            InterpolateMode::Nearest | InterpolateMode::NearestExact => {
                let (o, step) = (b.cast(&o, DType::F32)?, b.cast(&step, DType::F32)?);
                let o = b.with(Pw::Add, &o, centre)?;
                let position = b.binary(Pw::Mul, &o, &step)?;
                Ok(vec![(clamped(b, &position)?, None)])
            }
            InterpolateMode::Linear { .. } => {
                let o = b.with(Pw::Add, &o, centre)?;
                let position = b.binary(Pw::Mul, &step, &o)?;
                let position = b.with(Pw::Sub, &position, centre)?;
                let position = b.with(Pw::Maximum, &position, 0.0)?;
                let low = clamped(b, &position)?;
                let low_float = b.cast(&low, DType::F64)?;
                let weight = b.binary(Pw::Sub, &position, &low_float)?;
                let weight = b.with(Pw::Minimum, &weight, 1.0)?;
                let weight = b.cast(&weight, dtype)?;
                let weight = b.cast(&weight, DType::F64)?;
                let unit = b.scalar_like(1.0, &weight)?;
                let complement = b.binary(Pw::Sub, &unit, &weight)?;
                let next = b.with(Pw::Add, &low, 1i64)?;
                let next = b.with_size(Pw::Minimum, &next, &last)?;
                let [complement, weight] = [complement, weight].map(|w| b.cast(&w, t.dtype()));
                Ok(vec![(low, Some(complement?)), (next, Some(weight?))])
            }
            InterpolateMode::Bicubic { .. } | InterpolateMode::Area => {
                let (n, out) = (&self.n, &self.out);
                let fact = t.fact();
                Err(OpError(format!(
                    "needs known sizes to resize {n} elements of {fact} to {out} so"
                )))
            }
        }
    }
}

impl Axis<i64> {
    /// True if each output element is the input element at the same position.
    fn is_identity(&self) -> bool {
        self.scale.is_none() && self.n == self.out
    }

    /// Returns the terms of output elements, as lists.
    fn listed_taps(
        &self,
        b: &mut Recorder,
        mode: InterpolateMode,
        dtype: DType,
        image: DType,
    ) -> Result<Vec<Tap>, OpError> {
        let terms: Vec<_> = (0..self.out).map(|o| self.taps(o, mode, dtype)).collect();
        let mut taps = Vec::new();
        for i in 0..terms.first().map_or(0, Vec::len) {
            let (index, weights): (Vec<i64>, Vec<f64>) = terms.iter().map(|t| t[i]).unzip();
            let index = b.list(&index, &[index.len()], DType::I64)?;
            let weighs = weights.iter().any(|w| *w != 1.0);
            let weights = weighs.then(|| b.list(&weights, &[weights.len()], image));
            taps.push((index, weights.transpose()?));
        }
        Ok(taps)
    }

    /// Returns the terms of output element `o`: (input element, weight) pairs. Linear weights are rounded to `dtype`.
    fn taps(&self, o: i64, mode: InterpolateMode, dtype: DType) -> Vec<(i64, f64)> {
        let step = self.scale.unwrap_or(self.n as f64 / self.out as f64);
        let clamped = |i: i64| i.clamp(0, self.n - 1);
        match mode {
            InterpolateMode::Nearest => vec![(clamped((o as f32 * step as f32) as i64), 1.0)],
            InterpolateMode::NearestExact => {
                vec![(clamped(((o as f32 + 0.5) * step as f32) as i64), 1.0)]
            }
            InterpolateMode::Linear { align_corners } => {
                let position = self.position(o, align_corners, step).max(0.0);
                let low = clamped(position as i64);
                let weight = kiln_base::round_float((position - low as f64).clamp(0.0, 1.0), dtype);
                vec![(low, 1.0 - weight), (clamped(low + 1), weight)]
            }
            InterpolateMode::Bicubic { align_corners } => {
                let position = self.position(o, align_corners, step);
                let low = position.floor();
                let taps = cubic(position - low);
                (0..4)
                    .map(|i| (clamped(low as i64 - 1 + i), taps[i as usize]))
                    .collect()
            }
            InterpolateMode::Area => Vec::new(), // an adaptive mean instead
        }
    }

    /// Returns the position of output element `o` among the input elements.
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
    let inner = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let outer = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [outer(t + 1.0), inner(t), inner(1.0 - t), outer(2.0 - t)]
}

/// Σ weight · element along an axis, for every output element.
fn weighted_sum(b: &mut Recorder, x: &Tensor, axis: usize, taps: &[Tap]) -> Recorded {
    let mut sum: Option<Tensor> = None;
    for (index, weights) in taps {
        let mut term = b.index_select(x, axis, index)?;
        if let Some(weights) = weights {
            let weights = b.cast(weights, x.dtype())?;
            let weights = b.reshape_along(&weights, axis, x.ndim())?;
            term = b.binary(Pw::Mul, &term, &weights)?;
        }
        sum = Some(b.accumulate(Pw::Add, sum, term)?);
    }
    sum.ok_or_else(|| OpError::new("an output size can't be 0"))
}
