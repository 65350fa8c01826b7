//! Compiled functions: what was recorded once and runs any number of times.
//!
//! A run takes values of arguments, cells and random numbers, and gives results and the next values of cells,
//! which it commits as lazy reads do ([`commit`]). What its arguments are in the user's types is the business of
//! who calls it.

mod record;
mod small;
mod verify;

use self::small::Small;
use super::commit::{self, Donor, Given, Inputs, Running};
use super::gather::Gather;
use super::{anomaly, errors, profiler, read};
use crate::cell::{Busy, Cell};
use crate::node::Node;
use crate::{Device, Error, ErrorKind, Handle, Result, random, symbols};
use kiln_base::{Dim, Loc};
use kiln_compiler::{Explain, Options, Stages};
use kiln_ir::{Fact, Output, Role};
use kiln_plan::Plan;
use kiln_runtime::{Buffer, Executable};
pub use record::Compiling;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// What errors of a run are of.
const RUN: &str = "Compiled::run";

/// What a compiled function is given.
#[derive(Clone)]
pub struct Argument {
    /// What messages call it.
    pub name: String,
    /// Dtype and shape; a size is a number or a symbol.
    pub fact: Fact,
    /// Where it is.
    pub device: Device,
}

/// Where a plan input comes from at each run.
#[derive(Clone)]
enum Binding {
    Argument(usize),
    Captured(Buffer),
    Cell(usize),
    Key(usize),
}

/// What was compiled, apart from the types of what it takes and gives: what every compiled function holds.
pub struct Program {
    executable: Executable,
    explain: Explain,
    stages: Arc<Stages>,
    options: Options,
    device: Device,
    takes: Vec<Argument>,
    /// The names of the symbols.
    names: Vec<String>,
    bindings: Vec<Binding>,
    /// The cells that it reads or writes.
    cells: Vec<Arc<Cell>>,
    /// How many numbers each use of a generator draws, in recording order.
    keys: Vec<Dim>,
    /// Positions of the results among the plan's outputs.
    results: Vec<usize>,
    writes: Vec<Write>,
    /// For each of `cells` whether it is among `writes`.
    written: Vec<bool>,
    /// For each symbol the argument and axis that give it.
    symbols: Vec<(usize, usize)>,
    /// For messages: the recorded ops.
    gather: Arc<Gather>,
    /// What the program was asked for.
    asked: Vec<Output>,
    /// The same function for symbols that are 0 or 1, which no plan with symbols takes.
    small: Mutex<Vec<(Small, Arc<Program>)>>,
    loc: &'static Location<'static>,
}

#[derive(Clone)]
struct Write {
    cell: usize,
    /// Its place among the cells that a run takes.
    taken: usize,
    output: usize,
    /// The plan input that holds the old value.
    input: Option<usize>,
}

