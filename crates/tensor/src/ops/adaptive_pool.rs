//! Pooling to a given size.

use super::args::{OutputSize, check_addressable, check_listable, known_dim};
use super::parts::split_windows;
use super::pool::check_input;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Tensor};
use kiln_base::prim::Reduction;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

macro_rules! adaptive_pools {
    ($($(#[$doc:meta])* $name:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            #[autocast]
            pub fn $name(&self, output_size: impl Into<OutputSize>) -> Tensor {
                compose(stringify!($name), &[self], |b| {
                    check_input($spatial, self)?;
                    super::args::check_float(self, "input")?;
                    adaptive_average(b, $spatial, self, &output_size)
                })
            })*
        }
    };
}

adaptive_pools! {
    /// Means over `[n, c, l]` (or `[c, l]`) that give `output_size` elements for any input size; `None` keeps a size.
    adaptive_avg_pool1d 1;
    /// Means over `[n, c, h, w]` (or `[c, h, w]`) that give this output size; `None` keeps a size.
    adaptive_avg_pool2d 2;
    /// Means over `[n, c, d, h, w]` (or `[c, d, h, w]`) that give this output size; `None` keeps a size.
    adaptive_avg_pool3d 3;
}

macro_rules! adaptive_max_pools {
    ($($(#[$doc:meta])* $name:ident $with_indices:ident $spatial:literal;)*) => {
        #[on_cells]
        impl Tensor {
            $($(#[$doc])*
            pub fn $name(&self, output_size: impl Into<OutputSize>) -> Tensor {
                self.$with_indices(output_size).0
            }

            /// The same with the position of each maximum in its plane, row-major, as i64.
            #[autocast]
            pub fn $with_indices(&self, output_size: impl Into<OutputSize>) -> (Tensor, Tensor) {
                compose_pair(stringify!($name), &[self], |b| {
                    check_input($spatial, self)?;
                    adaptive_max(b, $spatial, self, &output_size)
                })
            })*
        }
    };
}

adaptive_max_pools! {
    /// Maxima over `[n, c, l]` (or `[c, l]`) that give `output_size` elements; `None` keeps a size.
    adaptive_max_pool1d adaptive_max_pool1d_with_indices 1;
    /// Maxima over `[n, c, h, w]` (or `[c, h, w]`) that give this output size; `None` keeps a size.
    adaptive_max_pool2d adaptive_max_pool2d_with_indices 2;
    /// Maxima over `[n, c, d, h, w]` (or `[c, d, h, w]`) that give this output size; `None` keeps a size.
    adaptive_max_pool3d adaptive_max_pool3d_with_indices 3;
}

/// The range of the `n` input elements that output element `i` of `out` covers.
fn region(i: i64, n: i64, out: i64) -> (i64, i64) {
    let (i, n, out) = (i128::from(i), i128::from(n), i128::from(out));
    let (start, end) = (i * n / out, ((i + 1) * n + out - 1) / out);
    (start as i64, end as i64) // at most n
}

/// Returns the output size of each spatial axis.
fn output_sizes(x: &Tensor, spatial: usize, size: &OutputSize) -> Result<Vec<Dim>, OpError> {
    ensure!(
        size.0.len() == spatial || size.0.len() == 1,
        "the output size needs one number or {spatial}, not {:?}",
        size.0
    );
    let mut sizes = Vec::new();
    for a in 0..spatial {
        let n = x.dims()[x.ndim() - spatial + a].clone();
        let out = size.0[a % size.0.len()].map_or(n, Dim::from);
        let negative = out.as_const().is_some_and(|n| n < 0);
        ensure!(
            !negative,
            "an output size can't be {out}; None keeps a size"
        );
        sizes.push(out);
    }
    let mut shape = Shape::from(x.dims());
    for (a, out) in sizes.iter().enumerate() {
        shape[x.ndim() - spatial + a] = out.clone();
    }
    check_addressable(&shape, x.dtype())?;
    Ok(sizes)
}

/// Pools all axes at once if they divide into equal regions, else one after the other: the regions are boxes, so the
/// mean of means is the mean.
pub(crate) fn adaptive_average(
    b: &mut Recorder,
    spatial: usize,
    t: &Tensor,
    size: &OutputSize,
) -> Recorded {
    let first_axis = t.ndim() - spatial;
    let mut x = b.widen(t)?;
    let sizes = output_sizes(t, spatial, size)?;
    let pooled = sizes
        .iter()
        .enumerate()
        .map(|(a, out)| (first_axis + a, out));
    let pooled = pooled.filter(|(axis, out)| **out != t.dims()[*axis]);
    let equal = |(axis, out): (usize, &Dim)| {
        let region_size = t.dims()[axis].div_exact(out).ok()?;
        Some((axis, out.clone(), region_size))
    };
    x = match pooled.clone().map(equal).collect::<Option<Vec<_>>>() {
        Some(all) => average_equal(b, &x, &all)?,
        None => pooled
            .into_iter()
            .try_fold(x, |x, (axis, out)| match equal((axis, out)) {
                Some(one) => average_equal(b, &x, &[one]),
                None => average_axis(b, &x, axis, known_dim(out, t)?),
            })?,
    };
    b.narrowed(&x, t.dtype())
}

/// Means of equal regions along axes in order. Each axis comes with the number of regions and their size.
fn average_equal(b: &mut Recorder, x: &Tensor, axes: &[(usize, Dim, Dim)]) -> Recorded {
    let mut split = Shape::from(x.dims());
    let mut region_axes = Vec::new();
    for (i, (axis, out, each)) in axes.iter().enumerate() {
        split[axis + i] = out.clone();
        region_axes.push(axis + i + 1);
        split.insert(axis + i + 1, each.clone());
    }
    if region_axes.is_empty() {
        return Ok(x.clone());
    }
    let regions = b.reshape(x, &split)?;
    b.mean(&regions, &region_axes, false)
}

/// Means of regions of different sizes.
fn average_axis(b: &mut Recorder, x: &Tensor, axis: usize, out: i64) -> Recorded {
    let n = &x.dims()[axis];
    if out == 0 {
        return b.narrow(x, axis, 0i64, 0i64);
    }
    if let Some(known) = n.as_const() {
        return average_windows(b, x, axis, known, out);
    }
    let mut means = Vec::new();
    for i in 0..out {
        let start = (n * &Dim::Const(i)).div_floor(out);
        let end = &(n * &Dim::Const(i + 1)) + &Dim::Const(out - 1);
        let region = b.narrow(x, axis, start.clone(), &end.div_floor(out) - &start)?;
        means.push(b.mean(&region, &[axis], true)?);
    }
    b.concat(&means, axis)
}

/// [`average_axis`] for a known size, by windows of one size. The repeated elements of shorter windows count as
/// zeros.
fn average_windows(b: &mut Recorder, x: &Tensor, axis: usize, n: i64, out: i64) -> Recorded {
    let (index, _) = uneven_regions(n, out)?;
    let width = index.len() as i64 / out;
    let sizes: Vec<i64> = (0..out)
        .map(|i| region(i, n, out))
        .map(|(s, e)| e - s)
        .collect();
    let chosen = gather(b, x, axis, &index, out as usize)?;
    let windows = split_windows(b, &chosen, axis, &out.into(), &width.into())?;
    let sizes = b.list(&sizes, &[sizes.len()], DType::I64)?;
    let sizes = b.reshape_along(&sizes, axis, x.ndim())?;
    let column = b.unsqueeze(&sizes, x.ndim())?;
    let tap = b.iota(&width.into())?;
    let own = b.binary(Pw::Lt, &tap, &column)?;
    let zero = b.scalar_like(0.0, &windows)?;
    let windows = b.select(&own, &windows, &zero)?;
    let sum = b.sum(&windows, &[x.ndim()], false)?;
    let sizes = b.cast(&sizes, sum.dtype())?;
    b.binary(Pw::Div, &sum, &sizes)
}

/// Returns the values and positions of maxima. Regions of different sizes are gathered as windows of one size:
/// shorter ones repeat their last element, which is never the first maximum.
fn adaptive_max(
    b: &mut Recorder,
    spatial: usize,
    x: &Tensor,
    size: &OutputSize,
) -> Result<(Tensor, Tensor), OpError> {
    let first_axis = x.ndim() - spatial;
    let sizes = output_sizes(x, spatial, size)?;
    check_addressable(x.dims(), DType::I64)?;
    if sizes.iter().any(|out| out.is(0)) {
        let mut shape = Shape::from(x.dims());
        shape[first_axis..].clone_from_slice(&sizes);
        let index = b.full(0i64, DType::I64, &shape)?;
        return Ok((b.full(0i64, x.dtype(), &shape)?, index));
    }
    let mut windows = x.clone();
    let (mut widths, mut starts) = (Vec::new(), Vec::new());
    for (a, out) in sizes.iter().enumerate() {
        let n = &x.dims()[first_axis + a];
        let (width, start);
        if let Ok(region) = n.div_exact(out) {
            let window = b.iota(out)?;
            (width, start) = (region.clone(), b.with_size(Pw::Mul, &window, &region)?);
        } else {
            let (index, firsts) = uneven_regions(known_dim(n, x)?, known_dim(out, x)?)?;
            width = (index.len() / firsts.len()).into();
            windows = gather(b, &windows, first_axis + a, &index, firsts.len())?;
            start = b.list(&firsts, &[firsts.len()], DType::I64)?;
        }
        windows = split_windows(b, &windows, first_axis + a, out, &width)?;
        check_addressable(windows.dims(), DType::I64)?;
        widths.push(width);
        starts.push(start);
    }
    let mut shape = Shape::from(&windows.dims()[..x.ndim()]);
    shape.push(numel(&widths));
    let flat = b.reshape(&windows, &shape)?;
    let (values, index) = super::reduce::first_extreme(b, Reduction::Max, &flat, x.ndim())?;
    let values = b.squeeze(&values, &[x.ndim()])?;
    // Splits the index within the window into an index along each of its axes.
    let mut flat_index = b.squeeze(&index, &[x.ndim()])?;
    let mut plane = b.full(0i64, DType::I64, values.dims())?;
    let mut stride = Dim::ONE;
    for a in (0..spatial).rev() {
        let tap = b.with_size(Pw::Remainder, &flat_index, &widths[a])?;
        flat_index = b.with_size(Pw::FloorDivide, &flat_index, &widths[a])?;
        let start = b.reshape_along(&starts[a], first_axis + a, x.ndim())?;
        let position = b.binary(Pw::Add, &start, &tap)?;
        let position = b.with_size(Pw::Mul, &position, &stride)?;
        plane = b.binary(Pw::Add, &plane, &position)?;
        stride = &stride * &x.dims()[first_axis + a];
    }
    Ok((values, plane))
}

/// Returns the indices of the elements of regions of different sizes, padded to one size, and the start of each
/// region.
fn uneven_regions(n: i64, out: i64) -> Result<(Vec<i64>, Vec<i64>), OpError> {
    check_listable(
        out.checked_mul(n / out + 2),
        &format!("pooling {n} elements to {out}"),
    )?;
    let regions = || (0..out).map(move |i| region(i, n, out));
    let width = regions().map(|(start, end)| end - start).max().unwrap_or(1);
    let index =
        regions().flat_map(|(start, end)| (0..width).map(move |t| (start + t).min(end - 1)));
    Ok((index.collect(), regions().map(|r| r.0).collect()))
}

/// The elements of `count` regions along an axis.
fn gather(b: &mut Recorder, x: &Tensor, axis: usize, index: &[i64], count: usize) -> Recorded {
    // The index has a separate axis for the regions, so that its size is a visible multiple of their number.
    let index = b.list(index, &[count, index.len() / count], DType::I64)?;
    let flat = b.reshape(&index, &[index.fact().numel()])?;
    b.index_select(x, axis, &flat)
}
