//! Elements selected by indices and masks.
//!
//! Indices are i64. An index out of range is a data error: the run stops, and the error names the index, its bound
//! and the line that recorded the call.

use super::args::{DimArg, DimArgs, Int, axis, check_same_device, known};
use crate::operand::AsTensor;
use crate::operand::Other;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor, promote};
use kiln_base::{Dim, Kind};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, broadcast_shapes, ensure};

/// Returns an error unless the tensor can be an index.
pub(crate) fn check_index(t: &Tensor, what: &str) -> Result<(), OpError> {
    ensure!(
        t.dtype() == DType::I64,
        "the {what} must be i64, not {}; cast it first",
        t.dtype()
    );
    Ok(())
}

/// An i64 or i32 index as i64.
pub(crate) fn as_index(b: &mut Recorder, t: &Tensor, what: &str) -> Recorded {
    if t.dtype() == DType::I32 {
        return b.cast(t, DType::I64);
    }
    check_index(t, what)?;
    Ok(t.clone())
}

/// Returns an error unless an index fits a tensor along an axis: as many dims, and no larger in the other dims.
pub(crate) fn check_index_shape(x: &Tensor, axis: usize, index: &Tensor) -> Result<(), OpError> {
    ensure!(
        x.ndim() == index.ndim(),
        "the index {} has {} dims but {} has {}",
        index.fact(),
        index.ndim(),
        x.fact(),
        x.ndim()
    );
    for a in (0..x.ndim()).filter(|a| *a != axis) {
        ensure!(
            is_no_larger(&index.dims()[a], &x.dims()[a]),
            "the index {} is larger than {} in dim {a} ({} > {}), which is not the indexed dim {axis}",
            index.fact(),
            x.fact(),
            index.dims()[a],
            x.dims()[a]
        );
    }
    Ok(())
}

/// True if one size is known to be no larger than another.
pub(crate) fn is_no_larger(small: &Dim, large: &Dim) -> bool {
    match (small.as_const(), large.as_const()) {
        (Some(s), Some(l)) => s <= l,
        (Some(s), None) => s <= 2, // a symbol is at least 2
        _ => small == large,
    }
}

/// Reshapes a rank-0 tensor to a vector of one element.
pub(crate) fn as_vector(b: &mut Recorder, t: &Tensor) -> Recorded {
    if t.ndim() == 0 {
        b.reshape(t, &[Dim::ONE])
    } else {
        Ok(t.clone())
    }
}

/// An index of at most one dim, as a vector.
pub(crate) fn index_vector(b: &mut Recorder, index: &Tensor) -> Recorded {
    ensure!(
        index.ndim() <= 1,
        "the index must be a vector, not {}",
        index.fact()
    );
    as_vector(b, index)
}

