//! Programs: the kernels that run, and their memory.

use super::control::{self, Bodies};
use super::dialect::memory;
use super::kernel::{EmittedKernel, Emitter, View};
use super::numbers::{bytes, number};
use super::stage::Called;
use super::text::{Text, identifier};
use super::tile;
use super::weights::WeightTable;
use super::{attention, conv, ordered, product};
use crate::error::{Error, Result};
use kiln_plan::memory::{Temporaries, roots, solve};
use kiln_plan::{BufferId, Kernel, Plan, Step};
use std::collections::HashMap;
use std::rc::Rc;

/// The memory of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Memory {
    /// A constant tensor, by its number.
    Fixed(usize),
    /// An array that this expression points at.
    At(String),
}

/// The properties that a kernel is emitted for: its plan and its number there, the names of its arguments, the marks
/// of the constant ones, and the error numbers of its sites.
type Key = (usize, u32, Vec<String>, Vec<bool>, Vec<u32>);

/// Emits the kernels of programs, each once.
pub(crate) struct ProgramEmitter {
    /// The prefix of names.
    pub prefix: String,
    pub functions: Text,
    pub weights: WeightTable,
    in_file: bool,
    emitted: HashMap<Key, Rc<EmittedKernel>>,
    count: usize,
}

/// A step with the function that it calls.
struct Ready {
    emitted: Rc<EmittedKernel>,
    buffers: Vec<BufferId>,
}

impl ProgramEmitter {
    /// An emitter whose weights are in a file, or in arrays.
    pub fn new(prefix: &str, in_file: bool) -> ProgramEmitter {
        ProgramEmitter {
            prefix: prefix.into(),
            functions: Text::default(),
            weights: WeightTable::default(),
            in_file,
            emitted: HashMap::new(),
            count: 0,
        }
    }

    /// True if weights are in a file, which functions get as `weights`.
    pub fn in_file(&self) -> bool {
        self.in_file
    }

    /// The buffers of a plan that are known before it runs: its constants.
    pub fn known(&mut self, plan: &Plan) -> Vec<Option<Memory>> {
        let mut known = vec![None; plan.buffers.len()];
        for c in &plan.constants {
            let source = self.weights.add(c.dtype, c.bytes.clone());
            known[c.buffer.0 as usize] = Some(Memory::Fixed(source));
        }
        known
    }

    /// A pointer to the contents of a buffer.
    pub fn expression(&mut self, of: &Memory) -> Result<String> {
        Ok(match of {
            Memory::At(text) => text.clone(),
            Memory::Fixed(source) => {
                format!("{}_w{}", self.prefix, self.weights.array(*source, None)?)
            }
        })
    }

    /// Emits the calls of a plan's run and returns the bytes of the arena that they use. `known` are the buffers
    /// that are not temporaries, `sites` the error numbers of the plan's sites.
    pub fn frame(
        &mut self,
        plan: &Plan,
        known: &[Option<Memory>],
        (values, sites): (&[i64], &[u32]),
        arena: &str,
        text: &mut Text,
    ) -> Result<usize> {
        let root = roots(plan).map_err(Error::Damaged)?;
        let mut steps = Vec::new();
        for step in &plan.run {
            steps.push(self.prepare_step(plan, step, (known, &root), (values, sites))?);
        }
        let sizes = plan.buffers.iter();
        let sizes = sizes.map(|b| bytes(number(&b.len, values)?, b.dtype));
        let bytes = sizes.collect::<Result<Vec<_>>>()?;
        let room = |i: usize| steps[i].emitted.function.scratch;
        let temporaries = Temporaries::new(plan, &plan.run, &bytes, &root, room);
        let layout = solve(&temporaries.blocks);
        let offset_of =
            |buffer: usize| temporaries.of[root[buffer]].map(|block| layout.offsets[block]);
        for (i, step) in steps.iter().enumerate() {
            let mut arrays = Vec::new();
            for (arg, view) in &step.emitted.args {
                let buffer = step.buffers[*arg].0 as usize;
                let address = (arena, offset_of(buffer));
                arrays.push(self.array(plan, known, buffer, view.clone(), address)?);
            }
            let guard = plan.run[i].guard;
            if let Some(guard) = guard {
                let mut array = |buffer: usize| {
                    self.array(plan, known, buffer, None, (arena, offset_of(buffer)))
                };
                text.open(format!("if (*{})", array(guard.0 as usize)?));
                // A skipped step keeps the previous contents.
                for (to, from) in guarded_outputs(plan, &plan.run[i])? {
                    let (bytes, to, from) = (bytes[to], array(to)?, array(from)?);
                    text.line(format!(
                        "if ({to} != {from}) memcpy({to}, {from}, {bytes});"
                    ));
                }
                text.close();
                text.open("else");
            }
            let offset = temporaries.scratch[i].map_or(0, |block| layout.offsets[block]);
            let kernel = &plan.kernels[plan.run[i].kernel as usize];
            let weights = match (self.in_file, &**kernel) {
                (true, Kernel::Loop(_) | Kernel::If(_)) => vec!["weights".to_string()],
                _ => Vec::new(),
            };
            let function = &step.emitted.function;
            text.line(function.call(&arrays, &weights, &format!("{arena} + {offset}")));
            if guard.is_some() {
                text.close();
            }
        }
        Ok(layout.peak)
    }

