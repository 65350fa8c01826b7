//! Pooling.

use super::conv::{window_extent, window_room};
use super::prelude::*;
use kiln_base::prim::Reduction;

/// Combines the elements of a sliding window over the last axes of `[.., spatial..]`. Padding holds
/// the reduction's identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WindowReduce {
    /// The function that combines two elements.
    pub kind: Reduction,
    /// Window extents, one for each of the last axes; the lists below have the same length.
    pub kernel: Axes,
    /// Steps of the window, at least 1.
    pub stride: Axes,
    /// Elements before and after each axis.
    pub padding: Vec<(usize, usize)>,
    /// Steps within the window, at least 1.
    pub dilation: Axes,
}

impl OpDef for WindowReduce {
    const NAME: &'static str = "window_reduce";
    const ARITY: RangeInclusive<usize> = 1..=1;

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let x = inputs[0];
        check_computes(x.dtype)?;
        ensure!(x.dtype != DType::Bool, "bool tensors can't be pooled");
        let spatial = self.kernel.len();
        ensure!(
            self.stride.len() == spatial
                && self.padding.len() == spatial
                && self.dilation.len() == spatial,
            "kernel, stride, padding and dilation must have one entry for each spatial axis"
        );
        ensure!(
            x.rank() >= spatial,
            "{x} has no {spatial} axes to pool over"
        );
        let mut shape = x.shape.clone();
        let first = x.rank() - spatial;
        for a in 0..spatial {
            shape[first + a] = window_extent(
                &x.shape[first + a],
                &Dim::from(self.kernel[a]),
                self.stride[a],
                self.padding[a],
                self.dilation[a],
            )?;
        }
        one_output(x.dtype, shape)
    }

    fn needs(&self, inputs: &[&Fact]) -> Vec<Dim> {
        let extents = &inputs[0].shape[inputs[0].rank() - self.kernel.len()..];
        let room = |(a, extent): (usize, &Dim)| {
            let kernel = Dim::from(self.kernel[a]);
            window_room(extent, &kernel, self.padding[a], self.dilation[a]).ok()
        };
        extents.iter().enumerate().filter_map(room).collect()
    }
}
