//! Indexing: `x[..]`.
//!
//! Numbers, ranges and new axes are views. Lists, index tensors and masks are *advanced*: they broadcast together.
//! Their dims replace the first of them if they are adjacent; otherwise they come first. A mask of k dims stands for
//! the k vectors of the positions where it is true.

use super::indices::{Index, Indices};
use super::parts::{check_in_range, python_slice, select};
use super::places::Places;
use super::select::{is_mask, nonzero_vectors};
use crate::record::{Recorded, Recorder, SOURCE, view_of};
use crate::{DType, Device, Error, ErrorKind, Result, Tensor, on_behalf_of_caller};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, OpError, ensure};
use std::panic::Location;

#[on_cells]
impl Tensor {
    /// Python's `self[items]`: one item or a tuple of them, for the dims from the first on.
    ///
    /// | Python | here | what it is |
    /// |---|---|---|
    /// | `x[3]`, `x[-1]` | `x.i(3)`, `x.i(-1)` | the slice there, without the dim |
    /// | `x[1:3]`, `x[:-1]`, `x[2:]`, `x[:]` | `x.i(1..3)`, `x.i(..-1)`, `x.i(2..)`, `x.i(..)` | a part of the dim; bounds beyond its ends stop there |
    /// | `x[1:9:2]` | `x.i(step(1..9, 2))` | every second; negative steps, for which PyTorch needs `flip`, walk backwards |
    /// | `x[None]` | `x.i(NewAxis)` | a new dim of size 1 |
    /// | `x[..., 0]` | `x.i((Ellipsis, 0))` | all dims that the other items leave |
    /// | `x[[1, 3, 4]]`, `x[index]` | `x.i([1, 3, 4])`, `x.i(&index)` | the slices there, in that order |
    /// | `x[mask]`, `x[x > 0]` | `x.i(&mask)`, `x.i(x.gt(0.0))` | the elements where the mask, over as many dims as it has, is true |
    /// | `x[True]` | `x.i(true)` | a new dim of size 1, or 0 for `false` |
    /// | `x[:, 0, None]` | `x.i((.., 0, NewAxis))` | several at once |
    ///
    /// Lists, index tensors and masks broadcast together. Their dims replace the first of them if they are adjacent,
    /// and otherwise come first: `x.i((.., [0, 1], [2, 2]))` of `[5, 3, 4]` is `[5, 2]`, and `x.i(([0, 1], .., [2,
    /// 2]))` is `[2, 3]`. A number is a view here and does not count among them, as in PyTorch. The number of
    /// elements that a mask selects depends on its values, so the mask is computed immediately.
    ///
    /// Numbers out of range and too many items are errors of the result. An index tensor out of range is a data
    /// error.
    ///
    /// ```
    /// use kiln_tensor::{NewAxis, Tensor};
    /// let x = Tensor::arange(0, 12, 1).reshape([3, 4]);
    /// assert_eq!(x.i((1, 2)).item::<i64>()?, 6);
    /// assert_eq!(x.i((.., -1)).to_vec::<i64>()?, [3, 7, 11]);
    /// assert_eq!(x.i((1.., NewAxis, ..2)).shape()?, [2, 1, 2]);
    /// assert_eq!(x.i(([0, 2], [1, 1])).to_vec::<i64>()?, [1, 9]);
    /// assert_eq!(x.i(x.gt(8)).to_vec::<i64>()?, [9, 10, 11]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn i(&self, items: impl Indices) -> Tensor {
        subscript(self, items)
    }
}

/// An item with known values.
pub(super) enum Item {
    At(i64),
    Slice(Option<i64>, Option<i64>, i64),
    NewAxis,
    /// A number of whole dims.
    Whole(usize),
    Bool(bool),
    /// A rank-0 index tensor: a number that isn't known yet.
    Number(Tensor),
    /// Index tensors, one for each dim.
    Indices(Vec<Tensor>),
}

impl Item {
    pub(super) fn is_view(&self) -> bool {
        matches!(
            self,
            Item::At(_) | Item::Slice(..) | Item::NewAxis | Item::Whole(_)
        )
    }
}

