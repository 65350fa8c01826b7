//! Elements scattered into tensors by index.
//!
//! Indices are i64. An index out of range is a data error. Where several elements have the same destination, a
//! scatter that overwrites keeps the last in row-major order, and sums are added in that order, so that results are
//! reproducible.

use super::args::{DimArg, axis, check_alike, named_values};
use super::index::{
    as_index, as_vector, check_index, check_index_shape, index_vector, is_no_larger, wrap_index,
};
use super::short::wide;
use crate::operand::AsTensor;
use crate::operand::Other;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Scalar, Tensor, promote};
use kiln_base::Kind;
use kiln_base::prim::ScatterKind;
use kiln_derive::on_cells;
use kiln_ir::{Builder, Pw, Shape, ensure};

/// The operation that combines elements with the same destination, PyTorch's `reduce`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ScatterReduction {
    /// Their sum; of bools, true if any is true.
    Sum,
    /// Their product; of bools, true if all are true.
    Prod,
    /// Their mean; of integers, rounded down.
    Mean,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

options! {
    /// The options of [`Tensor::scatter_reduce`] and [`Tensor::index_reduce`]; a reduction converts into them.
    ///
    /// ```
    /// use kiln_tensor::{Combine, ScatterReduction, Tensor};
    /// let (x, index) = (Tensor::from([9.0, 9.0]), Tensor::from([0i64, 0]));
    /// let src = Tensor::from([1.0, 2.0]);
    /// let y = x.scatter_reduce(0, &index, &src, ScatterReduction::Sum);
    /// assert_eq!(y.to_vec::<f64>()?, [12.0, 9.0]);
    /// let own = Combine::new(ScatterReduction::Sum).include_self(false);
    /// assert_eq!(x.scatter_reduce(0, &index, &src, own).to_vec::<f64>()?, [3.0, 9.0]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    Combine (
        /// The operation that combines elements.
        reduce: ScatterReduction
    ) {
        /// True if the tensor's own elements take part (the default).
        include_self: bool = true,
    }
}

options! {
    /// The options of [`Tensor::put_with`] and [`Tensor::index_put_with`].
    Put () {
        /// True to add to the elements instead of replacing them (default false).
        accumulate: bool = false,
    }
}

impl Put {
    pub(super) fn kind(&self) -> ScatterKind {
        match self.accumulate {
            true => ScatterKind::Sum,
            false => ScatterKind::Set,
        }
    }
}

named_values! {
    ScatterReduction, "reduction":
    "sum" => Sum,
    "prod" => Prod,
    "mean" => Mean,
    "amax" => Amax,
    "amin" => Amin,
    "add" => Sum,
    "multiply" => Prod,
}

