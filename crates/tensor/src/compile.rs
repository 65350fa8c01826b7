//! Compiling what a function recorded.

use crate::compiled::{Binding, Write};
use crate::nest::{Flat, called};
use crate::{Device, DimSpec, Error, ErrorKind, Program, Result, Spec, Tensor, Var};
use hashbrown::HashMap;
use kiln_base::{Dim, Loc, Sym};
use kiln_compiler::{Compilation, Options};
use kiln_ir::{Fact, Output, Role, SymbolInfo, Target};
use kiln_lazy::Handle;
use kiln_lazy::node::Node;
use kiln_lazy::run::errors::{self, leaked};
use kiln_lazy::run::gather::Gather;
use kiln_lazy::scope::{Recording, Scope, placeholder};
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// A function that is being recorded, to be compiled.
pub(crate) struct Compiling {
    specs: Vec<Spec>,
    /// Where the arguments are among what the function takes.
    paths: Vec<String>,
    pub(crate) arguments: Vec<Tensor>,
    /// Of the symbols.
    names: Vec<String>,
    recording: Recording,
    loc: &'static Location<'static>,
}

impl Compiling {
    /// Begins to record a function of arguments of these specs.
    pub(crate) fn start(
        (specs, paths): (Flat<Spec>, Vec<String>),
        loc: &'static Location<'static>,
    ) -> Result<Compiling> {
        errors::check_process("compile", loc)?;
        if let Some(e) = specs.error {
            return Err(e);
        }
        let mut names: Vec<String> = Vec::new();
        let mut arguments = Vec::new();
        for (spec, path) in specs.all.iter().zip(&paths) {
            if spec.dims.iter().any(|d| matches!(d, DimSpec::Known(..0))) {
                let argument = called("argument", path);
                let message = format!("{argument} can't be {spec}: a size is negative");
                return Err(Error::new(ErrorKind::Value, "compile", message, loc));
            }
            arguments.push(argument(spec, &mut names, loc));
        }
        Ok(Compiling {
            recording: Recording::start(names.clone(), loc)?,
            specs: specs.all,
            paths,
            arguments,
            names,
            loc,
        })
    }

    /// Ends the recording, and compiles the results.
    pub(crate) fn finish(self, outputs: Result<Vec<Tensor>>, options: &Options) -> Result<Program> {
        let scope = self.recording.finish();
        Builder {
            specs: self.specs,
            paths: self.paths,
            arguments: self.arguments,
            names: self.names,
            scope,
            loc: self.loc,
        }
        .build(&outputs?, options)
    }
}

fn argument(spec: &Spec, names: &mut Vec<String>, loc: &'static Location<'static>) -> Tensor {
    let dims = spec.dims.iter().map(|d| match d {
        DimSpec::Known(n) => Dim::Const(*n),
        DimSpec::Symbol(name) => {
            let at = names.iter().position(|n| n == name).unwrap_or_else(|| {
                names.push(name.clone());
                names.len() - 1
            });
            Dim::symbol(Sym(at as u32))
        }
    });
    let fact = Fact::new(spec.dtype, dims);
    placeholder(fact, Role::Data, Some(spec.device), loc, "argument").into()
}

/// The positions of values by their nodes.
fn positions<'a>(values: impl Iterator<Item = &'a Handle>) -> HashMap<*const Node, usize> {
    let nodes = values.map(|t| Arc::as_ptr(&t.node));
    nodes.enumerate().map(|(i, node)| (node, i)).collect()
}

/// The declaration of a symbol that the user named.
pub(crate) fn symbol_info(name: &str) -> SymbolInfo {
    SymbolInfo {
        name: name.to_string(),
        min: 2,
    }
}

/// Compiles what was recorded, with other dims `by` for its symbols, if any are given.
pub(crate) fn compile_graph(
    gather: &Gather,
    asked: &[Output],
    (symbols, by): (&[SymbolInfo], &[Dim]),
    options: &Options,
    loc: &'static Location<'static>,
) -> Result<Compilation> {
    let recording = gather.recording(asked.to_vec());
    let locs = recording.locs();
    let graph = recording.to_graph().and_then(|mut graph| {
        if !by.is_empty() {
            graph.dims_mut(&mut |d| *d = d.substitute(by));
        }
        graph.bind(symbols)?;
        Ok(graph)
    });
    let graph = graph.map_err(|e| match by.is_empty() {
        true => Error::new(ErrorKind::Internal, "compile", e.0, loc),
        false => Error::new(ErrorKind::Op, "compile", e.0, loc),
    })?;
    let compiled = kiln_compiler::compile(&graph, &locs, options);
    compiled.map_err(|e| errors::compile_error(e, gather, loc))
}

