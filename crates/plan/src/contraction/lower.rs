//! Lowering of matrix products, convolutions and their gradients to contractions.

use super::{Access, BATCH, COLUMNS, Contraction, Filters, ROWS, TERMS};
use crate::tile::Bound;
use crate::{Conv, ConvRole, MatMul, Matrix};
use kiln_base::{Dim, contiguous_strides, numel};

impl From<&MatMul> for Contraction {
    fn from(p: &MatMul) -> Contraction {
        let MatMul { batch, m, k, n, .. } = p;
        let zero = [Dim::ZERO];
        let access = |x: &Matrix, [rows, columns, terms]: [&[Dim]; 3]| {
            let strides: Vec<Dim> = [&x.batch_strides[..], rows, columns, terms].concat();
            let extents = batch.iter().chain([m, n, k]);
            let span = |(n, stride): (&Dim, &Dim)| match stride.as_const() {
                Some(..0) => Dim::ZERO,
                _ => n * stride,
            };
            let spans = extents.zip(&strides).map(span);
            Access {
                arg: x.arg,
                len: spans.fold(x.offset.clone(), |sum, n| &sum + &n),
                offset: x.offset.clone(),
                strides,
                bounds: Vec::new(),
            }
        };
        let single = |d: &Dim| [d.clone()];
        let (a, b) = (&p.lhs, &p.rhs);
        let shape: Vec<Dim> = batch.iter().chain([m, n]).cloned().collect();
        let mut strides = contiguous_strides(&shape);
        strides.push(Dim::ZERO);
        Contraction {
            loops: [
                batch.clone(),
                vec![m.clone()],
                vec![n.clone()],
                vec![k.clone()],
            ],
            operands: [
                access(a, [&single(&a.row), &zero, &single(&a.col)]),
                access(b, [&zero, &single(&b.col), &single(&b.row)]),
            ],
            result: Access {
                arg: p.out,
                len: numel(&shape),
                offset: Dim::ZERO,
                strides,
                bounds: Vec::new(),
            },
            skips: false,
        }
        .simplified()
    }
}

/// A contraction under construction. Each loop has a number, its name in [`Affine`].
#[derive(Default)]
struct ContractionBuilder {
    loops: [Vec<(Dim, usize)>; 4],
    count: usize,
}

/// An affine function of named loops.
#[derive(Clone)]
struct Affine {
    offset: Dim,
    /// Coefficients of loops, by the loop's number; several of one loop are added.
    coefficients: Vec<(usize, Dim)>,
}

/// A coordinate along an axis of an array, which may be out of bounds, and the extent of the axis.
type Coordinate = (Affine, Dim);

/// The coordinates of images, result and filter along an axis of a convolution.
struct AxisCoordinates {
    x: Coordinate,
    y: Coordinate,
    tap: Coordinate,
    /// 0 at the image positions that taps reach, with extent 1, so that its bound excludes the others. `None` if taps
    /// reach all positions.
    off_axis: Option<Coordinate>,
}

impl Affine {
    fn of(coefficients: impl IntoIterator<Item = (usize, Dim)>, offset: Dim) -> Affine {
        Affine {
            offset,
            coefficients: coefficients.into_iter().collect(),
        }
    }
}

/// Returns a loop's index as a coordinate.
fn index(loop_id: usize, extent: &Dim) -> Coordinate {
    (Affine::of([(loop_id, Dim::ONE)], Dim::ZERO), extent.clone())
}

impl ContractionBuilder {
    /// Adds a loop inside the other loops of its kind: [`BATCH`], [`ROWS`], [`COLUMNS`] or [`TERMS`].
    fn add(&mut self, kind: usize, extent: &Dim) -> usize {
        self.loops[kind].push((extent.clone(), self.count));
        self.count += 1;
        self.count - 1
    }

    /// Adds a loop over all of a coordinate.
    fn full_loop(&mut self, kind: usize, extent: &Dim) -> Coordinate {
        index(self.add(kind, extent), extent)
    }

