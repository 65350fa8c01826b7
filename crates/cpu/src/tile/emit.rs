//! The choice of the parts of a stage that are emitted, and of their form.

use super::builder::{BodyBuilder, DetachedInst};
use super::call::{self, MAX_OPERANDS};
use super::code::Instruction;
use super::emitted::{Emitted, OperandLocation};
use super::link::{Linker, instruction};
use super::linked::Stage;
use super::prefetch;
use super::walk::{Shape, Walk};
use kiln_jit::emission::stage::{Body, Kind, emit};
use kiln_jit::emission::{Target, cache};
use kiln_kernel::error::Result;
use kiln_plan::tile::{Inst, Schedule};
use std::sync::Arc;

/// Returns the operand kind of an emitted access, or `None` if the access is interpreted. `single` is true if there is
/// one lane.
pub(super) fn kind_of(walk: &Walk, is_store: bool, single: bool, over_inner: bool) -> Option<Kind> {
    match walk.shape {
        Shape::Contiguous => Some(Kind::Lanes),
        Shape::Splat if is_store => single.then_some(Kind::Lanes),
        Shape::Splat => Some(Kind::Splat),
        // Excluded elements must not be written.
        Shape::General if is_store && !walk.limits.is_empty() => None,
        Shape::General => match walk.long_runs(min_run(walk, over_inner))? {
            1 => Some(Kind::Lanes),
            0 if !is_store => Some(Kind::Splat),
            _ => None,
        },
    }
}

/// Returns the minimum number of lanes of a run for which emitted code pays. It is higher if runs are not batched, and
/// if limits split a run into up to three calls.
pub(super) fn min_run(walk: &Walk, over_inner: bool) -> i64 {
    match over_inner {
        true => 32,
        false if walk.cuts_runs() => 128,
        false => 16,
    }
}

/// Returns the machine code of a body from the cache, or emits it. `None` if it can't be emitted.
fn code(target: Target, body: &Body) -> Option<Arc<kiln_x86::Code>> {
    // The cache can't hold a failure.
    let mut failed = false;
    let name = || format!("fused work of {} instructions", body.code.len());
    let code = cache::code(body.cache_key(target), name, || {
        emit(body, target).unwrap_or_else(|_| {
            failed = true;
            vec![]
        })
    });
    code.filter(|c| !failed && !c.bytes().is_empty())
}

/// The machine code of a body, and a variant without non-temporal stores if it has such stores.
type CodeVariants = (Arc<kiln_x86::Code>, Option<Arc<kiln_x86::Code>>);

/// Returns the machine code of a body for aligned memory, and for unaligned memory if it differs.
fn code_variants(target: Target, body: &mut Body) -> Option<CodeVariants> {
    let aligned = code(target, body)?;
    let streams = body.operands.iter().any(|(_, k)| *k == Kind::Stream);
    if !streams {
        return Some((aligned, None));
    }
    for (_, kind) in &mut body.operands {
        if *kind == Kind::Stream {
            *kind = Kind::Lanes;
        }
    }
    Some((aligned, Some(code(target, body)?)))
}

impl Linker<'_> {
    /// Emits a stage as one function, followed by deferred instructions. Returns false if the stage can't be emitted.
    pub(super) fn emit_stage(&mut self, index: usize, out: &mut Stage) -> Result<bool> {
        let program = self.bound.program;
        let stage = &program.stages[index];
        let Some(target) = Target::of(self.level) else {
            return Ok(false);
        };
        let mut builder = BodyBuilder::new(self, index);
        for i in 0..stage.code.len() {
            if !builder.add(self, i, out)? {
                return Ok(false);
            }
        }
        builder.add_outputs(self);
        if prefetch::costliest_stage(self.bound) == Some(index) {
            builder.add_prefetches(self)?;
        }
        builder.batch_runs(self);
        let BodyBuilder {
            mut body,
            mut operands,
            reductions,
            deferred,
            walks,
            ..
        } = builder;
        let streams = operands.iter().any(|o| o.streams);
        if operands.len() > MAX_OPERANDS {
            return Ok(false);
        }
        // A stage whose instructions are all deferred has nothing to emit.
        let steps = body.steps;
        let function = match body.code.is_empty() && body.outputs.is_empty() {
            true => None,
            false => match code_variants(target, &mut body) {
                Some(function) => Some(function),
                None => return Ok(false),
            },
        };
        self.streams |= streams;
        let runs = operands.iter().filter_map(|o| match o.location {
            OperandLocation::Run(x) => Some(x),
            _ => None,
        });
        out.general.extend(runs);
        out.walks.extend(walks);
        let mut after = vec![];
        for (i, operand) in reductions {
            let (state, flush) = self.reduction(&stage.code[i], 0, out);
            if let OperandLocation::State(x) = &mut operands[operand].location {
                *x = state.x;
            }
            after.extend(flush);
        }
        let mut runs: Vec<(u32, Vec<usize>)> = vec![];
        for (i, operand) in operands.iter().enumerate() {
            if let OperandLocation::Run(x) = operand.location {
                match runs.iter_mut().find(|(y, _)| *y == x) {
                    Some((_, operands)) => operands.push(i),
                    None => runs.push((x, vec![i])),
                }
            }
        }
        if let Some((code, unaligned)) = function {
            self.emitted.push(Emitted {
                code,
                unaligned,
                level: self.level,
                operands,
                steps,
                runs,
            });
            out.steps = program.schedule == Schedule::Lanes && stage.over_inner && steps;
            out.body.push(Instruction {
                is_call: true,
                ..instruction(call::call, 0, self.emitted.len() as u32 - 1)
            });
        }
        out.body.extend(after);
        for DetachedInst { inst, src: from } in deferred {
            match &stage.code[inst] {
                Inst::Store { access, src } => {
                    let walk = self.interpreted_walk(*access, stage.over_inner, out)?;
                    let ty = program.registers[usize::from(src.0)];
                    self.store(from, ty, walk, out);
                }
                reduction => {
                    let (body, flush) = self.reduction(reduction, from, out);
                    out.body.push(body);
                    out.body.extend(flush);
                }
            }
        }
        Ok(true)
    }
}
