//! Compiled functions: they are recorded once and run any number of times.
//!
//! A run takes values of arguments, cells and random numbers. It returns results and the next values of cells, which
//! it commits as lazy reads do ([`commit`]). The [`Signature`] describes the plan's inputs and outputs; this module
//! has only the cells and tensors that they depend on. The caller maps the arguments to the user's types.

mod record;
mod small;
mod verify;

use self::small::Small;
use super::commit::{self, CellUpdate, Donor, Inputs, Running};
use super::gather::Gather;
use super::read::{self, OnFailure};
use super::{anomaly, errors, profiler};
use crate::cell::{Busy, Cell};
use crate::label::called;
use crate::node::Node;
use crate::{Device, Error, ErrorKind, Handle, Result, random, symbols};
use kiln_base::{DType, Dim, Loc};
use kiln_compiler::{Explain, Options, Stages};
use kiln_ir::{Fact, Graph, Output, Role};
use kiln_plan::{Entry, Input, Named, Plan, Signature, State, Symbol};
use kiln_runtime::{Buffer, Executable};
pub use record::Compiling;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// The name of the op in errors of a run.
const RUN: &str = "Compiled::run";

/// An argument of a compiled function.
pub struct Argument {
    /// Its path among the arguments.
    pub path: String,
    /// Dtype and shape; a size is a number or a symbol.
    pub fact: Fact,
    /// Its device.
    pub device: Device,
}

/// A compiled function without the types of its arguments and results.
pub struct Program {
    executable: Executable,
    /// The plan's inputs and outputs. The arguments are the first inputs, in their order.
    signature: Signature,
    /// The values of the captured tensors.
    captured: Vec<Buffer>,
    /// The cells of its states.
    cells: Vec<Arc<Cell>>,
    explain: Explain,
    stages: Arc<Stages>,
    options: Options,
    /// The device of the program and its arguments.
    device: Device,
    /// The recorded ops, for messages.
    gather: Arc<Gather>,
    /// The outputs of the program.
    outputs: Vec<Output>,
    /// The same function for symbols that are 0 or 1, which no plan with symbols takes.
    small: Mutex<Vec<(Small, Arc<Program>)>>,
    loc: &'static Location<'static>,
}