#[on_cells]
impl Tensor {
    /// A copy in which `out[.., index[.., i, ..], ..] = src[.., i, ..]` along a dim. The index has as many dims as
    /// the tensor and is no larger than it in the other dims. It is also no larger than the source, whose other
    /// elements are not used. A number as the source is written to every selected position.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let index = Tensor::from_slice(&[1i64, 1, 1, 1, 2, 0, 1, 2, 2, 0, 1, 2], [3, 4]);
    /// let src = Tensor::arange(1, 16, 1).reshape([3, 5]);
    /// let y = Tensor::zeros([3, 3], DType::I64).scatter(1, &index, &src);
    /// assert_eq!(y.shape()?, [3, 3]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn scatter<'a>(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        src: impl Into<Other<'a>>,
    ) -> Tensor {
        let mut operands = src.operands_with(self);
        operands.push(index);
        compose("scatter", &operands, |b| {
            scatter_checked(b, self, &dim, index, &src, |b, x, a, index, src| {
                b.scatter(ScatterKind::Set, x, a, index, src)
            })
        })
    }

    /// Like [`Tensor::scatter`], adding to the elements.
    #[autocast]
    pub fn scatter_add(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        src: impl AsTensor,
    ) -> Tensor {
        compose("scatter_add", &[self, src, index], |b| {
            let src = Other::from(src);
            scatter_checked(b, self, &dim, index, &src, |b, x, a, index, src| {
                b.scatter(ScatterKind::Sum, x, a, index, src)
            })
        })
    }

    /// Like [`Tensor::scatter`], combining elements with the same destination, and with the tensor's own element
    /// unless [`Combine`] excludes it. Elements that are not destinations stay.
    pub fn scatter_reduce<'a>(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        src: impl Into<Other<'a>>,
        reduce: impl Into<Combine>,
    ) -> Tensor {
        let mut operands = src.operands_with(self);
        operands.push(index);
        compose("scatter_reduce", &operands, |b| {
            scatter_checked(b, self, &dim, index, &src, |b, x, a, index, src| {
                scatter_reduced(b, x, a, index, src, &reduce)
            })
        })
    }

    /// Adds the slices of `source` to the slices of a dim that an index vector (i64 or i32) selects. The source has
    /// one slice for each index.
    pub fn index_add(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        source: impl AsTensor,
    ) -> Tensor {
        self.index_add_scaled(dim, index, source, 1)
    }

    /// [`Tensor::index_add`] of `alpha · source`.
    pub fn index_add_scaled(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        source: impl AsTensor,
        alpha: impl Into<Scalar>,
    ) -> Tensor {
        compose("index_add", &[self, index, source], |b| {
            ensure!(
                promote::with_scalar(self.dtype(), alpha) == self.dtype(),
                "alpha {alpha} can't be a factor of {} without loss",
                self.dtype()
            );
            scatter_slices(b, self, &dim, index, source, |b, x, a, index, src| {
                let src = match self.dtype() {
                    DType::Bool => b.with(Pw::And, src, alpha.as_bool())?,
                    _ => b.with(Pw::Mul, src, alpha)?,
                };
                b.scatter(ScatterKind::Sum, x, a, index, &src)
            })
        })
    }

    /// Replaces the slices of a dim that an index vector (i64) selects by those of the source.
    #[autocast]
    pub fn index_copy(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        source: impl AsTensor,
    ) -> Tensor {
        compose("index_copy", &[self, index, source], |b| {
            check_index(index, "index")?;
            scatter_slices(b, self, &dim, index, source, |b, x, a, index, src| {
                b.scatter(ScatterKind::Set, x, a, index, src)
            })
        })
    }

    /// Combines the slices of a dim that an index vector (i64 or i32) selects with those of the source, see
    /// [`Tensor::scatter_reduce`].
    pub fn index_reduce(
        &self,
        dim: impl Into<DimArg>,
        index: impl AsTensor,
        source: impl AsTensor,
        reduce: impl Into<Combine>,
    ) -> Tensor {
        compose("index_reduce", &[self, index, source], |b| {
            scatter_slices(b, self, &dim, index, source, |b, x, a, index, src| {
                scatter_reduced(b, x, a, index, src, &reduce)
            })
        })
    }

    /// This tensor with the elements of `source` at these positions of its flattened elements. Negative indices count
    /// from the end.
    pub fn put(&self, index: impl AsTensor, source: impl AsTensor) -> Tensor {
        self.put_with(index, source, Put::new())
    }

    /// [`Tensor::put`], which can add to the elements.
    pub fn put_with(&self, index: impl AsTensor, source: impl AsTensor, options: Put) -> Tensor {
        compose("put", &[self, index, source], |b| {
            check_alike(self, "tensor", source, "source")?;
            check_index(index, "index")?;
            b.indexed_by("index", index);
            ensure!(
                index.fact().numel() == source.fact().numel(),
                "the index {} and the source {} differ in the number of elements",
                index.fact(),
                source.fact()
            );
            let x = b.reshape(self, &[self.fact().numel()])?;
            let i = b.reshape(index, &[index.fact().numel()])?;
            let source = b.reshape(source, i.dims())?;
            let i = wrap_index(b, &i, super::args::known(&x, 0)?)?;
            let y = b.scatter(options.kind(), &x, 0, &i, &source)?;
            b.reshape(&y, self.dims())
        })
    }
}

/// Checks the operands of a scatter, crops the source to the index and combines.
fn scatter_checked(
    b: &mut Recorder,
    x: &Tensor,
    dim: &DimArg,
    index: &Tensor,
    src: &Other,
    combine: impl Fn(&mut Recorder, &Tensor, usize, &Tensor, &Tensor) -> Recorded,
) -> Recorded {
    let shape = x.dims();
    let x = as_vector(b, x)?;
    let a = axis(&x, dim)?;
    if let Other::Tensor(src) = src {
        check_alike(&x, "tensor", src, "source")?;
    }
    if index.fact().numel().is(0) {
        return b.reshape(&x, shape); // goes nowhere, whatever its dtype and shape
    }
    b.indexed_by("index", index);
    let index = as_index(b, index, "index")?;
    let index = as_vector(b, &index)?;
    check_index_shape(&x, a, &index)?;
    let src = match src {
        Other::Tensor(src) => {
            let src = as_vector(b, src)?;
            crop_source(b, &src, &index)?
        }
        Other::Number(n) => {
            super::index::check_fill(x.dtype(), *n)?;
            b.full(*n, x.dtype(), index.dims())?
        }
    };
    let y = combine(b, &x, a, &index, &src)?;
    b.reshape(&y, shape)
}

