//! The types of the arguments of operations.

use super::numbers::from_items;
pub(crate) use super::numbers::{Int, IntList, MaybeInt};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_ir::ops::Axes;
use kiln_ir::{OpError, ensure};
use kiln_lazy::recorder::is_number;

/// The result sizes of an adaptive pooling, one for each spatial axis or one for all; `None` keeps the size of the
/// input.
///
/// ```
/// use kiln_tensor::{DType, Tensor};
/// let x = Tensor::ones([1, 2, 6, 5], DType::F32);
/// assert_eq!(x.adaptive_avg_pool2d(3).shape()?, [1, 2, 3, 3]);
/// assert_eq!(x.adaptive_avg_pool2d([Some(3), None]).shape()?, [1, 2, 3, 5]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutputSize(pub Vec<Option<i64>>);

impl<T: Into<IntList>> From<T> for OutputSize {
    fn from(list: T) -> OutputSize {
        OutputSize(list.into().0.into_iter().map(Some).collect())
    }
}

impl<const N: usize> From<[Option<i64>; N]> for OutputSize {
    fn from(list: [Option<i64>; N]) -> OutputSize {
        OutputSize(list.to_vec())
    }
}

impl From<Vec<Option<i64>>> for OutputSize {
    fn from(list: Vec<Option<i64>>) -> OutputSize {
        OutputSize(list)
    }
}

/// A dim of a tensor: its number, negative ones counted from the end, or its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DimArg {
    /// By number.
    Index(i64),
    /// By name; see [`Tensor::refine_names`].
    Name(Box<str>),
}

/// Dims of a tensor by number or name: one, several, or `()` for all of them.
///
/// ```
/// use kiln_tensor::{DType, Tensor};
/// let images = Tensor::ones([2, 3, 4, 4], DType::F32).refine_names(["N", "C", "H", "W"]);
/// assert_eq!(images.sum(["H", "W"]).shape()?, images.sum([2, -1]).shape()?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DimArgs(pub Vec<DimArg>);

/// Reduced dims that are kept with size 1; see [`keep`].
#[derive(Copy, Clone, Debug)]
pub struct Keep<D> {
    dims: D,
    keepdim: bool,
}

/// Keeps reduced dims with size 1: PyTorch's `keepdim=True`.
///
/// ```
/// use kiln_tensor::{DType, Tensor, keep};
/// let x = Tensor::ones([2, 3], DType::F32);
/// assert_eq!(x.sum(1).shape()?, [2]);
/// assert_eq!(x.sum(keep(1)).shape()?, [2, 1]);
/// assert_eq!(x.sum(keep([0, 1])).shape()?, [1, 1]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn keep<D>(dims: D) -> Keep<D> {
    Keep {
        dims,
        keepdim: true,
    }
}

impl<D> Keep<D> {
    /// Keeps the dims only if `keepdim` is true.
    pub fn when(self, keepdim: bool) -> Keep<D> {
        Keep { keepdim, ..self }
    }
}

/// The dims of a reduction: dims, `()` for all of them, or [`keep`] around dims that are kept with size 1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReducedDims {
    pub(crate) dims: DimArgs,
    pub(crate) keepdim: bool,
}

/// The single dim of a reduction, or [`keep`] around it to keep it with size 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReducedDim {
    pub(crate) dim: DimArg,
    pub(crate) keepdim: bool,
}

impl<D: Into<DimArgs>> From<D> for ReducedDims {
    fn from(dims: D) -> ReducedDims {
        keep(dims).when(false).into()
    }
}

impl<D: Into<DimArgs>> From<Keep<D>> for ReducedDims {
    fn from(kept: Keep<D>) -> ReducedDims {
        let (dims, keepdim) = (kept.dims.into(), kept.keepdim);
        ReducedDims { dims, keepdim }
    }
}

impl<D: Into<DimArg>> From<D> for ReducedDim {
    fn from(dim: D) -> ReducedDim {
        keep(dim).when(false).into()
    }
}

impl<D: Into<DimArg>> From<Keep<D>> for ReducedDim {
    fn from(kept: Keep<D>) -> ReducedDim {
        let (dim, keepdim) = (kept.dims.into(), kept.keepdim);
        ReducedDim { dim, keepdim }
    }
}

