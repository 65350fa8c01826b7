//! Loops and branches: functions that run the plans inside them.

use super::dialect::memory;
use super::kernel::EmittedKernel;
use super::program::{Memory, Printer};
use super::text::Text;
use super::tile::{Function, Param, pointer};
use crate::error::{Error, Result};
use kiln_plan::memory::ALIGN;
use kiln_plan::{Described, If, Loop, Plan};

/// A loop or branch that is being emitted: its name, its arguments, and the error numbers of its sites.
pub(super) struct Bodies<'a> {
    pub name: String,
    /// The memory of each argument: a constant tensor, or an array of this name.
    pub args: Vec<Memory>,
    pub values: &'a [i64],
    pub sites: Vec<u32>,
}

impl Bodies<'_> {
    fn arg(&self, at: u16, printer: &mut Printer) -> Result<String> {
        printer.expression(&self.args[usize::from(at)])
    }

    /// Emits the function around a body.
    fn finish(
        self,
        kernel: &dyn Described,
        body: Text,
        scratch: usize,
        printer: &mut Printer,
    ) -> Result<EmittedKernel> {
        let contract = kernel.contract();
        let contract = contract.map_err(|e| Error::Damaged(e.to_string()))?;
        let mut params: Vec<Param> = Vec::new();
        let mut args = Vec::new();
        for (i, (arg, of)) in contract.args.iter().zip(&self.args).enumerate() {
            let Memory::At(name) = of else { continue };
            if params.iter().any(|p| p.name == *name) {
                continue;
            }
            params.push(Param {
                name: name.clone(),
                text: pointer(memory(arg.dtype), arg.writes, name),
            });
            args.push((i, None));
        }
        let mut head: Vec<String> = params.iter().map(|p| p.text.clone()).collect();
        let mut unused: Vec<String> = params.iter().map(|p| p.name.clone()).collect();
        if printer.in_file() {
            head.push("const unsigned char *weights".into());
            unused.push("weights".into());
        }
        head.push("int *failed".into());
        head.push("unsigned char *scratch".into());
        unused.extend(["failed".into(), "scratch".into()]);
        let text = &mut printer.functions;
        text.open(format!("static void {}({})", self.name, head.join(", ")));
        text.block(&body.into_string());
        for name in unused {
            text.line(format!("(void){name};"));
        }
        text.close();
        text.line("");
        Ok(EmittedKernel {
            function: Function {
                name: self.name,
                params,
                fails: true,
                scratch: scratch.max(ALIGN),
            },
            args,
        })
    }
}

/// The buffers of a plan that are known before it runs.
fn known(plan: &Plan, printer: &mut Printer) -> Vec<Option<Memory>> {
    let mut known = vec![None; plan.buffers.len()];
    for c in &plan.constants {
        let source = printer.weights.add(c.dtype, c.bytes.clone());
        known[c.buffer.0 as usize] = Some(Memory::Fixed(source));
    }
    known
}

fn elements(shape: &[kiln_base::Dim], values: &[i64]) -> Result<i64> {
    Ok(super::numbers::numbers(shape, values)?.iter().product())
}

/// Emits a loop.
pub(super) fn each(printer: &mut Printer, l: &Loop, of: Bodies<'_>) -> Result<EmittedKernel> {
    let plan = &*l.body;
    let trips = super::numbers::number(&l.trips, of.values)?;
    let mut text = Text::default();
    let mut known = known(plan, printer);
    let mut scratch = 0;
    let mut room = |bytes: usize| {
        let at = scratch;
        scratch += bytes.next_multiple_of(ALIGN);
        at
    };
    let carried = l.first.len();
    let mut spares = Vec::new();
    for (i, (first, last)) in l.first.iter().zip(&l.last).enumerate() {
        let input = &plan.inputs[1 + i];
        let bytes = elements(&input.shape, of.values)? as usize * input.dtype.size();
        let (from, to) = (of.arg(*first, printer)?, of.arg(*last, printer)?);
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
    text.line(format!("const kiln_int step = {step};"));
    text.line("const int64_t number = step;");
    text.line("(void)number;");
    let input = |i: usize| plan.inputs[i].buffer.0 as usize;
    let output = |i: usize| plan.outputs[i].buffer.0 as usize;
    known[input(0)] = Some(Memory::At("&number".into()));
    for (i, (ty, spare, from, to, _)) in spares.iter().enumerate() {
        text.line(format!(
            "{ty} *const spare{i} = ({ty} *)(void *)(scratch + {spare});"
        ));
        // The last step writes to the place of the result.
        text.line(format!(
            "{ty} *const next{i} = ({trips} - t) % 2 == 1 ? {to} : spare{i};"
        ));
        text.line(format!(
            "const {ty} *const now{i} = t == 0 ? {from} : ({trips} - t) % 2 == 1 ? spare{i} : {to};"
        ));
        text.line(format!("(void)now{i};"));
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
        let at = 1 + carried + i;
        let len = elements(&plan.inputs[at].shape, of.values)?;
        let array = of.arg(*arg, printer)?;
        known[input(at)] = Some(Memory::At(format!("({array} + step * {len})")));
    }
    for (i, arg) in l.alike.iter().enumerate() {
        let at = 1 + carried + l.scanned.len() + i;
        known[input(at)] = Some(of.args[usize::from(*arg)].clone());
    }
    for (i, arg) in l.stacked.iter().enumerate() {
        let len = elements(&plan.outputs[carried + i].shape, of.values)?;
        let array = of.arg(*arg, printer)?;
        known[output(carried + i)] = Some(Memory::At(format!("({array} + step * {len})")));
    }
    let arena = room(0);
    let needs = printer.frame(
        plan,
        &known,
        (of.values, &of.sites),
        &format!("scratch + {arena}"),
        &mut text,
    )?;
    room(needs);
    text.close();
    of.finish(l, text, scratch, printer)
}

/// Emits a branch.
pub(super) fn branch(printer: &mut Printer, b: &If, of: Bodies<'_>) -> Result<EmittedKernel> {
    let mut text = Text::default();
    let condition = of.arg(b.condition, printer)?;
    let mut scratch = 0;
    let mut first = 0;
    for (i, plan) in b.branches.iter().enumerate() {
        match i {
            0 => text.open(format!("if ({condition}[0])")),
            _ => text.open("else"),
        }
        let mut known = known(plan, printer);
        for (input, arg) in plan.inputs.iter().zip(&b.inputs) {
            known[input.buffer.0 as usize] = Some(of.args[usize::from(*arg)].clone());
        }
        for (output, arg) in plan.outputs.iter().zip(&b.outputs) {
            known[output.buffer.0 as usize] = Some(of.args[usize::from(*arg)].clone());
        }
        let sites = &of.sites[first..];
        first += plan.sites.len().min(sites.len());
        let needs = printer.frame(plan, &known, (of.values, sites), "scratch", &mut text)?;
        scratch = scratch.max(needs);
        text.close();
    }
    of.finish(b, text, scratch, printer)
}
