//! Library kernels in CUDA C++: one file a family. What a family does the same way for every shape and
//! dtype stands in `.cu` files, behind the types and numbers that a kernel is printed with.

use super::job::Job;
use crate::work::{Body, Way};
use kiln_plan::Kernel;

mod attention;
mod attention_grad;
mod call;
mod contraction;
mod gemm;
mod gemm_tile;
mod made;
mod operand;
mod scan;
mod scatter;
mod sort;
mod sums;
mod winograd;

/// The ways of work that is not fused alone: the default, and with `all` every other.
///
/// # Errors
/// What is not supported.
pub(super) fn print(work: Job, all: bool) -> Result<Vec<Way>, String> {
    match &work.body {
        Body::MatMul(m) => Ok(contraction::product(work, m, all)),
        Body::Conv(c) => Ok(contraction::convolution(work, c, all)),
        Body::Attention(a) => Ok(Way::only(attention::print(work, a))),
        Body::Library(Kernel::Scan(s)) => Ok(Way::only(scan::print(work, s))),
        Body::Library(Kernel::ArgSort(s)) => Ok(Way::only(sort::print(work, s))),
        Body::Library(Kernel::Scatter(s)) => Ok(Way::only(scatter::print(work, s))),
        Body::Library(Kernel::AttentionGrad(a)) => Ok(Way::only(attention_grad::print(work, a))),
        Body::Library(kernel) => Err(format!("{} has no CUDA kernel yet", kernel.name())),
        Body::Fused(_) | Body::Loop(..) | Body::If(..) => Err("it is no library kernel".into()),
    }
}
