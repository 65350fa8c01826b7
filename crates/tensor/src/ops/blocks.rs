//! Tensors assembled from blocks and columns, and views with other strides.

use super::args::{Int, IntList, check_addressable, known};
use crate::operand::{AsTensor, listed};
use crate::options::options;
use crate::record::{Recorded, Recorder, compose};
use crate::{DType, Tensor, promote};
use kiln_base::{Dim, numel};
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

/// A matrix with these blocks on its diagonal and zeros elsewhere, in the dtype they promote to. Vectors are rows,
/// numbers 1 × 1.
#[track_caller]
pub fn block_diag(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("block_diag", tensors, |b| {
        let blocks = promote_and_apply(b, tensors, |b, t| {
            ensure!(t.ndim() <= 2, "{} has more than 2 dims", t.fact());
            expand_rank(b, t, 2, 0)
        })?;
        let widths = blocks.iter().map(|t| known(t, 1));
        let widths = widths.collect::<Result<Vec<i64>, _>>()?;
        let total: i64 = widths.iter().sum();
        let mut left = 0;
        let mut rows = Vec::new();
        for (t, width) in blocks.iter().zip(widths) {
            rows.push(b.pad_axis(t, 1, left, total - left - width, 0i64)?);
            left += width;
        }
        b.concat(&rows, 0)
    })
}

/// Concatenates along dim 1, with vectors as columns.
#[track_caller]
pub fn column_stack(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("column_stack", tensors, |b| {
        let columns = promote_and_apply(b, tensors, |b, t| match t.ndim() {
            0 => expand_rank(b, t, 2, 0),
            1 => b.unsqueeze(t, 1),
            _ => Ok(t.clone()),
        })?;
        b.concat(&columns, 1)
    })
}

/// Concatenates the results of [`Tensor::atleast_3d`] along dim 2.
#[track_caller]
pub fn dstack(tensors: impl IntoIterator<Item: AsTensor>) -> Tensor {
    let tensors = listed(tensors);
    let tensors = &tensors.iter().collect::<Vec<_>>()[..];
    compose("dstack", tensors, |b| {
        let layers = promote_and_apply(b, tensors, expand_to_3d)?;
        b.concat(&layers, 2)
    })
}

/// Casts tensors to the dtype they promote to, and applies `form` to each.
fn promote_and_apply(
    b: &mut Recorder,
    tensors: &[&Tensor],
    form: impl Fn(&mut Recorder, &Tensor) -> Recorded,
) -> Result<Vec<Tensor>, OpError> {
    ensure!(!tensors.is_empty(), "needs at least one tensor");
    let dtype = promote::common_dtype(tensors)?;
    let mut convert = |t: &&Tensor| {
        let t = b.cast(t, dtype)?;
        form(b, &t)
    };
    tensors.iter().map(&mut convert).collect()
}

/// Inserts dims of size 1 before `axis` until there are `rank`.
fn expand_rank(b: &mut Recorder, t: &Tensor, rank: usize, axis: usize) -> Recorded {
    let mut shape = Shape::from(t.dims());
    while shape.len() < rank {
        shape.insert(axis.min(shape.len()), Dim::ONE);
    }
    b.reshape(t, &shape)
}

/// `[n]` becomes `[1, n, 1]`, `[m, n]` becomes `[m, n, 1]`.
fn expand_to_3d(b: &mut Recorder, t: &Tensor) -> Recorded {
    let t = expand_rank(b, t, 2, 0)?;
    expand_rank(b, &t, 3, 2)
}

options! {
    /// A view by strides; a size converts into it.
    Strided (
        /// The result's size.
        size: IntList
    ) {
        /// The number of elements between neighbours along each dim. The default, `()`, gives the strides of a
        /// contiguous tensor of this size.
        stride: IntList = (),
        /// The offset of the first element (default 0).
        storage_offset: Int = 0,
    }
}

#[on_cells]
impl Tensor {
    /// At least one dim: a number as `[1]`.
    pub fn atleast_1d(&self) -> Tensor {
        compose("atleast_1d", &[self], |b| expand_rank(b, self, 1, 0))
    }

    /// At least two dims: a number as `[1, 1]`, a vector as the row `[1, n]`.
    pub fn atleast_2d(&self) -> Tensor {
        compose("atleast_2d", &[self], |b| expand_rank(b, self, 2, 0))
    }

    /// At least three dims: a vector as `[1, n, 1]`, a matrix as `[m, n, 1]`.
    pub fn atleast_3d(&self) -> Tensor {
        compose("atleast_3d", &[self], |b| expand_to_3d(b, self))
    }

    /// `out[i, j, ..] = flat[offset + i · stride[0] + j · stride[1] + ..]`, where `flat` holds this tensor's elements
    /// in row-major order, even if the tensor is a view.
    ///
    /// ```
    /// use kiln_tensor::{Strided, Tensor};
    /// let x = Tensor::arange(0, 6, 1);
    /// let windows = x.as_strided(Strided::new([4, 3]).stride([1, 1]));
    /// assert_eq!(windows.i(3).to_vec::<i64>()?, [3, 4, 5]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn as_strided(&self, size: impl Into<Strided>) -> Tensor {
        let (mut stride, storage_offset) = (size.stride.0, size.storage_offset.0);
        let size = size.size.0;
        if stride.is_empty() {
            let contiguous_stride =
                |a: usize| size[a + 1..].iter().fold(1i64, |n, d| n.saturating_mul(*d));
            stride = (0..size.len()).map(contiguous_stride).collect();
        }
        compose("as_strided", &[self], |b| {
            ensure!(
                size.len() == stride.len(),
                "the size {size:?} and the strides {stride:?} differ in length"
            );
            ensure!(
                size.iter().chain(&stride).all(|n| *n >= 0) && storage_offset >= 0,
                "sizes, strides and offset can't be negative"
            );
            let shape: Shape = size.iter().map(|n| Dim::Const(*n)).collect();
            check_addressable(&shape, DType::I64)?;
            let flat = b.reshape(self, &[self.fact().numel()])?;
            let steps = size.iter().zip(&stride);
            let last_offset = steps.clone().try_fold(storage_offset, |at, (n, s)| {
                at.checked_add((n - 1).checked_mul(*s)?)
            });
            let elements = known(&flat, 0)?;
            ensure!(
                size.contains(&0) || last_offset.is_some_and(|at| at < elements),
                "the size {size:?} with the strides {stride:?} and the offset {storage_offset} reaches \
                 beyond the {elements} elements of {}",
                self.fact()
            );
            let mut offsets = b.full(storage_offset, DType::I64, &shape)?;
            for (i, (n, s)) in steps.enumerate() {
                let steps = b.iota(&Dim::Const(*n))?;
                let steps = b.with(Pw::Mul, &steps, *s)?;
                let steps = b.reshape_along(&steps, i, shape.len())?;
                offsets = b.binary(Pw::Add, &offsets, &steps)?;
            }
            let offsets = b.reshape(&offsets, &[numel(&shape)])?;
            let y = b.gather(&flat, 0, &offsets)?;
            let strides = stride.iter().map(|s| Dim::Const(*s)).collect();
            Ok(b.reshape(&y, &shape)?.with_strides(strides))
        })
    }
}
