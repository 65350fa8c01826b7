//! Parts of tensors: slices, splits and windows.

use super::args::{DimArg, DimArgs, Int, IntList, axis, check_countable, known};
use crate::Tensor;
use crate::options::options;
use crate::record::{Recorded, Recorder, compose, view_of, views_of};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

options! {
    /// The windows of [`Tensor::unfold`]; a size converts into them.
    Window (
        /// The number of elements of a window.
        size: Int
    ) {
        /// The distance between windows (default 1).
        step: Int = 1,
    }
}

#[on_cells]
impl Tensor {
    /// `length` elements of a dim starting at `start`; a negative start counts from the end.
    pub fn narrow(
        &self,
        dim: impl Into<DimArg>,
        start: impl Into<Int>,
        length: impl Into<Int>,
    ) -> Tensor {
        view_of("narrow", &[self], |b| {
            let a = axis(self, &dim)?;
            let extent = &self.dims()[a];
            let from = wrap_index(start, extent);
            ensure!(length >= 0, "the length can't be negative ({length})");
            if let (Some(n), Some(s)) = (extent.as_const(), from.as_const()) {
                ensure!(
                    (0..=n).contains(&s) && length <= n - s,
                    "dim {dim} of {} has no {length} elements from {start} on",
                    self.fact()
                );
            }
            b.narrow(self, a, from, length)
        })
    }

    /// The slice at `index` of a dim, which is removed; negative indices count from the end.
    pub fn select(&self, dim: impl Into<DimArg>, index: impl Into<Int>) -> Tensor {
        view_of("select", &[self], |b| {
            let a = axis(self, &dim)?;
            select(b, self, a, index)
        })
    }

    /// The elements in reverse order along these dims.
    pub fn flip(&self, dims: impl Into<DimArgs>) -> Tensor {
        compose("flip", &[self], |b| {
            super::args::check_few_dims(self)?;
            let mut x = self.clone();
            for a in dims.axes(self)? {
                x = b.reversed(&x, a)?;
            }
            Ok(x)
        })
    }

    /// Parts of `split_size` along a dim; the last one may be smaller.
    pub fn split(&self, split_size: impl Into<Int>, dim: impl Into<DimArg>) -> Vec<Tensor> {
        self.split_parts("split", dim, |n| {
            ensure!(
                split_size > 0 || split_size == 0 && n == 0,
                "the size of a part must be positive, not {split_size}"
            );
            chunk_sizes(n, split_size)
        })
    }

    /// Parts of these sizes along a dim. The sizes must add up to the size of the dim.
    pub fn split_with_sizes(
        &self,
        split_sizes: impl Into<IntList>,
        dim: impl Into<DimArg>,
    ) -> Vec<Tensor> {
        let sizes = split_sizes.0;
        self.split_parts("split_with_sizes", dim, |n| {
            let sum = sizes.iter().try_fold(0i64, |sum, s| sum.checked_add(*s));
            ensure!(
                sizes.iter().all(|s| *s >= 0) && sum == Some(n),
                "the sizes {sizes:?} do not sum to {n}"
            );
            Ok(sizes)
        })
    }

    /// At most `chunks` parts of one size along a dim; the last one may be smaller.
    pub fn chunk(&self, chunks: impl Into<Int>, dim: impl Into<DimArg>) -> Vec<Tensor> {
        self.split_parts("chunk", dim, |n| {
            ensure!(
                chunks > 0,
                "the number of chunks must be positive, not {chunks}"
            );
            if n == 0 {
                check_countable(chunks)?;
                return Ok(vec![0; chunks as usize]);
            }
            chunk_sizes(n, (n - 1) / chunks + 1)
        })
    }

    /// `sections` parts along a dim whose sizes differ by at most one.
    pub fn tensor_split(&self, sections: impl Into<Int>, dim: impl Into<DimArg>) -> Vec<Tensor> {
        self.split_parts("tensor_split", dim, |n| {
            ensure!(
                sections > 0,
                "the number of sections must be positive, not {sections}"
            );
            check_countable(sections)?;
            let (size, larger) = (n / sections, n % sections);
            Ok((0..sections).map(|i| size + (i < larger) as i64).collect())
        })
    }

