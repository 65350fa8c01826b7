//! Packages with the algorithms that are the fastest on this machine.

use super::subject::graph;
use crate::Failure;
use crate::failure::{Usage, say};
use crate::tuning::{Tuned, choices};
use clap::ArgMatches;
use kiln::package::Options;
use kiln_compiler::compile;
use kiln_plan::{Entry, Kernel, Plan};
use std::path::PathBuf;

/// Compiles every program of packages for the CPU again, by the process's settings, and writes them into their files.
pub(crate) fn tune(m: &ArgMatches, files: &[PathBuf]) -> Result<Vec<Tuned>, Failure> {
    let output = m.get_one::<PathBuf>("output");
    if output.is_some() && files.len() > 1 {
        return Err(Usage("--output names one file for several packages".into()).into());
    }
    let mut all = Vec::new();
    for file in files {
        let package = Options::new().open(file)?;
        let mut contents = package.contents()?;
        for entry in &mut contents.entries {
            for program in &mut entry.programs {
                let cuda = |p: &Plan| p.kernels.iter().any(|k| matches!(**k, Kernel::Cuda(_)));
                if cuda(&program.program.plan) {
                    continue;
                }
                let sizes = program.sizes.iter();
                let sizes: Vec<String> = sizes.map(|(n, v)| format!(" {n}={v}")).collect();
                let name = format!("{}{}", entry.name, sizes.concat());
                let graph = graph(&package, &entry.name, &program.sizes)?;
                let again = compile(&graph, &[], &kiln_compiler::Options::default());
                let again = again.map_err(|e| format!("{name}: {e}"))?;
                let tuned = choices(name.clone(), &again.explain);
                if !m.get_flag("json") {
                    say(&tuned.text())?;
                }
                all.push(tuned);
                let in_order = again
                    .outputs
                    .iter()
                    .copied()
                    .eq((0..graph.outputs.len()).map(Some));
                let signature = program.program.signature.clone();
                let plan = again.executable.plan().clone();
                signature
                    .check(&plan)
                    .ok()
                    .filter(|()| in_order && alike(&plan, &program.program.plan))
                    .ok_or_else(|| format!("{name}: its graph makes another program"))?;
                program.program = Entry { signature, plan };
            }
        }
        drop(package);
        contents.save(output.unwrap_or(file))?;
    }
    Ok(all)
}

/// Whether programs take and give the same.
fn alike(a: &Plan, b: &Plan) -> bool {
    let inputs = |p: &Plan| -> Vec<_> {
        let of = p.inputs.iter();
        of.map(|i| (i.dtype, i.shape.clone(), i.role)).collect()
    };
    let outputs = |p: &Plan| -> Vec<_> {
        let of = p.outputs.iter();
        of.map(|o| (o.dtype, o.shape.clone())).collect()
    };
    let symbols = |p: &Plan| -> Vec<_> { p.symbols.iter().map(|s| s.name.clone()).collect() };
    inputs(a) == inputs(b) && outputs(a) == outputs(b) && symbols(a) == symbols(b)
}
