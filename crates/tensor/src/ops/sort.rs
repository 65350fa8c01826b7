//! Sorting, and the largest, middle and most frequent elements.
//!
//! Every sort is stable. NaN counts as larger than everything; −0 and 0 are equal. Sorted values are gathered, so
//! they are bit for bit the elements. A number counts as a vector of one element.

use super::args::{DimArg, Int, ReducedDim, axis, known};
use super::index::{as_vector, is_no_larger};
use crate::options::options;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_base::prim::{Reduction, ScanKind};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure, ops};

options! {
    /// The options of [`Tensor::sort_with`] and [`Tensor::argsort_with`].
    Sort () {
        /// True to sort the largest first (default false).
        descending: bool = false,
    }
}

options! {
    /// The options of [`Tensor::topk`]; a number of elements converts into them.
    TopK (
        /// The number of elements of each lane.
        k: Int
    ) {
        /// The dim of the lanes (default the last one).
        dim: DimArg = -1,
        /// True for the largest elements (the default), false for the smallest.
        largest: bool = true,
    }
}

#[on_cells]
impl Tensor {
    /// The elements of each lane of a dim in ascending order, and the i64 indices of their original positions.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let (values, indices) = Tensor::from_slice(&[3i64, 1, 2], [3]).sort(0);
    /// assert_eq!(values.shape()?, indices.shape()?);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn sort(&self, dim: impl Into<DimArg>) -> (Tensor, Tensor) {
        self.sort_with(dim, Sort::new())
    }

    /// [`Tensor::sort`] in the order given by the options.
    pub fn sort_with(&self, dim: impl Into<DimArg>, options: Sort) -> (Tensor, Tensor) {
        compose_pair("sort", &[self], |b| {
            let (x, a) = lanes(b, self, &dim)?;
            let order = b.arg_sort(&x, a, options.descending, None)?;
            let values = b.gather(&x, a, &order)?;
            let restore = |b: &mut Recorder, t: &Tensor| b.reshape(t, self.dims());
            Ok((restore(b, &values)?, restore(b, &order)?))
        })
    }

    /// The i64 indices that sort each lane of a dim.
    pub fn argsort(&self, dim: impl Into<DimArg>) -> Tensor {
        self.argsort_with(dim, Sort::new())
    }

    /// [`Tensor::argsort`] in the order given by the options.
    pub fn argsort_with(&self, dim: impl Into<DimArg>, options: Sort) -> Tensor {
        compose("argsort", &[self], |b| {
            let (x, a) = lanes(b, self, &dim)?;
            let order = b.arg_sort(&x, a, options.descending, None)?;
            b.reshape(&order, self.dims())
        })
    }

    /// The elements of each lane of the first dim in ascending order.
    pub fn msort(&self) -> Tensor {
        self.sort(0).0
    }

    /// The k largest elements of each lane of the last dim, and their i64 indices, in descending order. [`TopK`]
    /// selects another dim, or the smallest elements in ascending order.
    ///
    /// ```
    /// use kiln_tensor::{Tensor, TopK};
    /// let x = Tensor::from([[3i64, 1, 2], [4, 6, 5]]);
    /// assert_eq!(x.topk(2).0.to_vec::<i64>()?, [3, 2, 6, 5]);
    /// assert_eq!(x.topk(TopK::new(1).dim(0).largest(false)).0.to_vec::<i64>()?, [3, 1, 2]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn topk(&self, k: impl Into<TopK>) -> (Tensor, Tensor) {
        let TopK { k, dim, largest } = k;
        compose_pair("topk", &[self], |b| {
            let (x, a) = lanes(b, self, &dim)?;
            let count = check_k(&x, a, k.0)?;
            let order = b.arg_sort(&x, a, largest, Some(count))?;
            let values = b.gather(&x, a, &order)?;
            if self.ndim() == 0 && count == 1 {
                return Ok((b.reshape(&values, &[])?, b.reshape(&order, &[])?));
            }
            Ok((values, order))
        })
    }

    /// The k-th smallest element (k from 1) of each lane of a dim and its i64 index.
    pub fn kthvalue(&self, k: impl Into<Int>, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        let ReducedDim { dim, keepdim } = dim;
        compose_pair("kthvalue", &[self], |b| {
            ensure!(k >= 1, "k counts from 1, so it can't be {k}");
            let (x, a) = lanes(b, self, &dim)?;
            let count = check_k(&x, a, k)?;
            let order = b.arg_sort(&x, a, false, Some(count))?;
            let index = b.narrow(&order, a, k - 1, 1i64)?;
            select_elements(b, self, &x, a, &index, keepdim)
        })
    }

    /// The middle element of each lane of a dim (the lower of two) and its i64 index. If a lane has a NaN, it is the
    /// first NaN.
    pub fn median(&self, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        let ReducedDim { dim, keepdim } = dim;
        median("median", self, Some(&dim), keepdim, false)
    }

    /// The middle element of all elements (the lower of two); NaN if there is a NaN or no element.
    pub fn median_all(&self) -> Tensor {
        median("median", self, None, false, false).0
    }

    /// The middle element of those in each lane of a dim that are not NaN, and its i64 index.
    pub fn nanmedian(&self, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        let ReducedDim { dim, keepdim } = dim;
        median("nanmedian", self, Some(&dim), keepdim, true)
    }

    /// The middle element of all elements that are not NaN; NaN if there is none.
    pub fn nanmedian_all(&self) -> Tensor {
        median("nanmedian", self, None, false, true).0
    }

    /// The most frequent element of each lane of a dim (the smallest of several), and the i64 index of its last
    /// occurrence.
    pub fn mode(&self, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        let ReducedDim { dim, keepdim } = dim;
        compose_pair("mode", &[self], |b| {
            let (x, a) = lanes(b, self, &dim)?;
            let n = known(&x, a)?;
            ensure!(n > 0, "{} has no elements along dim {dim}", self.fact());
            let order = b.arg_sort(&x, a, false, None)?;
            let sorted = b.gather(&x, a, &order)?;
            let (left, right) = (
                b.narrow(&sorted, a, 0i64, n - 1)?,
                b.narrow(&sorted, a, 1i64, n - 1)?,
            );
            let change = b.binary(Pw::Ne, &left, &right)?;
            let is_start = b.pad_axis(&change, a, Dim::ONE, Dim::ZERO, true)?;
            let last = b.pad_axis(&change, a, Dim::ZERO, Dim::ONE, true)?;
            // At the end of a run, its length is the distance from its start.
            let positions = b.iota(&x.dims()[a])?;
            let positions = b.reshape_along(&positions, a, x.ndim())?;
            let positions = b.broadcast_to(&positions, x.dims())?;
            let zero = b.scalar_like(0i64, &positions)?;
            let run_starts = b.select(&is_start, &positions, &zero)?;
            let run_starts = b.scan(ScanKind::Max, &run_starts, a)?;
            let length = b.binary(Pw::Sub, &positions, &run_starts)?;
            let length = b.with(Pw::Add, &length, 1i64)?;
            let length = b.select(&last, &length, &zero)?;
            let kind = Reduction::Max;
            let best = b.op(ops::ArgReduce { kind, axis: a }, &[length])?;
            let best = b.unsqueeze(&best, a)?;
            let index = b.gather(&order, a, &best)?;
            select_elements(b, self, &x, a, &index, keepdim)
        })
    }
}