#[track_caller]
fn subscript(x: &Tensor, items: Vec<Index>) -> Tensor {
    let loc = Location::caller();
    let items = match resolve(x, &items) {
        Ok(items) => items,
        Err(e) => return Tensor::poisoned(e, loc),
    };
    view_of("index", &operands(x, &items), |b| take(b, x, &items))
}

pub(super) fn operands<'a>(x: &'a Tensor, items: &'a [Item]) -> Vec<&'a Tensor> {
    let mut operands = vec![x];
    for item in items {
        match item {
            Item::Number(t) => operands.push(t),
            Item::Indices(list) => operands.extend(list),
            _ => {}
        }
    }
    operands
}

/// Converts lists to tensors, and masks to the positions where they are true, which computes the masks.
#[track_caller]
pub(super) fn resolve(x: &Tensor, items: &[Index]) -> Result<Vec<Item>> {
    let loc = Location::caller();
    on_behalf_of_caller(SOURCE, || resolve_at(x, items, loc))
}

fn resolve_at(x: &Tensor, items: &[Index], loc: &'static Location<'static>) -> Result<Vec<Item>> {
    x.check()?;
    let wrong = |e: OpError| {
        let notes = vec![format!("the tensor: {}", x.fact()).into()];
        Error::with_notes(ErrorKind::Op, "index", e.0, loc, notes)
    };
    let mut out = Vec::with_capacity(items.len());
    for (index, (dim, dims)) in items.iter().zip(item_dims(x, items).map_err(wrong)?) {
        out.push(match index {
            Index::At(i) => Item::At(*i),
            Index::Slice { start, end, step } => Item::Slice(*start, *end, *step),
            Index::NewAxis => Item::NewAxis,
            Index::Ellipsis => Item::Whole(dims),
            Index::Bool(keep) => Item::Bool(*keep),
            Index::List(list) => {
                let list = check_list(x, dim, list).map_err(wrong)?;
                Item::Indices(vec![vector(&list, x.device(), loc)])
            }
            Index::Mask(mask) => {
                check_mask(x, dim, &[mask.len().into()]).map_err(wrong)?;
                let list: Vec<i64> = (0i64..).zip(mask).filter(|m| *m.1).map(|m| m.0).collect();
                Item::Indices(vec![vector(&list, x.device(), loc)])
            }
            Index::Tensor(t) if is_mask(t) && t.ndim() == 0 => {
                t.check()?;
                Item::Bool(t.item::<bool>()?)
            }
            Index::Tensor(t) if is_mask(t) => {
                t.check()?;
                check_mask(x, dim, t.dims()).map_err(wrong)?;
                Item::Indices(nonzero_vectors(t)?)
            }
            Index::Tensor(t) if t.error().is_some() || t.dtype().is_int() => match t.ndim() {
                0 => Item::Number(t.clone()),
                _ => Item::Indices(vec![t.clone()]),
            },
            Index::Tensor(t) => {
                return Err(wrong(OpError(format!(
                    "an index tensor must hold integers or bools, not {}; cast it first",
                    t.dtype()
                ))));
            }
        });
    }
    Ok(out)
}

/// Returns, for each item, the dim of x that it starts at and the number of dims that it covers.
pub(super) fn item_dims(x: &Tensor, items: &[Index]) -> Result<Vec<(usize, usize)>, OpError> {
    let dims = |i: &Index| match i {
        Index::NewAxis | Index::Ellipsis | Index::Bool(_) => 0,
        Index::Tensor(t) if is_mask(t) => t.ndim(),
        _ => 1,
    };
    let named: usize = items.iter().map(dims).sum();
    ensure!(
        named <= x.ndim(),
        "too many indices: they index {named} dims, but the tensor has {}",
        x.ndim()
    );
    let ellipses = items.iter().filter(|i| matches!(i, Index::Ellipsis));
    ensure!(ellipses.count() <= 1, "only one ellipsis can be expanded");
    let mut at = 0;
    let place = |i: &Index| {
        let from = at;
        let count = match i {
            Index::Ellipsis => x.ndim() - named,
            other => dims(other),
        };
        at += count;
        (from, count)
    };
    Ok(items.iter().map(place).collect())
}

