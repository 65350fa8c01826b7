//! The algorithms and costs of convolutions and their gradients.

use super::decision::{Decision, Guard};
use super::geometry::{Axis, Geometry};
use crate::contract::contradiction;
use crate::schedule::Cpu;
use crate::{Algorithm, Contradiction, Conv, ConvRole, FftTile, Images, Winograd};
use kiln_base::{DType, Dim, numel};

/// The number of lanes of a vector.
const LANES: f64 = super::geometry::LANES as f64;

impl Conv {
    /// Returns its spatial axes.
    ///
    /// # Errors
    /// If its sizes have no values, or values that no convolution can have.
    pub fn geometry(&self, values: &[i64]) -> Result<Geometry, Contradiction> {
        let rank = self.input.len();
        let lists = [
            &self.output,
            &self.kernel,
            &self.stride,
            &self.padding,
            &self.dilation,
        ];
        if rank > 3 || lists.iter().any(|l| l.len() != rank) {
            return Err(contradiction!("a convolution over {rank} axes"));
        }
        let checked = |d: &Dim, min: i64, end: i64| {
            let value = d.eval_checked(values).filter(|v| (min..end).contains(v));
            value.ok_or_else(|| contradiction!("a convolution with a size or step of {d}"))
        };
        let mut axes = [Axis::ONE; 3];
        for (i, axis) in axes[3 - rank..].iter_mut().enumerate() {
            *axis = Axis {
                input: checked(&self.input[i], 0, 1 << 62)?,
                output: checked(&self.output[i], 0, 1 << 62)?,
                kernel: checked(&self.kernel[i], 0, 1 << 31)?,
                stride: checked(&self.stride[i], 1, 1 << 31)?,
                padding: checked(&self.padding[i], 1 - (1 << 31), 1 << 31)?,
                dilation: checked(&self.dilation[i], 1, 1 << 31)?,
            };
        }
        Ok(Geometry { axes })
    }

