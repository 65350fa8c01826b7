//! Library kernels in CUDA C++: one file per family. The code that a family shares between all shapes and dtypes is in
//! `.cu` files, which follow the emitted types and numbers.

use super::job::Job;
use crate::work::{Body, Candidate};
use kiln_plan::Kernel;

mod attention;
mod attention_grad;
mod call;
mod contraction;
mod gemm;
mod gemm_tile;
mod im2col;
mod operand;
mod prologue;
mod scan;
mod scatter;
mod sort;
mod sums;
mod tma_store;
mod warpgroup;
mod winograd;

pub(super) use contraction::preferred;

/// Returns the default candidate of work with a library kernel; with `all` every candidate.
///
/// # Errors
/// If the kernel has no CUDA implementation.
pub(super) fn emit(work: Job, all: bool) -> Result<Vec<Candidate>, String> {
    match &work.body {
        Body::MatMul(m) => Ok(contraction::product(work, m, all)),
        Body::Conv(c) => Ok(contraction::convolution(work, c, all)),
        Body::Attention(a) => Ok(attention::emit(work, a, all)),
        Body::Library(Kernel::Scan(s)) => Ok(Candidate::only(scan::emit(work, s))),
        Body::Library(Kernel::ArgSort(s)) => Ok(Candidate::only(sort::emit(work, s))),
        Body::Library(Kernel::Scatter(s)) => Ok(Candidate::only(scatter::emit(work, s))),
        Body::Library(Kernel::AttentionGrad(a)) => {
            Ok(Candidate::only(attention_grad::emit(work, a)))
        }
        Body::Library(kernel) => Err(format!("{} has no CUDA kernel yet", kernel.name())),
        Body::Fused(_) | Body::Loop(..) | Body::If(..) => Err("it is not a library kernel".into()),
    }
}
