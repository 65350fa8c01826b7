//! Compiles the operations that a function recorded.

use super::{Argument, Program};
use crate::cell::Cell;
use crate::node::Handle;
use crate::postorder::Key;
use crate::run::errors::{self, leaked};
use crate::run::gather::{Gather, InputSource};
use crate::run::profiler;
use crate::scope::{RecordingGuard, Scope, placeholder};
use crate::{Device, Error, ErrorKind, Result};
use hashbrown::{HashMap, HashSet};
use kiln_base::Dim;
use kiln_compiler::{Compilation, Options};
use kiln_ir::{Graph, Output, Role, SymbolInfo, Target};
use kiln_plan::{Draw, Named, Signature, State};
use kiln_runtime::Buffer;
use std::panic::Location;
use std::sync::{Arc, Mutex};

/// A function that is being recorded for compilation.
pub struct Compiling {
    argument_facts: Vec<Argument>,
    names: Vec<String>,
    /// The placeholders of the arguments.
    pub arguments: Vec<Handle>,
    recording: RecordingGuard,
    loc: &'static Location<'static>,
}

impl Compiling {
    /// Begins to record a function of these arguments and names of symbols.
    ///
    /// # Errors
    /// If this thread is already recording a function, or can't run one.
    pub fn start(
        takes: Vec<Argument>,
        names: Vec<String>,
        loc: &'static Location<'static>,
    ) -> Result<Compiling> {
        errors::check_process("compile", loc)?;
        let as_placeholder =
            |a: &Argument| placeholder(a.fact.clone(), Role::Data, Some(a.device), loc, "argument");
        Ok(Compiling {
            recording: RecordingGuard::start(names.clone(), loc)?,
            arguments: takes.iter().map(as_placeholder).collect(),
            argument_facts: takes,
            names,
            loc,
        })
    }

    /// Ends the recording, and returns the cells and gradients that it touched. Nothing is compiled.
    pub fn end(self) -> Scope {
        self.recording.finish()
    }

    /// Ends the recording, and compiles the results; `paths` are their names.
    ///
    /// # Errors
    /// If an operation is invalid, or the engine can't run it.
    pub fn finish<T: AsRef<Handle>>(
        self,
        results: &[T],
        paths: Vec<String>,
        options: &Options,
    ) -> Result<Program> {
        RecordedFunction {
            scope: self.recording.finish(),
            argument_facts: self.argument_facts,
            names: self.names,
            arguments: self.arguments,
            loc: self.loc,
        }
        .compile(results, paths, options)
    }
}

/// Returns the recorded program as a graph, with these names of symbols. If `dims` is not empty, it replaces the
/// recorded symbols.
pub(super) fn graph(
    gather: &Gather,
    outputs: &[Output],
    (names, dims): (&[String], &[Dim]),
    loc: &'static Location<'static>,
) -> Result<Graph> {
    let symbol = |name: &String| SymbolInfo {
        name: name.clone(),
        min: 2,
    };
    let recorded = gather.recording(outputs.to_vec()).to_graph();
    let graph = recorded.and_then(|mut graph| {
        if !dims.is_empty() {
            graph.dims_mut(&mut |d| *d = d.substitute(dims));
        }
        graph.bind(&names.iter().map(symbol).collect::<Vec<_>>())?;
        Ok(graph)
    });
    graph.map_err(|e| match dims.is_empty() {
        true => Error::new(ErrorKind::Internal, "compile", e.0, loc),
        false => Error::new(ErrorKind::Op, "compile", e.0, loc),
    })
}

/// Compiles a [`graph`] with this signature.
pub(super) fn compiled(
    (gather, outputs, signature): (&Gather, &[Output], &Signature),
    symbols: (&[String], &[Dim]),
    options: &Options,
    loc: &'static Location<'static>,
) -> Result<Compilation> {
    let graph = graph(gather, outputs, symbols, loc)?;
    let locs = gather.recording(Vec::new()).locs();
    let compiled = kiln_compiler::compile(&graph, &locs, options);
    let compiled = compiled.map_err(|e| errors::compile_error(e, gather, loc))?;
    let checked = signature.check(compiled.executable.plan());
    checked.map_err(|e| Error::new(ErrorKind::Internal, "compile", e.to_string(), loc))?;
    Ok(compiled)
}

/// The recording of a function.
struct RecordedFunction {
    argument_facts: Vec<Argument>,
    names: Vec<String>,
    arguments: Vec<Handle>,
    scope: Scope,
    loc: &'static Location<'static>,
}