struct Builder {
    specs: Vec<Spec>,
    paths: Vec<String>,
    arguments: Vec<Tensor>,
    names: Vec<String>,
    scope: Scope,
    loc: &'static Location<'static>,
}

impl Builder {
    fn build(self, outputs: &[Tensor], options: &Options) -> Result<Program> {
        let mut gather = Gather::default();
        for a in &self.arguments {
            gather.add(&a.handle)?;
        }
        let mut asked = Vec::new();
        for t in outputs {
            asked.push(Output {
                value: gather.add(&t.check()?.handle)?,
                target: Target::Result,
            });
        }
        let written: Vec<usize> = (0..self.scope.cells.len())
            .filter(|v| self.scope.cells[*v].written)
            .collect();
        let ids = written.iter().map(|v| self.scope.cells[*v].cell.id);
        let mut ids: Vec<u64> = ids.collect();
        ids.sort_unstable();
        let mut values = Vec::new();
        for &v in &written {
            let current = &self.scope.cells[v].current;
            current.check()?;
            values.push(gather.add(current)?);
        }
        let device = self.device(&gather)?;
        let bindings = self.bindings(&mut gather, device)?;
        let inputs = bindings.iter().enumerate().filter_map(|(i, b)| match b {
            Binding::Var(v) => Some((*v, i)),
            _ => None,
        });
        let inputs: HashMap<usize, usize> = inputs.collect();
        let mut writes = Vec::new();
        for (&var, value) in written.iter().zip(values) {
            let input = inputs.get(&var).copied();
            let target = input.map_or(Target::Result, |i| Target::Assign(i as u32));
            writes.push(Write {
                var,
                cell: ids.partition_point(|id| *id < self.scope.cells[var].cell.id),
                output: asked.len(),
                input,
            });
            asked.push(Output { value, target });
        }
        let symbols: Vec<SymbolInfo> = self.names.iter().map(|n| symbol_info(n)).collect();
        let options = Options {
            gpu: device.ordinal(),
            ..options.clone()
        };
        let compilation = compile_graph(&gather, &asked, (&symbols, &[]), &options, self.loc)?;
        let position = |i: usize| {
            compilation.outputs[i].ok_or_else(|| self.internal("a result has no place".to_string()))
        };
        for w in &mut writes {
            w.output = position(w.output)?;
        }
        Ok(Program {
            results: (0..outputs.len()).map(position).collect::<Result<_>>()?,
            executable: compilation.executable,
            explain: compilation.explain,
            stages: compilation.stages,
            options,
            device,
            symbols: self.symbol_places(),
            specs: self.specs,
            paths: self.paths,
            bindings,
            writes,
            keys: self
                .scope
                .keys
                .iter()
                .map(|(_, count)| count.clone())
                .collect(),
            written: self.scope.cells.iter().map(|v| v.written).collect(),
            vars: (self.scope.cells.into_iter())
                .map(|v| Var { cell: v.cell })
                .collect(),
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
        let arguments = positions(self.arguments.iter().map(|a| &a.handle));
        let vars = positions(self.scope.cells.iter().map(|v| &v.placeholder));
        let keys = positions(self.scope.keys.iter().map(|(t, _)| t));
        for i in 0..gather.inputs.len() {
            let node = gather.entries[gather.inputs[i].entry].node.clone();
            if let Some(buffer) = gather.inputs[i].buffer.take() {
                gather.make_parameter(i);
                let brought = device.bring(buffer);
                let buffer = brought.map_err(|e| errors::run_error(e, gather, self.loc))?;
                bindings.push(Binding::Captured(buffer));
            } else if let Some(a) = arguments.get(&Arc::as_ptr(&node)) {
                bindings.push(Binding::Argument(*a));
            } else if let Some(v) = vars.get(&Arc::as_ptr(&node)) {
                bindings.push(Binding::Var(*v));
            } else if let Some(k) = keys.get(&Arc::as_ptr(&node)) {
                bindings.push(Binding::Key(*k));
            } else {
                return Err(leaked(&node));
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

    fn internal(&self, message: String) -> Error {
        Error::new(ErrorKind::Internal, "compile", message, Loc::from(self.loc))
    }
}
