//! Assignment to an index: `x[..] = value`.

use super::args::check_alike;
use super::indices::{Index, Indices};
use super::places::Places;
use super::scatter::Put;
use super::subscript::{
    Item, check_mask, item_dims, operands, resolve, slice_one, slice_range, take,
};
use crate::operand::{AsTensor, Other};
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::prim::ScatterKind;
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, OpError, Shape};
use std::panic::Location;

impl Tensor {
    /// Python's `self[items] = value`, as a new tensor: this one with `value` in the part that [`Tensor::i`] selects.
    /// The value is broadcast to that part and cast to this tensor's dtype. If an index appears twice, the later
    /// value is kept.
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
        assign(
            "set",
            self,
            items.into_indices(),
            &value.into(),
            &Put::new(),
        )
    }
}

#[on_cells]
impl Tensor {
    /// [`Tensor::set`] under PyTorch's name, with values of this tensor's dtype.
    pub fn index_put(&self, indices: impl Indices, values: impl AsTensor) -> Tensor {
        self.index_put_with(indices, values, Put::new())
    }

    /// [`Tensor::index_put`], which can add to the elements: if an index appears twice, both values are added.
    ///
    /// ```
    /// use kiln_tensor::{Put, Tensor};
    /// let (x, ones) = (Tensor::from([5i64, 5, 5]), Tensor::from([1i64, 1]));
    /// let y = x.index_put_with([0, 0], &ones, Put::new().accumulate(true));
    /// assert_eq!(y.to_vec::<i64>()?, [7, 5, 5]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    #[autocast]
    pub fn index_put_with(
        &self,
        indices: impl Indices,
        values: impl AsTensor,
        options: Put,
    ) -> Tensor {
        if self.dtype() != values.dtype() {
            return compose("index_put", &[self, values], |_| {
                check_alike(self, "tensor", values, "values")?;
                Ok(self.clone())
            });
        }
        assign("index_put", self, indices, &values.into(), &options)
    }
}

#[track_caller]
fn assign(
    called: &'static str,
    x: &Tensor,
    items: Vec<Index>,
    value: &Other,
    options: &Put,
) -> Tensor {
    let loc = Location::caller();
    if let (false, Some((axis, mask))) = (options.accumulate, only_mask(x, &items, value)) {
        let mut operands = value.operands_with(x);
        operands.push(mask);
        return compose(called, &operands, |b| {
            check_mask(x, axis, mask.dims())?;
            assign_where(b, x, axis, mask, value)
        });
    }
    let items = match resolve(x, &items) {
        Ok(items) => items,
        Err(e) => return Tensor::poisoned(e, loc),
    };
    let mut tensors = operands(x, &items);
    if let Other::Tensor(t) = value {
        tensors.push(t);
    }
    compose(called, &tensors, |b| {
        if !options.accumulate && items.iter().all(Item::is_view) {
            assign_part(b, x, &items, value)
        } else {
            assign_elements(b, x, &items, value, options.kind())
        }
    })
}

