//! Images sampled at given places.

use super::args::{known, named_values, needs_float, same_device_and_dtype};
use super::short::wide;
use crate::operand::AsTensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// The interpolation of [`Tensor::grid_sample`] between elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GridMode {
    /// Linear, from the 2 neighbours in each dim (bilinear; trilinear for volumes).
    Bilinear,
    /// The nearest element; of two equally near, the one with the even index.
    Nearest,
    /// From the 4 neighbours in each dim, by cubic convolution with a = −0.75; images only.
    Bicubic,
}

/// The values outside the image.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum GridPadding {
    /// Zeros.
    Zeros,
    /// The nearest element of the border.
    Border,
    /// The image, mirrored at its borders.
    Reflection,
}

named_values! {
    GridMode, "mode":
    "bilinear" => Bilinear,
    "nearest" => Nearest,
    "bicubic" => Bicubic,
}

named_values! {
    GridPadding, "padding mode":
    "zeros" => Zeros,
    "border" => Border,
    "reflection" => Reflection,
}

options! {
    /// The options of [`Tensor::grid_sample`].
    GridSample () {
        /// The interpolation between elements (default bilinear).
        mode: GridMode = GridMode::Bilinear,
        /// The values outside the image (default zeros).
        padding_mode: GridPadding = GridPadding::Zeros,
        /// True if places −1 and 1 are the centres of the outermost elements, false if they are their outer edges
        /// (the default).
        align_corners: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// The values of `[N, C, H, W]` images at the places `[N, Ho, Wo, 2]` (x before y) of a grid:
    /// `[N, C, Ho, Wo]`. Likewise for volumes `[N, C, D, H, W]` with `[N, Do, Ho, Wo, 3]`. Places −1 and
    /// 1 are the borders: the outer edges of the outermost elements.
    pub fn grid_sample(&self, grid: impl AsTensor) -> Tensor {
        self.grid_sample_with(grid, GridSample::new())
    }

    /// [`Tensor::grid_sample`] with another interpolation or other values outside the image, or with borders at the
    /// centres of elements.
    #[autocast]
    pub fn grid_sample_with(&self, grid: impl AsTensor, options: GridSample) -> Tensor {
        let GridSample {
            mode,
            padding_mode: padding,
            align_corners,
        } = options;
        compose("grid_sample", &[self, grid], |b| {
            needs_float(self, "image")?;
            same_device_and_dtype(self, "image", grid, "grid")?;
            let n = self.ndim();
            ensure!(
                n == 4 || n == 5,
                "the image must have 4 or 5 dims, not {}",
                self.fact()
            );
            let spatial = n - 2;
            ensure!(
                grid.ndim() == n && grid.dims()[0] == self.dims()[0],
                "the grid {} does not have the batch and the number of dims of {}",
                grid.fact(),
                self.fact()
            );
            ensure!(
                grid.dims()[n - 1].is(spatial as i64),
                "the last dim of the grid {} must hold {spatial} coordinates",
                grid.fact()
            );
            ensure!(
                mode != GridMode::Bicubic || spatial == 2,
                "bicubic sampling is for images, not for {}",
                self.fact()
            );
            let mut extents = Vec::new();
            for a in 2..n {
                extents.push(known(self, a)?);
            }
            ensure!(
                extents.iter().all(|e| *e > 0),
                "{} has no elements to sample",
                self.fact()
            );
            let sampler = Sampler {
                extents,
                padding,
                align_corners,
            };
            let x = b.cast(self, wide(self.dtype()))?;
            let places = sampler.places(b, grid)?;
            let y = sampler.sample(b, &x, &places, mode)?;
            let y = b.cast(&y, self.dtype())?;
            if mode != GridMode::Nearest {
                return Ok(y);
            }
            let place = super::parts::select(b, grid, n - 1, 0)?;
            let place = b.unsqueeze(&place, 1)?;
            b.connected(&y, &place)
        })
    }
}

struct Sampler {
    /// Spatial sizes.
    extents: Vec<i64>,
    padding: GridPadding,
    align_corners: bool,
}

/// One neighbour of every place along one dim: its coordinate, an integral float, and its weight.
struct Tap {
    at: Tensor,
    weight: Option<Tensor>,
}

impl Sampler {
    /// Returns the coordinates in elements, for each spatial dim of the image, `[N, ..]`. Each step is rounded to the
    /// dtype of the grid, as in PyTorch.
    fn places(&self, b: &mut Recorder, grid: &Tensor) -> Result<Vec<Tensor>, OpError> {
        let dtype = grid.dtype();
        let step = |b: &mut Recorder, op, x: &Tensor, number: f64| {
            let x = b.cast(x, wide(dtype))?;
            let y = b.with(op, &x, number)?;
            b.cast(&y, dtype)
        };
        let last = grid.ndim() - 1;
        let mut out = Vec::new();
        for (a, &extent) in self.extents.iter().enumerate() {
            // The grid has the coordinate of the last dim first.
            let c = super::parts::select(b, grid, last, (self.extents.len() - 1 - a) as i64)?;
            let c = step(b, Pw::Add, &c, 1.0)?;
            let place = if self.align_corners {
                let half = step(b, Pw::Div, &c, 2.0)?;
                step(b, Pw::Mul, &half, (extent - 1) as f64)?
            } else {
                let scaled = step(b, Pw::Mul, &c, extent as f64)?;
                let shifted = step(b, Pw::Sub, &scaled, 1.0)?;
                step(b, Pw::Div, &shifted, 2.0)?
            };
            out.push(b.cast(&place, wide(dtype))?);
        }
        Ok(out)
    }

    fn sample(&self, b: &mut Recorder, x: &Tensor, places: &[Tensor], mode: GridMode) -> Recorded {
        let mut taps: Vec<Vec<Tap>> = Vec::new();
        for (a, place) in places.iter().enumerate() {
            taps.push(self.taps(b, a, place, mode)?);
        }
        let image: Shape = [
            x.dims()[0].clone(),
            x.dims()[1].clone(),
            numel(&x.dims()[2..]),
        ]
        .into_iter()
        .collect();
        let flat = b.reshape(x, &image)?;
        // Every combination of one neighbour for each dim; the first dims vary slowest.
        let counts: Vec<usize> = taps.iter().map(Vec::len).collect();
        let mut sum: Option<Tensor> = None;
        for mut number in 0..counts.iter().product() {
            let mut chosen: Vec<&Tap> = Vec::new();
            for taps in taps.iter().rev() {
                chosen.push(&taps[number % taps.len()]);
                number /= taps.len();
            }
            chosen.reverse();
            let term = self.weighted(b, &flat, &chosen)?;
            sum = Some(b.accumulated(Pw::Add, sum, term)?);
        }
        sum.ok_or_else(|| OpError::new("there is no neighbour"))
    }

    /// The neighbours of each place along a dim.
    fn taps(
        &self,
        b: &mut Recorder,
        axis: usize,
        place: &Tensor,
        mode: GridMode,
    ) -> Result<Vec<Tap>, OpError> {
        if mode == GridMode::Bicubic {
            let low = b.unary(Pw::Floor, place)?;
            let t = b.binary(Pw::Sub, place, &low)?;
            let mut taps = Vec::new();
            for (i, weight) in cubic(b, &t)?.into_iter().enumerate() {
                let at = b.with(Pw::Add, &low, i as f64 - 1.0)?;
                let at = self.inside(b, axis, &at)?;
                let weight = Some(weight);
                taps.push(Tap { at, weight });
            }
            return Ok(taps);
        }
        let place = self.inside(b, axis, place)?;
        if mode == GridMode::Nearest {
            let at = b.unary(Pw::Round, &place)?;
            return Ok(vec![Tap { at, weight: None }]);
        }
        let low = b.unary(Pw::Floor, &place)?;
        let high = b.with(Pw::Add, &low, 1.0)?;
        let near_low = b.binary(Pw::Sub, &high, &place)?;
        let near_high = b.binary(Pw::Sub, &place, &low)?;
        let tap = |at, weight| Tap {
            at,
            weight: Some(weight),
        };
        Ok(vec![tap(low, near_low), tap(high, near_high)])
    }

    /// Clamps or reflects a coordinate into the image, unless the padding is zeros. NaN becomes 0, as in PyTorch.
    fn inside(&self, b: &mut Recorder, axis: usize, at: &Tensor) -> Recorded {
        let extent = self.extents[axis];
        let last = (extent - 1) as f64;
        let at = match self.padding {
            GridPadding::Zeros => return Ok(at.clone()),
            GridPadding::Border => at.clone(),
            GridPadding::Reflection if self.align_corners => reflected(b, at, 0.0, last)?,
            GridPadding::Reflection => reflected(b, at, -0.5, extent as f64)?,
        };
        let at = b.with(Pw::Fmax, &at, 0.0)?;
        b.with(Pw::Minimum, &at, last)
    }

    /// The elements at the chosen neighbours times their weights, `[N, C, ..]`; zero outside.
    fn weighted(&self, b: &mut Recorder, flat: &Tensor, chosen: &[&Tap]) -> Recorded {
        let mut index: Option<Tensor> = None;
        let mut inside: Option<Tensor> = None;
        let mut weight: Option<Tensor> = None;
        for (tap, &extent) in chosen.iter().zip(&self.extents) {
            let last = (extent - 1) as f64;
            if self.padding == GridPadding::Zeros {
                let (low, high) = (
                    b.with(Pw::Ge, &tap.at, 0.0)?,
                    b.with(Pw::Le, &tap.at, last)?,
                );
                let within = b.binary(Pw::And, &low, &high)?;
                inside = Some(b.accumulated(Pw::And, inside, within)?);
            }
            if let Some(w) = &tap.weight {
                weight = Some(b.accumulated(Pw::Mul, weight, w.clone())?);
            }
            let at = b.with(Pw::Maximum, &tap.at, 0.0)?;
            let at = b.with(Pw::Minimum, &at, last)?;
            let at = b.cast(&at, DType::I64)?;
            index = Some(match index {
                Some(i) => {
                    let rows = b.with(Pw::Mul, &i, extent)?;
                    b.binary(Pw::Add, &rows, &at)?
                }
                None => at,
            });
        }
        let index = index.ok_or_else(|| OpError::new("there is no dim to sample"))?;
        let mut out = Shape::from(index.dims());
        out.insert(1, flat.dims()[1].clone());
        let count = numel(&index.dims()[1..]);
        let lead = [flat.dims()[0].clone(), Dim::ONE, count.clone()];
        let index = b.reshape(&index, &lead)?;
        let index = b.broadcast_to(&index, &[lead[0].clone(), out[1].clone(), count])?;
        let value = b.gather(flat, 2, &index)?;
        let mut value = b.reshape(&value, &out)?;
        if let Some(inside) = inside {
            let inside = b.unsqueeze(&inside, 1)?;
            let zero = b.scalar_like(0.0, &value)?;
            value = b.select(&inside, &value, &zero)?;
        }
        match weight {
            Some(weight) => {
                let weight = b.unsqueeze(&weight, 1)?;
                b.binary(Pw::Mul, &value, &weight)
            }
            None => Ok(value),
        }
    }
}

/// Reflects coordinates at `low` and at `low + span`, as often as needed.
fn reflected(b: &mut Recorder, at: &Tensor, low: f64, span: f64) -> Recorded {
    if span == 0.0 {
        return b.full(0.0, at.dtype(), at.dims());
    }
    let distance = b.with(Pw::Sub, at, low)?;
    let distance = b.unary(Pw::Abs, &distance)?;
    let span_t = b.scalar_like(span, &distance)?;
    let extra = b.binary(Pw::Fmod, &distance, &span_t)?;
    let flips = b.binary(Pw::Div, &distance, &span_t)?;
    let flips = b.unary(Pw::Floor, &flips)?;
    let two = b.scalar_like(2.0, &flips)?;
    let odd = b.binary(Pw::Fmod, &flips, &two)?;
    let odd = b.with(Pw::Ne, &odd, 0.0)?;
    let minus = b.unary(Pw::Neg, &extra)?;
    let back = b.with(Pw::Add, &minus, span + low)?;
    let on = b.with(Pw::Add, &extra, low)?;
    b.select(&odd, &back, &on)
}

/// Returns the weights of the neighbours at −1, 0, 1 and 2 for a place at `t` in 0..1 (cubic convolution, Keys 1981,
/// with PyTorch's a).
fn cubic(b: &mut Recorder, t: &Tensor) -> Result<[Tensor; 4], OpError> {
    const A: f64 = -0.75;
    // ((c₃·x + c₂)·x + c₁)·x + c₀
    let polynomial = |b: &mut Recorder, x: &Tensor, c: [f64; 4]| -> Recorded {
        let mut y = b.with(Pw::Mul, x, c[0])?;
        for c in &c[1..3] {
            y = b.with(Pw::Add, &y, *c)?;
            y = b.binary(Pw::Mul, &y, x)?;
        }
        b.with(Pw::Add, &y, c[3])
    };
    let near = [A + 2.0, -(A + 3.0), 0.0, 1.0];
    let far = [A, -5.0 * A, 8.0 * A, -4.0 * A];
    let minus = b.unary(Pw::Neg, t)?;
    let rest = b.with(Pw::Add, &minus, 1.0)?;
    let (before, after) = (b.with(Pw::Add, t, 1.0)?, b.with(Pw::Add, &rest, 1.0)?);
    Ok([
        polynomial(b, &before, far)?,
        polynomial(b, t, near)?,
        polynomial(b, &rest, near)?,
        polynomial(b, &after, far)?,
    ])
}