/// Returns a list after checking that its numbers are in range, if the range is known. Otherwise the engine checks
/// them.
fn check_list(x: &Tensor, dim: usize, list: &[i64]) -> Result<Vec<i64>, OpError> {
    if let Some(n) = x.dims()[dim].as_const() {
        for i in list {
            ensure!(
                (-n..n).contains(i),
                "index {i} is out of range for dim {dim} of size {n}"
            );
        }
    }
    Ok(list.to_vec())
}

/// Returns an error unless a mask has the sizes of the dims that it covers.
pub(super) fn check_mask(x: &Tensor, dim: usize, mask: &[Dim]) -> Result<(), OpError> {
    let dims = &x.dims()[dim..dim + mask.len()];
    ensure!(
        dims == mask,
        "a mask of shape {mask:?} does not fit the dims {dims:?} from dim {dim} on"
    );
    Ok(())
}

/// Makes a vector as data, so that another list of the same length runs the same plan.
fn vector(list: &[i64], device: Device, loc: &'static Location<'static>) -> Tensor {
    Tensor::data_on(device, list, &[list.len() as i64], loc, "index")
}

/// Returns the part of x that the items select.
pub(super) fn take(b: &mut Recorder, x: &Tensor, items: &[Item]) -> Recorded {
    let mut y = x.clone();
    let mut dim = 0;
    let mut advanced: Vec<Option<Tensor>> = Vec::new();
    for item in items {
        match item {
            Item::At(i) => {
                y = select(b, &y, dim, *i)?;
                continue;
            }
            Item::Number(t) => {
                let mut at = vec![None; dim];
                let index = b.cast(t, DType::I64)?;
                at.push(Some(&index));
                y = gather_indexed(b, &y, &at)?;
                continue;
            }
            Item::Slice(start, end, step) => {
                let part = slice_range(&y, dim, *start, *end, *step)?;
                y = b.slice_axis(&y, dim, part)?;
                dim += 1;
            }
            Item::NewAxis => {
                y = b.unsqueeze(&y, dim)?;
                dim += 1;
            }
            Item::Whole(n) => dim += n,
            Item::Bool(keep) => {
                y = b.unsqueeze(&y, dim)?;
                advanced.resize(dim, None);
                advanced.push(Some(b.full(0i64, DType::I64, &[(*keep as i64).into()])?));
                dim += 1;
            }
            Item::Indices(list) => {
                advanced.resize(dim, None);
                for t in list {
                    advanced.push(Some(b.cast(t, DType::I64)?));
                }
                dim += list.len();
            }
        }
    }
    let advanced: Vec<Option<&Tensor>> = advanced.iter().map(Option::as_ref).collect();
    gather_indexed(b, &y, &advanced)
}

fn gather_indexed(b: &mut Recorder, x: &Tensor, indices: &[Option<&Tensor>]) -> Recorded {
    match Places::new(b, x, indices)? {
        Some(places) => places.gather(b, x),
        None => Ok(x.clone()),
    }
}

/// Returns every `step`-th index of a range of an axis; a negative step starts at its last index and goes back.
pub(super) fn slice_range(
    x: &Tensor,
    axis: usize,
    start: Option<i64>,
    end: Option<i64>,
    step: i64,
) -> Result<SliceAxis, OpError> {
    if step >= 0 {
        return python_slice(x, axis, start, end, step);
    }
    let range = python_slice(x, axis, start, end, 1)?;
    if range.len.is(0) {
        return Ok(range);
    }
    let rest = &range.len - &Dim::ONE;
    Ok(SliceAxis {
        start: &range.start + &rest,
        len: &rest.div_floor(step.saturating_neg()) + &Dim::ONE,
        step,
    })
}

pub(super) fn slice_one(x: &Tensor, axis: usize, index: i64) -> Result<SliceAxis, OpError> {
    check_in_range(x, axis, index)?;
    python_slice(x, axis, Some(index), (index != -1).then_some(index + 1), 1)
}
