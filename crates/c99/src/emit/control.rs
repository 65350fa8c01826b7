//! Loops and branches: functions that run the plans inside them.

use super::dialect::memory;
use super::kernel::EmittedKernel;
use super::numbers::{elements, number};
use super::program::{Memory, ProgramEmitter};
use super::text::Text;
use super::tile::{ArrayParams, Function};
use crate::error::{Error, Result};
use kiln_plan::memory::ALIGN;
use kiln_plan::{Described, If, Loop};

/// A loop or branch that is being emitted: its name, its arguments, and the error numbers of its sites.
pub(super) struct Bodies<'a> {
    pub name: String,
    /// The memory of each argument: a constant tensor, or an array of this name.
    pub args: Vec<Memory>,
    pub values: &'a [i64],
    pub sites: Vec<u32>,
}

impl Bodies<'_> {
    fn arg(&self, at: u16, emitter: &mut ProgramEmitter) -> Result<String> {
        emitter.expression(&self.args[usize::from(at)])
    }

    /// Emits the function around a body.
    fn finish(
        self,
        kernel: &dyn Described,
        body: Text,
        scratch: usize,
        emitter: &mut ProgramEmitter,
    ) -> Result<EmittedKernel> {
        let contract = kernel.contract();
        let contract = contract.map_err(|e| Error::Damaged(e.to_string()))?;
        let mut params = ArrayParams::default();
        let mut args = Vec::new();
        for (i, (arg, memory)) in contract.args.iter().zip(&self.args).enumerate() {
            if let Memory::At(name) = memory
                && params.add(name, arg.dtype, arg.writes)
            {
                args.push((i, None));
            }
        }
        let function = Function {
            name: self.name,
            params,
            fails: true,
            scratch: scratch.max(ALIGN),
        };
        let weights: &[&str] = match emitter.in_file() {
            true => &["const unsigned char *weights"],
            false => &[],
        };
        let text = &mut emitter.functions;
        function.open(weights, text);
        text.block(&body.into_string());
        let mut unused = function.params.names();
        unused.extend(["failed", "scratch"].map(String::from));
        unused.extend(weights.iter().map(|_| "weights".into()));
        for name in unused {
            text.line(format!("(void){name};"));
        }
        text.close();
        text.line("");
        Ok(EmittedKernel { function, args })
    }
}

/// Emits a loop.
pub(super) fn emit_loop(
    emitter: &mut ProgramEmitter,
    l: &Loop,
    bodies: Bodies<'_>,
) -> Result<EmittedKernel> {
    let plan = &*l.body;
    let trips = number(&l.trips, bodies.values)?;
    let mut text = Text::default();
    let mut known = emitter.known(plan);
    let mut scratch = 0;
    let mut room = |bytes: usize| {
        let arena = scratch;
        scratch += bytes.next_multiple_of(ALIGN);
        arena
    };
    let carried = l.first.len();
    let mut spares = Vec::new();
    for (i, (start, end)) in l.first.iter().zip(&l.last).enumerate() {
        let input = &plan.inputs[1 + i];
        let bytes = elements(&input.shape, bodies.values)? as usize * input.dtype.size();
        let (from, to) = (bodies.arg(*start, emitter)?, bodies.arg(*end, emitter)?);
        if trips == 0 {
            text.line(format!("memcpy({to}, {from}, {bytes});"));
        }
        spares.push((memory(input.dtype), room(bytes), from, to, bytes));
    }
    text.open(format!("for (kiln_int t = 0; t < {trips}; ++t)"));
    let step = match l.reverse {
        true => format!("{} - t", trips - 1),
        false => "t".into(),
    };
    text.block(&format!(
        "\
const kiln_int step = {step};
const int64_t number = step;
(void)number;"
    ));
    let input = |i: usize| plan.inputs[i].buffer.0 as usize;
    let output = |i: usize| plan.outputs[i].buffer.0 as usize;
    known[input(0)] = Some(Memory::At("&number".into()));
    for (i, (ty, spare, from, to, _)) in spares.iter().enumerate() {
        // The last step writes to the place of the result.
        text.block(&format!(
            "\
{ty} *const spare{i} = ({ty} *)(void *)(scratch + {spare});
{ty} *const next{i} = ({trips} - t) % 2 == 1 ? {to} : spare{i};
const {ty} *const now{i} = t == 0 ? {from} : ({trips} - t) % 2 == 1 ? spare{i} : {to};
(void)now{i};"
        ));
        known[input(1 + i)] = Some(Memory::At(format!("now{i}")));
        known[output(i)] = Some(Memory::At(format!("next{i}")));
    }
    if l.conditional {
        text.open("if (!now0[0])");
        for (i, (.., to, bytes)) in spares.iter().enumerate() {
            text.line(format!(
                "if (now{i} != {to}) memcpy({to}, now{i}, {bytes});"
            ));
        }
        text.line("break;");
        text.close();
    }
    for (i, arg) in l.scanned.iter().enumerate() {
        let index = 1 + carried + i;
        let len = elements(&plan.inputs[index].shape, bodies.values)?;
        let array = bodies.arg(*arg, emitter)?;
        known[input(index)] = Some(Memory::At(format!("({array} + step * {len})")));
    }
    for (i, arg) in l.alike.iter().enumerate() {
        let index = 1 + carried + l.scanned.len() + i;
        known[input(index)] = Some(bodies.args[usize::from(*arg)].clone());
    }
    for (i, arg) in l.stacked.iter().enumerate() {
        let len = elements(&plan.outputs[carried + i].shape, bodies.values)?;
        let array = bodies.arg(*arg, emitter)?;
        known[output(carried + i)] = Some(Memory::At(format!("({array} + step * {len})")));
    }
    let arena = room(0);
    let needs = emitter.frame(
        plan,
        &known,
        (bodies.values, &bodies.sites),
        &format!("scratch + {arena}"),
        &mut text,
    )?;
    room(needs);
    text.close();
    bodies.finish(l, text, scratch, emitter)
}

/// Emits a branch.
pub(super) fn emit_branch(
    emitter: &mut ProgramEmitter,
    b: &If,
    bodies: Bodies<'_>,
) -> Result<EmittedKernel> {
    let mut text = Text::default();
    let condition = bodies.arg(b.condition, emitter)?;
    let mut scratch = 0;
    let mut first_arg = 0;
    for (i, plan) in b.branches.iter().enumerate() {
        match i {
            0 => text.open(format!("if ({condition}[0])")),
            _ => text.open("else"),
        }
        let mut known = emitter.known(plan);
        for (input, arg) in plan.inputs.iter().zip(&b.inputs) {
            known[input.buffer.0 as usize] = Some(bodies.args[usize::from(*arg)].clone());
        }
        for (output, arg) in plan.outputs.iter().zip(&b.outputs) {
            known[output.buffer.0 as usize] = Some(bodies.args[usize::from(*arg)].clone());
        }
        let sites = &bodies.sites[first_arg..];
        first_arg += plan.sites.len().min(sites.len());
        let needs = emitter.frame(plan, &known, (bodies.values, sites), "scratch", &mut text)?;
        scratch = scratch.max(needs);
        text.close();
    }
    bodies.finish(b, text, scratch, emitter)
}