/// Returns the tensor with at least one dim, and the axis that `dim` names.
pub(crate) fn lanes(
    b: &mut Recorder,
    t: &Tensor,
    dim: &DimArg,
) -> Result<(Tensor, usize), OpError> {
    let x = as_vector(b, t)?;
    let a = axis(&x, dim)?;
    Ok((x, a))
}

/// Returns the number of elements of an axis to take.
fn check_k(x: &Tensor, axis: usize, k: i64) -> Result<usize, OpError> {
    ensure!(
        k >= 0 && is_no_larger(&k.into(), &x.dims()[axis]),
        "k = {k} elements can't be chosen along dim {axis} of {}",
        x.fact()
    );
    Ok(k as usize)
}

/// Returns the elements at an index with one element for each lane, and the index.
fn select_elements(
    b: &mut Recorder,
    t: &Tensor,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    keepdim: bool,
) -> Result<(Tensor, Tensor), OpError> {
    let shape = reduced_shape(t, axis, keepdim);
    let values = b.gather(x, axis, index)?;
    Ok((b.reshape(&values, &shape)?, b.reshape(index, &shape)?))
}

/// Returns the shape with one element for each lane.
pub(crate) fn reduced_shape(t: &Tensor, axis: usize, keepdim: bool) -> Shape {
    let mut shape = Shape::from(t.dims());
    if t.ndim() > 0 {
        shape[axis] = Dim::ONE;
        if !keepdim {
            shape.remove(axis);
        }
    }
    shape
}

