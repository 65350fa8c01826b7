//! One file an op: its meaning, its attributes and its inference. The reference evaluation of the same op is in
//! the file of the same name under [`crate::eval`], or a line of `dispatch` there.

mod arg_reduce;
mod arg_sort;
mod attention;
mod attention_grad;
mod barrier;
mod batch_norm;
mod broadcast;
mod cast;
mod collective;
mod concat;
mod constant;
mod control;
mod conv;
mod conv_grad;
mod custom;
mod full;
mod gather;
mod input;
mod iota;
mod matmul;
mod numel;
mod pad;
mod permute;
mod pointwise;
mod random;
mod reduce;
mod reshape;
mod scan;
mod scatter;
mod slice;
mod softmax;
mod window_reduce;

pub use arg_reduce::ArgReduce;
pub use arg_sort::ArgSort;
pub use attention::Attention;
pub use attention_grad::AttentionGrad;
pub use barrier::Barrier;
pub use batch_norm::BatchNorm;
pub use broadcast::Broadcast;
pub use cast::Cast;
pub use collective::Collective;
pub use concat::Concat;
pub use constant::Constant;
pub use control::{If, Loop};
pub use conv::{Conv, window_extent};
pub use conv_grad::{ConvTranspose, ConvWeight, crop};
pub use custom::Custom;
pub use full::Full;
pub use gather::Gather;
pub use input::Input;
pub use iota::Iota;
pub use matmul::MatMul;
pub use numel::Numel;
pub use pad::Pad;
pub use permute::Permute;
pub use pointwise::Pointwise;
pub use random::Random;
pub use reduce::Reduce;
pub use reshape::Reshape;
pub use scan::Scan;
pub use scatter::Scatter;
pub use slice::{Slice, SliceAxis};
pub use softmax::Softmax;
pub use window_reduce::WindowReduce;

/// Hands every op to a macro.
macro_rules! each {
    ($to:ident) => {
        $to! {
            Input, Full, Constant, Iota, Numel, Random,
            Pointwise, Cast,
            Broadcast, Reshape, Permute, Slice, Pad, Concat,
            Reduce, ArgReduce, Scan, ArgSort, Gather, Scatter,
            MatMul, Conv, ConvTranspose, ConvWeight, WindowReduce,
            Softmax, BatchNorm, Attention, AttentionGrad,
            If, Loop, Barrier, Custom, Collective,
        }
    };
}
pub(crate) use each;

/// A short list of axes or per-axis numbers.
pub type Axes = smallvec::SmallVec<[usize; 4]>;

/// The common imports and helpers of the op files.
pub(crate) mod prelude {
    pub(super) use super::Axes;
    pub(super) use crate::{Builder, Cost, Fact, Facts, OpDef, OpError, Shape, ensure};
    pub(super) use kiln_base::{DType, Dim, Scalar};
    pub(super) use serde::{Deserialize, Serialize};
    pub(super) use std::ops::RangeInclusive;

    /// Returns the facts of an op with one output.
    pub(super) fn one_output(dtype: DType, shape: Shape) -> Result<Facts, OpError> {
        Ok(Facts::from_buf([Fact { dtype, shape }]))
    }

    /// Errs unless `axis` is one of `rank` axes.
    pub(super) fn check_axis(axis: usize, rank: usize) -> Result<(), OpError> {
        ensure!(axis < rank, "axis {axis} is out of range for rank {rank}");
        Ok(())
    }

    /// Errs unless arithmetic is defined on the dtype.
    pub(crate) fn check_computes(dtype: DType) -> Result<(), OpError> {
        ensure!(
            dtype.computes(),
            "{dtype} can only be stored, compared and cast; cast it to {} first",
            if dtype.is_float() { "f32" } else { "i64" }
        );
        Ok(())
    }
}