impl<T: Into<Int>> From<T> for DimArg {
    fn from(n: T) -> DimArg {
        DimArg::Index(n.into().0)
    }
}

impl From<&str> for DimArg {
    fn from(name: &str) -> DimArg {
        DimArg::Name(name.into())
    }
}

impl From<&String> for DimArg {
    fn from(name: &String) -> DimArg {
        DimArg::Name(name.as_str().into())
    }
}

from_items!(DimArgs, DimArg, DimArg);

impl From<&DimArg> for DimArg {
    fn from(dim: &DimArg) -> DimArg {
        dim.clone()
    }
}

impl From<Option<i64>> for DimArgs {
    fn from(dim: Option<i64>) -> Self {
        DimArgs(dim.map(DimArg::Index).into_iter().collect())
    }
}

impl From<IntList> for DimArgs {
    fn from(dims: IntList) -> Self {
        DimArgs::from(dims.0)
    }
}

impl std::fmt::Display for DimArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DimArg::Index(i) => write!(f, "{i}"),
            DimArg::Name(name) => write!(f, "{name:?}"),
        }
    }
}

/// Implements `FromStr` for the values of an argument, by PyTorch's names.
macro_rules! named_values {
    ($type:ident, $what:literal: $($name:literal => $value:ident,)*) => {
        impl std::str::FromStr for $type {
            type Err = kiln_ir::OpError;

            fn from_str(name: &str) -> Result<$type, kiln_ir::OpError> {
                let values = [$(($name, $type::$value)),*];
                crate::ops::args::parse_name($what, name, &values)
            }
        }
    };
}
pub(crate) use named_values;

/// Returns the value of this name.
pub(crate) fn parse_name<T: Copy>(
    what: &str,
    name: &str,
    values: &[(&str, T)],
) -> Result<T, OpError> {
    let entry = values.iter().find(|(known, _)| *known == name);
    entry.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(known, _)| *known).collect();
        let names = names.join(", ");
        OpError(format!("there is no {what} {name:?}; there are {names}"))
    })
}

/// Returns an error for more than 64 dims, up to which PyTorch can reduce chosen dims.
pub(crate) fn check_few_dims(t: &Tensor) -> Result<(), OpError> {
    ensure!(
        t.ndim() <= 64,
        "dims can be chosen in tensors of up to 64 dims, not of {}",
        t.ndim()
    );
    Ok(())
}

impl DimArgs {
    /// The one dim, or `None` for all dims.
    pub(crate) fn one_or_all(&self) -> Result<Option<&DimArg>, OpError> {
        ensure!(self.0.len() <= 1, "takes one dim, not {}", self.0.len());
        Ok(self.0.first())
    }

    /// The axes that these dims name, ascending; all of them for an empty list.
    pub(crate) fn axes_or_all(&self, t: &Tensor) -> Result<Axes, OpError> {
        if self.0.is_empty() {
            return Ok((0..t.ndim()).collect());
        }
        check_few_dims(t)?;
        let mut axes = self.axes(t)?;
        axes.sort_unstable();
        Ok(axes)
    }

    /// The axes that these dims name, in the order given. A rank-0 tensor takes dims 0 and −1, which
    /// name no axis.
    pub(crate) fn axes(&self, t: &Tensor) -> Result<Axes, OpError> {
        let mut axes = Axes::new();
        for d in &self.0 {
            let a = wrap(d, t.ndim().max(1), t)?;
            ensure!(!axes.contains(&a), "dim {d} appears twice");
            axes.push(a);
        }
        if t.ndim() == 0 {
            axes.clear();
        }
        Ok(axes)
    }
}

fn wrap(dim: &DimArg, rank: usize, t: &Tensor) -> Result<usize, OpError> {
    let n = rank as i64;
    match dim {
        DimArg::Name(name) => t.named_axis(name),
        DimArg::Index(i) if (-n..n).contains(i) => Ok(i.rem_euclid(n) as usize),
        DimArg::Index(_) => Err(OpError(format!(
            "dim {dim} is out of range for {}, which has {} dims",
            t.fact(),
            t.ndim()
        ))),
    }
}

