//! Running a compiled function.

use crate::nest::called;
use crate::small::Small;
use crate::tensor::handles;
use crate::{Device, DimSpec, Error, ErrorKind, Result, Spec, Tensor, Var, profiler};
use kiln_base::{Dim, Loc};
use kiln_compiler::{Explain, Options, Stages};
use kiln_ir::{Output, Role};
use kiln_lazy::cell::Busy;
use kiln_lazy::node::Node;
use kiln_lazy::run::commit::{self, Donor, Given, Inputs, Running};
use kiln_lazy::run::gather::Gather;
use kiln_lazy::run::{anomaly, errors, read};
use kiln_lazy::{Handle, random};
use kiln_plan::Plan;
use kiln_runtime::{Buffer, Executable};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// What errors of a run are of.
const RUN: &str = "Compiled::run";

/// Where a plan input comes from at each run.
#[derive(Clone)]
pub(crate) enum Binding {
    Argument(usize),
    Captured(Buffer),
    Var(usize),
    Key(usize),
}

/// What was compiled, apart from the types of what it takes and gives: what every
/// [`Compiled`](crate::Compiled) function holds.
pub struct Program {
    pub(crate) executable: Executable,
    pub(crate) explain: Explain,
    pub(crate) stages: Arc<Stages>,
    pub(crate) options: Options,
    pub(crate) device: Device,
    pub(crate) specs: Vec<Spec>,
    /// Where the arguments are among what the function takes.
    pub(crate) paths: Vec<String>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) vars: Vec<Var>,
    /// How many numbers each use of a generator draws, in recording order.
    pub(crate) keys: Vec<Dim>,
    /// Positions of the results among the plan's outputs.
    pub(crate) results: Vec<usize>,
    pub(crate) writes: Vec<Write>,
    /// For each of `vars` whether it is among `writes`.
    pub(crate) written: Vec<bool>,
    /// For each symbol the argument and axis that give it.
    pub(crate) symbols: Vec<(usize, usize)>,
    /// For messages: the recorded ops.
    pub(crate) gather: Arc<Gather>,
    /// What the program was asked for.
    pub(crate) asked: Vec<Output>,
    /// The same function for symbols that are 0 or 1, which no plan with symbols takes.
    pub(crate) small: Mutex<Vec<(Small, Arc<Program>)>>,
    pub(crate) loc: &'static Location<'static>,
}

#[derive(Clone)]
pub(crate) struct Write {
    pub(crate) var: usize,
    /// Its place among the written cells by their ids.
    pub(crate) cell: usize,
    pub(crate) output: usize,
    /// The plan input that holds the old value.
    pub(crate) input: Option<usize>,
}