    /// The parts of a dim between these indices, as Python slices.
    pub fn tensor_split_at(
        &self,
        indices: impl Into<IntList>,
        dim: impl Into<DimArg>,
    ) -> Vec<Tensor> {
        let indices = indices.0;
        let count = indices.len() + 1;
        views_of("tensor_split", &[self], count, |b| {
            let a = axis(self, &dim)?;
            let mut start = 0;
            let mut out = Vec::new();
            for end in indices.iter().map(|i| Some(*i)).chain([None]) {
                let range = python_slice(self, a, Some(start), end, 1)?;
                out.push(b.slice_axis(self, a, range)?);
                start = end.unwrap_or(0);
            }
            Ok(out)
        })
    }

    /// The slices of a dim, which is removed.
    pub fn unbind(&self, dim: impl Into<DimArg>) -> Vec<Tensor> {
        let sizes = self.sizes_of(&dim, |n| check_countable(n).map(|()| vec![1; n as usize]));
        views_of("unbind", &[self], sizes.as_ref().map_or(1, Vec::len), |b| {
            let a = axis(self, &dim)?;
            let n = sizes?.len() as i64;
            (0..n).map(|i| select(b, self, a, i)).collect()
        })
    }

    /// The windows along a dim, with their elements in a new last dim: `[.., windows, .., size]`.
    ///
    /// ```
    /// use kiln_tensor::{Tensor, Window};
    /// let x = Tensor::arange(0, 5, 1);
    /// assert_eq!(x.unfold(0, 3).to_vec::<i64>()?, [0, 1, 2, 1, 2, 3, 2, 3, 4]);
    /// assert_eq!(x.unfold(0, Window::new(3).step(2)).shape()?, [2, 3]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn unfold(&self, dimension: impl Into<DimArg>, window: impl Into<Window>) -> Tensor {
        let (size, step) = (window.size.0, window.step.0);
        compose("unfold", &[self], |b| {
            ensure!(size >= 0, "the size can't be negative ({size})");
            ensure!(step > 0, "the step must be positive, not {step}");
            if self.ndim() == 0 {
                DimArgs::from(&dimension).axes(self)?;
                ensure!(size <= 1, "a number has no window of {size} elements");
                return b.reshape(self, &[Dim::Const(size)]);
            }
            let a = axis(self, &dimension)?;
            let room = &self.dims()[a] - &Dim::Const(size);
            ensure!(
                room.as_const().is_none_or(|room| room >= 0),
                "dim {dimension} of {} has no window of {size} elements",
                self.fact()
            );
            let count = &room.div_floor(step) + &Dim::ONE;
            let mut strides = self.strides();
            strides.push(strides[a].clone());
            strides[a] = &strides[a] * &Dim::Const(step);
            Ok(windows(b, self, a, &count, size, step, 1)?.with_strides(strides))
        })
    }

    fn sizes_of(
        &self,
        dim: &DimArg,
        sizes: impl FnOnce(i64) -> Result<Vec<i64>, OpError>,
    ) -> Result<Vec<i64>, OpError> {
        let a = axis(self, dim)?;
        sizes(known(self, a)?)
    }

    fn split_parts(
        &self,
        called: &'static str,
        dim: DimArg,
        sizes: impl FnOnce(i64) -> Result<Vec<i64>, OpError>,
    ) -> Vec<Tensor> {
        let sizes = self.sizes_of(&dim, sizes);
        let count = sizes.as_ref().map_or(1, Vec::len);
        views_of(called, &[self], count, |b| {
            let a = axis(self, &dim)?;
            let mut start = 0;
            let mut out = Vec::new();
            for size in sizes? {
                out.push(b.narrow(self, a, start, size)?);
                start += size;
            }
            Ok(out)
        })
    }
}

fn chunk_sizes(n: i64, size: i64) -> Result<Vec<i64>, OpError> {
    check_countable(n / size.max(1))?;
    let mut sizes = vec![size; (n / size.max(1)) as usize];
    if n == 0 || n % size.max(1) != 0 {
        sizes.push(n % size.max(1));
    }
    Ok(sizes)
}

fn wrap_index(index: i64, extent: &Dim) -> Dim {
    if index < 0 {
        extent + &Dim::Const(index)
    } else {
        Dim::Const(index)
    }
}

/// Checks that an index, which may count from the end, is one of a dim of known size.
pub(super) fn check_in_range(x: &Tensor, axis: usize, index: i64) -> Result<(), OpError> {
    let size = x.dims()[axis].as_const();
    ensure!(
        size.is_none_or(|n| (-n..n).contains(&index)),
        "index {index} is out of range for dim {axis} of {}",
        x.fact()
    );
    Ok(())
}

