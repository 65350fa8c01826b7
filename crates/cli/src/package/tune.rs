//! Packages with the fastest algorithms for this machine.

use super::subject::graph;
use crate::Failure;
use crate::failure::{Usage, say};
use crate::tuning::{Tuned, choices};
use clap::ArgMatches;
use kiln::package::{NewProgram, Options, Package};
use kiln_compiler::compile;
use kiln_plan::{Entry, Kernel, Plan};
use std::path::PathBuf;

/// Compiles every program of packages for the CPU again, by the process's settings. Writes them into the packages'
/// files as this machine's, next to those for any machine and for other machines.
pub(crate) fn tune(m: &ArgMatches, files: &[PathBuf]) -> Result<Vec<Tuned>, Failure> {
    let output = m.get_one::<PathBuf>("output");
    if output.is_some() && files.len() > 1 {
        return Err(Usage("--output names one file for several packages".into()).into());
    }
    let (mut all, mut said) = (Vec::new(), Ok(()));
    for file in files {
        let package = Options::new().open(file)?;
        let machine = kiln_runtime::machine(None)?.to_string();
        let mut contents = package.contents()?;
        for entry in &mut contents.entries {
            let is_for_this_machine = |p: &NewProgram| p.machine.as_ref() == Some(&machine);
            entry.programs.retain(|p| !is_for_this_machine(p));
            let mut tuned_here = Vec::new();
            for program in entry.programs.iter().filter(|p| is_for_any_cpu(p)) {
                let (tuned, retuned) = recompile(&package, &entry.name, program)?;
                // The file is written even if nobody reads the output.
                if !m.get_flag("json") && said.is_ok() {
                    said = say(&tuned.text());
                }
                all.push(tuned);
                tuned_here.push(NewProgram {
                    machine: Some(machine.clone()),
                    sizes: program.sizes.clone(),
                    program: retuned,
                });
            }
            entry.programs.extend(tuned_here);
        }
        drop(package);
        contents.save(output.unwrap_or(file))?;
    }
    said.map(|()| all)
}

fn is_for_any_cpu(program: &NewProgram) -> bool {
    let kernels = &program.program.plan.kernels;
    let cuda = kernels.iter().any(|k| matches!(**k, Kernel::Cuda(_)));
    program.machine.is_none() && !cuda
}

/// Compiles a program of an entry again by the process's settings; returns it with the choices.
fn recompile(
    package: &Package,
    entry: &str,
    program: &NewProgram,
) -> Result<(Tuned, Entry), Failure> {
    let sizes = program.sizes.iter();
    let sizes: Vec<String> = sizes.map(|(n, v)| format!(" {n}={v}")).collect();
    let name = format!("{entry}{}", sizes.concat());
    let graph = graph(package, entry, &program.sizes)?;
    let new = compile(&graph, &[], &kiln_compiler::Options::default());
    let new = new.map_err(|e| format!("{name}: {e}"))?;
    let outputs = new.outputs.iter().copied();
    let in_order = outputs.eq((0..graph.outputs.len()).map(Some));
    let signature = program.program.signature.clone();
    let plan = new.executable.plan().clone();
    let same = in_order && is_alike(&plan, &program.program.plan) && signature.check(&plan).is_ok();
    match same {
        true => Ok((choices(name, &new.explain), Entry { signature, plan })),
        false => Err(format!("{name}: its graph makes another program").into()),
    }
}

/// True if the programs have the same inputs, outputs and symbols.
fn is_alike(a: &Plan, b: &Plan) -> bool {
    let inputs = |p: &Plan| -> Vec<_> {
        let inputs = p.inputs.iter();
        inputs.map(|i| (i.dtype, i.shape.clone(), i.role)).collect()
    };
    let outputs = |p: &Plan| -> Vec<_> {
        let outputs = p.outputs.iter();
        outputs.map(|o| (o.dtype, o.shape.clone())).collect()
    };
    let symbols = |p: &Plan| -> Vec<_> { p.symbols.iter().map(|s| s.name.clone()).collect() };
    inputs(a) == inputs(b) && outputs(a) == outputs(b) && symbols(a) == symbols(b)
}