/// Returns the sorted lanes, the number of NaNs in each lane (they come last), and the order.
pub(crate) fn sorted_with_nans(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
) -> Result<(Tensor, Tensor, Tensor), OpError> {
    let order = b.arg_sort(x, axis, false, None)?;
    let sorted = b.gather(x, axis, &order)?;
    let nan = b.binary(Pw::Ne, &sorted, &sorted)?;
    let nan = b.cast(&nan, DType::I64)?;
    Ok((sorted, b.sum(&nan, &[axis], true)?, order))
}

#[track_caller]
fn median(
    called: &'static str,
    t: &Tensor,
    dim: Option<&DimArg>,
    keepdim: bool,
    skip_nan: bool,
) -> (Tensor, Tensor) {
    compose_pair(called, &[t], |b| {
        let flat = b.reshape(t, &[t.fact().numel()])?;
        if dim.is_none() && flat.dims()[0].is(0) && t.dtype().is_float() {
            let nan = b.full(f64::NAN, t.dtype(), &[])?;
            return Ok((nan, b.full(0i64, DType::I64, &[])?));
        }
        let dim_is_none = dim.is_none();
        let (t, dim) = dim.map_or((&flat, &DimArg::Index(0)), |d| (t, d));
        let (x, a) = lanes(b, t, dim)?;
        let n = known(&x, a)?;
        ensure!(n > 0, "{} has no elements along dim {dim}", t.fact());
        let (_, nans, order) = sorted_with_nans(b, &x, a)?;
        let position = median_position(b, n, &nans, skip_nan)?;
        let index = b.gather(&order, a, &position)?;
        let (mut value, index) = select_elements(b, t, &x, a, &index, keepdim)?;
        if dim_is_none && x.dtype().is_float() {
            value = share_gradient(b, &x, &value.detach())?;
        }
        Ok((value, index))
    })
}

/// Returns a number that is among the elements, with equal gradients for all elements equal to it.
fn share_gradient(b: &mut Recorder, x: &Tensor, number: &Tensor) -> Recorded {
    let same = b.binary(Pw::Eq, x, number)?;
    let lowest = b.scalar_like(f64::NEG_INFINITY, x)?;
    let non_nan = b.select(&same, x, &lowest)?;
    let nan = b.unary(Pw::IsNan, number)?;
    let largest = b.reduce(Reduction::Max, &non_nan, &[0], false)?;
    b.select(&nan, number, &largest)
}

/// Returns the position of the median in sorted lanes of `n` elements, where NaNs come last.
fn median_position(b: &mut Recorder, n: i64, nans: &Tensor, skip_nan: bool) -> Recorded {
    let minus = b.unary(Pw::Neg, nans)?;
    let numbers = b.with(Pw::Add, &minus, n)?;
    if skip_nan {
        let last = b.with(Pw::Sub, &numbers, 1i64)?;
        let last = b.with(Pw::Maximum, &last, 0i64)?;
        return b.with(Pw::FloorDivide, &last, 2i64);
    }
    let any = b.with(Pw::Gt, nans, 0i64)?;
    let middle = b.scalar_like((n - 1) / 2, nans)?;
    b.select(&any, &numbers, &middle)
}
