//! Images sampled at given places.

use super::args::{check_alike, check_float, known, named_values};
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
        /// True if coordinates −1 and 1 are the centres of the outermost elements, false if they are their outer edges
        /// (the default).
        align_corners: bool = false,
    }
}

#[on_cells]
impl Tensor {
    /// The values of `[N, C, H, W]` images at the coordinates `[N, Ho, Wo, 2]` (x before y) of a grid:
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
            check_float(self, "image")?;
            check_alike(self, "image", grid, "grid")?;
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
            let coords = sampler.coords(b, grid)?;
            let y = sampler.sample(b, &x, &coords, mode)?;
            let y = b.cast(&y, self.dtype())?;
            if mode != GridMode::Nearest {
                return Ok(y);
            }
            let coord = super::parts::select(b, grid, n - 1, 0)?;
            let coord = b.unsqueeze(&coord, 1)?;
            b.connect(&y, &coord)
        })
    }
}

struct Sampler {
    /// Spatial sizes.
    extents: Vec<i64>,
    padding: GridPadding,
    align_corners: bool,
}

/// One neighbour of every coordinate along one dim: its coordinate, an integral float, and its weight.
struct Tap {
    index: Tensor,
    weight: Option<Tensor>,
}

impl Sampler {
    /// Returns the coordinates in elements, for each spatial dim of the image, `[N, ..]`. Each step is rounded to the
    /// dtype of the grid, as in PyTorch.
    fn coords(&self, b: &mut Recorder, grid: &Tensor) -> Result<Vec<Tensor>, OpError> {
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
            let position = if self.align_corners {
                let half = step(b, Pw::Div, &c, 2.0)?;
                step(b, Pw::Mul, &half, (extent - 1) as f64)?
            } else {
                let scaled = step(b, Pw::Mul, &c, extent as f64)?;
                let shifted = step(b, Pw::Sub, &scaled, 1.0)?;
                step(b, Pw::Div, &shifted, 2.0)?
            };
            out.push(b.cast(&position, wide(dtype))?);
        }
        Ok(out)
    }

    fn sample(&self, b: &mut Recorder, x: &Tensor, coords: &[Tensor], mode: GridMode) -> Recorded {
        let mut taps: Vec<Vec<Tap>> = Vec::new();
        for (a, coord) in coords.iter().enumerate() {
            taps.push(self.taps(b, a, coord, mode)?);
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
            let term = self.weighted_elements(b, &flat, &chosen)?;
            sum = Some(b.accumulate(Pw::Add, sum, term)?);
        }
        sum.ok_or_else(|| OpError::new("there is no neighbour"))
    }

    /// The neighbours of each coordinate along a dim.
    fn taps(
        &self,
        b: &mut Recorder,
        axis: usize,
        coord: &Tensor,
        mode: GridMode,
    ) -> Result<Vec<Tap>, OpError> {
        if mode == GridMode::Bicubic {
            let low = b.unary(Pw::Floor, coord)?;
            let t = b.binary(Pw::Sub, coord, &low)?;
            let mut taps = Vec::new();
            for (i, weight) in cubic_weights(b, &t)?.into_iter().enumerate() {
                let index = b.with(Pw::Add, &low, i as f64 - 1.0)?;
                let index = self.clamp_coordinate(b, axis, &index)?;
                let weight = Some(weight);
                taps.push(Tap { index, weight });
            }
            return Ok(taps);
        }
        let coord = self.clamp_coordinate(b, axis, coord)?;
        if mode == GridMode::Nearest {
            let index = b.unary(Pw::Round, &coord)?;
            return Ok(vec![Tap {
                index,
                weight: None,
            }]);
        }
        let low = b.unary(Pw::Floor, &coord)?;
        let high = b.with(Pw::Add, &low, 1.0)?;
        let near_low = b.binary(Pw::Sub, &high, &coord)?;
        let near_high = b.binary(Pw::Sub, &coord, &low)?;
        let tap = |index, weight| Tap {
            index,
            weight: Some(weight),
        };
        Ok(vec![tap(low, near_low), tap(high, near_high)])
    }

    /// Clamps or reflects a coordinate into the image, unless the padding is zeros. NaN becomes 0, as in PyTorch.
    fn clamp_coordinate(&self, b: &mut Recorder, axis: usize, coord: &Tensor) -> Recorded {
        let extent = self.extents[axis];
        let last = (extent - 1) as f64;
        let coord = match self.padding {
            GridPadding::Zeros => return Ok(coord.clone()),
            GridPadding::Border => coord.clone(),
            GridPadding::Reflection if self.align_corners => reflect(b, coord, 0.0, last)?,
            GridPadding::Reflection => reflect(b, coord, -0.5, extent as f64)?,
        };
        let coord = b.with(Pw::Fmax, &coord, 0.0)?;
        b.with(Pw::Minimum, &coord, last)
    }

    /// The elements at the chosen neighbours times their weights, `[N, C, ..]`; zero outside.
    fn weighted_elements(&self, b: &mut Recorder, flat: &Tensor, chosen: &[&Tap]) -> Recorded {
        let mut index: Option<Tensor> = None;
        let mut inside: Option<Tensor> = None;
        let mut weight: Option<Tensor> = None;
        for (tap, &extent) in chosen.iter().zip(&self.extents) {
            let last = (extent - 1) as f64;
            if self.padding == GridPadding::Zeros {
                let (low, high) = (
                    b.with(Pw::Ge, &tap.index, 0.0)?,
                    b.with(Pw::Le, &tap.index, last)?,
                );
                let is_inside = b.binary(Pw::And, &low, &high)?;
                inside = Some(b.accumulate(Pw::And, inside, is_inside)?);
            }
            if let Some(w) = &tap.weight {
                weight = Some(b.accumulate(Pw::Mul, weight, w.clone())?);
            }
            let at = b.with(Pw::Maximum, &tap.index, 0.0)?;
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
fn reflect(b: &mut Recorder, coord: &Tensor, low: f64, span: f64) -> Recorded {
    if span == 0.0 {
        return b.full(0.0, coord.dtype(), coord.dims());
    }
    let distance = b.with(Pw::Sub, coord, low)?;
    let distance = b.unary(Pw::Abs, &distance)?;
    let span_t = b.scalar_like(span, &distance)?;
    let extra = b.binary(Pw::Fmod, &distance, &span_t)?;
    let flips = b.binary(Pw::Div, &distance, &span_t)?;
    let flips = b.unary(Pw::Floor, &flips)?;
    let two = b.scalar_like(2.0, &flips)?;
    let odd = b.binary(Pw::Fmod, &flips, &two)?;
    let odd = b.with(Pw::Ne, &odd, 0.0)?;
    let minus = b.unary(Pw::Neg, &extra)?;
    let descending = b.with(Pw::Add, &minus, span + low)?;
    let ascending = b.with(Pw::Add, &extra, low)?;
    b.select(&odd, &descending, &ascending)
}

/// Returns the weights of the neighbours at −1, 0, 1 and 2 for a position `t` in 0..1 (cubic convolution, Keys 1981,
/// with PyTorch's a).
fn cubic_weights(b: &mut Recorder, t: &Tensor) -> Result<[Tensor; 4], OpError> {
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
    let inner = [A + 2.0, -(A + 3.0), 0.0, 1.0];
    let outer = [A, -5.0 * A, 8.0 * A, -4.0 * A];
    let minus = b.unary(Pw::Neg, t)?;
    let complement = b.with(Pw::Add, &minus, 1.0)?;
    let (before, after) = (b.with(Pw::Add, t, 1.0)?, b.with(Pw::Add, &complement, 1.0)?);
    Ok([
        polynomial(b, &before, outer)?,
        polynomial(b, t, inner)?,
        polynomial(b, &complement, inner)?,
        polynomial(b, &after, outer)?,
    ])
}
