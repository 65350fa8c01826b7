//! Short names for the operations that composites record.

use crate::record::{Recorded, Recorder};
use crate::{DType, Scalar, Tensor};
use kiln_base::prim::{Reduction, ScanKind, ScatterKind};
use kiln_base::{Dim, Kind};
use kiln_ir::ops;
use kiln_ir::{Builder, OpError, Pw, Shape};

/// The dtype that composites compute in: f32 for narrower floats.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

impl Recorder {
    /// A pointwise operation on one operand.
    pub(crate) fn unary(&mut self, op: Pw, x: &Tensor) -> Recorded {
        self.pointwise(op, std::slice::from_ref(x))
    }

    /// A pointwise operation on two operands of one dtype.
    pub(crate) fn binary(&mut self, op: Pw, x: &Tensor, y: &Tensor) -> Recorded {
        self.pointwise(op, &[x.clone(), y.clone()])
    }

    /// `op` of what was accumulated and `x`; x if there is nothing yet.
    pub(crate) fn accumulate(&mut self, op: Pw, so_far: Option<Tensor>, x: Tensor) -> Recorded {
        match so_far {
            Some(so_far) => self.binary(op, &so_far, &x),
            None => Ok(x),
        }
    }

    /// `mask ? x : y`.
    pub(crate) fn select(&mut self, mask: &Tensor, x: &Tensor, y: &Tensor) -> Recorded {
        self.pointwise(Pw::Select, &[mask.clone(), x.clone(), y.clone()])
    }

    /// `mask ? number : x`.
    pub(crate) fn fill_where(
        &mut self,
        mask: &Tensor,
        number: impl Into<Scalar>,
        x: &Tensor,
    ) -> Recorded {
        let number = self.scalar_like(number, x)?;
        self.select(mask, &number, x)
    }

    /// Casts the operand to the dtype that composites compute in.
    pub(crate) fn widen(&mut self, x: &Tensor) -> Recorded {
        self.cast(x, wide(x.dtype()))
    }

    /// True where the element is nonzero.
    pub(crate) fn is_nonzero(&mut self, x: &Tensor) -> Recorded {
        self.cast(x, DType::Bool)
    }

    /// y, also counted as computed from x: where x needs a gradient and has no other, it is zeros. x broadcasts to y.
    pub(crate) fn connect(&mut self, y: &Tensor, x: &Tensor) -> Recorded {
        if !(x.dtype().is_float() && y.dtype().is_float()) {
            return Ok(y.clone());
        }
        let x = self.cast(x, y.dtype())?;
        self.binary(Pw::First, y, &x)
    }

    /// Reduces along axes (ascending). The extremes of no elements are errors.
    pub(crate) fn reduce(
        &mut self,
        kind: Reduction,
        x: &Tensor,
        axes: &[usize],
        keepdim: bool,
    ) -> Recorded {
        if axes.is_empty() {
            return Ok(x.clone());
        }
        if keepdim {
            return self.reduce_keepdim(kind, x, axes);
        }
        let axes = axes.into();
        self.op(ops::Reduce { kind, axes }, std::slice::from_ref(x))
    }

    /// The sum along axes.
    pub(crate) fn sum(&mut self, x: &Tensor, axes: &[usize], keepdim: bool) -> Recorded {
        self.reduce(Reduction::Sum, x, axes, keepdim)
    }

    /// The mean along axes; NaN without elements.
    pub(crate) fn mean(&mut self, x: &Tensor, axes: &[usize], keepdim: bool) -> Recorded {
        let sum = self.sum(x, axes, keepdim)?;
        let count = self.count(x, axes, x.dtype())?;
        self.binary(Pw::Div, &sum, &count)
    }

    /// The number of elements that a reduction along these axes combines, as a rank-0 tensor.
    pub(crate) fn count(&mut self, x: &Tensor, axes: &[usize], dtype: DType) -> Recorded {
        let shape: Shape = axes.iter().map(|a| x.dims()[*a].clone()).collect();
        let count = self.op(ops::Numel { shape }, &[])?;
        self.cast(&count, dtype)
    }

    /// Swaps the last two dims.
    pub(crate) fn transposed(&mut self, x: &Tensor) -> Recorded {
        let mut perm: Vec<usize> = (0..x.ndim()).collect();
        let n = perm.len();
        if n < 2 {
            return Err(OpError(format!("{} is not a matrix", x.fact())));
        }
        perm.swap(n - 1, n - 2);
        self.permute(x, &perm)
    }

    /// Concatenates along an axis.
    pub(crate) fn concat(&mut self, parts: &[Tensor], axis: usize) -> Recorded {
        match parts {
            [one] => Ok(one.clone()),
            _ => self.op(ops::Concat { axis }, parts),
        }
    }

    /// Pads one axis with a number.
    pub(crate) fn pad_axis(
        &mut self,
        x: &Tensor,
        axis: usize,
        low: impl Into<Dim>,
        high: impl Into<Dim>,
        number: impl Into<Scalar>,
    ) -> Recorded {
        let (mut lows, mut highs) = (zeros(x.ndim()), zeros(x.ndim()));
        lows[axis] = low.into();
        highs[axis] = high.into();
        self.pad_all(x, lows, highs, number)
    }

    /// Pads with a number.
    pub(crate) fn pad_all(
        &mut self,
        x: &Tensor,
        low: Shape,
        high: Shape,
        number: impl Into<Scalar>,
    ) -> Recorded {
        if low.iter().chain(&high).all(|d| d.is(0)) {
            return Ok(x.clone());
        }
        let value = number.into().cast(x.dtype());
        self.op(ops::Pad { low, high, value }, std::slice::from_ref(x))
    }

