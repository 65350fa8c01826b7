//! What computes work: the CPU engine's kernels, and CUDA C++.

use crate::cpu::Cpu;
use crate::cuda::Cuda;
use crate::program::Options;
use crate::work::{Body, Engine, Printed, Way, Work};
use kiln_base::Machine;
use kiln_plan::Kernel;

/// The ways to compute some work as the options say.
///
/// # Errors
/// What is not supported.
pub(crate) fn ways(work: &Work, options: &Options) -> Result<Vec<Way>, String> {
    let engine: &dyn Engine = match &options.machine {
        Machine::Cpu(_) => &Cpu,
        Machine::Gpu(gpu) => &Cuda(gpu),
    };
    match &work.body {
        // Their bodies have ways of their own.
        Body::Loop(l, _) => Ok(Way::only(Printed::one(Kernel::Loop(l.clone()), work))),
        Body::If(i, _) => Ok(Way::only(Printed::one(Kernel::If(i.clone()), work))),
        _ => engine.ways(work, options.ways),
    }
}
