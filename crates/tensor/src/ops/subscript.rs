//! `x[..]` and `x[..] = value`.
//!
//! Numbers, ranges and new axes are views. Lists, index tensors and masks are *advanced*: they broadcast
//! together, and their dims stand where the first of them was if they are neighbours, else in front.
//! A mask of k dims stands for the k vectors of the positions where it is true.

use super::args::known_dim;
use super::index::Places;
use super::indices::{Index, Indices};
use super::parts::{python_slice, select};
use super::select::{is_mask, nonzero_vectors};
use crate::operand::Other;
use crate::record::{Recorded, Recorder, compose, view_of};
use crate::{DType, Device, Error, ErrorKind, Result, Tensor};
use kiln_base::prim::ScatterKind;
use kiln_base::{Dim, numel};
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, OpError, Shape, ensure};
use std::panic::Location;

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
    /// Lists, index tensors and masks broadcast together. Their dims stand where the first of them was
    /// if they are neighbours, else in front: `x.i((.., [0, 1], [2, 2]))` of `[5, 3, 4]` is `[5, 2]`, and
    /// `x.i(([0, 1], .., [2, 2]))` is `[2, 3]`. A number is a view here and takes no part in that, as in
    /// PyTorch. How many elements a mask chooses is data, so the mask is computed at once.
    ///
    /// Numbers out of range and too many items are errors of the result; an index tensor out of range
    /// is a data error.
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
    #[track_caller]
    pub fn i(&self, items: impl Indices) -> Tensor {
        subscript(self, items.into_indices())
    }

    /// Python's `self[items] = value`, as a new tensor: this one with `value` in the part that
    /// [`Tensor::i`] takes. The value is broadcast to that part and takes this tensor's dtype. Where
    /// an index appears twice, the later value stands.
    ///
    /// ```
    /// use kiln_tensor::Tensor;
    /// let (t, u) = (Tensor::arange(0, 6, 1), Tensor::arange(10, 16, 1));
    /// let t = t.set([1, 3, 4], &u.i([1, 3, 4])); // t[[1, 3, 4]] = u[[1, 3, 4]]
    /// let t = t.set(-1, 100);
    /// assert_eq!(t.to_vec::<i64>()?, [0, 11, 2, 13, 14, 100]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn set<'a>(&self, items: impl Indices, value: impl Into<Other<'a>>) -> Tensor {
        assign(self, items.into_indices(), &value.into())
    }
}

/// An item whose values are at hand.
enum Item {
    At(i64),
    Slice(Option<i64>, Option<i64>, i64),
    NewAxis,
    /// This many whole dims.
    Whole(usize),
    Bool(bool),
    /// A rank-0 index tensor: a number that isn't known yet.
    Number(Tensor),
    /// Index tensors for as many dims.
    Indices(Vec<Tensor>),
}

impl Item {
    fn is_view(&self) -> bool {
        matches!(
            self,
            Item::At(_) | Item::Slice(..) | Item::NewAxis | Item::Whole(_)
        )
    }
}

#[track_caller]
fn subscript(x: &Tensor, items: Vec<Index>) -> Tensor {
    let loc = Location::caller();
    let items = match resolve(x, &items, loc) {
        Ok(items) => items,
        Err(e) => return Tensor::poisoned(e, loc),
    };
    view_of("index", &operands(x, &items), |b| take(b, x, &items))
}

