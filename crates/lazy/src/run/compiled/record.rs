//! Compiling what a function recorded.

use super::{Argument, Binding, Program, Write};
use crate::node::Handle;
use crate::postorder::Key;
use crate::run::errors::{self, leaked};
use crate::run::gather::{Gather, Source};
use crate::scope::{Recording, Scope, placeholder};
use crate::{Device, Error, ErrorKind, Result};
use hashbrown::HashMap;
use kiln_base::{Dim, Sym};
use kiln_compiler::{Compilation, Options};
use kiln_ir::{Graph, Output, Role, SymbolInfo, Target};
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// A function that is being recorded, to be compiled.
pub struct Compiling {
    takes: Vec<Argument>,
    names: Vec<String>,
    /// What stands for the arguments.
    pub arguments: Vec<Handle>,
    recording: Recording,
    loc: &'static Location<'static>,
}

impl Compiling {
    /// Begins to record a function of these arguments, whose symbols have these names.
    ///
    /// # Errors
    /// If this thread is recording a function already, or can't run any.
    pub fn start(
        takes: Vec<Argument>,
        names: Vec<String>,
        loc: &'static Location<'static>,
    ) -> Result<Compiling> {
        errors::check_process("compile", loc)?;
        let stands =
            |a: &Argument| placeholder(a.fact.clone(), Role::Data, Some(a.device), loc, "argument");
        Ok(Compiling {
            recording: Recording::start(names.clone(), loc)?,
            arguments: takes.iter().map(stands).collect(),
            takes,
            names,
            loc,
        })
    }

    /// Ends the recording, and compiles the results.
    ///
    /// # Errors
    /// If an operation is invalid, or the engine can't run it.
    pub fn finish<T: AsRef<Handle>>(self, results: &[T], options: &Options) -> Result<Program> {
        Recorded {
            scope: self.recording.finish(),
            takes: self.takes,
            names: self.names,
            arguments: self.arguments,
            loc: self.loc,
        }
        .compile(results, options)
    }
}

/// The positions of values.
fn positions<'a>(values: impl Iterator<Item = &'a Handle>) -> HashMap<Key, usize> {
    values.enumerate().map(|(i, t)| (t.key(), i)).collect()
}

/// What was recorded as a graph whose symbols have these names, with other dims `by` in their place, if any are
/// given.
pub(super) fn graph(
    gather: &Gather,
    asked: &[Output],
    (names, by): (&[String], &[Dim]),
    loc: &'static Location<'static>,
) -> Result<Graph> {
    let symbol = |name: &String| SymbolInfo {
        name: name.clone(),
        min: 2,
    };
    let recorded = gather.recording(asked.to_vec()).to_graph();
    let graph = recorded.and_then(|mut graph| {
        if !by.is_empty() {
            graph.dims_mut(&mut |d| *d = d.substitute(by));
        }
        graph.bind(&names.iter().map(symbol).collect::<Vec<_>>())?;
        Ok(graph)
    });
    graph.map_err(|e| match by.is_empty() {
        true => Error::new(ErrorKind::Internal, "compile", e.0, loc),
        false => Error::new(ErrorKind::Op, "compile", e.0, loc),
    })
}

/// Compiles a [`graph`].
pub(super) fn compiled(
    gather: &Gather,
    asked: &[Output],
    symbols: (&[String], &[Dim]),
    options: &Options,
    loc: &'static Location<'static>,
) -> Result<Compilation> {
    let graph = graph(gather, asked, symbols, loc)?;
    let locs = gather.recording(Vec::new()).locs();
    let compiled = kiln_compiler::compile(&graph, &locs, options);
    compiled.map_err(|e| errors::compile_error(e, gather, loc))
}

/// What a function recorded.
struct Recorded {
    takes: Vec<Argument>,
    names: Vec<String>,
    arguments: Vec<Handle>,
    scope: Scope,
    loc: &'static Location<'static>,
}