    /// The pointer that a function gets for a buffer, which may lie at an offset of the arena.
    fn array(
        &mut self,
        plan: &Plan,
        known: &[Option<Memory>],
        buffer: usize,
        view: Option<View>,
        (arena, offset): (&str, Option<usize>),
    ) -> Result<String> {
        Ok(match (&known[buffer], offset) {
            (Some(Memory::Fixed(source)), _) => {
                let array = self.weights.array(*source, view)?;
                format!("{}_w{array}", self.prefix)
            }
            (Some(Memory::At(name)), _) => name.clone(),
            (None, Some(offset)) => {
                let ctype = memory(plan.buffers[buffer].dtype);
                format!("({ctype} *)(void *)({arena} + {offset})")
            }
            (None, None) => return Err(Error::Damaged("a buffer nowhere".into())),
        })
    }

    /// The function of a step.
    fn prepare_step(
        &mut self,
        plan: &Plan,
        step: &Step,
        (known, root): (&[Option<Memory>], &[usize]),
        (values, sites): (&[i64], &[u32]),
    ) -> Result<Ready> {
        let kernel = &*plan.kernels[step.kernel as usize];
        let sites: Vec<u32> = (step.sites.iter())
            .map(|s| sites.get(*s as usize).copied().unwrap_or(0))
            .collect();
        let buffers = &step.args;
        let same = |a: &BufferId, b: &BufferId| {
            let (a, b) = (a.0 as usize, b.0 as usize);
            root[a] == root[b] || known[a].is_some() && known[a] == known[b]
        };
        let named = buffers.iter().map(|b| {
            let alias = buffers.iter().position(|other| same(other, b));
            format!("a{}", alias.unwrap_or(0))
        });
        let names: Vec<String> = named.collect();
        let args = buffers.iter().map(|b| known[b.0 as usize].as_ref());
        let is_fixed = |m: Option<&Memory>| matches!(m, Some(Memory::Fixed(_)));
        let fixed: Vec<bool> = args.clone().map(is_fixed).collect();
        let buffers = buffers.clone();
        let inside = matches!(kernel, Kernel::Loop(_) | Kernel::If(_));
        let key = (
            std::ptr::from_ref(plan).addr(),
            step.kernel,
            names.clone(),
            fixed.clone(),
            sites.clone(),
        );
        if let (Some(emitted), false) = (self.emitted.get(&key), inside) {
            let emitted = emitted.clone();
            return Ok(Ready { emitted, buffers });
        }
        let name = format!("{}_{}", identifier(kernel.name()), self.count);
        self.count += 1;
        let bodies = |sites| Bodies {
            name: name.clone(),
            args: (args.zip(&names))
                .map(|(m, name)| match m {
                    Some(Memory::Fixed(source)) => Memory::Fixed(*source),
                    _ => Memory::At(name.clone()),
                })
                .collect(),
            values,
            sites,
        };
        let emitted = match kernel {
            Kernel::Loop(l) => control::emit_loop(self, l, bodies(sites))?,
            Kernel::If(b) => control::emit_branch(self, b, bodies(sites))?,
            kernel => {
                let emitted = leaf(
                    &mut self.functions,
                    name,
                    kernel,
                    (&names, &fixed),
                    (&sites, values),
                );
                emitted.map_err(|e| e.in_kernel(kernel.name()))?
            }
        };
        let emitted = Rc::new(emitted);
        self.emitted.insert(key, emitted.clone());
        Ok(Ready { emitted, buffers })
    }
}

/// The buffers that a guarded step writes, each with the input that holds its value if the step is skipped.
fn guarded_outputs(plan: &Plan, step: &Step) -> Result<Vec<(usize, usize)>> {
    let damaged = || Error::Damaged("a guarded step writes an output without a donor".into());
    let contract = plan.kernels[step.kernel as usize].contract();
    let contract = contract.map_err(|_| damaged())?;
    let args = step.args.iter().zip(&contract.args);
    let guarded_outputs = args.filter(|(_, arg)| arg.writes).map(|(to, _)| {
        let output = plan.outputs.iter().find(|o| o.buffer == *to);
        let donor = output.and_then(|o| o.donor).ok_or_else(damaged)?;
        let from = plan.inputs.get(donor as usize).ok_or_else(damaged)?;
        Ok((to.0 as usize, from.buffer.0 as usize))
    });
    guarded_outputs.collect()
}

/// The reason why a kernel is not emitted.
fn refusal(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::AttentionGrad(_) => "gradients of attention are not emitted",
        Kernel::Custom(_) => "the package does not hold the code of custom operators",
        Kernel::Collective(_) => "it communicates with other processes",
        Kernel::Cuda(_) | Kernel::Library(_) => "it is for a GPU",
        _ => "it has no form in C",
    }
}

/// Emits a kernel that runs no other kernels.
fn leaf(
    text: &mut Text,
    name: String,
    kernel: &Kernel,
    args: (&[String], &[bool]),
    (sites, values): (&[u32], &[i64]),
) -> Result<EmittedKernel> {
    if let Kernel::Tile(program) = kernel {
        let function = tile::emit(
            &Called {
                name,
                program,
                values,
                args: args.0,
                sites,
                raw: None,
            },
            text,
        )?;
        let names = function.params.names().into_iter();
        let args = names.filter_map(|n| Some((args.0.iter().position(|name| *name == n)?, None)));
        let args = args.collect();
        return Ok(EmittedKernel { function, args });
    }
    let mut k = Emitter::new(name, kernel, args, (sites, values))?;
    match kernel {
        Kernel::MatMul(p) => product::emit(&mut k, p)?,
        Kernel::Conv(c) => conv::emit(&mut k, c)?,
        Kernel::Scan(s) => ordered::scan(&mut k, s)?,
        Kernel::ArgSort(s) => ordered::sort(&mut k, s)?,
        Kernel::Scatter(s) => ordered::scatter(&mut k, s)?,
        Kernel::Attention(a) => attention::emit(&mut k, a)?,
        other => return Err(Error::kernel("", refusal(other))),
    }
    Ok(k.finish(text))
}