/// Returns the leading part of a source that an index uses.
fn crop_source(b: &mut Recorder, src: &Tensor, index: &Tensor) -> Recorded {
    ensure!(
        src.ndim() == index.ndim(),
        "the index {} has {} dims but the source {} has {}",
        index.fact(),
        index.ndim(),
        src.fact(),
        src.ndim()
    );
    let mut cropped = src.clone();
    for (a, size) in index.dims().iter().enumerate() {
        ensure!(
            is_no_larger(size, &src.dims()[a]),
            "the index {} is larger than the source {} in dim {a} ({size} > {})",
            index.fact(),
            src.fact(),
            src.dims()[a]
        );
        cropped = b.narrow(&cropped, a, 0i64, size.clone())?;
    }
    Ok(cropped)
}

/// Checks the operands of an operation on the slices of a dim, broadcasts the index to the source and combines.
fn scatter_slices(
    b: &mut Recorder,
    x: &Tensor,
    dim: &DimArg,
    index: &Tensor,
    source: &Tensor,
    combine: impl Fn(&mut Recorder, &Tensor, usize, &Tensor, &Tensor) -> Recorded,
) -> Recorded {
    let shape = x.dims();
    check_alike(x, "tensor", source, "source")?;
    b.indexed_by("index", index);
    let index = as_index(b, index, "index")?;
    let index = index_vector(b, &index)?;
    let (x, source) = (as_vector(b, x)?, as_vector(b, source)?);
    let a = axis(&x, dim)?;
    let mut wanted = Shape::from(x.dims());
    wanted[a] = index.dims()[0].clone();
    ensure!(
        source.dims() == &wanted[..],
        "the source {} does not have one slice of {} along dim {a} for each of the {} indices",
        source.fact(),
        x.fact(),
        wanted[a]
    );
    let index = b.reshape_along(&index, a, x.ndim())?;
    let index = b.broadcast_to(&index, &wanted)?;
    let y = combine(b, &x, a, &index, &source)?;
    b.reshape(&y, shape)
}

/// A scatter that combines. The tensor's own elements are replaced by the identity first unless they take part.
fn scatter_reduced(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    src: &Tensor,
    combine: &Combine,
) -> Recorded {
    let include_self = combine.include_self;
    let kind = match combine.reduce {
        ScatterReduction::Sum => ScatterKind::Sum,
        ScatterReduction::Prod => ScatterKind::Prod,
        ScatterReduction::Amax => ScatterKind::Max,
        ScatterReduction::Amin => ScatterKind::Min,
        ScatterReduction::Mean => return mean(b, x, axis, index, src, include_self),
    };
    let mut start = x.clone();
    if !include_self {
        let neutral = b.full(neutral(kind, x.dtype()), x.dtype(), index.dims())?;
        start = b.scatter(ScatterKind::Set, x, axis, index, &neutral)?;
    }
    b.scatter(kind, &start, axis, index, src)
}

/// The identity of an operation: combining with it changes nothing.
pub(crate) fn neutral(kind: ScatterKind, dtype: DType) -> Scalar {
    match (kind, dtype.int_range()) {
        (ScatterKind::Set | ScatterKind::Sum, _) => Scalar::Int(0),
        (ScatterKind::Prod, _) => Scalar::Int(1),
        (ScatterKind::Max, Some((low, _))) => Scalar::Int(low as i64),
        (ScatterKind::Min, Some((_, high))) => Scalar::Int(high as i64),
        (ScatterKind::Max, None) => Scalar::Float(f64::NEG_INFINITY),
        (ScatterKind::Min, None) => Scalar::Float(f64::INFINITY),
    }
}

fn mean(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    index: &Tensor,
    src: &Tensor,
    include_self: bool,
) -> Recorded {
    ensure!(
        x.dtype() != DType::Bool,
        "bools have no mean; cast them first"
    );
    let dtype = wide(x.dtype());
    let (wide_x, src) = (b.cast(x, dtype)?, b.cast(src, dtype)?);
    let combine = Combine::new(ScatterReduction::Sum).include_self(include_self);
    let sum = scatter_reduced(b, &wide_x, axis, index, &src, &combine)?;
    let unit = b.full(1i64, DType::I64, index.dims())?;
    let own = b.full(include_self as i64, DType::I64, x.dims())?;
    let count = b.scatter(ScatterKind::Sum, &own, axis, index, &unit)?;
    let count = b.with(Pw::Maximum, &count, 1i64)?;
    let count = b.cast(&count, dtype)?;
    let mean = b.binary(
        match dtype.kind() {
            Kind::Float => Pw::Div,
            _ => Pw::FloorDivide,
        },
        &sum,
        &count,
    )?;
    b.cast(&mean, x.dtype())
}
