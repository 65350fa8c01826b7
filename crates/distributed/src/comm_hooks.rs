//! Functions that replace the reduction of gradients.

use crate::ReduceOp;
use crate::group::ProcessGroup;
use kiln_tensor::{DType, Result, Tensor, Var};

/// Gradients that are reduced together (`torch.distributed.GradBucket`).
pub struct GradBucket {
    pub(crate) buffer: Tensor,
    pub(crate) parameters: Vec<Var>,
    pub(crate) index: usize,
    pub(crate) is_last: bool,
    pub(crate) divisor: usize,
}

impl GradBucket {
    /// The gradients of one dtype on this rank, concatenated, `[n]`.
    pub fn buffer(&self) -> &Tensor {
        &self.buffer
    }

    /// The parameters in the order of their gradients.
    pub fn parameters(&self) -> &[Var] {
        &self.parameters
    }

    /// The number of buckets of the pass before it.
    pub fn index(&self) -> usize {
        self.index
    }

    /// True if it is the last one of the pass.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// The number that makes means of sums: that of the ranks, or what [`crate::Join`] says.
    pub fn divisor(&self) -> usize {
        self.divisor
    }
}

/// The means of the gradients over all ranks: sums, and then a scale that becomes part of what reads them. It is what
/// happens without a hook.
///
/// # Errors
/// None: the type is that of hooks.
pub fn allreduce_hook(group: &ProcessGroup, bucket: &GradBucket) -> Result<Tensor> {
    let reduced = group.all_reduce(bucket.buffer(), ReduceOp::Sum);
    Ok(reduced * (1.0 / bucket.divisor() as f64))
}

/// [`allreduce_hook`] that sends gradients as f16, which it divides before it adds them.
///
/// # Errors
/// None: the type is that of hooks.
pub fn fp16_compress_hook(group: &ProcessGroup, bucket: &GradBucket) -> Result<Tensor> {
    Ok(reduce_compressed(group, bucket, DType::F16))
}

/// [`allreduce_hook`] that sends gradients as bf16, which it divides before it adds them.
///
/// # Errors
/// None: the type is that of hooks.
pub fn bf16_compress_hook(group: &ProcessGroup, bucket: &GradBucket) -> Result<Tensor> {
    Ok(reduce_compressed(group, bucket, DType::BF16))
}

fn reduce_compressed(group: &ProcessGroup, bucket: &GradBucket, dtype: DType) -> Tensor {
    let flat = bucket.buffer();
    let share = (flat * (1.0 / bucket.divisor() as f64)).to_dtype(dtype);
    group
        .all_reduce(share, ReduceOp::Sum)
        .to_dtype(flat.dtype())
}
