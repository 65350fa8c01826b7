//! Dispatch of work to engines: the CPU engine's kernels, and CUDA C++.

use crate::cpu::{self, Cpu};
use crate::cuda::Cuda;
use crate::limits::Limits;
use crate::program::Options;
use crate::schedule::Schedule;
use crate::work::{Body, Candidate, Engine, KernelCalls, Work};
use kiln_base::{Machine, custom};
use kiln_plan::{Custom, Kernel, schedule};

/// Returns the engine for the machine of the options.
fn engine(options: &Options) -> Box<dyn Engine + '_> {
    match &options.machine {
        Machine::Cpu(_) => Box::new(Cpu),
        Machine::Gpu(gpu) => Box::new(Cuda(gpu)),
    }
}

/// Returns the limits of dividing work on the machine of the options.
pub(crate) fn limits(options: &Options) -> Limits {
    engine(options).limits()
}

/// Returns the default schedule of a product or convolution, and its cycles, where the machine has a model of these.
pub(crate) fn preferred(work: &Work, options: &Options) -> Option<(schedule::Gpu, f64)> {
    engine(options).preferred(work)
}

/// Returns the candidates for some work according to the options.
///
/// # Errors
/// If the machine does not support the work.
pub(crate) fn candidates(work: &Work, options: &Options) -> Result<Vec<Candidate>, String> {
    match &work.body {
        Body::Library(Kernel::Custom(custom)) => custom_candidates(custom, work, options),
        // The bodies of loops and branches have candidates of their own.
        Body::Loop(..) | Body::If(..) | Body::Library(Kernel::Collective(_)) => {
            let kernel = cpu::kernel(work, false);
            Ok(Candidate::only(KernelCalls::one(kernel, work)))
        }
        _ => engine(options).candidates(work, options),
    }
}

/// Returns the kernels of a user's operator. On a GPU, the code that it brings is looked up by name once sizes are
/// known. Only the operator knows the sizes that its kernels can compute.
fn custom_candidates(
    custom: &Custom,
    work: &Work,
    options: &Options,
) -> Result<Vec<Candidate>, String> {
    let kernels = custom::find(&custom.name)?;
    let on_gpu = options.machine.gpu().is_some();
    if on_gpu {
        kernels.cuda(custom.kernel.as_deref())?;
    }
    let mut candidates = Candidate::only(KernelCalls::one(Kernel::Custom(custom.clone()), work));
    let has_known_sizes = || work.args.iter().all(|a| a.len.as_const().is_some());
    let names = match options.candidates && has_known_sizes() {
        true => kernels.alternatives(on_gpu),
        false => Vec::new(),
    };
    let candidate = |name: String| {
        let kernel = Kernel::Custom(Custom {
            kernel: Some(name.clone()),
            ..custom.clone()
        });
        Candidate::new(Schedule::Custom(name), KernelCalls::one(kernel, work))
    };
    candidates.extend(names.into_iter().map(candidate));
    Ok(candidates)
}
