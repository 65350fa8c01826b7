//! Running a case.

use crate::args::Failure;
use crate::case::{Case, write_tensors};
use crate::engine::{Array, Engine};
use crate::ops;
use kiln_tensor::{Error, ErrorKind, Grad, Tensor, grad_with, realize_first};
use std::collections::BTreeMap;
use std::path::Path;

/// The outcome of a case.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// Tensors by name: `out0`, `out1`, …, `<input>_after` and `grad_<input>`.
    Values(BTreeMap<String, Array>),
    /// Kiln has no such operator, or not with these arguments.
    Unsupported(String),
    /// Kiln rejects the call.
    Error(String),
}

/// Runs a case on an engine.
pub fn run(case: &Case, engine: Engine) -> Outcome {
    run_together(std::slice::from_ref(case), engine).remove(0)
}

/// Runs cases on an engine. A GPU computes them in one program: NVRTC compiles a few large translation units much
/// faster than many small ones.
pub fn run_together(cases: &[Case], engine: Engine) -> Vec<Outcome> {
    let mut recorded: Vec<Recorded> = cases.iter().map(recorded).collect();
    if let Engine::Cuda(device) = engine {
        let tensors = recorded.iter_mut().flatten().flat_map(|(_, t)| t);
        let on_device = tensors.map(|t| {
            *t = t.to(device);
            &*t
        });
        // A case that fails does so again when it is read.
        let _ = realize_first(on_device.filter(|t| t.error().is_none()));
    }
    let outcome = |(case, recorded): (&Case, Recorded)| match values(recorded, engine) {
        Ok(values) => Outcome::Values(values),
        Err(Failure::Unknown) => Outcome::Unsupported(format!("the operator {}", case.op)),
        Err(Failure::Unsupported(why)) => Outcome::Unsupported(why),
        Err(Failure::Rejected(why)) => Outcome::Error(why),
    };
    cases.iter().zip(recorded).map(outcome).collect()
}

/// The recorded but uncomputed tensors of a case: outputs, inputs after the call, gradients. Empty for a call that is
/// rejected or not supported.
pub fn record(case: &Case) -> Vec<Tensor> {
    recorded(case).map_or_else(|_| Vec::new(), |(_, tensors)| tensors)
}

fn values(recorded: Recorded, engine: Engine) -> Result<BTreeMap<String, Array>, Failure> {
    let (names, tensors) = recorded?;
    let arrays = engine.read(&tensors).map_err(rejected)?;
    Ok(names.into_iter().zip(arrays).collect())
}

/// The names and the recorded tensors of a case's results.
type Recorded = Result<(Vec<String>, Vec<Tensor>), Failure>;

fn recorded(case: &Case) -> Recorded {
    if case.args.writes_input() {
        let why = "the output can't be written to an input, which never changes";
        return Err(Failure::Rejected(why.into()));
    }
    let outputs = ops::call(&case.op, &case.args)?;
    if let Some(name) = case.args.unused() {
        return Err(Failure::Unsupported(name));
    }
    let mut names: Vec<String> = (0..outputs.tensors.len())
        .map(|i| format!("out{i}"))
        .collect();
    let mut tensors = outputs.tensors;
    let derived = gradients(case, &tensors)?;
    for (input, value) in outputs.assigned {
        names.push(format!("{input}_after"));
        tensors.push(value);
    }
    for (input, g) in derived {
        names.push(format!("grad_{input}"));
        tensors.push(g);
    }
    Ok((names, tensors))
}

/// The gradients of the inputs for the given cotangents.
fn gradients(case: &Case, outputs: &[Tensor]) -> Result<Vec<(String, Tensor)>, Failure> {
    let Some(requested) = &case.gradients else {
        return Ok(Vec::new());
    };
    let (mut roots, mut cotangents) = (Vec::new(), Vec::new());
    for (i, t) in outputs.iter().enumerate() {
        let cotangent = requested.cotangents.get(&format!("out{i}"));
        if let Some(array) = cotangent.and_then(|name| case.tensors.get(name))
            && (t.requires_grad() || t.error().is_some())
        {
            roots.push(t);
            cotangents.push(array.tensor().to(t.device()));
        }
    }
    // A result may be independent of a leaf.
    let leaves: Vec<Option<&Tensor>> = requested.leaves.values().map(Some).collect();
    let options = Grad::new().grad_outputs(cotangents);
    let values = grad_with(roots, leaves, options).map_err(rejected)?;
    let named = requested.leaves.keys().cloned().zip(values);
    Ok(named.filter_map(|(name, g)| Some((name, g?))).collect())
}

fn rejected(e: Error) -> Failure {
    match e.kind() {
        ErrorKind::Unsupported => Failure::Unsupported(format!("{}: {}", e.op(), e.message())),
        _ => Failure::Rejected(format!("{}: {}", e.op(), e.message())),
    }
}

impl Outcome {
    /// Writes `<id>.safetensors` or `<id>.status` into a folder.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn write(&self, folder: &Path, id: &str) -> std::io::Result<()> {
        let path = |extension: &str| folder.join(format!("{id}.{extension}"));
        if let Some(parent) = path("status").parent() {
            std::fs::create_dir_all(parent)?;
        }
        let line = |word: &str, text: &str| {
            let text: Vec<&str> = text.lines().map(str::trim).collect();
            std::fs::write(path("status"), format!("{word}: {}\n", text.join(" ")))
        };
        match self {
            Outcome::Unsupported(why) => line("unsupported", why),
            Outcome::Error(message) => line("error", message),
            Outcome::Values(values) => write_tensors(&path("safetensors"), values),
        }
    }
}
