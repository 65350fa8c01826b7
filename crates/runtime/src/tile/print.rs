//! What of a stage is printed, and as what.

use super::ahead;
use super::bound::Bound;
use super::call::{MAX, Place, Printed};
use super::code::Code;
use super::link::{Drafting, Linker};
use super::linked::Stage;
use super::lower::{Draft, Function, Hidden, Make};
use super::making::Making;
use super::walk::{Shape, Walk};
use crate::error::{Result, damaged};
use crate::printed::lines::{About, Lines};
use crate::printed::stage::{Body, Kind, print};
use crate::printed::{Target, cache};
use kiln_plan::tile::{Inst, Schedule};
use std::sync::Arc;

/// Whether an instruction has a printed form, as far as types say.
pub(super) fn is_printed(target: Target, bound: &Bound, inst: &Inst) -> bool {
    let program = bound.program;
    let about = About {
        registers: &program.registers,
        constants: &program.constants,
        slots: &program.slots,
        dtypes: &|access| {
            program.args[usize::from(program.accesses[usize::from(access)].arg)].dtype
        },
    };
    Lines::new(target, &about, std::slice::from_ref(inst), &[]).is_ok()
}

/// How an access lies, if it is one that is printed; `one` says that there is one lane, `least` how many
/// lanes of a run pay.
pub(super) fn kind(walk: &Walk, is_store: bool, one: bool, least: i64) -> Option<Kind> {
    match walk.shape {
        _ if walk.dynamic => None,
        Shape::Contiguous => Some(Kind::Line),
        Shape::Splat if is_store => one.then_some(Kind::Line),
        Shape::Splat => Some(Kind::Splat),
        // What limits exclude is not to be written.
        Shape::General if is_store && !walk.limits.is_empty() => None,
        Shape::General => match walk.long_runs(least)? {
            1 => Some(Kind::Line),
            0 if !is_store => Some(Kind::Splat),
            _ => None,
        },
    }
}

/// The least lanes of a run that code pays for: where several runs are not one call, there are more calls.
pub(super) fn least_run(over_inner: bool) -> i64 {
    if over_inner { 32 } else { 16 }
}

/// The code of a body. `None` if it can't be printed after all.
pub(super) fn code(target: Target, body: &Body) -> Option<Arc<kiln_x86::Code>> {
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

/// Lanes that printed stages run over at once; between them a run may be ended early.
const STEP: usize = 1 << 15;

/// How many lanes a stage runs over at once.
pub(super) fn step(program: &super::Linked, stage: &Stage) -> usize {
    let is_call = |c: &Code| c.is_call;
    let whole = |c: &Code| {
        let operands = &program.printed[c.x as usize].operands;
        operands.iter().all(|o| match o.place {
            super::call::Place::Register(_) => o.step == 0,
            _ => true,
        })
    };
    let rows = program.schedule == Schedule::Rows;
    let long = stage.over_inner == rows
        && !stage.body.is_empty()
        && stage.body.iter().all(|c| is_call(c) && whole(c));
    if long {
        STEP.max(program.tile)
    } else {
        program.tile
    }
}

impl Linker<'_> {
    /// Which instructions of a stage are printed.
    pub(super) fn which_are_printed(&mut self, target: Target, index: usize) -> Result<Vec<bool>> {
        let bound = self.bound;
        let program = bound.program;
        let stage = &program.stages[index];
        let one = program.schedule == Schedule::Rows && !stage.over_inner;
        let least = least_run(stage.over_inner);
        let mut stored: Vec<u16> = vec![];
        let mut printed = Vec::with_capacity(stage.code.len());
        for inst in &stage.code {
            let mut is = is_printed(target, bound, inst);
            if let Inst::Load { access, .. } | Inst::Store { access, .. } = inst {
                let is_store = matches!(inst, Inst::Store { .. });
                let x = self.walk(usize::from(*access), stage.over_inner)?;
                let kind = kind(&self.walks[x as usize], is_store, one, least);
                let arg = program.accesses[usize::from(*access)].arg;
                // What is the same for all lanes is read before any of them is written.
                let again = kind == Some(Kind::Splat) && stored.contains(&arg);
                is &= kind.is_some() && !again;
                if is_store {
                    stored.push(arg);
                }
            }
            printed.push(is);
        }
        // A gather makes its walk one that is not printed, wherever it stands.
        for (is, inst) in printed.iter_mut().zip(&stage.code) {
            let gathered = |access: u16| {
                let at = |i: &Inst| matches!(i, Inst::LoadAt { access: a, .. } if *a == access);
                program.stages.iter().flat_map(|s| &s.code).any(at)
            };
            if let Inst::Load { access, .. } | Inst::Store { access, .. } = inst {
                *is &= !gathered(*access);
            }
        }
        Ok(printed)
    }

    /// Adds a printed function of some instructions, or these as they are if it can't be.
    pub(super) fn function(&mut self, draft: &mut Drafting, code: &[usize]) -> Result<()> {
        let program = self.bound.program;
        let stage = &program.stages[draft.index];
        let Some(target) = Target::of(self.level) else {
            return Err(damaged!("nothing is printed at this level"));
        };
        let mut made = Making::new(self, draft.index, code);
        let added = code.iter().all(|i| made.inst(self, draft, *i).is_ok());
        made.outputs(self, draft, code);
        if ahead::costliest(self.bound) == Some(draft.index) && draft.stage.functions.is_empty() {
            made.ahead(self)?;
        }
        made.rows(self);
        let Making {
            mut body,
            operands,
            values,
            walks,
            sums,
            ..
        } = made;
        let streams = operands.iter().any(|o| o.streams);
        let steps = body.steps;
        let function = (added && operands.len() <= MAX)
            .then(|| functions(target, &mut body))
            .flatten();
        let Some((printed, plain)) = function else {
            for i in code {
                self.interpreted(draft, *i, (0, 0))?;
            }
            return Ok(());
        };
        self.streams |= streams;
        draft.walks.extend(walks);
        let mut operands = operands;
        let mut after = vec![];
        for (i, operand) in sums {
            let inst = &stage.code[i];
            let Inst::Reduce { acc, .. } = inst else {
                continue;
            };
            let acc = self.global(acc.0);
            let (parts, flush) = self.reduction(inst, acc, [None; 3], &mut draft.out);
            if let Place::State(x) = &mut operands[operand].place {
                *x = parts.x;
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
        draft.stage.functions.push(Function {
            printed: Printed {
                code: printed,
                plain,
                operands,
                steps,
                runs,
            },
            values,
        });
        let f = draft.stage.functions.len() - 1;
        draft.stage.drafts.push(Draft {
            make: Make::Printed(f),
            dst: None,
            sources: [None; 3],
            x: 0,
            hidden: Hidden::None,
        });
        draft.stage.drafts.extend(after);
        Ok(())
    }
}
