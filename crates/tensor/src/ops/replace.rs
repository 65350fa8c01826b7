//! Tensors with a part replaced.

use super::args::{DimArg, Int, axis, known};
use super::assign::put;
use super::indices::Index;
use super::parts::python_slice;
use crate::Tensor;
use crate::operand::AsTensor;
use crate::record::{Recorded, Recorder, compose};
use kiln_base::Dim;
use kiln_derive::on_cells;
use kiln_ir::ops::SliceAxis;
use kiln_ir::{Builder, OpError, Shape, ensure};

#[on_cells]
impl Tensor {
    /// This tensor with the slice at `index` of a dim replaced by `src`.
    pub fn select_scatter(
        &self,
        src: impl AsTensor,
        dim: impl Into<DimArg>,
        index: impl Into<Int>,
    ) -> Tensor {
        compose("select_scatter", &[self, src], |b| {
            let a = axis(self, &dim)?;
            let n = known(self, a)?;
            ensure!(
                (-n..n).contains(&index),
                "index {index} is out of range for dim {dim} of {}",
                self.fact()
            );
            let src = b.cast(src, self.dtype())?;
            let mut kept = Shape::from(self.dims());
            kept.remove(a);
            ensure!(
                src.dims() == &kept[..],
                "{} does not fit the slice of {}",
                src.fact(),
                self.fact()
            );
            let src = b.unsqueeze(&src, a)?;
            let position = index.rem_euclid(n);
            let range = SliceAxis {
                start: position.into(),
                len: Dim::ONE,
                step: 1,
            };
            replace(b, self, a, &range, &src)
        })
    }

    /// This tensor with a range of a dim replaced by `src`. The range may have a step ([`step`](crate::step)).
    ///
    /// ```
    /// use kiln_tensor::{Tensor, step};
    /// let x = Tensor::arange(0, 6, 1);
    /// let y = x.slice_scatter(Tensor::from([7i64, 8]), 0, 1..3);
    /// assert_eq!(y.to_vec::<i64>()?, [0, 7, 8, 3, 4, 5]);
    /// let y = x.slice_scatter(Tensor::from([7i64, 8, 9]), 0, step(.., 2));
    /// assert_eq!(y.to_vec::<i64>()?, [7, 1, 8, 3, 9, 5]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn slice_scatter(
        &self,
        src: impl AsTensor,
        dim: impl Into<DimArg>,
        range: impl Into<Index>,
    ) -> Tensor {
        compose("slice_scatter", &[self, src], |b| {
            let a = axis(self, &dim)?;
            let Index::Slice { start, end, step } = range else {
                return Err(OpError(format!("takes a range, not {range:?}")));
            };
            let range = python_slice(self, a, start, end, step)?;
            let mut wanted = Shape::from(self.dims());
            wanted[a] = range.len.clone();
            let src = b.cast(src, self.dtype())?;
            ensure!(
                src.dims() == &wanted[..],
                "{} does not fit the slice of {}",
                src.fact(),
                self.fact()
            );
            replace(b, self, a, &range, &src)
        })
    }
}

/// The tensor with part of an axis replaced.
fn replace(b: &mut Recorder, x: &Tensor, axis: usize, range: &SliceAxis, src: &Tensor) -> Recorded {
    if src.fact().numel().is(0) {
        return Ok(x.clone());
    }
    let mut region: Vec<SliceAxis> = x.dims().iter().map(SliceAxis::all).collect();
    region[axis] = range.clone();
    put(b, x, &region, src.clone())
}