    /// Inserts a dim of size 1 before `axis`.
    pub(crate) fn unsqueeze(&mut self, x: &Tensor, axis: usize) -> Recorded {
        let mut shape = Shape::from(x.dims());
        shape.insert(axis, Dim::ONE);
        let y = self.reshape(x, &shape)?;
        Ok(y.with_names_of(x, |names| names.insert(axis, None)))
    }

    /// Removes these dims of size 1.
    pub(crate) fn squeeze(&mut self, x: &Tensor, axes: &[usize]) -> Recorded {
        let kept = |i: &usize| !axes.contains(i);
        let shape: Shape = (0..x.ndim())
            .filter(kept)
            .map(|i| x.dims()[i].clone())
            .collect();
        let y = self.reshape(x, &shape)?;
        Ok(y.with_names_of(x, |names| {
            let mut positions = 0..;
            names.retain(|_| positions.next().is_some_and(|i| kept(&i)));
        }))
    }

    /// Reshapes a vector to `rank` dims that all have size 1 but `axis`.
    pub(crate) fn reshape_along(&mut self, vector: &Tensor, axis: usize, rank: usize) -> Recorded {
        let mut shape = Shape::from_elem(Dim::ONE, rank);
        shape[axis] = vector.dims()[0].clone();
        self.reshape(vector, &shape)
    }

    /// 0, 1, 2, … as i64.
    pub(crate) fn iota(&mut self, len: &Dim) -> Recorded {
        self.op(ops::Iota { len: len.clone() }, &[])
    }

    /// Gathers elements by an i64 index of the same rank along an axis.
    pub(crate) fn gather(&mut self, x: &Tensor, axis: usize, index: &Tensor) -> Recorded {
        self.op(ops::Gather { axis }, &[x.clone(), index.clone()])
    }

    /// Gathers slices by an i64 vector along an axis.
    pub(crate) fn index_select(&mut self, x: &Tensor, axis: usize, index: &Tensor) -> Recorded {
        let mut shape = Shape::from(x.dims());
        shape[axis] = index.dims()[0].clone();
        let index = self.reshape_along(index, axis, x.ndim())?;
        let index = self.broadcast_to(&index, &shape)?;
        self.gather(x, axis, &index)
    }

    /// A scan, such as cumulative sums, along an axis.
    pub(crate) fn scan(&mut self, kind: ScanKind, x: &Tensor, axis: usize) -> Recorded {
        let reverse = false;
        let op = ops::Scan {
            kind,
            axis,
            reverse,
        };
        self.op(op, std::slice::from_ref(x))
    }

    /// The i64 indices that sort an axis: all, or only the first ones.
    pub(crate) fn arg_sort(
        &mut self,
        x: &Tensor,
        axis: usize,
        descending: bool,
        first: Option<usize>,
    ) -> Recorded {
        let op = ops::ArgSort {
            axis,
            descending,
            first: first.map(Dim::from),
        };
        self.op(op, std::slice::from_ref(x))
    }

    /// A copy of x with `src` combined into it at the positions of an i64 index of its shape along an axis. The sum
    /// of bools is true if any is true, their product if all are.
    pub(crate) fn scatter(
        &mut self,
        kind: ScatterKind,
        x: &Tensor,
        axis: usize,
        index: &Tensor,
        src: &Tensor,
    ) -> Recorded {
        let kind = match (x.dtype(), kind) {
            (DType::Bool, ScatterKind::Sum) => ScatterKind::Max,
            (DType::Bool, ScatterKind::Prod) => ScatterKind::Min,
            (_, kind) => kind,
        };
        let op = ops::Scatter { axis, kind };
        self.op(op, &[x.clone(), index.clone(), src.clone()])
    }

    /// A tensor of these numbers, in row-major order.
    pub(crate) fn list<T: Copy + Into<Scalar>>(
        &mut self,
        values: &[T],
        shape: &[usize],
        dtype: DType,
    ) -> Recorded {
        let values = values.iter().map(|v| (*v).into().cast(dtype));
        let bytes = match dtype.kind() {
            Kind::Float => dtype.float_bytes(&values.map(Scalar::as_f64).collect::<Vec<_>>()),
            _ => dtype.int_bytes(&values.map(Scalar::as_i64).collect::<Vec<_>>()),
        };
        Ok(self.lazy.list(dtype, shape, bytes)?.into())
    }

    /// Batched product of `[.., m, k]` and `[.., k, n]` with equal batch dims.
    pub(crate) fn product(&mut self, x: &Tensor, y: &Tensor) -> Recorded {
        if x.dtype() == DType::Bool && y.dtype() == DType::Bool {
            return Err(OpError::new("bool matrices can't be multiplied"));
        }
        self.op(ops::MatMul {}, &[x.clone(), y.clone()])
    }

    /// True where the element is neither infinite nor NaN.
    pub(crate) fn finite(&mut self, x: &Tensor) -> Recorded {
        if x.dtype().kind() == Kind::Bool {
            return self.full(true, DType::Bool, x.dims());
        }
        let nan = self.unary(Pw::IsNan, x)?;
        let infinite = self.unary(Pw::IsInf, x)?;
        let not = self.binary(Pw::Or, &nan, &infinite)?;
        self.unary(Pw::Not, &not)
    }
}

fn zeros(rank: usize) -> Shape {
    Shape::from_elem(Dim::ZERO, rank)
}
