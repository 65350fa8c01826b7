//! Comparing packages with the reference.

use super::open_named;
use super::subject::{BoundEntry, subjects};
use crate::Failure;
use crate::failure::{say, say_json};
use clap::ArgMatches;
use kiln::package::{Buffer, Package};
use kiln_compiler::{Options, Verification};
use kiln_ir::Graph;
use kiln_ir::eval::{Array, Deviation, Oracle};
use kiln_plan::{Decision, Kernel, Plan};
use kiln_runtime::Executable;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;

/// The `verify` command: exits with 1 if a deviation is too large.
pub(crate) fn verify(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let package = open_named(m, "file")?;
    let mut right = true;
    let mut checks = Vec::new();
    for subject in subjects(&package, m)? {
        let checked = check_entry(&package, &subject)?;
        right &= checked.is_right();
        match m.get_flag("json") {
            true => checks.push(checked.json(&subject.name)),
            false => say(&format!("{}: {checked}\n", subject.name))?,
        }
    }
    if m.get_flag("json") {
        say_json(&checks)?;
    }
    Ok(ExitCode::from(u8::from(!right)))
}

/// The findings about an entry.
enum Checked {
    /// The comparison of every kernel.
    Kernels(Verification),
    /// The comparison of its results alone, since its kernels differ from those that this build compiles from its
    /// graph.
    Results(Vec<Deviation>),
}

fn check_entry(package: &Package, subject: &BoundEntry) -> Result<Checked, Failure> {
    let compiled = subject.compiled()?;
    let inputs = subject.plan_inputs(package, &compiled)?;
    let graph = subject.graph(package)?;
    let compilation = kiln_compiler::compile(&graph, &[], &Options::default())?;
    let executable = Executable::new(compiled.plan.clone())?;
    match strip(compilation.executable.plan()) == strip(&compiled.plan) {
        true => {
            let verification = kiln_compiler::verify(&compilation.stages, &executable, &inputs);
            Ok(Checked::Kernels(verification?))
        }
        false => Ok(Checked::Results(results(&graph, &executable, &inputs)?)),
    }
}

/// Compares the results with the reference.
fn results(
    graph: &Graph,
    executable: &Executable,
    inputs: &[Buffer],
) -> Result<Vec<Deviation>, Failure> {
    let array = |b: &Buffer| -> Result<Array, Failure> {
        let shape: Vec<usize> = b.shape().iter().map(|n| *n as usize).collect();
        Ok(Array::from_bytes(b.dtype(), &shape, b.bytes()?)?)
    };
    let arrays: Vec<Array> = inputs.iter().map(array).collect::<Result<_, _>>()?;
    let floats = arrays.iter().filter_map(Array::floats).flatten();
    let largest = floats
        .filter(|x| x.is_finite())
        .fold(0.0, |m: f64, x| m.max(x.abs()));
    let oracle = Oracle::new(graph, &arrays, largest)?;
    let outputs = executable.run_shared(inputs)?;
    let deviations = outputs.iter().enumerate();
    let deviations = deviations.map(|(i, b)| Ok(oracle.compare(i, &array(b)?)?));
    deviations.collect()
}

/// The plan without the parts that may differ between compilations of the same graph: lines, and the kernels'
/// algorithms.
fn strip(plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.sites.iter_mut().for_each(|s| s.node = 0);
    plan.needs.iter_mut().for_each(|n| n.node = 0);
    for kernel in &mut plan.kernels {
        let kernel = Arc::make_mut(kernel);
        match kernel {
            Kernel::MatMul(k) => k.algorithm = Decision::default(),
            Kernel::Conv(k) => k.algorithm = Decision::default(),
            Kernel::Tile(k) => k.sizes = Default::default(),
            _ => {}
        }
        kernel.bodies_mut().iter_mut().for_each(|b| *b = strip(b));
    }
    plan
}

impl Checked {
    fn is_right(&self) -> bool {
        match self {
            Checked::Kernels(found) => found.is_right(),
            Checked::Results(found) => found.iter().all(Deviation::is_right),
        }
    }

    fn json(&self, name: &str) -> Value {
        let deviation_json = |d: &Deviation| {
            json!({
                "of_tolerance": d.ratio, "max_abs": d.max_abs, "max_rel": d.max_rel,
                "max_ulp": d.max_ulp, "right": d.is_right(),
            })
        };
        let checks: Vec<Value> = match self {
            Checked::Kernels(found) => (found.checks.iter())
                .map(|c| {
                    let mut check = deviation_json(&c.error);
                    check["kernel"] = json!(c.kernel);
                    check["value"] = json!(c.value);
                    check["prepared"] = json!(c.prepared);
                    check["step"] = json!(c.step);
                    check["problem"] = json!(c.problem);
                    check["right"] = json!(c.is_right());
                    check
                })
                .collect(),
            Checked::Results(found) => found.iter().map(deviation_json).collect(),
        };
        let reference = match self {
            Checked::Kernels(_) => "kernels",
            Checked::Results(_) => "results",
        };
        json!({ "entry": name, "right": self.is_right(), "of": reference, "checks": checks })
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Checked::Kernels(found) => found.fmt(f),
            Checked::Results(found) => {
                let wrong = found.iter().filter(|d| !d.is_right()).count();
                let worst = found.iter().fold(0f64, |m, d| m.max(d.ratio));
                writeln!(
                    f,
                    "{} results, {wrong} outside their tolerance, the worst {worst:.3} of it. (Its kernels are others \
                     than this build makes of its graph, so only results are compared.)",
                    found.len()
                )
            }
        }
    }
}