impl Program {
    pub(crate) fn run_at(
        &self,
        arguments: &[&Tensor],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Tensor>> {
        errors::check_process(RUN, loc)?;
        self.check(RUN, arguments, loc)?;
        if let Some(other) = self.for_small(arguments, loc)? {
            return other.run_at(arguments, loc);
        }
        if anomaly::is_anomaly_enabled() {
            let (graph, gpu) = (self.stages.recorded.clone(), self.options.gpu);
            let inputs = self.inputs(RUN, arguments, loc)?;
            anomaly::check(&self.gather, graph, gpu, &inputs, loc)?;
        }
        read::realize_at(&handles(arguments), loc)?;
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
            cell: &cells[w.cell],
            position: w.output,
            old: w.input,
            loc,
        });
        running.finish(&values, given, &self.plan().sites, &self.gather);
        let result =
            |at: &usize| Tensor::leaf(values[*at].clone(), Role::Data, Some(self.device), loc, RUN);
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
        arguments: &[&Tensor],
        loc: &'static Location<'static>,
    ) -> Result<()> {
        let wrong = |m: String| Error::new(ErrorKind::Value, op, m, loc);
        for (i, (t, spec)) in arguments.iter().zip(&self.specs).enumerate() {
            t.check()?;
            let fits = t.dtype() == spec.dtype
                && (t.handle.node.device.is_none() || t.device() == spec.device)
                && t.ndim() == spec.dims.len()
                && t.dims().iter().zip(&spec.dims).all(|(d, s)| match s {
                    DimSpec::Known(n) => d.is(*n),
                    DimSpec::Symbol(_) => d.as_const().is_some(),
                });
            if !fits {
                return Err(wrong(format!(
                    "{} must be {spec}, not {} on {}",
                    self.argument(i),
                    t.fact(),
                    t.device()
                )));
            }
        }
        self.sizes_agree(arguments).map_err(wrong)
    }

    /// What messages call an argument.
    fn argument(&self, i: usize) -> String {
        called("argument", &self.paths[i])
    }

    /// Says which two arguments give one symbol different sizes.
    fn sizes_agree(&self, arguments: &[&Tensor]) -> Result<(), String> {
        let mut known: SmallVec<[(&str, &Dim, [usize; 2]); 4]> = SmallVec::new();
        for (i, (t, spec)) in arguments.iter().zip(&self.specs).enumerate() {
            for (axis, (d, s)) in t.dims().iter().zip(&spec.dims).enumerate() {
                let DimSpec::Symbol(name) = s else { continue };
                match known.iter().find(|k| k.0 == name.as_str()) {
                    None => known.push((name, d, [i, axis])),
                    Some((_, size, _)) if *size == d => {}
                    Some((_, size, [from, at])) => {
                        return Err(format!(
                            "`{name}` is {size} by dim {at} of {}, {}, but {d} by dim {axis} of \
                             {}, {}",
                            self.argument(*from),
                            arguments[*from].fact(),
                            self.argument(i),
                            t.fact()
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the cells that the run writes, in the order of their ids, each with a computed value.
    fn take_written(&self, loc: &'static Location<'static>) -> Result<Vec<Busy>> {
        let written = self.writes.iter().map(|w| self.vars[w.var].cell.clone());
        let cells = commit::take(written.collect(), &[]);
        // Computed while the cells are taken: nobody can assign them anything new meanwhile.
        let held: Vec<Handle> = cells.iter().map(|b| b.state().current.clone()).collect();
        read::realize_holding(&held.iter().collect::<Vec<_>>(), &cells, loc)?;
        Ok(cells)
    }

    /// The old values of the cells that nobody else holds.
    fn donors(&self, cells: &[Busy]) -> SmallVec<[Donor; 4]> {
        let donor = |w: &Write| {
            let (input, leaf) = (w.input?, cells[w.cell].state().sole_leaf()?);
            Some(Donor { input, leaf })
        };
        self.writes.iter().filter_map(donor).collect()
    }

    /// An input; `None` for a cell that the run writes.
    fn input(
        &self,
        binding: &Binding,
        arguments: &[&Tensor],
        keys: &[[i64; 2]],
        loc: &'static Location<'static>,
    ) -> Result<Option<Buffer>> {
        match binding {
            Binding::Argument(a) => self.value(&arguments[*a].handle, loc).map(Some),
            Binding::Captured(buffer) => Ok(Some(buffer.clone())),
            Binding::Var(v) if self.written[*v] => Ok(None),
            Binding::Var(v) => {
                let current = self.vars[*v].cell.idle().current.clone();
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
    pub(crate) fn values(&self, arguments: &[&Tensor]) -> SmallVec<[i64; 4]> {
        let value = |(a, axis): &(usize, usize)| arguments[*a].dims()[*axis].as_const();
        let values = self.symbols.iter().map(value);
        values.map(|v| v.unwrap_or(0)).collect()
    }

    /// How many numbers each use of a generator draws.
    fn draws(&self, arguments: &[&Tensor]) -> SmallVec<[i64; 2]> {
        let values = self.values(arguments);
        self.keys.iter().map(|c| c.eval(&values)).collect()
    }

    /// The inputs of a run that changes nothing: values of cells as they are, random numbers as the
    /// next run draws them.
    pub(crate) fn inputs(
        &self,
        op: &'static str,
        arguments: &[&Tensor],
        loc: &'static Location<'static>,
    ) -> Result<Vec<Buffer>> {
        self.check(op, arguments, loc)?;
        if self.values(arguments).iter().any(|v| *v < 2) {
            let text =
                "a symbolic size must be at least 2 here: sizes of 0 and 1 have plans of their own";
            return Err(Error::new(ErrorKind::Value, op, text, loc));
        }
        read::realize_at(&handles(arguments), loc)?;
        let keys = keys(
            random::get_rng_state().map(|w| w as i64),
            &self.draws(arguments),
        );
        let bindings = self.bindings.iter();
        let input = |binding: &Binding| match binding {
            Binding::Var(v) => {
                let current = self.vars[*v].cell.idle().current.clone();
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
                    Binding::Var(v) if buffer.is_none() => {
                        self.value(&self.vars[*v].cell.now(), loc)
                    }
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
