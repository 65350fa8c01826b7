//! The two partners of a convolution: each of the three is the derivative of the others.
//!
//! The decomposition of [`ConvTranspose`] puts zeros between and around elements. They have no effect among finite
//! numbers. With an infinite operand they give NaN where the op itself has no such product.

use super::prelude::*;
use super::{Conv, window_extent};
use kiln_base::numel;

/// The transpose of a [`Conv`] as a function of its input: y `[n, groups · o, out..]` and the weight
/// `[groups · o, c, kernel..]` to `[n, groups · c, input..]`, where element y\[p\] adds to every input
/// position that it was computed from. Also PyTorch's transposed convolution.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvTranspose {
    /// The convolution.
    pub conv: Conv,
    /// Spatial extents of its input. They are needed because inputs of several extents have the same `out`.
    pub input: Shape,
}

/// The transpose of a [`Conv`] as a function of its weight: x `[n, groups · c, input..]` and
/// y `[n, groups · o, out..]` to `[groups · o, c, kernel..]`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ConvWeight {
    /// The convolution.
    pub conv: Conv,
    /// Spatial extents of its kernel.
    pub kernel: Axes,
}

impl OpDef for ConvTranspose {
    const NAME: &'static str = "conv_transpose";
    const ARITY: RangeInclusive<usize> = 2..=2;
    const HAS_SIZES: bool = true;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (y, w) = (inputs[0], inputs[1]);
        check_one_dtype(y, w, "weight")?;
        let spatial = self.conv.stride.len();
        ensure!(
            y.rank() == spatial + 2 && w.rank() == spatial + 2 && self.input.len() == spatial,
            "{spatial} spatial axes need an input and a weight of rank {}, not {y} and {w}",
            spatial + 2
        );
        ensure!(
            y.shape[1] == w.shape[0],
            "the input {y} has {} channels, but the weight {w} takes {}",
            y.shape[1],
            w.shape[0]
        );
        let mut shape = Shape::from_iter([
            y.shape[0].clone(),
            &w.shape[1] * &Dim::from(self.conv.groups),
        ]);
        shape.extend(self.input.iter().cloned());
        let x = Fact {
            dtype: y.dtype,
            shape,
        };
        let forward = self.conv.infer(&[&x, w])?;
        ensure!(
            forward[0] == *y,
            "a convolution of {x} gives {}, not {y}",
            forward[0]
        );
        one_output(x.dtype, x.shape)
    }

    fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
        let (y, w) = (inputs[0], inputs[1]);
        let channels = &w.shape[1] * &Dim::from(self.conv.groups);
        let shape = [&y.shape[0], &channels].into_iter().chain(&self.input);
        let x = Fact::new(y.dtype, shape.cloned());
        self.conv.needs(&[&x, w])
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.input.iter_mut().for_each(f);
    }
}

impl ConvTranspose {
    /// A convolution of y by the mirrored weight, with zeros between the elements of y and around it.
    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        y: &B::Value,
        w: &B::Value,
    ) -> Result<B::Value, OpError> {
        let kernel = b.fact(w).shape;
        let weight = mirror(b, w, self.conv.groups)?;
        let mut y = y.clone();
        let mut padding = Vec::new();
        for (a, input) in self.input.iter().enumerate() {
            let axis = a + 2;
            y = b.spaced(&y, axis, self.conv.stride[a])?;
            let span = known_size(&kernel[axis])? - 1;
            let span = span * self.conv.dilation[a] as i64;
            let low = span - self.conv.padding[a].0 as i64;
            // The end of y is padded up to the input's end, after the last window, and not as far as the convolution
            // pads.
            let extent = b.fact(&y).shape[axis].clone();
            let high = &(&(input - &extent) - &Dim::Const(low)) + &Dim::Const(span);
            let bound = span - self.conv.padding[a].1 as i64 + self.conv.stride[a] as i64 - 1;
            let high = high.as_const().unwrap_or(bound);
            let border;
            (y, border) = crop(b, &y, axis, low, high)?;
            padding.push(border);
        }
        let op = Conv {
            stride: Axes::from_elem(1, self.input.len()),
            padding,
            dilation: self.conv.dilation.clone(),
            groups: self.conv.groups,
        };
        let mut x = b.op(op, &[y, weight])?;
        for (a, input) in self.input.iter().enumerate() {
            x = b.narrow(&x, a + 2, 0i64, input.clone())?;
        }
        Ok(x)
    }
}

/// Crops an axis by its negative paddings; returns the value and the remaining paddings.
///
/// # Errors
/// If the axis is out of range.
pub fn crop<B: Builder>(
    b: &mut B,
    v: &B::Value,
    axis: usize,
    low: i64,
    high: i64,
) -> Result<(B::Value, (usize, usize)), OpError> {
    let extent = b.fact(v).shape[axis].clone();
    let (mut start, mut end) = ((-low).max(0), (-high).max(0));
    let (mut low, mut high) = (low.max(0), high.max(0));
    if let Some(n) = extent.as_const() {
        // Cropping beyond the whole axis reduces the padding of the other side.
        let (excess_start, excess_end) = ((start - n).max(0), (end - n).max(0));
        (start, end) = (start - excess_start, end - excess_end);
        (low, high) = ((low - excess_end).max(0), (high - excess_start).max(0));
    }
    let len = &extent - &Dim::Const(start + end);
    let v = b.narrow(v, axis, start, len)?;
    Ok((v, (low as usize, high as usize)))
}