fn operands<'a>(x: &'a Tensor, items: &'a [Item]) -> Vec<&'a Tensor> {
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

/// The items with lists as tensors and masks as the positions where they are true, whose reading
/// computes them.
fn resolve(x: &Tensor, items: &[Index], loc: &'static Location<'static>) -> Result<Vec<Item>> {
    x.check()?;
    let wrong = |e: OpError| {
        let notes = vec![format!("the tensor: {}", x.fact()).into()];
        Error::with_notes(ErrorKind::Op, "index", e.0, loc, notes)
    };
    let mut out = Vec::with_capacity(items.len());
    for (index, (at, dims)) in items.iter().zip(places(x, items).map_err(wrong)?) {
        out.push(match index {
            Index::At(i) => Item::At(*i),
            Index::Slice { start, end, step } => Item::Slice(*start, *end, *step),
            Index::NewAxis => Item::NewAxis,
            Index::Ellipsis => Item::Whole(dims),
            Index::Bool(keep) => Item::Bool(*keep),
            Index::List(list) => {
                let list = in_range(x, at, list).map_err(wrong)?;
                Item::Indices(vec![vector(&list, x.device(), loc)])
            }
            Index::Mask(mask) => {
                fits(x, at, &[mask.len().into()]).map_err(wrong)?;
                let list: Vec<i64> = (0i64..).zip(mask).filter(|m| *m.1).map(|m| m.0).collect();
                Item::Indices(vec![vector(&list, x.device(), loc)])
            }
            Index::Tensor(t) if is_mask(t) && t.ndim() == 0 => {
                t.check()?;
                Item::Bool(t.item::<bool>()?)
            }
            Index::Tensor(t) if is_mask(t) => {
                t.check()?;
                fits(x, at, t.dims()).map_err(wrong)?;
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

/// For each item the dim of x it starts at and how many dims it stands for.
fn places(x: &Tensor, items: &[Index]) -> Result<Vec<(usize, usize)>, OpError> {
    let dims = |i: &Index| match i {
        Index::NewAxis | Index::Ellipsis | Index::Bool(_) => 0,
        Index::Tensor(t) if is_mask(t) => t.ndim(),
        _ => 1,
    };
    let named: usize = items.iter().map(dims).sum();
    ensure!(
        named <= x.ndim(),
        "too many indices: they stand for {named} dims, but the tensor has {}",
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

/// A list whose numbers are in range, where the range is known; the engine checks the others.
fn in_range(x: &Tensor, at: usize, list: &[i64]) -> Result<Vec<i64>, OpError> {
    if let Some(n) = x.dims()[at].as_const() {
        for i in list {
            ensure!(
                (-n..n).contains(i),
                "index {i} is out of range for dim {at} of size {n}"
            );
        }
    }
    Ok(list.to_vec())
}

/// Errs unless a mask has the sizes of the dims that it stands for.
fn fits(x: &Tensor, at: usize, mask: &[Dim]) -> Result<(), OpError> {
    let dims = &x.dims()[at..at + mask.len()];
    ensure!(
        dims == mask,
        "a mask of shape {mask:?} does not fit the dims {dims:?} from dim {at} on"
    );
    Ok(())
}

/// A vector as data, so that another list of the same length runs the same plan.
fn vector(list: &[i64], device: Device, loc: &'static Location<'static>) -> Tensor {
    Tensor::data(list, &[list.len() as i64], loc, "index").to(device)
}

/// The part of x that the items take.
fn take(b: &mut Recorder, x: &Tensor, items: &[Item]) -> Recorded {
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
                y = gathered(b, &y, &at)?;
                continue;
            }
            Item::Slice(start, end, step) => {
                let part = part_of(&y, dim, *start, *end, *step)?;
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
    gathered(b, &y, &advanced)
}

fn gathered(b: &mut Recorder, x: &Tensor, indices: &[Option<&Tensor>]) -> Recorded {
    match Places::new(b, x, indices)? {
        Some(places) => places.gather(b, x),
        None => Ok(x.clone()),
    }
}

/// Every `step`-th index of a range of an axis; with a negative step from its last one back.
fn part_of(
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
    let len = match step {
        -1 => range.len.clone(),
        _ => Dim::Const((known_dim(&range.len, x)? - 1) / step.saturating_neg() + 1),
    };
    Ok(SliceAxis {
        start: &(&range.start + &range.len) - &Dim::ONE,
        len,
        step,
    })
}

#[track_caller]
fn assign(x: &Tensor, items: Vec<Index>, value: &Other) -> Tensor {
    let loc = Location::caller();
    if let Some((at, mask)) = only_mask(x, &items, value) {
        let mut operands = value.with(x);
        operands.push(mask);
        return compose("set", &operands, |b| {
            fits(x, at, mask.dims())?;
            assign_where(b, x, at, mask, value)
        });
    }
    let items = match resolve(x, &items, loc) {
        Ok(items) => items,
        Err(e) => return Tensor::poisoned(e, loc),
    };
    let mut all = operands(x, &items);
    if let Other::Tensor(t) = value {
        all.push(t);
    }
    compose("set", &all, |b| {
        if items.iter().all(Item::is_view) {
            assign_part(b, x, &items, value)
        } else {
            assign_elements(b, x, &items, value)
        }
    })
}

/// The mask of `x[.., mask] = value` and its place, if the value doesn't depend on how many elements
/// are chosen: such an assignment needs no positions.
fn only_mask<'a>(x: &Tensor, items: &'a [Index], value: &Other) -> Option<(usize, &'a Tensor)> {
    let places = places(x, items).ok()?;
    let mut found = None;
    for (item, (at, _)) in items.iter().zip(places) {
        match item {
            Index::Tensor(t) if t.dtype() == DType::Bool && t.ndim() > 0 && found.is_none() => {
                found = Some((at, t));
            }
            Index::Ellipsis => {}
            Index::Slice {
                start: None,
                end: None,
                step: 1,
            } => {}
            _ => return None,
        }
    }
    let (at, mask) = found?;
    let behind = x.ndim() - at - mask.ndim();
    let fits = match value {
        Other::Number(_) => true,
        Other::Tensor(v) => v.ndim() <= behind,
    };
    fits.then_some((at, mask))
}

fn assign_where(b: &mut Recorder, x: &Tensor, at: usize, mask: &Tensor, value: &Other) -> Recorded {
    let mut shape = Shape::from_elem(Dim::ONE, x.ndim());
    shape[at..at + mask.ndim()].clone_from_slice(mask.dims());
    let mask = b.reshape(mask, &shape)?;
    let value = b.valued(value, x)?;
    let value = b.broadcast_to(&value, x.dims())?;
    chosen(b, &mask, &value, x)
}

/// Only views: the part is a regular region of x.
fn assign_part(b: &mut Recorder, x: &Tensor, items: &[Item], value: &Other) -> Recorded {
    let (mut region, mut shape) = (Vec::new(), Shape::new());
    for item in items {
        let axis = region.len();
        match item {
            Item::NewAxis => shape.push(Dim::ONE),
            Item::At(i) => region.push(one_of(x, axis, *i)?),
            Item::Slice(start, end, step) => {
                region.push(part_of(x, axis, *start, *end, *step)?);
                shape.push(region[axis].len.clone());
            }
            Item::Whole(n) => {
                region.extend(x.dims()[axis..axis + n].iter().map(SliceAxis::all));
                shape.extend(x.dims()[axis..axis + n].iter().cloned());
            }
            _ => return Err(OpError::new("an index that is no view")),
        }
    }
    let rest = &x.dims()[region.len()..];
    region.extend(rest.iter().map(SliceAxis::all));
    shape.extend(rest.iter().cloned());
    let value = b.valued(value, x)?;
    let value = stretched(b, &value, &shape)?;
    let lens: Shape = region.iter().map(|r| r.len.clone()).collect();
    if numel(&lens).is(0) {
        return Ok(x.clone());
    }
    let value = b.reshape(&value, &lens)?;
    put(b, x, &region, value)
}

/// The tensor with other values, of its dtype, in a region that is not empty. Where the region is, is in
/// offsets alone.
pub(super) fn put(b: &mut Recorder, x: &Tensor, region: &[SliceAxis], value: Tensor) -> Recorded {
    let lens: Shape = region.iter().map(|r| r.len.clone()).collect();
    if lens[..] == *x.dims() && region.iter().all(|r| r.step == 1) {
        return Ok(value);
    }
    let inside = b.full(true, DType::Bool, &lens)?;
    let inside = spread(b, inside, x, region)?;
    let value = spread(b, value, x, region)?;
    chosen(b, &inside, &value, x)
}

/// `mask ? value : x`, also of dtypes that are only stored: i64 holds them all.
fn chosen(b: &mut Recorder, mask: &Tensor, value: &Tensor, x: &Tensor) -> Recorded {
    if x.dtype().computes() {
        return b.select(mask, value, x);
    }
    let (v, y) = (b.cast(value, DType::I64)?, b.cast(x, DType::I64)?);
    let y = b.select(mask, &v, &y)?;
    b.cast(&y, x.dtype())
}

fn one_of(x: &Tensor, axis: usize, index: i64) -> Result<SliceAxis, OpError> {
    let extent = &x.dims()[axis];
    if let Some(n) = extent.as_const() {
        ensure!(
            (-n..n).contains(&index),
            "index {index} is out of range for dim {axis} of {}",
            x.fact()
        );
    }
    python_slice(x, axis, Some(index), (index != -1).then_some(index + 1), 1)
}

/// A region's values in x's shape, each where the region has it, and zero elsewhere.
fn spread(b: &mut Recorder, part: Tensor, x: &Tensor, region: &[SliceAxis]) -> Recorded {
    let mut y = part;
    for (axis, r) in region.iter().enumerate() {
        let extent = &x.dims()[axis];
        let (mut start, step) = (r.start.clone(), r.step.saturating_abs());
        if r.step < 0 {
            start = &start + &(&(&r.len - &Dim::ONE) * &Dim::Const(r.step));
            y = b.reversed(&y, axis)?;
        }
        if step > 1 && !r.len.is(1) {
            // step − 1 zeros behind each element but the last.
            let mut shape = Shape::from(y.dims());
            let len = std::mem::replace(&mut shape[axis], Dim::ONE);
            shape.insert(axis, len.clone());
            y = b.reshape(&y, &shape)?;
            y = b.pad_axis(&y, axis + 1, 0, step - 1, 0i64)?;
            shape.remove(axis + 1);
            shape[axis] = &len * &Dim::Const(step);
            y = b.reshape(&y, &shape)?;
            y = b.narrow(&y, axis, 0, &shape[axis] - &Dim::Const(step - 1))?;
        }
        let behind = &(extent - &start) - &y.dims()[axis];
        y = b.pad_axis(&y, axis, start, behind, 0i64)?;
    }
    Ok(y)
}

/// Any items. Index tensors among whole dims scatter slices; else the positions that the items take are
/// those that they take of a tensor of positions.
fn assign_elements(b: &mut Recorder, x: &Tensor, items: &[Item], value: &Other) -> Recorded {
    if let Some(indices) = only_indices(items) {
        let indices: Vec<Option<&Tensor>> = indices.iter().map(Option::as_ref).collect();
        if let Some(places) = Places::new(b, x, &indices)? {
            let value = b.valued(value, x)?;
            let value = stretched(b, &value, &places.result_shape(x))?;
            return places.put(b, x, &value, false);
        }
    }
    let total = x.fact().numel();
    let positions = b.iota(&total)?;
    let positions = b.reshape(&positions, x.dims())?;
    let positions = take(b, &positions, items)?;
    let value = b.valued(value, x)?;
    let value = stretched(b, &value, positions.dims())?;
    let count = [positions.fact().numel()];
    let flat = b.reshape(x, &[total])?;
    let positions = b.reshape(&positions, &count)?;
    let value = b.reshape(&value, &count)?;
    let y = b.scatter(ScatterKind::Set, &flat, 0, &positions, &value)?;
    b.reshape(&y, x.dims())
}

/// For each dim its index tensor or nothing, if there is nothing else.
fn only_indices(items: &[Item]) -> Option<Vec<Option<Tensor>>> {
    let mut out = Vec::new();
    for item in items {
        match item {
            Item::Whole(n) => out.resize(out.len() + n, None),
            Item::Slice(None, None, 1) => out.push(None),
            Item::Indices(list) if list.iter().all(|t| t.dtype() == DType::I64) => {
                out.extend(list.iter().cloned().map(Some));
            }
            _ => return None,
        }
    }
    Some(out)
}

/// A value broadcast to the part it is assigned to; dims of size 1 in front of it go.
fn stretched(b: &mut Recorder, value: &Tensor, shape: &[Dim]) -> Recorded {
    let mut extra = value.ndim().saturating_sub(shape.len());
    extra = value.dims()[..extra].iter().take_while(|d| d.is(1)).count();
    let v = b.reshape(value, &value.dims()[extra..])?;
    b.broadcast_to(&v, shape).map_err(|_| {
        OpError(format!(
            "a value of shape {:?} can't be broadcast to the shape {shape:?} it is assigned to",
            value.dims()
        ))
    })
}

impl Recorder {
    /// A value to be stored in x, in its dtype.
    fn valued(&mut self, value: &Other, x: &Tensor) -> Recorded {
        match value {
            Other::Number(n) => self.scalar_like(*n, x),
            Other::Tensor(t) => self.cast(t, x.dtype()),
        }
    }
}