/// Returns the mask of `x[.., mask] = value` and its axis, if the value doesn't depend on the number of chosen
/// elements. This assignment needs no positions.
fn only_mask<'a>(x: &Tensor, items: &'a [Index], value: &Other) -> Option<(usize, &'a Tensor)> {
    let dims = item_dims(x, items).ok()?;
    let mut mask_item = None;
    for (item, (axis, _)) in items.iter().zip(dims) {
        match item {
            Index::Tensor(t) if t.dtype() == DType::Bool && t.ndim() > 0 && mask_item.is_none() => {
                mask_item = Some((axis, t));
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
    let (axis, mask) = mask_item?;
    let trailing = x.ndim() - axis - mask.ndim();
    let fits = match value {
        Other::Number(_) => true,
        Other::Tensor(v) => v.ndim() <= trailing,
    };
    fits.then_some((axis, mask))
}

fn assign_where(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    mask: &Tensor,
    value: &Other,
) -> Recorded {
    let mut shape = Shape::from_elem(Dim::ONE, x.ndim());
    shape[axis..axis + mask.ndim()].clone_from_slice(mask.dims());
    let mask = b.reshape(mask, &shape)?;
    let value = b.stored_value(value, x)?;
    let value = b.broadcast_to(&value, x.dims())?;
    b.select(&mask, &value, x)
}

/// Assigns to a part that only views select: a regular region of x.
fn assign_part(b: &mut Recorder, x: &Tensor, items: &[Item], value: &Other) -> Recorded {
    let (mut region, mut shape) = (Vec::new(), Shape::new());
    for item in items {
        let axis = region.len();
        match item {
            Item::NewAxis => shape.push(Dim::ONE),
            Item::At(i) => region.push(slice_one(x, axis, *i)?),
            Item::Slice(start, end, step) => {
                region.push(slice_range(x, axis, *start, *end, *step)?);
                shape.push(region[axis].len.clone());
            }
            Item::Whole(n) => {
                region.extend(x.dims()[axis..axis + n].iter().map(SliceAxis::all));
                shape.extend(x.dims()[axis..axis + n].iter().cloned());
            }
            _ => return Err(OpError::new("an index that is not a view")),
        }
    }
    let trailing_dims = &x.dims()[region.len()..];
    region.extend(trailing_dims.iter().map(SliceAxis::all));
    shape.extend(trailing_dims.iter().cloned());
    let value = b.stored_value(value, x)?;
    let value = broadcast_value(b, &value, &shape)?;
    let lens: Shape = region.iter().map(|r| r.len.clone()).collect();
    if numel(&lens).is(0) {
        return Ok(x.clone());
    }
    let value = b.reshape(&value, &lens)?;
    put(b, x, &region, value)
}

/// The tensor with other values, of its dtype, in a region that is not empty. The position of the region only appears
/// in offsets.
pub(super) fn put(b: &mut Recorder, x: &Tensor, region: &[SliceAxis], value: Tensor) -> Recorded {
    let lens: Shape = region.iter().map(|r| r.len.clone()).collect();
    if lens[..] == *x.dims() && region.iter().all(|r| r.step == 1) {
        return Ok(value);
    }
    let inside = b.full(true, DType::Bool, &lens)?;
    let inside = spread_region(b, inside, x, region)?;
    let value = spread_region(b, value, x, region)?;
    b.select(&inside, &value, x)
}

/// Spreads a region's values to x's shape, with zeros elsewhere.
fn spread_region(b: &mut Recorder, part: Tensor, x: &Tensor, region: &[SliceAxis]) -> Recorded {
    let mut y = part;
    for (axis, r) in region.iter().enumerate() {
        let extent = &x.dims()[axis];
        let (mut start, step) = (r.start.clone(), r.step.saturating_abs());
        if r.step < 0 {
            start = &start + &(&(&r.len - &Dim::ONE) * &Dim::Const(r.step));
            y = b.reversed(&y, axis)?;
        }
        if step > 1 && !r.len.is(1) {
            // step − 1 zeros after each element but the last.
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
        let after = &(extent - &start) - &y.dims()[axis];
        y = b.pad_axis(&y, axis, start, after, 0i64)?;
    }
    Ok(y)
}

/// Assigns to the elements that any items select. Index tensors among whole dims scatter slices. In other cases the
/// positions are taken from a tensor of positions by the same items.
fn assign_elements(
    b: &mut Recorder,
    x: &Tensor,
    items: &[Item],
    value: &Other,
    kind: ScatterKind,
) -> Recorded {
    if let Some(indices) = only_indices(items) {
        let indices: Vec<Option<&Tensor>> = indices.iter().map(Option::as_ref).collect();
        if let Some(places) = Places::new(b, x, &indices)? {
            let value = b.stored_value(value, x)?;
            let value = broadcast_value(b, &value, &places.result_shape(x))?;
            return places.put(b, x, &value, kind);
        }
    }
    let total = x.fact().numel();
    let positions = b.iota(&total)?;
    let positions = b.reshape(&positions, x.dims())?;
    let positions = take(b, &positions, items)?;
    let value = b.stored_value(value, x)?;
    let value = broadcast_value(b, &value, positions.dims())?;
    let count = [positions.fact().numel()];
    let flat = b.reshape(x, &[total])?;
    let positions = b.reshape(&positions, &count)?;
    let value = b.reshape(&value, &count)?;
    let y = b.scatter(kind, &flat, 0, &positions, &value)?;
    b.reshape(&y, x.dims())
}

/// Returns the index tensor of each dim, or `None` for a whole dim, if there are no other items.
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

/// Broadcasts a value to the part that it is assigned to. Leading dims of size 1 are dropped.
fn broadcast_value(b: &mut Recorder, value: &Tensor, shape: &[Dim]) -> Recorded {
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
    /// A value to be stored in x, in the dtype of x.
    fn stored_value(&mut self, value: &Other, x: &Tensor) -> Recorded {
        match value {
            Other::Number(n) => self.scalar_like(*n, x),
            Other::Tensor(t) => self.cast(t, x.dtype()),
        }
    }
}
