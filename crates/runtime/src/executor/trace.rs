//! Tracing: observing a plan while it runs.

use super::loc::Loc;
use super::on_gpu::OnGpu;
use super::part::PlanPart;
use super::step::{After, BoundStep};
use kiln_cuda::{Memory, Session};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory::Storage;
use kiln_plan::Plan;

/// An observer of the steps of a traced run. An error ends the run.
pub trait Tracer {
    /// Called before a step runs: its operands are computed.
    ///
    /// # Errors
    /// Any error, to end the run.
    fn before(&mut self, step: &Traced) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// Called after a step has run: its results are computed.
    ///
    /// # Errors
    /// Any error, to end the run.
    fn after(&mut self, step: &Traced) -> Result<()>;
}

/// A step of a traced run.
pub struct Traced<'a> {
    /// True if the step belongs to the plan's *prepare* part.
    pub prepare: bool,
    /// Index into [`Plan::prepare`](kiln_plan::Plan::prepare) or
    /// [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    contents: &'a dyn Fn(usize) -> Result<Vec<u8>>,
}

impl Traced<'_> {
    /// The current contents of the step's argument at this position: little-endian elements, row-major.
    ///
    /// # Errors
    /// If the contents can't be copied from a GPU.
    pub fn bytes(&self, arg: usize) -> Result<Vec<u8>> {
        (self.contents)(arg)
    }
}

impl PlanPart<'_> {
    /// Runs the steps one by one and shows each to a tracer.
    pub(super) fn trace<'s>(
        &self,
        steps: &[BoundStep],
        storage: &impl Fn(Loc) -> &'s Storage,
        tracer: &mut dyn Tracer,
    ) -> Result<()> {
        for step in steps {
            if self.preparing && step.step >= self.exe.plan.prepare.len() {
                // A packing step is not a step of the plan: its result shows in the steps that read it.
                self.on_cpu(std::slice::from_ref(step), storage, None)?;
                continue;
            }
            let sizes = sizes(&self.exe.plan, step, self.preparing, &self.bound.values);
            let contents = |arg: usize| {
                let outside = || Error::Internal(format!("a step has no argument {arg}"));
                let loc = *step.args.get(arg).ok_or_else(outside)?;
                let offset = match loc {
                    Loc::Arena(offset) => offset,
                    _ => 0,
                };
                copy_bytes(storage(loc), offset, sizes[arg])
            };
            let traced = Traced {
                prepare: self.preparing,
                step: step.step,
                contents: &contents,
            };
            tracer.before(&traced)?;
            // It need not wait: all steps before it are done.
            let one_step = &[BoundStep {
                after: After::new(),
                ..step.clone()
            }];
            match &self.exe.gpu {
                None => self.on_cpu(one_step, storage, None)?,
                Some(gpu) => {
                    let properties = OnGpu::new(one_step);
                    let outcome =
                        self.on_gpu(Session::new(gpu)?, one_step, &properties, storage)?;
                    outcome.map_or(Ok(()), |o| o.wait())?;
                }
            }
            tracer.after(&traced)?;
        }
        Ok(())
    }
}

/// The sizes of a step's arguments in bytes.
fn sizes(plan: &Plan, step: &BoundStep, prepare: bool, values: &[i64]) -> Vec<usize> {
    let steps = match prepare {
        true => &plan.prepare,
        false => &plan.run,
    };
    let args = steps[step.step].args.iter();
    args.map(|id| plan.buffer_bytes(*id, values)).collect()
}

/// Returns a copy of a part of some memory, once it is computed.
fn copy_bytes(storage: &Storage, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match Memory::of(storage) {
        Some(memory) => {
            let base = storage.ptr() as usize - memory.ptr() as usize;
            memory
                .device()
                .download(memory, base + offset, &mut bytes)?;
        }
        None => bytes.copy_from_slice(&storage.bytes()[offset..offset + len]),
    }
    Ok(bytes)
}
