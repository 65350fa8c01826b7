//! Convolutions and their gradients.

use super::MOVE;
use super::decision::{Decision, Guard};
use super::geometry::{Axis, Geometry};
use crate::contract::contradiction;
use crate::{Algorithm, Contradiction, Conv, ConvRole, FftTile, Images, Winograd};
use kiln_base::{DType, Dim, numel};

/// Input channels that fill most of a vector.
const LEAST_CHANNELS: i64 = 12;
/// Lanes of a vector.
const LANES: f64 = super::geometry::LANES as f64;
/// Positions that are worth turning the filters for that all of them read.
const TURNED_POSITIONS: i64 = 1 << 10;
/// Steps of filters for each of which a gradient of images is a convolution of its own, at most.
const MOST_PHASES: i64 = 1 << 10;

impl Conv {
    /// Its spatial axes.
    ///
    /// # Errors
    /// If their sizes have no values, or such as no convolution has.
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
        let within = |d: &Dim, least: i64, most: i64| {
            let value = d.eval_checked(values).filter(|v| (least..most).contains(v));
            value.ok_or_else(|| contradiction!("a convolution with a size or step of {d}"))
        };
        let mut axes = [Axis::ONE; 3];
        for (i, axis) in axes[3 - rank..].iter_mut().enumerate() {
            *axis = Axis {
                input: within(&self.input[i], 0, 1 << 62)?,
                output: within(&self.output[i], 0, 1 << 62)?,
                kernel: within(&self.kernel[i], 0, 1 << 31)?,
                stride: within(&self.stride[i], 1, 1 << 31)?,
                padding: within(&self.padding[i], 1 - (1 << 31), 1 << 31)?,
                dilation: within(&self.dilation[i], 1, 1 << 31)?,
            };
        }
        Ok(Geometry { axes })
    }

    /// Every algorithm that can compute it where symbols have these values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        let size = |d: &Dim| d.eval_checked(values);
        let sizes = (size(&self.in_channels), size(&self.out_channels));
        let (Ok(g), (Some(cin), Some(cout))) = (self.geometry(values), sizes) else {
            return Vec::new();
        };
        if self.images != Images::ChannelsFirst {
            let each = (cin, cout) == (1, 1);
            let each = each && (self.role, self.images.last()[1]) != (ConvRole::Result, true);
            let legal = !each && self.role != ConvRole::Weight && self.is_in_tiles(&g);
            let mut legal = Vec::from_iter(legal.then_some(Algorithm::ChannelsLast));
            if self.may_use_winograd() {
                legal.extend([Algorithm::Winograd2, Algorithm::Winograd4]);
            }
            return legal;
        }
        let mut legal = vec![Algorithm::Columns];
        // What is computed as the result of a convolution: a gradient of images is one, of filters that are turned.
        let result = match self.role {
            ConvRole::Result => Some((g, cin)),
            ConvRole::Input => {
                (g.turned().filter(|_| self.reads_weights_alone())).map(|g| (g, cout))
            }
            ConvRole::Weight => None,
        };
        let direct = match self.role {
            ConvRole::Weight => g.is_near(),
            _ => self.is_in_tiles(&g),
        };
        if direct {
            legal.push(Algorithm::Direct);
        }
        if self.prologue.is_some() {
            return legal;
        }
        if result.is_some_and(|(g, n)| g.is_copied(n)) && (cin, cout) == (1, 1) {
            legal.push(Algorithm::Depthwise);
        }
        if self.fft_tile(values).is_some() {
            legal.push(Algorithm::Fft);
        }
        legal
    }

    /// Whether register tiles read what they need from a copy of it, if that is padded: a gradient of images is a
    /// convolution for each step of the filter.
    fn is_in_tiles(&self, g: &Geometry) -> bool {
        let phases = g.axes.iter().map(|a| a.stride.min(a.input.max(1)));
        let few = phases.fold(1i64, i64::saturating_mul) <= MOST_PHASES;
        g.axes.iter().all(|a| a.kernel > 0) && g.is_near() && (few || self.role != ConvRole::Input)
    }

    /// Whether nothing but the convolution reads its weights.
    fn reads_weights_alone(&self) -> bool {
        let [other, weights] = self.operands;
        let programs = self.epilogue.iter().map(|e| &e.program);
        let mut read = programs.flat_map(|p| p.accesses.iter().map(|a| a.arg));
        other != weights && !read.any(|arg| arg == weights)
    }

    /// Whether its filters are those of Winograd's algorithms: 3×3, and nothing steps.
    pub fn is_3_by_3(&self) -> bool {
        let is = |dims: &[Dim], n: i64| dims.len() == 2 && dims.iter().all(|d| d.is(n));
        is(&self.kernel, 3) && is(&self.stride, 1) && is(&self.dilation, 1)
    }

    /// Whether the CPU can compute it by Winograd's algorithms, whatever its sizes.
    fn may_use_winograd(&self) -> bool {
        (self.role, self.dtype) == (ConvRole::Result, DType::F32)
            && self.images == Images::ChannelsLast
            && self.prologue.is_none()
            && self.is_3_by_3()
    }

    /// The tiles of [`Algorithm::Fft`], where that can compute it: results in f32 without steps, of one or two
    /// spatial axes, and of taps enough.
    pub fn fft_tile(&self, values: &[i64]) -> Option<FftTile> {
        let g = self.geometry(values).ok()?;
        let plain = self.role == ConvRole::Result
            && self.dtype == DType::F32
            && self.images == Images::ChannelsFirst
            && (1..=2).contains(&self.kernel.len())
            && g.axes.iter().all(|a| (a.stride, a.dilation) == (1, 1));
        if !plain {
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
    /// In register tiles, unless results would fill less than half of the vectors, padding would multiply the images,
    /// or the columns are the images themselves. A gradient of images is the result of a convolution where it is
    /// large enough to turn the filters for; in one of weights channels fill vectors, and several taps read what is
    /// copied. With channels last, weights may be `transformed` where they are packed anyway, if that pays.
    pub fn by_default(&self, transformed: bool) -> Decision {
        if self.images != Images::ChannelsFirst {
            let mut table = vec![(Algorithm::ChannelsLast, vec![])];
            if transformed && self.may_use_winograd() {
                table.insert(0, (Algorithm::Winograd2, vec![Guard::Pays]));
            }
            return Decision::of(table, &|by, values| self.pays(by, values));
        }
        let least = |size: Dim, least| Guard::Within(size, least, i64::MAX);
        let one = |d: &Dim| Guard::Within(d.clone(), 1, 1);
        let each = [one(&self.in_channels), one(&self.out_channels)];
        let pays = match self.role {
            ConvRole::Result => vec![Guard::Pays],
            ConvRole::Input => {
                let positions = &self.batch * &numel(&self.input);
                vec![least(positions, TURNED_POSITIONS), Guard::Pays]
            }
            ConvRole::Weight => {
                let channels = least(self.in_channels.clone(), LEAST_CHANNELS);
                vec![channels, least(numel(&self.kernel), 2), Guard::Pays]
            }
        };
        let mut table = Vec::new();
        if self.role != ConvRole::Weight && self.prologue.is_none() {
            table.push((Algorithm::Depthwise, [&each[..], &pays].concat()));
        }
        table.push((Algorithm::Direct, pays));
        table.push((Algorithm::Columns, vec![]));
        let decision = Decision::of(table, &|by, values| self.pays(by, values));
        match self.is_empty(&[]) {
            Some(true) => Algorithm::Columns.into(),
            _ => decision,
        }
    }

    /// Whether register tiles pay, or transforms; none where its sizes have no values.
    fn pays(&self, by: Algorithm, values: &[i64]) -> Option<bool> {
        if by == Algorithm::Winograd2 {
            return Some(self.cost(by, values)? < self.cost(Algorithm::ChannelsLast, values)?);
        }
        let g = self.geometry(values).ok()?;
        if by == Algorithm::Direct && self.role != ConvRole::Weight {
            // Whatever the batch.
            let image = Conv {
                batch: Dim::ONE,
                ..self.clone()
            };
            let cost = |by| image.cost(by, values);
            return Some(self.is_in_tiles(&g) && cost(by)? < cost(Algorithm::Columns)?);
        }
        let each = by == Algorithm::Depthwise;
        let channels = |d: &Dim| d.eval_checked(values);
        Some(match self.role {
            ConvRole::Result => g.pays(channels(&self.in_channels)?, each),
            ConvRole::Input => {
                let channels = channels(&self.out_channels)?;
                self.reads_weights_alone() && g.turned().is_some_and(|g| g.pays(channels, each))
            }
            ConvRole::Weight => g.is_near(),
        })
    }

    /// Whether there is nothing to sum, or nothing to sum it for.
    fn is_empty(&self, values: &[i64]) -> Option<bool> {
        let one = [
            &self.batch,
            &self.groups,
            &self.in_channels,
            &self.out_channels,
        ];
        let result = match self.role {
            ConvRole::Input => &self.input,
            _ => &self.output,
        };
        let mut sizes = self
            .output
            .iter()
            .chain(result)
            .chain(&self.kernel)
            .chain(one);
        sizes.try_fold(false, |any, d| Some(any | (d.eval_checked(values)? == 0)))
    }

    /// The algorithm that it names where symbols have these values: where there is nothing to sum, columns know what
    /// to do.
    pub fn computed_by(&self, values: &[i64]) -> Option<Algorithm> {
        self.at(&self.algorithm, values)
    }

    /// The algorithm that it is computed by, if not told otherwise, where symbols have these values; `transformed` as
    /// for [`Conv::by_default`].
    pub fn usual(&self, transformed: bool, values: &[i64]) -> Option<Algorithm> {
        self.at(&self.by_default(transformed), values)
    }

    fn at(&self, decision: &Decision, values: &[i64]) -> Option<Algorithm> {
        let by = decision.at(values, &|by, values| self.pays(by, values))?;
        let for_nothing = match self.images {
            Images::ChannelsFirst => Algorithm::Columns,
            _ => Algorithm::ChannelsLast,
        };
        Some(if by != for_nothing && self.is_empty(values)? {
            for_nothing
        } else {
            by
        })
    }

    /// Whether an algorithm may transform its images, at some sizes: filters are larger than one tap, and nothing
    /// steps.
    pub fn may_be_transformed(&self) -> bool {
        let steps = self.stride.iter().chain(&self.dilation);
        !self.kernel.iter().all(|k| k.is(1)) && steps.into_iter().all(|n| n.is(1))
    }

    /// See [`Kernel::cost`](crate::Kernel::cost); the numbers are fitted to measurements.
    ///
    /// With channels first, positions fill vectors, of which those at the end of an image's rows are lost; a filter
    /// for each channel copies it first. With channels last, channels fill vectors, and what is padded is copied; or
    /// tiles are transformed, and each transformed filter is read.
    pub fn cost(&self, by: Algorithm, values: &[i64]) -> Option<f64> {
        const START: f64 = 20.0;
        const COPY: f64 = 6.0;
        const TURN: f64 = 20.0;
        const EACH: f64 = 2.6;
        const TRANSFORM: f64 = 6.0;
        const READ: f64 = 11.0;
        const TILE: f64 = 2000.0;
        let size = |d: &Dim| Some(d.eval_checked(values)?.max(1) as f64);
        let all = |dims: &[Dim]| size(&numel(dims));
        let whole = |n: f64| (n / LANES).ceil() * LANES;
        let (cin, cout) = (size(&self.in_channels)?, size(&self.out_channels)?);
        let (groups, batch) = (size(&self.groups)?, size(&self.batch)?);
        let (outputs, taps) = (all(&self.output)?, all(&self.kernel)?);
        let steps = self.stride.iter().any(|s| !s.is(1));
        let sums = outputs * cin * cout * taps;
        let group = match by {
            Algorithm::Columns => {
                // Of several small images together.
                let images = if outputs <= 256.0 { batch } else { 1.0 };
                let filled = whole(outputs * images) / (outputs * images);
                let gather = match taps == 1.0 && !steps {
                    true => 0.0,
                    false => outputs * cin * taps * 2.0 * MOVE,
                };
                sums * filled * 1.08 + gather + cin * cout * taps * MOVE / images
            }
            Algorithm::Depthwise => {
                let copy = all(&self.input)? * if steps { 45.0 } else { 15.0 };
                9000.0 + copy + outputs * taps * EACH
            }
            Algorithm::ChannelsLast if (cin, cout) == (1.0, 1.0) => {
                // Channels fill vectors; beside sums there are calls of tiles.
                return Some(batch * outputs * whole(groups) * (taps * 1.6 + 4.0));
            }
            Algorithm::ChannelsLast | Algorithm::Direct => {
                let (x, y) = (all(&self.input)? * cin, outputs * cout);
                let (read, columns) = match self.role {
                    ConvRole::Input => (y, cin),
                    _ => (x, cout),
                };
                let copy = match by {
                    Algorithm::Direct => (x + y) * TURN,
                    _ if taps == 1.0 => 0.0,
                    _ => read * COPY,
                };
                let tiles = outputs * (columns / (2.0 * LANES)).ceil();
                sums * 0.65 * whole(columns) / columns + tiles * START + copy
            }
            Algorithm::Winograd2 | Algorithm::Winograd4 => {
                let winograd = Winograd::of(by)?;
                let step = winograd.step() as f64;
                let mut across = self.output.iter().map(|d| Some((size(d)? / step).ceil()));
                let tiles = across.try_fold(1.0, |n, d| Some(n * d?))?;
                let squares = (winograd.side() * winograd.side()) as f64;
                let products = tiles * cin * whole(cout) * 0.8;
                let moved = tiles * (cin + cout) * TRANSFORM + cin * cout * READ;
                squares * (products + moved) + tiles * TILE
            }
            Algorithm::Fft => self.fft_tile(values)?.cost([cin as i64, cout as i64]),
            _ => return None,
        };
        Some(batch * (groups * group))
    }
}