#[on_cells]
impl Tensor {
    /// `out[.., i, ..] = self[.., index[.., i, ..], ..]` along a dim. The index has as many dims as the tensor and is
    /// no larger in the other dims; the result has the index's shape.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let x = Tensor::arange(1, 10, 1).reshape([3, 3]);
    /// let index = Tensor::from_slice(&[1i64, 1, 2, 0, 1, 2], [3, 2]);
    /// assert_eq!(x.gather(1, &index).shape()?, [3, 2]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn gather(&self, dim: impl Into<DimArg>, index: impl AsTensor) -> Tensor {
        compose("gather", &[self, index], |b| {
            let x = as_vector(b, self)?;
            let a = axis(&x, &dim)?;
            if index.fact().numel().is(0) {
                // Selects nothing; its dtype and shape don't matter.
                return b.full(0i64, self.dtype(), index.dims());
            }
            b.indexed_by("index", index);
            let i = as_index(b, index, "index")?;
            let i = as_vector(b, &i)?;
            check_index_shape(&x, a, &i)?;
            let y = b.gather(&x, a, &i)?;
            b.reshape(&y, index.dims())
        })
    }

    /// Like [`Tensor::gather`] with the other dims of both broadcast. Without a dim, it applies to the flattened
    /// tensor.
    pub fn take_along_dim(&self, indices: impl AsTensor, dim: impl Into<DimArgs>) -> Tensor {
        compose("take_along_dim", &[self, indices], |b| {
            check_index(indices, "index")?;
            b.indexed_by("indices", indices);
            let Some(dim) = dim.one_or_all()? else {
                let x = b.reshape(self, &[self.fact().numel()])?;
                let i = b.reshape(indices, &[indices.fact().numel()])?;
                return b.gather(&x, 0, &i);
            };
            ensure!(
                self.ndim() == indices.ndim(),
                "{} and the index {} differ in the number of dims",
                self.fact(),
                indices.fact()
            );
            let a = axis(self, dim)?;
            let (mut x, mut i) = (Shape::from(self.dims()), Shape::from(indices.dims()));
            (x[a], i[a]) = (Dim::ONE, Dim::ONE);
            let shared = broadcast_shapes([&x[..], &i[..]]).ok_or_else(|| {
                OpError(format!(
                    "{} and the index {} do not broadcast in the dims other than {dim}",
                    self.fact(),
                    indices.fact()
                ))
            })?;
            let (mut to_x, mut to_i) = (shared.clone(), shared);
            to_x[a] = self.dims()[a].clone();
            to_i[a] = indices.dims()[a].clone();
            let x = b.broadcast_to(self, &to_x)?;
            let i = b.broadcast_to(indices, &to_i)?;
            b.gather(&x, a, &i)
        })
    }

    /// The elements of the flattened tensor at these indices; negative ones count from the end.
    pub fn take(&self, index: impl AsTensor) -> Tensor {
        compose("take", &[self, index], |b| {
            check_index(index, "index")?;
            b.indexed_by("index", index);
            let total = self.fact().numel();
            let x = b.reshape(self, std::slice::from_ref(&total))?;
            let i = b.reshape(index, &[index.fact().numel()])?;
            let i = wrap_index(b, &i, known(&x, 0)?)?;
            let y = b.gather(&x, 0, &i)?;
            b.reshape(&y, index.dims())
        })
    }

    /// The slices of a dim that an index vector selects. Negative indices are errors.
    pub fn index_select(&self, dim: impl Into<DimArg>, index: impl AsTensor) -> Tensor {
        compose("index_select", &[self, index], |b| {
            b.indexed_by("index", index);
            let original = index;
            let index = &as_index(b, original, "index")?;
            let i = index_vector(b, index)?;
            let x = as_vector(b, self)?;
            let a = axis(&x, &dim)?;
            let y = b.index_select(&x, a, &i)?;
            if self.ndim() == 0 {
                ensure!(
                    i.dims()[0].is(1),
                    "a number takes an index of one element, not {}",
                    index.fact()
                );
                return b.reshape(&y, &[]);
            }
            Ok(y)
        })
    }

    /// The tensor with `value` wherever the mask (bool, broadcast) is true. The value is a number or a rank-0 tensor
    /// and is cast to this tensor's dtype.
    pub fn masked_fill<'a>(&self, mask: impl AsTensor, value: impl Into<Other<'a>>) -> Tensor {
        let mut operands = value.operands_with(self);
        operands.push(mask);
        compose("masked_fill", &operands, |b| {
            ensure!(
                mask.dtype() == DType::Bool,
                "the mask must be bool, not {}",
                mask.dtype()
            );
            let value = fill_value(b, self, &value)?;
            b.select(mask, &value, self)
        })
    }

    /// The tensor with `value` in the slices of a dim that an index vector selects; negative indices count from the
    /// end.
    pub fn index_fill<'a>(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        value: impl Into<Other<'a>>,
    ) -> Tensor {
        let mut operands = value.operands_with(self);
        operands.push(index);
        compose("index_fill", &operands, |b| {
            check_index(index, "index")?;
            b.indexed_by("index", index);
            let i = index_vector(b, index)?;
            let x = as_vector(b, self)?;
            let a = axis(&x, &dim)?;
            let extent = x.dims()[a].clone();
            let i = wrap_index(b, &i, known(&x, a)?)?;
            let checked = check_index_range(b, &i, &extent)?;
            // A slice is selected if any index equals its position.
            let numbers = b.iota(&extent)?;
            let numbers = b.reshape_along(&numbers, 0, 2)?;
            let hits = b.binary(Pw::Eq, &numbers, &checked)?;
            let hits = b.cast(&hits, DType::I64)?;
            let hits = b.sum(&hits, &[1], false)?;
            let chosen = b.with(Pw::Gt, &hits, 0i64)?;
            let chosen = b.reshape_along(&chosen, a, x.ndim())?;
            let value = fill_value(b, self, &value)?;
            let y = b.select(&chosen, &value, &x)?;
            b.reshape(&y, self.dims())
        })
    }

    /// The rows of this `[count, size]` weight that `indices` select: `[.., size]`.
    pub fn embedding(&self, indices: impl AsTensor) -> Tensor {
        compose("embedding", &[self, indices], |b| {
            ensure!(
                self.ndim() == 2,
                "the weight must be a matrix, not {}",
                self.fact()
            );
            check_same_device(self, "weight", indices, "indices")?;
            b.indexed_by("indices", indices);
            let i = as_index(b, indices, "index")?;
            let i = b.reshape(&i, &[indices.fact().numel()])?;
            let rows = b.index_select(self, 0, &i)?;
            let mut shape = Shape::from(indices.dims());
            shape.push(self.dims()[1].clone());
            b.reshape(&rows, &shape)
        })
    }

    /// A new last dim of `num_classes` that is 1 at each class index and 0 elsewhere, i64. A class
    /// outside `0..num_classes` is a data error.
    pub fn one_hot(&self, num_classes: impl Into<Int>) -> Tensor {
        compose("one_hot", &[self], |b| {
            check_index(self, "class index")?;
            b.indexed_by("input", self);
            ensure!(
                num_classes >= 1,
                "the number of classes must be at least 1, not {num_classes}"
            );
            let n = Dim::Const(num_classes);
            let classes = b.reshape(self, &[self.fact().numel()])?;
            let classes = check_index_range(b, &classes, &n)?;
            let mut shape = Shape::from(self.dims());
            shape.push(Dim::ONE);
            let column = b.reshape(&classes, &shape)?;
            let numbers = b.iota(&n)?;
            let hit = b.binary(Pw::Eq, &column, &numbers)?;
            b.cast(&hit, DType::I64)
        })
    }
}

