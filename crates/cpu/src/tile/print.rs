//! What of a stage is printed, and as what.

use super::ahead;
use super::call::{self, MAX};
use super::code::Code;
use super::emitted::{Place, Printed};
use super::link::{Linker, plain};
use super::linked::Stage;
use super::making::{Aside, Making};
use super::walk::{Shape, Walk};
use kiln_jit::emission::stage::{Body, Kind, print};
use kiln_jit::emission::{Target, cache};
use kiln_kernel::error::Result;
use kiln_plan::tile::{Inst, Schedule};
use std::sync::Arc;

/// The form in which an access is printed, if it is; `one` says that there is one lane.
pub(super) fn kind(walk: &Walk, is_store: bool, one: bool, over_inner: bool) -> Option<Kind> {
    match walk.shape {
        Shape::Contiguous => Some(Kind::Line),
        Shape::Splat if is_store => one.then_some(Kind::Line),
        Shape::Splat => Some(Kind::Splat),
        // What limits exclude is not to be written.
        Shape::General if is_store && !walk.limits.is_empty() => None,
        Shape::General => match walk.long_runs(least_run(walk, over_inner))? {
            1 => Some(Kind::Line),
            0 if !is_store => Some(Kind::Splat),
            _ => None,
        },
    }
}

/// The least lanes of a run that code pays for: where several runs are not one call, there are more calls. Limits
/// cut a run in up to three, each a call.
pub(super) fn least_run(walk: &Walk, over_inner: bool) -> i64 {
    match over_inner {
        true => 32,
        false if walk.cuts_runs() => 128,
        false => 16,
    }
}

/// The code of a body. `None` if it can't be printed after all.
fn code(target: Target, body: &Body) -> Option<Arc<kiln_x86::Code>> {
    // Printed here and not in the cache's hands: a body may turn out not to be printable.
    let mut failed = false;
    let name = || format!("fused work of {} instructions", body.code.len());
    let code = cache::code(body.key(target), name, || {
        print(body, target).unwrap_or_else(|_| {
            failed = true;
            vec![]
        })
    });
    code.filter(|c| !failed && !c.bytes().is_empty())
}

/// The code of a body, and where that writes past the cache, the same without that.
type Functions = (Arc<kiln_x86::Code>, Option<Arc<kiln_x86::Code>>);

/// As [`code`], for memory that is aligned and for other.
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
    /// Makes a stage one printed function, and what of its memory that does not reach before and behind it. Gives whether
    /// it can be.
    pub(super) fn function(&mut self, index: usize, out: &mut Stage) -> Result<bool> {
        let program = self.bound.program;
        let stage = &program.stages[index];
        let Some(target) = Target::of(self.level) else {
            return Ok(false);
        };
        let mut made = Making::new(self, index);
        for i in 0..stage.code.len() {
            if !made.inst(self, i, out)? {
                return Ok(false);
            }
        }
        made.outputs(self);
        if ahead::costliest(self.bound) == Some(index) {
            made.ahead(self)?;
        }
        made.rows(self);
        let Making {
            mut body,
            mut operands,
            sums,
            aside,
            walks,
            ..
        } = made;
        let streams = operands.iter().any(|o| o.streams);
        if operands.len() > MAX {
            return Ok(false);
        }
        // What stands aside alone has nothing to print.
        let steps = body.steps;
        let function = match body.code.is_empty() && body.outputs.is_empty() {
            true => None,
            false => match functions(target, &mut body) {
                Some(function) => Some(function),
                None => return Ok(false),
            },
        };
        self.streams |= streams;
        let runs = operands.iter().filter_map(|o| match o.place {
            Place::Run(x) => Some(x),
            _ => None,
        });
        out.general.extend(runs);
        out.walks.extend(walks);
        let mut after = vec![];
        for (i, operand) in sums {
            let (state, flush) = self.reduction(&stage.code[i], 0, out);
            if let Place::State(x) = &mut operands[operand].place {
                *x = state.x;
            }
            after.extend(flush);
        }
        let mut runs: Vec<(u32, Vec<usize>)> = vec![];
        for (i, operand) in operands.iter().enumerate() {
            if let Place::Run(x) = operand.place {
                match runs.iter_mut().find(|(y, _)| *y == x) {
                    Some((_, operands)) => operands.push(i),
                    None => runs.push((x, vec![i])),
                }
            }
        }
        if let Some((code, plain_code)) = function {
            self.printed.push(Printed {
                code,
                plain: plain_code,
                level: self.level,
                operands,
                steps,
                runs,
            });
            out.steps = program.schedule == Schedule::Lanes && stage.over_inner && steps;
            out.body.push(Code {
                is_call: true,
                ..plain(call::call, 0, self.printed.len() as u32 - 1)
            });
        }
        out.body.extend(after);
        for Aside { inst, from } in aside {
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
