//! Guards: flags on the device that skip steps.
//!
//! A skipped step writes nothing, so its outputs must have contents already. A guarded step therefore writes only
//! outputs with a donor. Where such an output has memory of its own, that begins as a copy of the donor's. The CPU
//! reads the guard when the step is about to run. On a GPU nothing waits for it: a kernel before the step writes
//! an error record, with an error if the guard is set. An error record suppresses a step, as it does the side of a
//! branch that is not taken.

use super::loc::Loc;
use kiln_base::DType;
use kiln_cuda as cuda;
use kiln_cuda::Launch;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::ALIGN;
use kiln_kernel::view::View;
use kiln_plan::{Allocation, Contract, Output, Plan, Step};
use std::sync::Arc;

/// A flag that skips a step: it is set if one of its bytes is not 0.
#[derive(Clone)]
pub(super) struct Guard {
    pub loc: Loc,
    pub bytes: usize,
    /// On a GPU, the launch that reads it, and the offset of the record that it writes in the step's scratch memory.
    pub launch: Option<(Arc<Launch>, usize)>,
}

impl Guard {
    /// Returns the guard of a step whose work needs `scratch` bytes of scratch memory.
    pub fn new(
        loc: Loc,
        dtype: DType,
        scratch: usize,
        gpu: Option<&cuda::Loader>,
    ) -> Result<Guard> {
        let bytes = dtype.size();
        let launch = gpu.map(|loader| cuda::guard(loader, bytes)).transpose()?;
        Ok(Guard {
            loc,
            bytes,
            launch: launch.map(|launch| (launch, Guard::record_offset(scratch))),
        })
    }

    /// The offset of its record after `scratch` bytes of the work's scratch memory; it takes at most [`ALIGN`]
    /// bytes.
    pub fn record_offset(scratch: usize) -> usize {
        scratch.next_multiple_of(ALIGN)
    }

    /// True if it skips the step now.
    pub fn is_set(&self, memory: View<u8>) -> bool {
        let bytes = memory.slice(0, self.bytes as i64);
        bytes.iter().any(|b| *b != 0)
    }
}

/// Returns an error unless a step's guard is an existing number, and all arguments that it writes may be skipped.
pub(super) fn check(plan: &Plan, contract: &Contract, step: &Step, written: &[bool]) -> Result<()> {
    let Some(guard) = step.guard else {
        return Ok(());
    };
    let name = plan.kernels[step.kernel as usize].name();
    let buffer = &plan.buffers[guard.0 as usize];
    if !matches!(buffer.dtype, DType::Bool | DType::I32) || !buffer.len.is(1) {
        return Err(damaged!(
            "the guard of {name} is not a bool or i32, but {} of {}",
            buffer.len,
            buffer.dtype
        ));
    }
    if !written[guard.0 as usize] {
        return Err(damaged!("the guard of {name} is read before it is written"));
    }
    if !step.sites.is_empty() {
        return Err(damaged!("{name} has a guard and may report a data error"));
    }
    let args = step.args.iter().zip(&contract.args);
    for (id, _) in args.filter(|(_, arg)| arg.writes) {
        let mut outputs = plan.outputs.iter().filter(|o| o.buffer == *id);
        let has_contents = outputs
            .next()
            .is_some_and(|o| donor_contents(plan, o).is_some());
        if *id == guard || !has_contents || outputs.next().is_some() {
            return Err(damaged!(
                "{name} has a guard and writes what holds nothing before"
            ));
        }
    }
    Ok(())
}

/// Returns the input whose contents an output holds before it is written.
fn donor_contents(plan: &Plan, output: &Output) -> Option<usize> {
    let donor = output.donor? as usize;
    let from = &plan.buffers[plan.inputs.get(donor)?.buffer.0 as usize];
    let to = &plan.buffers[output.buffer.0 as usize];
    let matches =
        from.dtype == to.dtype && from.len == to.len && to.allocation == Allocation::Output;
    matches.then_some(donor)
}

/// For each buffer, the input whose contents it begins with because a guarded step writes it.
pub(super) fn initial_inputs(plan: &Plan, contracts: &[Contract]) -> Vec<Option<usize>> {
    let mut inputs = vec![None; plan.buffers.len()];
    for step in plan.run.iter().filter(|s| s.guard.is_some()) {
        let args = step.args.iter().zip(&contracts[step.kernel as usize].args);
        for (id, _) in args.filter(|(_, arg)| arg.writes) {
            let output = plan.outputs.iter().find(|o| o.buffer == *id);
            inputs[id.0 as usize] = output.and_then(|o| donor_contents(plan, o));
        }
    }
    inputs
}