/// `[groups · o, c, kernel..]` to `[groups · c, o, kernel..]` with every kernel reversed.
fn mirror<B: Builder>(b: &mut B, w: &B::Value, groups: usize) -> Result<B::Value, OpError> {
    let shape = b.fact(w).shape;
    let g = Dim::from(groups);
    let out_channels = split(&shape[0], &g)?;
    let mut split_shape = Shape::from_iter([g.clone(), out_channels.clone(), shape[1].clone()]);
    split_shape.extend(shape[2..].iter().cloned());
    let mut w = b.reshape(w, &split_shape)?;
    let mut perm: Vec<usize> = (0..split_shape.len()).collect();
    perm.swap(1, 2);
    w = b.permute(&w, &perm)?;
    let mut merged = Shape::from_iter([&g * &shape[1], out_channels]);
    merged.extend(shape[2..].iter().cloned());
    w = b.reshape(&w, &merged)?;
    for axis in 2..shape.len() {
        w = b.reversed(&w, axis)?;
    }
    Ok(w)
}

impl OpDef for ConvWeight {
    const NAME: &'static str = "conv_weight";
    const ARITY: RangeInclusive<usize> = 2..=2;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let (x, y) = (inputs[0], inputs[1]);
        check_one_dtype(x, y, "result")?;
        let spatial = self.conv.stride.len();
        ensure!(
            x.rank() == spatial + 2 && y.rank() == spatial + 2 && self.kernel.len() == spatial,
            "{spatial} spatial axes need operands of rank {}, not {x} and {y}",
            spatial + 2
        );
        let groups = Dim::from(self.conv.groups);
        let mut shape = Shape::from_iter([y.shape[1].clone(), split(&x.shape[1], &groups)?]);
        shape.extend(self.kernel.iter().map(|k| Dim::from(*k)));
        let w = Fact {
            dtype: x.dtype,
            shape,
        };
        let forward = self.conv.infer(&[x, &w])?;
        ensure!(
            forward[0] == *y,
            "a convolution of {x} by {w} gives {}, not {y}",
            forward[0]
        );
        one_output(w.dtype, w.shape)
    }

    fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
        let (x, y) = (inputs[0], inputs[1]);
        let channels = [&y.shape[1], &x.shape[1]].into_iter().cloned();
        let kernel = self.kernel.iter().map(|k| Dim::from(*k));
        self.conv
            .needs(&[x, &Fact::new(x.dtype, channels.chain(kernel))])
    }
}

impl ConvWeight {
    /// A convolution of x by y that exchanges batch with channels, and stride with dilation.
    pub(crate) fn decompose<B: Builder>(
        &self,
        b: &mut B,
        x: &B::Value,
        y: &B::Value,
    ) -> Result<B::Value, OpError> {
        let (xs, ys) = (b.fact(x).shape, b.fact(y).shape);
        let rank = xs.len();
        let groups = Dim::from(self.conv.groups);
        let (n, c) = (xs[0].clone(), split(&xs[1], &groups)?);
        // [n, groups, c, ..] to [c, groups · n, ..]
        let mut split_shape = Shape::from_iter([n.clone(), groups.clone(), c.clone()]);
        split_shape.extend(xs[2..].iter().cloned());
        let perm: Vec<usize> = [2, 1, 0].into_iter().chain(3..rank + 1).collect();
        let images = b.reshape(x, &split_shape)?;
        let images = b.permute(&images, &perm)?;
        let mut merged = Shape::from_iter([c.clone(), numel(&[groups, n])]);
        merged.extend(xs[2..].iter().cloned());
        let mut images = b.reshape(&images, &merged)?;
        let swap: Vec<usize> = [1, 0].into_iter().chain(2..rank).collect();
        let filters = b.permute(y, &swap)?;
        // Elements after the last window are cropped: they would add kernel elements that do not exist.
        let mut padding = self.conv.padding.clone();
        for (a, (low, high)) in padding.iter_mut().enumerate() {
            let axis = a + 2;
            let windows = window_extent(
                &xs[axis],
                &Dim::from(self.kernel[a]),
                self.conv.stride[a],
                (*low, *high),
                self.conv.dilation[a],
            )?;
            let span = self.conv.dilation[a] as i64 * (self.kernel[a] as i64 - 1);
            let covered = &(&(&windows - &Dim::ONE) * &Dim::from(self.conv.stride[a]))
                + &Dim::Const(span + 1);
            let end = &(&covered - &Dim::from(*low)) - &xs[axis];
            let end = known_size(&end)?;
            (images, (*low, *high)) = crop(b, &images, axis, *low as i64, end)?;
        }
        let op = Conv {
            stride: self.conv.dilation.clone(),
            padding,
            dilation: self.conv.stride.clone(),
            groups: self.conv.groups,
        };
        let w = b.op(op, &[images, filters])?;
        debug_assert_eq!(b.fact(&w).shape[1], ys[1]);
        b.permute(&w, &swap)
    }
}

fn check_one_dtype(a: &Fact, b: &Fact, name: &str) -> Result<(), OpError> {
    ensure!(
        a.dtype == b.dtype,
        "the input is {} but the {name} is {}",
        a.dtype,
        b.dtype
    );
    Ok(())
}

fn known_size(d: &Dim) -> Result<i64, OpError> {
    d.as_const()
        .ok_or_else(|| OpError(format!("needs a known size, not {d}")))
}

fn split(d: &Dim, groups: &Dim) -> Result<Dim, OpError> {
    d.div_exact(groups)
        .map_err(|_| OpError(format!("{d} channels do not divide into {groups} groups")))
}
