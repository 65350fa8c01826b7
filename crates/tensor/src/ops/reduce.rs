//! Sums, means, extremes and other reductions.
//!
//! Everywhere `dims` may be `()` for all dims. [`keep`](crate::keep) around them keeps the reduced dims with size 1.
//! Floats narrower than f32 are accumulated in f32.

use super::args::{DimArgs, ReducedDim, ReducedDims, axis, check_few_dims, check_float};
use super::short::wide;
use crate::record::{Recorded, Recorder, compose, compose_pair};
use crate::{DType, Scalar, Tensor, promote};
use kiln_base::Dim;
use kiln_base::prim::Reduction;
use kiln_derive::on_cells;
use kiln_ir::ops::{self, Axes};
use kiln_ir::{Builder, OpError, Pw, ensure};

/// The dtype of sums and products: integers and bool become i64.
pub(crate) fn sum_dtype(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

#[on_cells]
impl Tensor {
    /// The sum; integers and bool give i64.
    ///
    /// ```
    /// use kiln_tensor::{keep, Tensor};
    /// let x = Tensor::from_slice(&[1i64, 2, 3, 4], [2, 2]);
    /// assert_eq!(x.sum(keep(0)).shape()?, [1, 2]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[autocast]
    pub fn sum(&self, dims: impl Into<ReducedDims>) -> Tensor {
        fold("sum", Reduction::Sum, self, dims)
    }

    /// The product; integers and bool give i64.
    #[autocast]
    pub fn prod(&self, dims: impl Into<ReducedDims>) -> Tensor {
        fold("prod", Reduction::Prod, self, dims)
    }

    /// The sum of the elements that are not NaN.
    pub fn nansum(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("nansum", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            let mut x = b.cast(self, sum_dtype(self.dtype()))?;
            if x.dtype().is_float() {
                let nan = b.unary(Pw::IsNan, &x)?;
                x = b.fill_where(&nan, 0.0, &x)?;
            }
            b.sum(&x, &axes, keepdim)
        })
    }

    /// The mean of floats.
    pub fn mean(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("mean", &[self], |b| {
            check_float(self, "operand")?;
            let axes = dims.axes_or_all(self)?;
            let x = b.widen(self)?;
            let mean = b.mean(&x, &axes, keepdim)?;
            b.narrowed(&mean, self.dtype())
        })
    }

    /// The mean of the elements that are not NaN.
    pub fn nanmean(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("nanmean", &[self], |b| {
            check_float(self, "operand")?;
            let axes = dims.axes_or_all(self)?;
            let x = b.widen(self)?;
            let nan = b.unary(Pw::IsNan, &x)?;
            let number = b.unary(Pw::Not, &nan)?;
            let number = b.cast(&number, x.dtype())?;
            let x = b.fill_where(&nan, 0.0, &x)?;
            let sum = b.sum(&x, &axes, keepdim)?;
            let count = b.sum(&number, &axes, keepdim)?;
            let mean = b.binary(Pw::Div, &sum, &count)?;
            b.narrowed(&mean, self.dtype())
        })
    }

    /// The largest element; NaN if any is NaN.
    pub fn amax(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("amax", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            b.reduce(Reduction::Max, self, &axes, keepdim)
        })
    }

    /// The smallest element; NaN if any is NaN.
    pub fn amin(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("amin", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            b.reduce(Reduction::Min, self, &axes, keepdim)
        })
    }

    /// The largest elements along a dim and the i64 indices of the first of them, which receive the gradient.
    pub fn max(&self, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        extreme("max", Reduction::Max, self, dim)
    }

    /// The smallest elements along a dim and the i64 indices of the first of them, which receive the gradient.
    pub fn min(&self, dim: impl Into<ReducedDim>) -> (Tensor, Tensor) {
        extreme("min", Reduction::Min, self, dim)
    }

    /// The smallest and the largest element, of all dims or along a dim.
    pub fn aminmax(&self, dim: impl Into<ReducedDims>) -> (Tensor, Tensor) {
        let ReducedDims { dims, keepdim } = dim;
        compose_pair("aminmax", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            Ok((
                b.reduce(Reduction::Min, self, &axes, keepdim)?,
                b.reduce(Reduction::Max, self, &axes, keepdim)?,
            ))
        })
    }

    /// The i64 index of the first largest element along a dim, or in the flattened tensor.
    pub fn argmax(&self, dim: impl Into<ReducedDims>) -> Tensor {
        arg("argmax", Reduction::Max, self, dim)
    }

    /// The i64 index of the first smallest element along a dim, or in the flattened tensor.
    pub fn argmin(&self, dim: impl Into<ReducedDims>) -> Tensor {
        arg("argmin", Reduction::Min, self, dim)
    }

    /// True if any element is nonzero. Bool, but u8 for u8.
    pub fn any(&self, dims: impl Into<ReducedDims>) -> Tensor {
        fold_truth("any", Reduction::Max, self, dims)
    }

    /// True if all elements are nonzero. Bool, but u8 for u8.
    pub fn all(&self, dims: impl Into<ReducedDims>) -> Tensor {
        fold_truth("all", Reduction::Min, self, dims)
    }

    /// The number of nonzero elements, as i64.
    pub fn count_nonzero(&self, dims: impl Into<DimArgs>) -> Tensor {
        compose("count_nonzero", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            let x = b.is_nonzero(self)?;
            let x = b.cast(&x, DType::I64)?;
            b.sum(&x, &axes, false)
        })
    }

    /// The variance: squared distances from the mean over `count − 1`.
    pub fn var(&self, dims: impl Into<ReducedDims>) -> Tensor {
        self.var_with(dims, 1.0)
    }

    /// The variance: squared distances from the mean over `count − correction`.
    pub fn var_with(&self, dims: impl Into<ReducedDims>, correction: f64) -> Tensor {
        compose("var", &[self], |b| {
            let (var, _) = moments(b, self, &dims, correction)?;
            b.narrowed(&var, self.dtype())
        })
    }

    /// The standard deviation: the root of [`Tensor::var`].
    pub fn std(&self, dims: impl Into<ReducedDims>) -> Tensor {
        self.std_with(dims, 1.0)
    }

    /// The standard deviation: the root of [`Tensor::var_with`].
    pub fn std_with(&self, dims: impl Into<ReducedDims>, correction: f64) -> Tensor {
        compose("std", &[self], |b| {
            let (var, _) = moments(b, self, &dims, correction)?;
            let std = root(b, &var, 2.0)?;
            b.narrowed(&std, self.dtype())
        })
    }

    /// [`Tensor::var`] and the mean.
    pub fn var_mean(&self, dims: impl Into<ReducedDims>) -> (Tensor, Tensor) {
        self.var_mean_with(dims, 1.0)
    }

    /// [`Tensor::var_with`] and the mean.
    pub fn var_mean_with(&self, dims: impl Into<ReducedDims>, correction: f64) -> (Tensor, Tensor) {
        compose_pair("var_mean", &[self], |b| {
            let (var, mean) = moments(b, self, &dims, correction)?;
            Ok((
                b.narrowed(&var, self.dtype())?,
                b.narrowed(&mean, self.dtype())?,
            ))
        })
    }

    /// [`Tensor::std`] and the mean.
    pub fn std_mean(&self, dims: impl Into<ReducedDims>) -> (Tensor, Tensor) {
        self.std_mean_with(dims, 1.0)
    }

    /// [`Tensor::std_with`] and the mean.
    pub fn std_mean_with(&self, dims: impl Into<ReducedDims>, correction: f64) -> (Tensor, Tensor) {
        compose_pair("std_mean", &[self], |b| {
            let (var, mean) = moments(b, self, &dims, correction)?;
            let std = root(b, &var, 2.0)?;
            Ok((
                b.narrowed(&std, self.dtype())?,
                b.narrowed(&mean, self.dtype())?,
            ))
        })
    }

    /// log Σ eˣ without overflow; integers become f32.
    #[autocast]
    pub fn logsumexp(&self, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("logsumexp", &[self], |b| {
            let axes = dims.axes_or_all(self)?;
            let dtype = promote::float_dtype(self.dtype());
            let x = b.cast(self, wide(dtype))?;
            let y = logsumexp(b, &x, &axes, keepdim)?;
            b.cast(&y, dtype)
        })
    }

    /// (Σ |x|ᵒʳᵈ)^(1/ord) of floats; infinite orders give the largest or smallest |x|, order 0 the number of nonzero
    /// elements.
    #[autocast]
    pub fn vector_norm(&self, ord: f64, dims: impl Into<ReducedDims>) -> Tensor {
        let ReducedDims { dims, keepdim } = dims;
        compose("vector_norm", &[self], |b| {
            check_float(self, "operand")?;
            let axes = dims.axes_or_all(self)?;
            let x = b.widen(self)?;
            let norm = norm(b, &x, ord, &axes, keepdim)?;
            b.narrowed(&norm, self.dtype())
        })
    }
}

