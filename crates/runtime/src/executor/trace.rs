//! Looking on while a plan runs.

use super::loc::Loc;
use super::on_gpu::OnGpu;
use super::part::Part;
use super::step::{After, BoundStep};
use kiln_cuda::{Memory, Session};
use kiln_kernel::error::{Error, Result};
use kiln_kernel::memory::Storage;
use kiln_plan::Plan;

/// What a traced run shows its steps to. An error ends the run.
pub trait Tracer {
    /// A step is about to run: what it reads is there.
    ///
    /// # Errors
    /// Whatever should end the run.
    fn before(&mut self, step: &Traced) -> Result<()> {
        let _ = step;
        Ok(())
    }

    /// A step has run: what it writes is there.
    ///
    /// # Errors
    /// Whatever should end the run.
    fn after(&mut self, step: &Traced) -> Result<()>;
}

/// A step of a traced run.
pub struct Traced<'a> {
    /// Whether the step belongs to the plan's *prepare* part.
    pub prepare: bool,
    /// Index into [`Plan::prepare`](kiln_plan::Plan::prepare) or
    /// [`Plan::run`](kiln_plan::Plan::run).
    pub step: usize,
    contents: &'a dyn Fn(usize) -> Result<Vec<u8>>,
}

impl Traced<'_> {
    /// What the step's argument of this position holds now: little-endian elements, row-major.
    ///
    /// # Errors
    /// If they can't be copied from a GPU.
    pub fn bytes(&self, arg: usize) -> Result<Vec<u8>> {
        (self.contents)(arg)
    }
}

impl Part<'_> {
    /// Runs the steps one by one under the eyes of a tracer.
    pub(super) fn trace<'s>(
        &self,
        steps: &[BoundStep],
        storage: &impl Fn(Loc) -> &'s Storage,
        tracer: &mut dyn Tracer,
    ) -> Result<()> {
        for step in steps {
            if self.preparing && step.step >= self.exe.plan.prepare.len() {
                // It packs weights, and is no step of the plan: what it makes shows in what reads it.
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
                copied(storage(loc), offset, sizes[arg])
            };
            let traced = Traced {
                prepare: self.preparing,
                step: step.step,
                contents: &contents,
            };
            tracer.before(&traced)?;
            // It waits for nothing: all before it is done.
            let one = &[BoundStep {
                after: After::new(),
                ..step.clone()
            }];
            match &self.exe.gpu {
                None => self.on_cpu(one, storage, None)?,
                Some(gpu) => {
                    let alone = OnGpu::new(one);
                    let outcome = self.on_gpu(Session::new(gpu)?, one, &alone, storage)?;
                    outcome.map_or(Ok(()), |o| o.wait())?;
                }
            }
            tracer.after(&traced)?;
        }
        Ok(())
    }
}

/// What the buffers of a step's arguments take, in bytes.
fn sizes(plan: &Plan, step: &BoundStep, prepare: bool, values: &[i64]) -> Vec<usize> {
    let steps = match prepare {
        true => &plan.prepare,
        false => &plan.run,
    };
    let args = steps[step.step].args.iter();
    args.map(|id| plan.buffer_bytes(*id, values)).collect()
}

/// A copy of a part of some memory, once it is computed.
fn copied(storage: &Storage, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    match Memory::of(storage) {
        Some(memory) => {
            let first = storage.ptr() as usize - memory.ptr() as usize;
            memory
                .device()
                .download(memory, first + offset, &mut bytes)?;
        }
        None => bytes.copy_from_slice(&storage.bytes()[offset..offset + len]),
    }
    Ok(bytes)
}