    /// Returns the function's stride for each loop.
    fn strides(&self, f: &Affine) -> Vec<Dim> {
        let loops = self.loops.iter().flatten();
        let stride = |(_, name): &(Dim, usize)| {
            let coefficients = f.coefficients.iter().filter(|(id, _)| id == name);
            coefficients.fold(Dim::ZERO, |sum, (_, factor)| &sum + factor)
        };
        loops.map(stride).collect()
    }

    /// Returns the condition that a coordinate is in bounds.
    fn bound(&self, (f, extent): &Coordinate) -> Bound {
        Bound {
            offset: f.offset.clone(),
            strides: self.strides(f),
            extent: extent.clone(),
        }
    }

    /// Returns the access to an array of these coordinates, the outermost first. Each is a condition; those that always
    /// hold are removed later.
    fn access(&self, arg: u16, coordinates: &[&Coordinate]) -> Access {
        let shape: Vec<Dim> = coordinates.iter().map(|c| c.1.clone()).collect();
        let mut linear = Affine::of([], Dim::ZERO);
        for ((f, _), stride) in coordinates.iter().zip(contiguous_strides(&shape)) {
            linear.offset = &linear.offset + &(&f.offset * &stride);
            let coefficients = f.coefficients.iter().map(|(id, c)| (*id, c * &stride));
            linear.coefficients.extend(coefficients);
        }
        Access {
            arg,
            len: numel(&shape),
            strides: self.strides(&linear),
            offset: linear.offset,
            bounds: coordinates.iter().map(|c| self.bound(c)).collect(),
        }
    }

    /// Adds the loops along an axis over result positions and taps. Together they determine an image position.
    fn window(&mut self, c: &Conv, i: usize, [positions, taps]: [usize; 2]) -> AxisCoordinates {
        let (position, tap) = (
            self.add(positions, &c.output[i]),
            self.add(taps, &c.kernel[i]),
        );
        let coefficients = [
            (position, c.stride[i].clone()),
            (tap, c.dilation[i].clone()),
        ];
        AxisCoordinates {
            x: (
                Affine::of(coefficients, &Dim::ZERO - &c.padding[i]),
                c.input[i].clone(),
            ),
            y: index(position, &c.output[i]),
            tap: index(tap, &c.kernel[i]),
            off_axis: None,
        }
    }

    /// Adds the loops along an axis over image positions and the taps that reach them, for the gradient of images; see
    /// the [module](super).
    fn transposed_window(
        &mut self,
        c: &Conv,
        i: usize,
        [positions, taps]: [usize; 2],
    ) -> AxisCoordinates {
        let number = |d: &Dim| d.as_const().expect("strides and dilations are numbers");
        let (stride, dilation) = (number(&c.stride[i]), number(&c.dilation[i]));
        let unit = gcd(stride, dilation);
        let phase_count = stride / unit;
        let ceil = |d: &Dim, divisor: i64| (d + &Dim::Const(divisor - 1)).div_floor(divisor);
        let n = Dim::Const;
        // For all r and e, the first q is before the first position, or within a step after it.
        let farthest = n((phase_count - 1) * dilation + unit - stride);
        let first = ceil(&(&farthest - &c.padding[i]), stride);
        let last = ceil(&(&c.input[i] + &c.padding[i]), stride);
        let r = self.add(BATCH, &n(phase_count));
        let e = self.add(BATCH, &n(unit));
        let q = self.add(positions, &(&last + &first));
        let u = self.add(taps, &ceil(&c.kernel[i], phase_count));
        let x = [(q, n(stride)), (r, n(dilation)), (e, Dim::ONE)];
        let y = [(q, Dim::ONE), (u, n(-dilation / unit))];
        let tap = [(r, Dim::ONE), (u, n(phase_count))];
        let x_offset = &(&first * &n(-stride)) - &c.padding[i];
        AxisCoordinates {
            x: (Affine::of(x, x_offset), c.input[i].clone()),
            y: (Affine::of(y, &Dim::ZERO - &first), c.output[i].clone()),
            tap: (Affine::of(tap, Dim::ZERO), c.kernel[i].clone()),
            off_axis: Some(index(e, &Dim::ONE)),
        }
    }