#[track_caller]
fn fold(called: &'static str, kind: Reduction, t: &Tensor, reduced: ReducedDims) -> Tensor {
    let ReducedDims { dims, keepdim } = reduced;
    compose(called, &[t], |b| {
        let axes = dims.axes_or_all(t)?;
        let x = b.cast(t, sum_dtype(t.dtype()))?;
        b.reduce(kind, &x, &axes, keepdim)
    })
}

#[track_caller]
fn fold_truth(called: &'static str, kind: Reduction, t: &Tensor, reduced: ReducedDims) -> Tensor {
    let ReducedDims { dims, keepdim } = reduced;
    compose(called, &[t], |b| {
        let axes = dims.axes_or_all(t)?;
        let x = b.is_nonzero(t)?;
        let y = if axes.iter().any(|a| t.dims()[*a].is(0)) {
            // Without elements, "any" is false and "all" is true.
            let x = b.cast(&x, DType::I64)?;
            let none = b.sum(&x, &axes, keepdim)?;
            b.with(
                if kind == Reduction::Max {
                    Pw::Ne
                } else {
                    Pw::Eq
                },
                &none,
                0i64,
            )?
        } else {
            b.reduce(kind, &x, &axes, keepdim)?
        };
        let u8 = t.dtype() == DType::U8;
        b.cast(&y, if u8 { DType::U8 } else { DType::Bool })
    })
}