impl Program {
    /// Runs the function. Runs that write the same cell wait for each other.
    ///
    /// # Errors
    /// If the arguments do not match, or the run fails; cells then keep their values.
    pub fn run_at(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Handle>> {
        errors::check_process(RUN, loc)?;
        self.check(RUN, arguments, loc)?;
        if let Some(small) = self.for_small(arguments, loc)? {
            return small.run_at(arguments, loc);
        }
        if anomaly::is_anomaly_enabled() {
            let names = self.symbol_names();
            let graph = record::graph(&self.gather, &self.outputs, (&names, &[]), loc)?;
            let inputs = self.inputs(RUN, arguments, loc)?;
            anomaly::check(&self.gather, graph, self.options.gpu, &inputs, loc)?;
        }
        read::realize_at(arguments, loc)?;
        // Everything except the cells that are written is read before those are locked: a run that waits for a cell
        // holds none.
        let keys = self.keys(arguments, |n| random::reserve_default(n as u64), loc)?;
        let mut inputs = self.known_inputs(arguments, &keys, |s| s.output.is_none(), loc)?;
        let cells = self.take_written(loc)?;
        for (cell, state) in self.written() {
            if let Some(input) = state.input {
                inputs[input as usize] = Some(self.value(&cell.now(), loc)?);
            }
        }
        let mut running = Running::new(self.complete_inputs(inputs, loc)?, self.donors(&cells));
        let values = running.run(|inputs, donate| {
            profiler::run_profiled(&self.executable, &self.explain, inputs, loc, |i| {
                self.executable.run(i, donate)
            })
        });
        let values = values.map_err(|e| {
            let placeholder = |node: &Arc<Node>| self.placeholder_value(node, running.inputs());
            errors::run_error_with(e, &self.gather, loc, &placeholder)
        })?;
        let updates = self.written().filter_map(|(cell, state)| {
            Some(CellUpdate {
                cell: busy(&cells, cell),
                position: state.output? as usize,
                old: state.input.map(|i| i as usize),
                loc,
            })
        });
        let watched = running.finish(&values, updates, &self.plan().sites, &self.gather);
        drop(cells);
        watched.see();
        self.renew_copies(loc)?;
        let result = |named: &Named| {
            let value = values[named.at as usize].unshared();
            let value = value.map_err(|e| errors::run_error(e, &self.gather, loc))?;
            Ok(Handle::leaf(value, Role::Data, Some(self.device), loc, RUN))
        };
        self.signature.results.iter().map(result).collect()
    }

    /// Returns the value of a placeholder in a run.
    fn placeholder_value(&self, node: &Arc<Node>, inputs: &[Buffer]) -> Option<Buffer> {
        let placeholders = self.gather.entries.iter().filter(|e| e.is_input);
        let input = placeholders
            .zip(inputs)
            .find(|(e, _)| Arc::ptr_eq(&e.node, node));
        input.map(|(_, buffer)| buffer.clone())
    }

    fn check(
        &self,
        op: &'static str,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<()> {
        let fail = |m: String| Err(Error::new(ErrorKind::Value, op, m, loc));
        for (t, (named, input)) in arguments.iter().zip(self.argument_inputs()) {
            t.check()?;
            let (dims, sizes) = (t.dims(), &input.shape);
            let is_accepted = t.dtype() == input.dtype
                && (t.node.device.is_none() || t.device() == self.device)
                && dims.len() == sizes.len()
                && (dims.iter().zip(sizes)).all(|(d, size)| match size.as_const() {
                    Some(n) => d.is(n),
                    None => d.as_const().is_some(),
                });
            if !is_accepted {
                let (fact, device) = (t.fact(), t.device());
                let (name, input) = (called("argument", &named.name), self.describe(input));
                return fail(format!("{name} must be {input}, not {fact} on {device}"));
            }
        }
        self.sizes_agree(arguments).or_else(fail)?;
        self.states_agree().or_else(fail)
    }

    /// Renews the narrow copies of cells that got these after the function was compiled: the function assigns only
    /// the cells.
    fn renew_copies(&self, loc: &'static Location<'static>) -> Result<()> {
        for (cell, _) in self.written() {
            let Some(narrow) = cell.leaf.narrow() else {
                continue;
            };
            let mut written = self.written();
            if !written.any(|(cell, _)| Arc::ptr_eq(cell, narrow.cell())) {
                let renewed = narrow.renew(loc);
                renewed.map_err(|e| Error::new(ErrorKind::Internal, RUN, e.to_string(), loc))?;
            }
        }
        Ok(())
    }

    /// Checks that no cell was shared, or changed its dtype or shape, since the function was compiled.
    fn states_agree(&self) -> Result<(), String> {
        for (state, cell) in self.signature.states.iter().zip(&self.cells) {
            let (plan, leaf) = (self.plan(), &cell.leaf);
            let read = state.input.map(|i| &plan.inputs[i as usize]);
            let written = state.output.map(|o| &plan.outputs[o as usize]);
            let name = || {
                let label = leaf.label.get();
                label.map_or_else(|| state.name.clone(), |label| label.to_string())
            };
            if cell.is_shared() && read.is_some_and(|i| i.role == Role::Parameter) {
                return Err(format!(
                    "`{}` was shared with other processes after the function was compiled; compile it again",
                    name()
                ));
            }
            let recorded = read.map(|i| (i.dtype, &i.shape));
            let recorded = recorded.or_else(|| written.map(|o| (o.dtype, &o.shape)));
            let differs = |(dtype, shape): &(DType, &Vec<Dim>)| {
                *dtype != leaf.dtype() || shape[..] != leaf.shape()[..]
            };
            if let Some((dtype, shape)) = recorded.filter(differs) {
                let (now, recorded) = (leaf.fact(), Fact::new(dtype, shape.iter().cloned()));
                return Err(format!(
                    "`{}` is {now} now, but was {recorded} when the function was compiled; compile it again",
                    name()
                ));
            }
        }
        Ok(())
    }

    /// Returns the arguments with their inputs.
    fn argument_inputs(&self) -> impl Iterator<Item = (&Named, &Input)> {
        self.signature.arguments.iter().zip(&self.plan().inputs)
    }

    /// Describes dtype, shape and device of an argument, with the user's names of symbols.
    fn describe(&self, input: &Input) -> String {
        let fact = Fact::new(input.dtype, input.shape.clone());
        let fact = symbols::replace_symbols(&fact.to_string(), &self.symbol_names());
        match self.device {
            Device::Cpu => fact,
            device => format!("{fact} on {device}"),
        }
    }

    fn symbol_names(&self) -> Vec<String> {
        let symbols = self.plan().symbols.iter();
        symbols.map(|s| s.name.clone()).collect()
    }

    /// Checks that all arguments give a symbol the same size.
    fn sizes_agree(&self, arguments: &[&Handle]) -> Result<(), String> {
        for (t, (named, input)) in arguments.iter().zip(self.argument_inputs()) {
            for (axis, size) in input.shape.iter().enumerate() {
                let Some(symbol) = size.max_symbol() else {
                    continue;
                };
                let symbol = &self.plan().symbols[symbol.0 as usize];
                let (actual, at) = (&t.dims()[axis], symbol.axis as usize);
                let defining = arguments[symbol.input as usize];
                if defining.dims()[at] != *actual {
                    let named_defining = &self.signature.arguments[symbol.input as usize];
                    return Err(format!(
                        "`{}` is {} by dim {at} of {}, {}, but {actual} by dim {axis} of {}, {}",
                        symbol.name,
                        defining.dims()[at],
                        called("argument", &named_defining.name),
                        defining.fact(),
                        called("argument", &named.name),
                        t.fact()
                    ));
                }
            }
        }
        Ok(())
    }

    /// The states that a run gives new values, and their cells.
    fn written(&self) -> impl Iterator<Item = (&Arc<Cell>, &State)> {
        let states = self.cells.iter().zip(&self.signature.states);
        states.filter(|(_, s)| s.output.is_some())
    }

    /// Takes the cells that the run writes, in the order of their ids, and computes their values.
    fn take_written(&self, loc: &'static Location<'static>) -> Result<Vec<Busy>> {
        let written: Vec<Arc<Cell>> = self.written().map(|(cell, _)| cell.clone()).collect();
        if written.is_empty() {
            return Ok(Vec::new());
        }
        let cells = commit::take(written, &[]);
        // Computed while the cells are taken: no new value can be assigned to them meanwhile.
        let held: Vec<Handle> = cells.iter().map(|b| b.state().current.clone()).collect();
        let held: Vec<&Handle> = held.iter().collect();
        read::realize_with(&held, OnFailure::RollBack, &cells, loc)?;
        Ok(cells)
    }

    /// The old values of the cells that nothing else holds.
    fn donors(&self, cells: &[Busy]) -> SmallVec<[Donor; 4]> {
        let donor = |(cell, state): (&Arc<Cell>, &State)| {
            let input = state.input? as usize;
            let leaf = busy(cells, cell).state().sole_leaf()?;
            Some(Donor { input, leaf })
        };
        self.written().filter_map(donor).collect()
    }

    /// The inputs, without the values of states that `is_wanted` rejects.
    fn known_inputs(
        &self,
        arguments: &[&Handle],
        keys: &[[i64; 2]],
        is_wanted: impl Fn(&State) -> bool,
        loc: &'static Location<'static>,
    ) -> Result<SmallVec<[Option<Buffer>; 4]>> {
        let Signature {
            captured,
            states,
            draws,
            ..
        } = &self.signature;
        let mut inputs = SmallVec::from_elem(None, self.plan().inputs.len());
        for (input, t) in inputs.iter_mut().zip(arguments) {
            *input = Some(self.value(t, loc)?);
        }
        for (named, buffer) in captured.iter().zip(&self.captured) {
            inputs[named.at as usize] = Some(buffer.clone());
        }
        for (state, cell) in states.iter().zip(&self.cells).filter(|(s, _)| is_wanted(s)) {
            if let Some(input) = state.input {
                let current = cell.idle().current.clone();
                inputs[input as usize] = Some(self.value(&current, loc)?);
            }
        }
        for (draw, key) in draws.iter().zip(keys) {
            if let Some(input) = draw.input {
                let key = Buffer::from_slice(key, &[2]);
                let key = key.map_err(|e| errors::run_error(e, &self.gather, loc))?;
                inputs[input as usize] = Some(key);
            }
        }
        Ok(inputs)
    }

    fn complete_inputs(
        &self,
        inputs: SmallVec<[Option<Buffer>; 4]>,
        loc: &'static Location<'static>,
    ) -> Result<Inputs> {
        let missing = || Error::new(ErrorKind::Internal, RUN, "an input has no value", loc);
        let inputs = inputs.into_iter();
        inputs.map(|i| i.ok_or_else(missing)).collect()
    }

    /// A computed value, on the program's device.
    fn value(&self, t: &Handle, loc: &'static Location<'static>) -> Result<Buffer> {
        let buffer = self.device.bring(read::value(t, loc)?);
        buffer.map_err(|e| errors::run_error(e, &self.gather, loc))
    }

    /// The values of the symbols.
    fn values(&self, arguments: &[&Handle]) -> SmallVec<[i64; 4]> {
        let value = |s: &Symbol| arguments[s.input as usize].dims()[s.axis as usize].as_const();
        let values = self.plan().symbols.iter().map(value);
        values.map(|v| v.unwrap_or(0)).collect()
    }

    /// The random keys of a run: consecutive ranges in recording order, as if the function had been recorded
    /// lazily.
    fn keys(
        &self,
        arguments: &[&Handle],
        reserve: impl FnOnce(i64) -> [i64; 2],
        loc: &'static Location<'static>,
    ) -> Result<Vec<[i64; 2]>> {
        let keys = self.signature.keys(&self.values(arguments), reserve);
        let text = "draws more random numbers than an i64 counts";
        keys.ok_or_else(|| Error::new(ErrorKind::Value, RUN, text, loc))
    }

    /// Returns the inputs of a run that changes nothing: the current values of cells, and the random keys of the next
    /// run.
    fn inputs(
        &self,
        op: &'static str,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Inputs> {
        self.check(op, arguments, loc)?;
        if self.values(arguments).iter().any(|v| *v < 2) {
            let text =
                "a symbolic size must be at least 2 here: sizes of 0 and 1 have plans of their own";
            return Err(Error::new(ErrorKind::Value, op, text, loc));
        }
        read::realize_at(arguments, loc)?;
        let next = || random::get_rng_state().map(|w| w as i64);
        let keys = self.keys(arguments, |_| next(), loc)?;
        self.complete_inputs(self.known_inputs(arguments, &keys, |_| true, loc)?, loc)
    }

    /// A report of the compiler's decisions and their reasons.
    pub fn explain(&self) -> &Explain {
        &self.explain
    }

    /// The program as data.
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// The plan's inputs and outputs: arguments and results by their paths, states by the names of their cells,
    /// captured tensors by those of the cells that they were read from.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The tensors of [`Signature::captured`].
    pub fn captured(&self) -> impl Iterator<Item = Handle> {
        let handle = |b: &Buffer| {
            let device = Some(self.device);
            Handle::leaf(b.clone(), Role::Data, device, self.loc, "compile")
        };
        self.captured.iter().map(handle)
    }

    /// The cells of [`Signature::states`].
    pub fn cells(&self) -> &[Arc<Cell>] {
        &self.cells
    }

    /// The program with everything except values, to be saved outside the process.
    pub fn entry(&self) -> Entry {
        Entry {
            signature: self.signature.clone(),
            plan: self
                .stages
                .for_packages
                .as_ref()
                .unwrap_or(self.plan())
                .clone(),
        }
    }

    /// [`Program::entry`] as bytes, which `kiln_plan` reads and `kiln_runtime` runs with nothing else linked.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.entry().to_bytes()
    }

    /// The program as it was recorded.
    pub fn recorded(&self) -> &Graph {
        &self.stages.recorded
    }

    /// The executable, for its statistics.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// The line where `compile` was called.
    pub fn loc(&self) -> Loc {
        Loc::from(self.loc)
    }
}

/// Returns the taken cell; `taken` is sorted by ids.
fn busy<'a>(taken: &'a [Busy], cell: &Cell) -> &'a Busy {
    &taken[taken.partition_point(|b| b.cell().id < cell.id)]
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernels = self.explain.kernels_run();
        write!(f, "Compiled({kernels} kernels at {})", self.loc)
    }
}