/// `condition ? x : y`, broadcast, in the dtype that x and y promote to (`torch.where`). The condition
/// is bool.
#[track_caller]
pub fn where_<'a>(
    condition: impl AsTensor,
    x: impl Into<Other<'a>>,
    y: impl Into<Other<'a>>,
) -> Tensor {
    select(&condition.as_tensor(), x.into(), y.into())
}

#[track_caller]
fn select(condition: &Tensor, x: Other<'_>, y: Other<'_>) -> Tensor {
    let mut operands = x.operands_with(condition);
    if let Other::Tensor(t) = &y {
        operands.push(t);
    }
    compose("where", &operands, |b| {
        let (x, y) = match (&x, &y) {
            (Other::Tensor(x), y) => y.promoted(b, x)?,
            (Other::Number(_), Other::Tensor(t)) => {
                let (y, x) = x.promoted(b, t)?;
                (x, y)
            }
            (Other::Number(p), Other::Number(q)) => {
                let dtype = number_dtype(*p, *q);
                (b.full(*p, dtype, &[])?, b.full(*q, dtype, &[])?)
            }
        };
        b.select(condition, &x, &y)
    })
}

/// The dtype that two numbers promote to: f32, i64 or bool.
fn number_dtype(p: Scalar, q: Scalar) -> DType {
    match p.kind().max(q.kind()) {
        Kind::Bool => DType::Bool,
        Kind::Int => DType::I64,
        Kind::Float => DType::F32,
    }
}

/// Returns an error unless a number can be stored in a dtype without loss.
pub(crate) fn check_fill(dtype: DType, n: Scalar) -> Result<(), OpError> {
    let wider = promote::with_scalar(dtype, n);
    ensure!(
        wider == dtype || dtype != DType::Bool && wider.kind() == dtype.kind(),
        "{n} can't be stored in {dtype} without loss"
    );
    Ok(())
}

/// Returns the value that fills a tensor, in its dtype and without dims.
fn fill_value(b: &mut Recorder, t: &Tensor, value: &Other) -> Recorded {
    match value {
        Other::Number(n) => {
            check_fill(t.dtype(), *n)?;
            b.scalar_like(*n, t)
        }
        Other::Tensor(v) => {
            ensure!(
                v.ndim() == 0,
                "the value must be a number or a rank-0 tensor, not {}",
                v.fact()
            );
            ensure!(
                v.dtype().kind() <= t.dtype().kind(),
                "a value of {} can't be stored in {} without loss",
                v.dtype(),
                t.dtype()
            );
            b.cast(v, t.dtype())
        }
    }
}

/// Returns the index itself, with a data error for elements outside `0..extent`.
pub(crate) fn check_index_range(b: &mut Recorder, index: &Tensor, extent: &Dim) -> Recorded {
    let numbers = b.iota(extent)?;
    b.gather(&numbers, 0, index)
}

impl Recorder {
    /// Returns `value`, or a data error with the text `what` where `fine`, which broadcasts to it, is false.
    pub(crate) fn require(
        &mut self,
        fine: &Tensor,
        value: &Tensor,
        what: &'static str,
    ) -> Recorded {
        // Where `fine` holds, the gather adds element 0 of `[0]`, which is 0. Elsewhere its index is out of range.
        let (zero, unit) = (
            self.full(0i64, DType::I64, &[])?,
            self.full(1i64, DType::I64, &[])?,
        );
        let error_index = self.select(fine, &zero, &unit)?;
        let error_index = self.reshape(&error_index, &[fine.fact().numel()])?;
        self.lazy.set_requirement(Some(what));
        let zero = check_index_range(self, &error_index, &Dim::ONE);
        self.lazy.set_requirement(None);
        let zero = self.reshape(&zero?, fine.dims())?;
        let zero = self.cast(&zero, value.dtype())?;
        self.binary(Pw::Add, value, &zero)
    }
}

/// Wraps negative indices, which count from the end.
pub(crate) fn wrap_index(b: &mut Recorder, index: &Tensor, extent: i64) -> Recorded {
    let negative = b.with(Pw::Lt, index, 0i64)?;
    let from_end = b.with(Pw::Add, index, extent)?;
    b.select(&negative, &from_end, index)
}