#[track_caller]
fn extreme(
    called: &'static str,
    kind: Reduction,
    t: &Tensor,
    reduced: ReducedDim,
) -> (Tensor, Tensor) {
    let ReducedDim { dim, keepdim } = reduced;
    compose_pair(called, &[t], |b| {
        if t.ndim() == 0 {
            DimArgs::from(&dim).axes(t)?;
            return Ok((t.clone(), b.full(0i64, DType::I64, &[])?));
        }
        check_few_dims(t)?;
        let a = axis(t, &dim)?;
        let (values, index) = first_extreme(b, kind, t, a)?;
        let shape = super::sort::reduced_shape(t, a, keepdim);
        let named = |b: &mut Recorder, v: &Tensor| -> Recorded {
            let v = b.reshape(v, &shape)?;
            Ok(v.with_names_of(t, |names| {
                if !keepdim {
                    names.remove(a);
                }
            }))
        };
        Ok((named(b, &values)?, named(b, &index)?))
    })
}

/// Returns the extremes along an axis, which is kept, and the index of the first of each. They are gathered by index:
/// the first of several receives the gradient, and the derivative compares no floats.
pub(crate) fn first_extreme(
    b: &mut Recorder,
    kind: Reduction,
    x: &Tensor,
    axis: usize,
) -> Result<(Tensor, Tensor), OpError> {
    let index = b.op(ops::ArgReduce { kind, axis }, std::slice::from_ref(x))?;
    let index = b.unsqueeze(&index, axis)?;
    Ok((b.gather(x, axis, &index)?, index))
}

#[track_caller]
fn arg(called: &'static str, kind: Reduction, t: &Tensor, reduced: ReducedDims) -> Tensor {
    let ReducedDims { dims, keepdim } = reduced;
    compose(called, &[t], |b| {
        ensure!(
            t.dtype() != DType::Bool,
            "is not defined on bool; cast it first"
        );
        let flat = |b: &mut Recorder| b.reshape(t, &[t.fact().numel()]);
        let (x, a, kept) = match dims.one_or_all()? {
            Some(d) if t.ndim() > 0 => {
                check_few_dims(t)?;
                let a = axis(t, d)?;
                let mut kept = kiln_ir::Shape::from(t.dims());
                kept[a] = Dim::ONE;
                (t.clone(), a, kept)
            }
            Some(d) => {
                DimArgs::from(d).axes(t)?;
                (flat(b)?, 0, kiln_ir::Shape::new())
            }
            None => (flat(b)?, 0, kiln_ir::Shape::from_elem(Dim::ONE, t.ndim())),
        };
        let index = b.op(ops::ArgReduce { kind, axis: a }, std::slice::from_ref(&x))?;
        if keepdim {
            let index = b.reshape(&index, &kept)?;
            Ok(index.with_names_of(t, |_| {}))
        } else {
            Ok(index)
        }
    })
}

/// Variance and mean, computed wide.
fn moments(
    b: &mut Recorder,
    t: &Tensor,
    reduced: &ReducedDims,
    correction: f64,
) -> Result<(Tensor, Tensor), OpError> {
    check_float(t, "operand")?;
    let axes = reduced.dims.axes_or_all(t)?;
    let x = b.widen(t)?;
    let (var, mean) = variance(b, &x, &axes, correction)?;
    if reduced.keepdim {
        return Ok((var, mean));
    }
    Ok((b.squeeze(&var, &axes)?, b.squeeze(&mean, &axes)?))
}