/// The axis that `dim` names; negative dims count from the end.
pub(crate) fn axis(t: &Tensor, dim: impl Into<DimArg>) -> Result<usize, OpError> {
    let dim = dim.into();
    ensure!(
        t.ndim() > 0,
        "{} has no dims, so none is dim {dim}",
        t.fact()
    );
    wrap(&dim, t.ndim(), t)
}

/// The axis that `dim` names in a tensor with one more dim.
pub(crate) fn new_axis(t: &Tensor, dim: i64) -> Result<usize, OpError> {
    wrap(&dim.into(), t.ndim() + 1, t)
}

/// The size of an axis, which must be known.
pub(crate) fn known(t: &Tensor, axis: usize) -> Result<i64, OpError> {
    known_dim(&t.dims()[axis], t)
}

pub(crate) fn known_dim(d: &Dim, t: &Tensor) -> Result<i64, OpError> {
    d.as_const()
        .ok_or_else(|| OpError(format!("needs a known size, not {d} of {}", t.fact())))
}

/// The maximum length of a list of numbers that is computed while recording and becomes part of the program.
const MAX_LIST: i64 = 1 << 26;

/// Returns an error if a list of `len` numbers (`None`: more than an i64 counts) is too long to be computed while
/// recording.
pub(crate) fn check_listable(len: Option<i64>, what: &str) -> Result<(), OpError> {
    ensure!(
        len.is_some_and(|n| n <= MAX_LIST),
        "{what} would take a list of {} numbers, but at most {MAX_LIST} can be part of a program",
        len.map_or("more than 2^63".to_string(), |n| n.to_string())
    );
    Ok(())
}

/// The largest number of tensors that one call returns.
const MAX_PARTS: i64 = 1 << 20;

/// Returns an error if a call would return too many tensors, `count`.
pub(crate) fn check_countable(count: i64) -> Result<(), OpError> {
    ensure!(
        count <= MAX_PARTS,
        "would give {count} tensors, but a call gives at most {MAX_PARTS}"
    );
    Ok(())
}

/// Returns an error if the bytes or the strides of a tensor of this shape overflow an i64.
pub(crate) fn check_addressable(shape: &[Dim], dtype: DType) -> Result<(), OpError> {
    ensure!(
        kiln_base::addressable(shape, dtype.size()),
        "{dtype} of shape {shape:?} would take more than 2^63 bytes"
    );
    Ok(())
}

/// Returns an error unless both tensors are on one device; a number on the CPU may be moved to any.
pub(crate) fn check_same_device(
    a: &Tensor,
    what_a: &str,
    b: &Tensor,
    what_b: &str,
) -> Result<(), OpError> {
    let are_apart = match (a.handle.node.device, b.handle.node.device) {
        (Some(x), Some(y)) => x != y && !is_number(&a.handle) && !is_number(&b.handle),
        _ => false,
    };
    let named = |what: &str, t: &Tensor| match t.handle.label().and_then(|l| l.get()) {
        Some(name) => format!("{what} `{name}`"),
        None => what.to_string(),
    };
    ensure!(
        !are_apart,
        "the {} is on {} but the {} is on {}; move one with to(device)",
        named(what_a, a),
        a.device(),
        named(what_b, b),
        b.device()
    );
    Ok(())
}

/// Returns an error unless both tensors are on one device and have one dtype.
pub(crate) fn check_alike(
    a: &Tensor,
    what_a: &str,
    b: &Tensor,
    what_b: &str,
) -> Result<(), OpError> {
    check_same_device(a, what_a, b, what_b)?;
    ensure!(
        a.dtype() == b.dtype(),
        "the {what_a} is {} but the {what_b} is {}; cast one of them",
        a.dtype(),
        b.dtype()
    );
    Ok(())
}

/// Returns an error unless the tensor holds floats.
pub(crate) fn check_float(t: &Tensor, what: &str) -> Result<(), OpError> {
    ensure!(
        t.dtype().is_float(),
        "the {what} must be a float tensor, not {}; cast it first",
        t.dtype()
    );
    Ok(())
}