    /// Returns every algorithm that can compute it if symbols have these values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        let sizes = [
            &self.batch,
            &self.groups,
            &self.in_channels,
            &self.out_channels,
        ];
        let are_known = sizes.iter().all(|d| d.eval_checked(values).is_some());
        if self.geometry(values).is_err() || !are_known {
            return Vec::new();
        }
        let mut legal = vec![Algorithm::Direct];
        if self.may_use_winograd() {
            legal.extend([Algorithm::Winograd2, Algorithm::Winograd4]);
        }
        if self.prologue.is_none() && self.fft_tile(values).is_some() {
            legal.push(Algorithm::Fft);
        }
        legal
    }

    /// True if its filters suit Winograd's algorithms: 3×3, with a stride and dilation of 1.
    pub fn is_3_by_3(&self) -> bool {
        let is = |dims: &[Dim], n: i64| dims.len() == 2 && dims.iter().all(|d| d.is(n));
        is(&self.kernel, 3) && is(&self.stride, 1) && is(&self.dilation, 1)
    }

    /// True if the CPU can compute it by Winograd's algorithms, for any sizes.
    fn may_use_winograd(&self) -> bool {
        (self.role, self.sums()) == (ConvRole::Result, DType::F32)
            && self.images == Images::ChannelsLast
            && self.prologue.is_none()
            && self.is_3_by_3()
    }

    /// Returns the tiles of [`Algorithm::Fft`], if that can compute it: results in f32 with a stride and dilation of 1,
    /// of one or two spatial axes, and with enough taps.
    pub fn fft_tile(&self, values: &[i64]) -> Option<FftTile> {
        let g = self.geometry(values).ok()?;
        let is_supported = self.role == ConvRole::Result
            && self.dtype() == DType::F32
            && self.images == Images::ChannelsFirst
            && (1..=2).contains(&self.kernel.len())
            && g.axes.iter().all(|a| (a.stride, a.dilation) == (1, 1));
        if !is_supported {
            return None;
        }
        let [_, down, across] = g.axes;
        let channels = self
            .in_channels
            .eval_checked(values)
            .zip(self.out_channels.eval_checked(values));
        let channels = channels.map(|(cin, cout)| [cin, cout])?;
        FftTile::new(
            [down.output, across.output],
            [down.kernel, across.kernel],
            channels,
        )
    }

    /// See [`Kernel::by_default`](crate::Kernel::by_default).
    ///
    /// The default is register tiles. If x and y have channels last, weights may be `transformed` if they are packed
    /// anyway and that pays.
    pub fn by_default(&self, transformed: bool) -> Decision {
        let mut table = vec![(Algorithm::Direct, vec![])];
        if transformed && self.may_use_winograd() {
            table.insert(0, (Algorithm::Winograd2, vec![Guard::Pays]));
        }
        Decision::of(table, &|by, values| self.pays(by, values))
    }

    /// True if transforms pay; `None` if its sizes have no values.
    fn pays(&self, by: Algorithm, values: &[i64]) -> Option<bool> {
        Some(self.cost(by, values)? < self.cost(Algorithm::Direct, values)?)
    }

    /// True if a result has nothing to sum, or there are no results.
    fn is_empty(&self, values: &[i64]) -> Option<bool> {
        let mut sizes = (self.output.iter()).chain(&self.kernel).chain([
            &self.batch,
            &self.groups,
            &self.in_channels,
            &self.out_channels,
        ]);
        sizes.try_fold(false, |empty, d| {
            Some(empty | (d.eval_checked(values)? == 0))
        })
    }

    /// Returns the schedule that it names if symbols have these values. If there is nothing to sum, nothing is
    /// transformed.
    pub fn schedule(&self, values: &[i64]) -> Option<Cpu> {
        self.at(&self.algorithm, values)
    }

    /// Returns the algorithm that it is computed by, by default, if symbols have these values; `transformed` as for
    /// [`Conv::by_default`].
    pub fn usual(&self, transformed: bool, values: &[i64]) -> Option<Algorithm> {
        let schedule = self.at(&self.by_default(transformed), values)?;
        Some(schedule.algorithm)
    }

    fn at(&self, decision: &Decision, values: &[i64]) -> Option<Cpu> {
        let schedule = decision.at(values, &|schedule, values| self.pays(schedule, values))?;
        Some(match schedule.algorithm {
            Algorithm::Direct => schedule,
            _ if self.is_empty(values)? => Algorithm::Direct.into(),
            _ => schedule,
        })
    }

    /// True if an algorithm may transform its images, at some sizes: filters are larger than one tap, and stride and
    /// dilation are 1.
    pub fn may_be_transformed(&self) -> bool {
        let steps = self.stride.iter().chain(&self.dilation);
        !self.kernel.iter().all(|k| k.is(1)) && steps.into_iter().all(|n| n.is(1))
    }

    /// See [`Kernel::cost`](crate::Kernel::cost); the numbers are fitted to measurements.
    ///
    /// Channels fill vectors. Padded images are copied, and images with channels first are transposed. Alternatively,
    /// tiles are transformed, and each transformed filter is read.
    pub fn cost(&self, by: Algorithm, values: &[i64]) -> Option<f64> {
        const START: f64 = 20.0;
        const COPY: f64 = 6.0;
        const TRANSPOSE: f64 = 20.0;
        const TRANSFORM: f64 = 6.0;
        const READ: f64 = 11.0;
        const TILE: f64 = 6000.0;
        let size = |d: &Dim| Some(d.eval_checked(values)?.max(1) as f64);
        let product_of = |dims: &[Dim]| size(&numel(dims));
        let padded = |n: f64| (n / LANES).ceil() * LANES;
        let (cin, cout) = (size(&self.in_channels)?, size(&self.out_channels)?);
        let (groups, batch) = (size(&self.groups)?, size(&self.batch)?);
        let (outputs, taps) = (product_of(&self.output)?, product_of(&self.kernel)?);
        let macs = outputs * cin * cout * taps;
        let (x, y) = (product_of(&self.input)? * cin, outputs * cout);
        let transposed: f64 = (self.images.last().into_iter())
            .zip([x, y])
            .map(|(last, n)| if last { 0.0 } else { n * TRANSPOSE })
            .sum();
        let group = match by {
            Algorithm::Direct if (cin, cout) == (1.0, 1.0) => {
                // Channels fill vectors; in addition to sums there are calls of tiles.
                let depthwise = outputs * padded(groups) * (taps * 1.6 + 4.0);
                return Some(batch * (depthwise + groups * transposed));
            }
            Algorithm::Direct => {
                let [x_last, y_last] = self.images.last();
                let (copied, columns) = match self.role {
                    ConvRole::Input => (if y_last && taps > 1.0 { y } else { 0.0 }, cin),
                    ConvRole::Result => (if x_last && taps > 1.0 { x } else { 0.0 }, cout),
                    ConvRole::Weight => (x + y, cout),
                };
                let tiles = outputs * (columns / (2.0 * LANES)).ceil();
                macs * 0.65 * padded(columns) / columns + tiles * START + copied * COPY + transposed
            }
            Algorithm::Winograd2 | Algorithm::Winograd4 => {
                let winograd = Winograd::of(by)?;
                let step = winograd.step() as f64;
                let mut tiles_along = self.output.iter().map(|d| Some((size(d)? / step).ceil()));
                let tiles = tiles_along.try_fold(1.0, |n, d| Some(n * d?))?;
                let squares = (winograd.side() * winograd.side()) as f64;
                let products = tiles * cin * padded(cout) * 0.8;
                let moved = tiles * (cin + cout) * TRANSFORM + cin * cout * READ;
                squares * (products + moved) + tiles * TILE
            }
            Algorithm::Fft => self.fft_tile(values)?.cost([cin as i64, cout as i64]),
            _ => return None,
        };
        Some(batch * (groups * group))
    }
}