/// Variance and mean along axes, which are kept with size 1.
pub(crate) fn variance(
    b: &mut Recorder,
    x: &Tensor,
    axes: &[usize],
    correction: f64,
) -> Result<(Tensor, Tensor), OpError> {
    let mean = b.mean(x, axes, true)?;
    let centred = b.binary(Pw::Sub, x, &mean)?;
    let square = b.unary(Pw::Square, &centred)?;
    let sum = b.sum(&square, axes, true)?;
    let count = b.count(x, axes, x.dtype())?;
    let freedom = b.with(Pw::Sub, &count, correction)?;
    let freedom = b.with(Pw::Maximum, &freedom, 0.0)?;
    Ok((b.binary(Pw::Div, &sum, &freedom)?, mean))
}

/// log Σ eˣ. The largest element is subtracted first, unless it is infinite.
pub(crate) fn logsumexp(b: &mut Recorder, x: &Tensor, axes: &Axes, keepdim: bool) -> Recorded {
    if axes.iter().any(|a| x.dims()[*a].is(0)) {
        let sum = b.sum(x, axes, keepdim)?;
        return b.unary(Pw::Log, &sum);
    }
    // The gradients of the maximum cancel, so it is detached.
    let max = b.reduce(Reduction::Max, &x.detach(), axes, true)?;
    let infinite = b.unary(Pw::IsInf, &max)?;
    let max = b.fill_where(&infinite, 0.0, &max)?;
    let shifted = b.binary(Pw::Sub, x, &max)?;
    let exp = b.unary(Pw::Exp, &shifted)?;
    let sum = b.sum(&exp, axes, keepdim)?;
    let log = b.unary(Pw::Log, &sum)?;
    let max = b.reshape(&max, log.dims())?;
    b.binary(Pw::Add, &log, &max)
}

/// The vector norm along axes.
pub(crate) fn norm(
    b: &mut Recorder,
    x: &Tensor,
    ord: impl Into<Scalar>,
    axes: &[usize],
    keepdim: bool,
) -> Recorded {
    let ord = ord.into().as_f64();
    if ord == 2.0 {
        let square = b.unary(Pw::Square, x)?;
        let sum = b.sum(&square, axes, keepdim)?;
        return root(b, &sum, 2.0);
    }
    let size = b.unary(Pw::Abs, x)?;
    if ord == 0.0 {
        let truth = b.is_nonzero(x)?;
        let is_nonzero = b.cast(&truth, x.dtype())?;
        let is_nonzero = b.connect(&is_nonzero, x)?;
        b.sum(&is_nonzero, axes, keepdim)
    } else if ord == 1.0 {
        b.sum(&size, axes, keepdim)
    } else if ord == f64::INFINITY {
        b.reduce(Reduction::Max, &size, axes, keepdim)
    } else if ord == f64::NEG_INFINITY {
        b.reduce(Reduction::Min, &size, axes, keepdim)
    } else {
        if ord >= 1.0 {
            let power = b.with(Pw::Pow, &size, ord)?;
            let sum = b.sum(&power, axes, keepdim)?;
            return root(b, &sum, ord);
        }
        // The derivative of a power below 1 is infinite at 0.
        let zero = b.with(Pw::Eq, &size, 0.0)?;
        let size = b.fill_where(&zero, 1.0, &size)?;
        let power = b.with(Pw::Pow, &size, ord)?;
        let at_zero = if ord < 0.0 { f64::INFINITY } else { 0.0 };
        let power = b.fill_where(&zero, at_zero, &power)?;
        let sum = b.sum(&power, axes, keepdim)?;
        match ord < 0.0 {
            true => b.with(Pw::Pow, &sum, 1.0 / ord),
            false => root(b, &sum, ord),
        }
    }
}

/// `x^(1 / degree)` with a gradient of 0 where x is 0, so that the terms summed in x receive none.
pub(crate) fn root(b: &mut Recorder, x: &Tensor, degree: f64) -> Recorded {
    let zero = b.with(Pw::Eq, x, 0.0)?;
    let safe = b.fill_where(&zero, 1.0, x)?;
    let root = match degree == 2.0 {
        true => b.unary(Pw::Sqrt, &safe)?,
        false => b.with(Pw::Pow, &safe, 1.0 / degree)?,
    };
    b.fill_where(&zero, 0.0, &root)
}