impl RecordedFunction {
    fn compile<T: AsRef<Handle>>(
        self,
        results: &[T],
        paths: Vec<String>,
        options: &Options,
    ) -> Result<Program> {
        let mut gather = Gather::default();
        for a in &self.arguments {
            gather.add(a)?;
        }
        let mut outputs = gather.add_outputs(results)?;
        let written = self.scope.cells.iter().filter(|c| c.written);
        let assigned = gather.add_outputs(&written.map(|c| &c.current).collect::<Vec<_>>())?;
        let device = self.device(&gather)?;
        let (signature, captured, cells) = self.bind(&mut gather, device, paths)?;
        let written = signature.states.iter().filter(|s| s.output.is_some());
        for (state, Output { value, .. }) in written.zip(assigned) {
            let target = state.input.map_or(Target::Result, Target::Assign);
            outputs.push(Output { value, target });
        }
        let options = Options {
            gpu: device.ordinal(),
            ..options.clone()
        };
        let recorded = (&gather, &outputs[..], &signature);
        let compilation = compiled(recorded, (&self.names, &[]), &options, self.loc)?;
        let reason = "compile was called";
        profiler::note_compiled(self.loc, reason, &compilation.explain);
        compilation.explain.reasons.push(reason.into());
        Ok(Program {
            executable: compilation.executable,
            signature,
            captured,
            cells,
            explain: compilation.explain,
            stages: compilation.stages,
            options,
            device,
            gather: Arc::new(gather.without_values()),
            outputs,
            small: Mutex::default(),
            loc: self.loc,
        })
    }

    /// Returns the only device of the program.
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

    /// Describes the plan's inputs and outputs. Also returns the values of captured tensors, which become parameters,
    /// and the cells of states.
    fn bind(
        &self,
        gather: &mut Gather,
        device: Device,
        results: Vec<String>,
    ) -> Result<(Signature, Vec<Buffer>, Vec<Arc<Cell>>)> {
        let mut outputs = 0u32..;
        let results = results.into_iter().zip(&mut outputs);
        let mut signature = Signature {
            results: results
                .map(|(name, index)| Named { name, at: index })
                .collect(),
            ..Signature::default()
        };
        let (mut captured, mut cells) = (Vec::new(), Vec::new());
        let (mut tensors, mut states) = (HashSet::new(), HashSet::new());
        let mut unbound = HashMap::new();
        for i in 0..gather.inputs.len() {
            let index = i as u32;
            let InputSource { entry, output, .. } = gather.inputs[i];
            let node = &gather.entries[entry].node;
            let Some(buffer) = gather.inputs[i].buffer.take() else {
                unbound.insert(Key::of(node, output), index);
                continue;
            };
            let label = node.about.as_ref().and_then(|a| a.label.as_ref()?.get());
            let number = format!("captured.{}", captured.len());
            let name = unique_name(&mut tensors, label, number);
            signature.captured.push(Named { name, at: index });
            gather.make_parameter(i);
            let on_device = device.bring(buffer);
            captured.push(on_device.map_err(|e| errors::run_error(e, gather, self.loc))?);
        }
        let mut input = |t: &Handle| unbound.remove(&t.key());
        for (a, t) in self.argument_facts.iter().zip(&self.arguments) {
            let name = a.path.clone();
            signature
                .arguments
                .extend(input(t).map(|index| Named { name, at: index }));
        }
        for (key, count) in &self.scope.keys {
            let (count, input) = (count.clone(), input(key));
            signature.draws.push(Draw { count, input });
        }
        for c in &self.scope.cells {
            let input = input(&c.placeholder);
            let output = if c.written { outputs.next() } else { None };
            if input.or(output).is_some() {
                let number = format!("state.{}", cells.len());
                let name = unique_name(&mut states, c.cell.leaf.label.get(), number);
                signature.states.push(State {
                    name,
                    input,
                    output,
                });
                cells.push(c.cell.clone());
            }
        }
        match unbound.into_values().min() {
            Some(i) => Err(leaked(
                &gather.entries[gather.inputs[i as usize].entry].node,
            )),
            None => Ok((signature, captured, cells)),
        }
    }
}

/// Returns the label, or else `number`, with a suffix if that name is taken.
fn unique_name(taken: &mut HashSet<String>, label: Option<Arc<str>>, number: String) -> String {
    let base = label.map_or(number, |label| label.to_string());
    let (mut name, mut suffix) = (base.clone(), 0);
    while !taken.insert(name.clone()) {
        suffix += 1;
        name = format!("{base}_{suffix}");
    }
    name
}