/// The slice at an index of an axis, without the axis.
pub(crate) fn select(b: &mut Recorder, x: &Tensor, axis: usize, index: i64) -> Recorded {
    check_in_range(x, axis, index)?;
    let start = wrap_index(index, &x.dims()[axis]);
    let slice = b.narrow(x, axis, start, 1i64)?;
    b.squeeze(&slice, &[axis])
}

/// Returns the number of steps over a distance, rounded up.
fn count_steps(distance: i64, step: i64) -> i64 {
    if distance > 0 {
        (distance - 1) / step + 1
    } else {
        0
    }
}

/// Python's slice of an axis.
pub(crate) fn python_slice(
    x: &Tensor,
    axis: usize,
    start: Option<i64>,
    end: Option<i64>,
    step: i64,
) -> Result<SliceAxis, OpError> {
    ensure!(step > 0, "the step can't be {step}");
    let extent = &x.dims()[axis];
    let Some(n) = extent.as_const() else {
        // If the size is unknown, the selected elements must exist.
        let bound = |i: Option<i64>, default: Dim| i.map_or(default, |i| wrap_index(i, extent));
        let start = bound(start, Dim::ZERO);
        let distance = &bound(end, extent.clone()) - &start;
        let len = (&distance + &Dim::Const(step - 1)).div_floor(step);
        return Ok(match len.as_const() {
            Some(n) if n <= 0 => SliceAxis {
                start: Dim::ZERO,
                len: Dim::ZERO,
                step: 1,
            },
            _ => SliceAxis { start, len, step },
        });
    };
    let wrapped = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
    let start = wrapped(start.unwrap_or(0)).clamp(0, n);
    let end = wrapped(end.unwrap_or(n)).clamp(0, n);
    let len = count_steps(end - start, step);
    let start = if len == 0 { 0 } else { start };
    Ok(SliceAxis {
        start: start.into(),
        len: len.into(),
        // A step that is never taken is normalised to 1.
        step: if len > 1 { step } else { 1 },
    })
}

/// The largest window whose elements are separate slices.
const MAX_TAPS: i64 = 4;

/// `count` windows of `size` elements along an axis. The axis becomes that of the windows; their elements are a new
/// last dim.
pub(crate) fn windows(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    count: &Dim,
    size: i64,
    step: i64,
    dilation: i64,
) -> Recorded {
    if size > MAX_TAPS {
        // With index vectors, the number of taps is a size in the program and not its length.
        let (starts, tap) = (b.iota(count)?, b.iota(&size.into())?);
        let starts = b.with(Pw::Mul, &starts, step)?;
        let starts = b.reshape(&starts, &[count.clone(), Dim::ONE])?;
        let tap = b.with(Pw::Mul, &tap, dilation)?;
        let positions = b.binary(Pw::Add, &starts, &tap)?;
        let flat = b.reshape(&positions, &[positions.fact().numel()])?;
        let chosen = b.index_select(x, axis, &flat)?;
        return split_windows(b, &chosen, axis, count, &size.into());
    }
    let mut taps = Vec::new();
    for i in 0..size {
        let range = SliceAxis {
            start: (i * dilation).into(),
            len: count.clone(),
            step,
        };
        let tap = b.slice_axis(x, axis, range)?;
        taps.push(b.unsqueeze(&tap, x.ndim())?);
    }
    if taps.is_empty() {
        let mut shape = Shape::from(x.dims());
        shape[axis] = count.clone();
        shape.push(Dim::ZERO);
        return b.full(0i64, x.dtype(), &shape);
    }
    b.concat(&taps, x.ndim())
}

/// Splits an axis into `count` parts of `width` elements, which become a new last dim.
pub(super) fn split_windows(
    b: &mut Recorder,
    x: &Tensor,
    axis: usize,
    count: &Dim,
    width: &Dim,
) -> Recorded {
    let mut shape = Shape::from(x.dims());
    shape[axis] = count.clone();
    shape.insert(axis + 1, width.clone());
    let y = b.reshape(x, &shape)?;
    let mut perm: Vec<usize> = (0..shape.len()).filter(|p| *p != axis + 1).collect();
    perm.push(axis + 1);
    b.permute(&y, &perm)
}
