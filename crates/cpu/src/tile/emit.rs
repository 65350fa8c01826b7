//! The choice of the parts of a stage that are emitted, and of their form.

use super::builder::{BodyBuilder, DetachedInst};
use super::call::{self, MAX};
use super::code::Instruction;
use super::emitted::{Emitted, OperandLocation};
use super::link::{Linker, plain};
use super::linked::Stage;
use super::prefetch;
use super::walk::{Shape, Walk};
use kiln_jit::emission::stage::{Body, Kind, emit};
use kiln_jit::emission::{Target, cache};
use kiln_kernel::error::Result;
use kiln_plan::tile::{Inst, Schedule};
use std::sync::Arc;

/// Returns the form in which an access is emitted, if it is; `one` says that there is one lane.
pub(super) fn kind(walk: &Walk, is_store: bool, one: bool, over_inner: bool) -> Option<Kind> {
    match walk.shape {
        Shape::Contiguous => Some(Kind::Line),
        Shape::Splat if is_store => one.then_some(Kind::Line),
        Shape::Splat => Some(Kind::Splat),
        // Elements that limits exclude must not be written.
        Shape::General if is_store && !walk.limits.is_empty() => None,
        Shape::General => match walk.long_runs(least_run(walk, over_inner))? {
            1 => Some(Kind::Line),
            0 if !is_store => Some(Kind::Splat),
            _ => None,
        },
    }
}

/// Returns the smallest number of lanes of a run for which code pays. More calls are needed where several runs can't be
/// one call. Limits cut a run into up to three calls.
pub(super) fn least_run(walk: &Walk, over_inner: bool) -> i64 {
    match over_inner {
        true => 32,
        false if walk.cuts_runs() => 128,
        false => 16,
    }
}

/// Returns the code of a body, or `None` if it can't be emitted after all.
fn code(target: Target, body: &Body) -> Option<Arc<kiln_x86::Code>> {
    // Emission fails here, not in the cache: a body may turn out not to be emittable.
    let mut failed = false;
    let name = || format!("fused work of {} instructions", body.code.len());
    let code = cache::code(body.key(target), name, || {
        emit(body, target).unwrap_or_else(|_| {
            failed = true;
            vec![]
        })
    });
    code.filter(|c| !failed && !c.bytes().is_empty())
}

/// The code of a body, and a variant without non-temporal stores if it has such stores.
type Functions = (Arc<kiln_x86::Code>, Option<Arc<kiln_x86::Code>>);

/// As [`code`], for aligned memory and for unaligned memory.
fn functions(target: Target, body: &mut Body) -> Option<Functions> {
    let first = code(target, body)?;
    let streams = body.operands.iter().any(|(_, k)| *k == Kind::Stream);
    if !streams {
        return Some((first, None));
    }
    for (_, kind) in &mut body.operands {
        if *kind == Kind::Stream {
            *kind = Kind::Line;
        }
    }
    Some((first, Some(code(target, body)?)))
}

impl Linker<'_> {
    /// Makes a stage one emitted function, with deferred instructions after it. Returns false if that is not possible.
    pub(super) fn function(&mut self, index: usize, out: &mut Stage) -> Result<bool> {
        let program = self.bound.program;
        let stage = &program.stages[index];
        let Some(target) = Target::of(self.level) else {
            return Ok(false);
        };
        let mut made = BodyBuilder::new(self, index);
        for i in 0..stage.code.len() {
            if !made.inst(self, i, out)? {
                return Ok(false);
            }
        }
        made.outputs(self);
        if prefetch::costliest_stage(self.bound) == Some(index) {
            made.prefetches(self)?;
        }
        made.rows(self);
        let BodyBuilder {
            mut body,
            mut operands,
            sums,
            deferred,
            walks,
            ..
        } = made;
        let streams = operands.iter().any(|o| o.streams);
        if operands.len() > MAX {
            return Ok(false);
        }
        // A stage whose instructions are all deferred has nothing to emit.
        let steps = body.steps;
        let function = match body.code.is_empty() && body.outputs.is_empty() {
            true => None,
            false => match functions(target, &mut body) {
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
        for (i, operand) in sums {
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
        if let Some((code, plain_code)) = function {
            self.emitted.push(Emitted {
                code,
                plain: plain_code,
                level: self.level,
                operands,
                steps,
                runs,
            });
            out.steps = program.schedule == Schedule::Lanes && stage.over_inner && steps;
            out.body.push(Instruction {
                is_call: true,
                ..plain(call::call, 0, self.emitted.len() as u32 - 1)
            });
        }
        out.body.extend(after);
        for DetachedInst { inst, from } in deferred {
            match &stage.code[inst] {
                Inst::Store { access, src } => {
                    let moved = self.moved(*access, stage.over_inner, out)?;
                    let ty = program.registers[usize::from(src.0)];
                    self.store(from, ty, moved, out);
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