impl Recorded {
    fn compile<T: AsRef<Handle>>(self, results: &[T], options: &Options) -> Result<Program> {
        let mut gather = Gather::default();
        for a in &self.arguments {
            gather.add(a)?;
        }
        let mut asked = gather.ask(results)?;
        let cells = self.scope.cells.iter().enumerate();
        let written: Vec<_> = cells.filter(|(_, c)| c.written).collect();
        let mut ids: Vec<u64> = written.iter().map(|(_, c)| c.cell.id).collect();
        ids.sort_unstable();
        let assigned = gather.ask(&written.iter().map(|(_, c)| &c.current).collect::<Vec<_>>())?;
        let device = self.device(&gather)?;
        let bindings = self.bindings(&mut gather, device)?;
        let inputs = bindings.iter().enumerate().filter_map(|(i, b)| match b {
            Binding::Cell(v) => Some((*v, i)),
            _ => None,
        });
        let inputs: HashMap<usize, usize> = inputs.collect();
        let mut writes = Vec::new();
        for ((cell, scoped), Output { value, .. }) in written.into_iter().zip(assigned) {
            let input = inputs.get(&cell).copied();
            let target = input.map_or(Target::Result, |i| Target::Assign(i as u32));
            writes.push(Write {
                cell,
                taken: ids.partition_point(|id| *id < scoped.cell.id),
                output: asked.len(),
                input,
            });
            asked.push(Output { value, target });
        }
        let options = Options {
            gpu: device.ordinal(),
            ..options.clone()
        };
        let compilation = compiled(&gather, &asked, (&self.names, &[]), &options, self.loc)?;
        let position = |i: usize| {
            compilation.outputs[i].ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    "compile",
                    "a result has no place",
                    self.loc,
                )
            })
        };
        for w in &mut writes {
            w.output = position(w.output)?;
        }
        Ok(Program {
            results: (0..results.len()).map(position).collect::<Result<_>>()?,
            executable: compilation.executable,
            explain: compilation.explain,
            stages: compilation.stages,
            options,
            device,
            symbols: self.symbol_places(),
            takes: self.takes,
            names: self.names,
            bindings,
            writes,
            keys: self
                .scope
                .keys
                .into_iter()
                .map(|(_, count)| count)
                .collect(),
            written: self.scope.cells.iter().map(|v| v.written).collect(),
            cells: self.scope.cells.into_iter().map(|v| v.cell).collect(),
            gather: Arc::new(gather.without_values()),
            asked,
            small: Mutex::default(),
            loc: self.loc,
        })
    }

    /// Where the program runs: one device for all of it.
    fn device(&self, gather: &Gather) -> Result<Device> {
        let device = gather.device();
        let elsewhere = |d: Option<Device>| d.filter(|d| *d != device);
        let Some((i, other)) = (gather.entries.iter().enumerate())
            .find_map(|(i, e)| Some((i, elsewhere(e.node.device)?)))
        else {
            return Ok(device);
        };
        let message = format!("the function computes on {device} and on {other}; use one device");
        Err(Error::new(ErrorKind::Op, "compile", message, gather.loc(i)))
    }

    /// What each input of the program is; captured tensors become parameters.
    fn bindings(&self, gather: &mut Gather, device: Device) -> Result<Vec<Binding>> {
        let mut bindings = Vec::new();
        let arguments = positions(self.arguments.iter());
        let cells = positions(self.scope.cells.iter().map(|v| &v.placeholder));
        let keys = positions(self.scope.keys.iter().map(|(t, _)| t));
        for i in 0..gather.inputs.len() {
            let Source { entry, output, .. } = gather.inputs[i];
            let node = &gather.entries[entry].node;
            let key = Key::of(node, output);
            if let Some(buffer) = gather.inputs[i].buffer.take() {
                gather.make_parameter(i);
                let brought = device.bring(buffer);
                let buffer = brought.map_err(|e| errors::run_error(e, gather, self.loc))?;
                bindings.push(Binding::Captured(buffer));
            } else if let Some(a) = arguments.get(&key) {
                bindings.push(Binding::Argument(*a));
            } else if let Some(v) = cells.get(&key) {
                bindings.push(Binding::Cell(*v));
            } else if let Some(k) = keys.get(&key) {
                bindings.push(Binding::Key(*k));
            } else {
                return Err(leaked(node));
            }
        }
        Ok(bindings)
    }

    fn symbol_places(&self) -> Vec<(usize, usize)> {
        let place = |s: usize| {
            let dim = Dim::symbol(Sym(s as u32));
            self.arguments.iter().enumerate().find_map(|(a, t)| {
                let axis = t.dims().iter().position(|d| *d == dim)?;
                Some((a, axis))
            })
        };
        (0..self.names.len()).filter_map(place).collect()
    }
}