impl Program {
    /// Runs the function. Runs that write the same cell wait for each other.
    ///
    /// # Errors
    /// If the arguments are others than it takes, or what goes wrong in the run; cells then keep their values.
    pub fn run_at(
        &self,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Handle>> {
        errors::check_process(RUN, loc)?;
        self.check(RUN, arguments, loc)?;
        if let Some(other) = self.for_small(arguments, loc)? {
            return other.run_at(arguments, loc);
        }
        if anomaly::is_anomaly_enabled() {
            let graph = record::graph(&self.gather, &self.asked, (&self.names, &[]), loc)?;
            let inputs = self.inputs(RUN, arguments, loc)?;
            anomaly::check(&self.gather, graph, self.options.gpu, &inputs, loc)?;
        }
        read::realize_at(arguments, loc)?;
        // Everything but the cells that are written is read before those are locked: a run that waits
        // for a cell holds none.
        let counts = self.draws(arguments);
        let keys = match counts.is_empty() {
            true => SmallVec::new(),
            false => keys(
                random::reserve_default(counts.iter().sum::<i64>() as u64),
                &counts,
            ),
        };
        let mut inputs: SmallVec<[Option<Buffer>; 8]> = SmallVec::new();
        for binding in &self.bindings {
            inputs.push(self.input(binding, arguments, &keys, loc)?);
        }
        let cells = self.take_written(loc)?;
        let inputs = self.with_written(inputs, loc)?;
        let mut running = Running::new(inputs, self.donors(&cells));
        let values = running.run(|inputs, donate| {
            profiler::watched(&self.executable, &self.explain, inputs, loc, |i| {
                self.executable.run(i, donate)
            })
        });
        let values = values.map_err(|e| {
            let given = |node: &Arc<Node>| self.given(node, running.inputs());
            errors::run_error_with(e, &self.gather, loc, &given)
        })?;
        let given = self.writes.iter().map(|w| Given {
            cell: &cells[w.taken],
            position: w.output,
            old: w.input,
            loc,
        });
        running.finish(&values, given, &self.plan().sites, &self.gather);
        let result =
            |at: &usize| Handle::leaf(values[*at].clone(), Role::Data, Some(self.device), loc, RUN);
        Ok(self.results.iter().map(result).collect())
    }

    /// What a run was given for a placeholder.
    fn given(&self, node: &Arc<Node>, inputs: &[Buffer]) -> Option<Buffer> {
        let placeholders = self.gather.entries.iter().filter(|e| e.is_input);
        let at = placeholders
            .zip(inputs)
            .find(|(e, _)| Arc::ptr_eq(&e.node, node));
        at.map(|(_, buffer)| buffer.clone())
    }

    fn check(
        &self,
        op: &'static str,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<()> {
        let wrong = |m: String| Err(Error::new(ErrorKind::Value, op, m, loc));
        for (t, takes) in arguments.iter().zip(&self.takes) {
            t.check()?;
            let (dims, sizes) = (t.dims(), &takes.fact.shape);
            let fits = t.dtype() == takes.fact.dtype
                && (t.node.device.is_none() || t.device() == takes.device)
                && dims.len() == sizes.len()
                && (dims.iter().zip(sizes)).all(|(d, size)| match size.as_const() {
                    Some(n) => d.is(n),
                    None => d.as_const().is_some(),
                });
            if !fits {
                let (fact, device) = (t.fact(), t.device());
                let (name, takes) = (&takes.name, self.wanted(takes));
                return wrong(format!("{name} must be {takes}, not {fact} on {device}"));
            }
        }
        self.sizes_agree(arguments).or_else(wrong)
    }

    /// Dtype, shape and device of an argument, with the user's names of symbols.
    fn wanted(&self, argument: &Argument) -> String {
        let fact = symbols::replaced(&argument.fact.to_string(), &self.names);
        match argument.device {
            Device::Cpu => fact,
            device => format!("{fact} on {device}"),
        }
    }

    /// Says which two arguments give one symbol different sizes.
    fn sizes_agree(&self, arguments: &[&Handle]) -> Result<(), String> {
        for (t, takes) in arguments.iter().zip(&self.takes) {
            for (axis, size) in takes.fact.shape.iter().enumerate() {
                let Some(symbol) = size.max_symbol() else {
                    continue;
                };
                let (symbol, by) = (symbol.0 as usize, &t.dims()[axis]);
                let (first, at) = self.symbols[symbol];
                let (from, known) = (&self.takes[first].name, arguments[first]);
                if known.dims()[at] != *by {
                    return Err(format!(
                        "`{}` is {} by dim {at} of {from}, {}, but {by} by dim {axis} of {}, {}",
                        self.names[symbol],
                        known.dims()[at],
                        known.fact(),
                        takes.name,
                        t.fact()
                    ));
                }
            }
        }
        Ok(())
    }

    /// Takes the cells that the run writes, in the order of their ids, each with a computed value.
    fn take_written(&self, loc: &'static Location<'static>) -> Result<Vec<Busy>> {
        let written = self.writes.iter().map(|w| self.cells[w.cell].clone());
        let cells = commit::take(written.collect(), &[]);
        // Computed while the cells are taken: nobody can assign them anything new meanwhile.
        let held: Vec<Handle> = cells.iter().map(|b| b.state().current.clone()).collect();
        read::realize_holding(&held.iter().collect::<Vec<_>>(), &cells, loc)?;
        Ok(cells)
    }

    /// The old values of the cells that nobody else holds.
    fn donors(&self, cells: &[Busy]) -> SmallVec<[Donor; 4]> {
        let donor = |w: &Write| {
            let (input, leaf) = (w.input?, cells[w.taken].state().sole_leaf()?);
            Some(Donor { input, leaf })
        };
        self.writes.iter().filter_map(donor).collect()
    }

    /// An input; `None` for a cell that the run writes.
    fn input(
        &self,
        binding: &Binding,
        arguments: &[&Handle],
        keys: &[[i64; 2]],
        loc: &'static Location<'static>,
    ) -> Result<Option<Buffer>> {
        match binding {
            Binding::Argument(a) => self.value(arguments[*a], loc).map(Some),
            Binding::Captured(buffer) => Ok(Some(buffer.clone())),
            Binding::Cell(v) if self.written[*v] => Ok(None),
            Binding::Cell(v) => {
                let current = self.cells[*v].idle().current.clone();
                self.value(&current, loc).map(Some)
            }
            Binding::Key(k) => {
                let buffer = Buffer::from_slice(&keys[*k], &[2]);
                buffer
                    .map(Some)
                    .map_err(|e| errors::run_error(e, &self.gather, loc))
            }
        }
    }

    /// A computed value, where the program runs.
    fn value(&self, t: &Handle, loc: &'static Location<'static>) -> Result<Buffer> {
        let buffer = self.device.bring(read::value(t, loc)?);
        buffer.map_err(|e| errors::run_error(e, &self.gather, loc))
    }

    /// The values of the symbols.
    fn values(&self, arguments: &[&Handle]) -> SmallVec<[i64; 4]> {
        let value = |(a, axis): &(usize, usize)| arguments[*a].dims()[*axis].as_const();
        let values = self.symbols.iter().map(value);
        values.map(|v| v.unwrap_or(0)).collect()
    }

    /// How many numbers each use of a generator draws.
    fn draws(&self, arguments: &[&Handle]) -> SmallVec<[i64; 2]> {
        let values = self.values(arguments);
        self.keys.iter().map(|c| c.eval(&values)).collect()
    }

    /// The inputs of a run that changes nothing: values of cells as they are, random numbers as the
    /// next run draws them.
    fn inputs(
        &self,
        op: &'static str,
        arguments: &[&Handle],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Buffer>> {
        self.check(op, arguments, loc)?;
        if self.values(arguments).iter().any(|v| *v < 2) {
            let text =
                "a symbolic size must be at least 2 here: sizes of 0 and 1 have plans of their own";
            return Err(Error::new(ErrorKind::Value, op, text, loc));
        }
        read::realize_at(arguments, loc)?;
        let keys = keys(
            random::get_rng_state().map(|w| w as i64),
            &self.draws(arguments),
        );
        let bindings = self.bindings.iter();
        let input = |binding: &Binding| match binding {
            Binding::Cell(v) => {
                let current = self.cells[*v].idle().current.clone();
                self.value(&current, loc)
            }
            binding => {
                let known = self.input(binding, arguments, &keys, loc)?;
                known.ok_or_else(|| self.missing(loc))
            }
        };
        bindings.map(input).collect()
    }

    fn missing(&self, loc: &'static Location<'static>) -> Error {
        let text = "an input has no value";
        Error::new(ErrorKind::Internal, RUN, text, loc)
    }

    /// The inputs with the values of the locked cells filled in.
    fn with_written(
        &self,
        inputs: SmallVec<[Option<Buffer>; 8]>,
        loc: &'static Location<'static>,
    ) -> Result<Inputs> {
        let filled =
            inputs
                .into_iter()
                .zip(&self.bindings)
                .map(|(buffer, binding)| match binding {
                    Binding::Cell(v) if buffer.is_none() => self.value(&self.cells[*v].now(), loc),
                    _ => buffer.ok_or_else(|| self.missing(loc)),
                });
        filled.collect()
    }

    /// What the compiler did and why.
    pub fn explain(&self) -> &Explain {
        &self.explain
    }

    /// The program as data.
    pub fn plan(&self) -> &Plan {
        self.executable.plan()
    }

    /// The program as bytes that `kiln_runtime` runs with nothing else linked. Its inputs are the
    /// arguments, then captured tensors, `Var`s and random keys as [`Plan::inputs`] lists them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.plan().to_bytes()
    }

    /// The executable, for its figures.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Where `compile` was called.
    pub fn loc(&self) -> Loc {
        Loc::from(self.loc)
    }
}

/// Seed and offset of each use of a generator: consecutive ranges in recording order, as if the function
/// had been recorded lazily.
fn keys([seed, mut offset]: [i64; 2], counts: &[i64]) -> SmallVec<[[i64; 2]; 2]> {
    let take = |count: &i64| {
        offset = offset.wrapping_add(*count);
        [seed, offset.wrapping_sub(*count)]
    };
    counts.iter().map(take).collect()
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kernels = self.explain.kernels_run();
        write!(f, "Compiled({kernels} kernels at {})", self.loc)
    }
}