    fn extents(&self) -> [Vec<Dim>; 4] {
        let extents = |loops: &Vec<(Dim, usize)>| loops.iter().map(|(d, _)| d.clone()).collect();
        self.loops.each_ref().map(extents)
    }
}

impl Conv {
    /// Returns the layout in which kernels of a GPU, or of the CPU, read the filters.
    pub fn filters(&self, on_gpu: bool) -> Filters {
        match on_gpu && self.reads_channels_last() {
            true => Filters::ChannelsLast,
            false => Filters::ChannelsFirst,
        }
    }

    /// Returns the convolution as a contraction, with filters in this layout. Its columns are contiguous in the result:
    /// positions, or channels if these come last. Its terms are contiguous in images with channels last.
    ///
    /// # Panics
    /// If a stride or dilation is symbolic. Those of plans are numbers.
    pub fn contraction(&self, filters: Filters) -> Contraction {
        let writes_last = self.writes_channels_last();
        let is_input = self.role == ConvRole::Input;
        let [positions, channels, taps] = match self.role {
            ConvRole::Weight => [TERMS, ROWS, COLUMNS],
            _ if writes_last => [ROWS, COLUMNS, TERMS],
            _ => [COLUMNS, ROWS, TERMS],
        };
        let [ins, outs] = match is_input {
            true => [channels, taps],
            false => [taps, channels],
        };
        let mut builder = ContractionBuilder::default();
        let group = builder.full_loop(BATCH, &self.groups);
        let image = builder.full_loop(positions, &self.batch);
        let ins = builder.full_loop(ins, &self.in_channels);
        let outs = builder.full_loop(outs, &self.out_channels);
        let axis_of = |i: usize| match is_input {
            true => builder.transposed_window(self, i, [positions, taps]),
            false => builder.window(self, i, [positions, taps]),
        };
        let axes: Vec<AxisCoordinates> = (0..self.kernel.len()).map(axis_of).collect();
        if self.reads_channels_last() {
            // Contiguous channels are the innermost loop.
            builder.loops[taps].rotate_left(1);
        }
        let array = |arg, outer: &[&Coordinate], channels: &[&Coordinate], axes, last| {
            let axes: &[&Coordinate] = axes;
            let [first, second] = if last {
                [axes, channels]
            } else {
                [channels, axes]
            };
            builder.access(arg, &[outer, first, second].concat())
        };
        let get = |of: fn(&AxisCoordinates) -> &Coordinate| axes.iter().map(of).collect::<Vec<_>>();
        let [x_axes, y_axes, tap_axes] = [get(|a| &a.x), get(|a| &a.y), get(|a| &a.tap)];
        let [x_last, y_last] = self.images.last();
        let x = |arg| array(arg, &[&image], &[&group, &ins], &x_axes, x_last);
        let y = |arg| array(arg, &[&image], &[&group, &outs], &y_axes, y_last);
        let filter = |arg, last| array(arg, &[&group, &outs], &[&ins], &tap_axes, last);
        let [first, second] = self.operands;
        let last = filters == Filters::ChannelsLast;
        let (mut read, other, result) = match self.role {
            ConvRole::Result => (x(first), filter(second, last), y(self.out)),
            ConvRole::Input => (y(first), filter(second, last), x(self.out)),
            ConvRole::Weight => (x(first), y(second), filter(self.out, false)),
        };
        let off_axis = axes.iter().filter_map(|a| a.off_axis.as_ref());
        read.bounds.extend(off_axis.map(|c| builder.bound(c)));
        let contraction = Contraction {
            loops: builder.extents(),
            operands: match writes_last {
                true => [read, other],
                false => [other, read],
            },
            result,
            skips: is_input,
        };
        contraction.simplified()
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
