//! ONNX models: shown, run, and converted to packages.

use crate::Failure;
use crate::bench::Effort;
use crate::failure::{Usage, say, say_json};
use crate::{converted, package};
use clap::ArgMatches;
use kiln::formats::{read_npy, write_npy};
use kiln::onnx::{Data, Kind, Port, load, read_value, write_value};
use serde_json::json;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// The commands of `kiln onnx`. A model is verified as the package that it converts to; `kiln bench` and the other
/// commands for packages take models too.
pub(crate) fn command(
    m: &ArgMatches,
    effort: fn(&ArgMatches) -> Effort,
) -> Result<ExitCode, Failure> {
    match m.subcommand() {
        Some(("inspect", m)) => inspect(m)?,
        Some(("run", m)) => run(m)?,
        Some(("verify", m)) => return package::verify(m),
        Some(("bench", m)) => package::bench(m, &[file(m, "file")?.clone()], &effort(m))?,
        Some(("convert", m)) => convert(m)?,
        _ => return Err("no such command".into()), // clap does not let it come here
    }
    Ok(ExitCode::SUCCESS)
}

fn file<'a>(m: &'a ArgMatches, name: &str) -> Result<&'a PathBuf, Failure> {
    Ok(m.get_one::<PathBuf>(name).ok_or("no file is given")?)
}

fn inspect(m: &ArgMatches) -> Result<(), Failure> {
    let model = load(file(m, "file")?)?;
    let weights = model.parameters();
    let numbers: usize = weights
        .iter()
        .map(|w| w.get().numel())
        .sum::<Result<_, _>>()?;
    let missing = model.unsupported();
    let on_host = model.on_host();
    if m.get_flag("json") {
        let ports = |ports: &[Port]| {
            ports
                .iter()
                .map(|p| json!({ "name": p.name, "type": p.to_string() }))
                .collect::<Vec<_>>()
        };
        return say_json(&json!({
            "opsets": model.opsets().collect::<Vec<_>>(),
            "inputs": ports(model.inputs()),
            "outputs": ports(model.outputs()),
            "operators": model.operators(),
            "weights": weights.len(),
            "numbers": numbers,
            "on_host": on_host,
            "unsupported": missing,
        }));
    }
    let mut text = String::new();
    for (domain, version) in model.opsets() {
        writeln!(text, "{domain} {version}")?;
    }
    for (verb, ports) in [("takes", model.inputs()), ("gives", model.outputs())] {
        for port in ports {
            writeln!(text, "  {verb} {:<12} {port}", port.name)?;
        }
    }
    writeln!(text, "  {} weights of {numbers} numbers", weights.len())?;
    for (op, count) in model.operators() {
        writeln!(text, "  {count:>6} {op}")?;
    }
    if !on_host.is_empty() {
        writeln!(
            text,
            "operators that are evaluated on the host:\n  {}",
            on_host.join("\n  ")
        )?;
    }
    if !missing.is_empty() {
        writeln!(
            text,
            "operators that Kiln lacks:\n  {}",
            missing.join("\n  ")
        )?;
    }
    say(&text)
}

/// Reads a tensor, a sequence or an optional from a file of NumPy's or of a message.
fn read(path: &str, kind: Kind) -> Result<Data, Failure> {
    match path.ends_with(".pb") {
        true => Ok(read_value(&std::fs::read(path)?, kind)?),
        false => Ok(read_npy(path)?.into()),
    }
}

fn run(m: &ArgMatches) -> Result<(), Failure> {
    let model = load(file(m, "file")?)?;
    let mut inputs = Vec::new();
    for argument in m.get_many::<String>("input").into_iter().flatten() {
        let (name, path) = argument
            .split_once('=')
            .ok_or_else(|| Usage(format!("--input {argument}: an input is NAME=FILE")))?;
        let kind = model.all_inputs().find(|p| p.name == name);
        inputs.push((name, read(path, kind.map_or(Kind::Tensor, |p| p.kind))?));
    }
    let outputs = model.run(inputs)?;
    let names: Vec<&str> = model.outputs().iter().map(|o| &o.name[..]).collect();
    let output_files = package::files_of_outputs(m, &names)?;
    for (name, path) in &output_files {
        let values = outputs
            .iter()
            .zip(model.outputs())
            .find(|((n, _), _)| n == name);
        match values {
            Some(((_, value), port)) if path.ends_with(".pb") => {
                std::fs::write(path, write_value(name, value, port.kind)?)?;
            }
            _ => write_npy(path, outputs.get(name)?)?,
        }
    }
    if output_files.is_empty() {
        for (name, value) in outputs.iter() {
            match value {
                Data::Tensor(t) => say(&format!("{name} = {t}\n"))?,
                Data::Text(t) => say(&format!("{name} = {:?} {:?}\n", t.shape(), t.elements()))?,
                Data::Maps(m) => say(&format!("{name} = {:?} {}\n", m.keys, m.values))?,
                other => say(&format!("{name} = {other:?}\n"))?,
            }
        }
    }
    Ok(())
}

fn convert(m: &ArgMatches) -> Result<(), Failure> {
    let sizes = package::sizes(m)?;
    let builder = converted::builder(file(m, "file")?, &package::pairs(&sizes))?;
    Ok(builder.save(file(m, "package")?)?)
}
