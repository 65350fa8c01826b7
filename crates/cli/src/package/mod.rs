//! Inspecting, running and comparing packages.

mod bench;
mod export_c;
mod subject;
mod tune;
mod verify;

pub(crate) use bench::bench;
pub(crate) use export_c::export as export_c;
pub(crate) use subject::{pairs, sizes};
pub(crate) use tune::tune;
pub(crate) use verify::verify;

use crate::Failure;
use crate::converted;
use crate::failure::{Usage, say, say_json};
use clap::ArgMatches;
use kiln::Tensor;
use kiln::formats::{read_npy, write_npy};
use kiln::package::{Buffer, Entry, Inputs, Interface, Options, Package, StateInfo};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) fn open_named(m: &ArgMatches, name: &str) -> Result<Package, Failure> {
    let file = m.get_one::<PathBuf>(name).ok_or("no file is given")?;
    open(file)
}

/// Opens a package, or the one that an ONNX model converts to.
fn open(file: &Path) -> Result<Package, Failure> {
    match file.extension().is_some_and(|e| e == "onnx") {
        true => Ok(Options::new().open_bytes(&converted::builder(file, &[])?.to_bytes()?)?),
        false => Ok(Options::new().open(file)?),
    }
}

/// The `inspect` command.
pub(crate) fn inspect(m: &ArgMatches) -> Result<(), Failure> {
    let package = open_named(m, "file")?;
    match m.get_flag("json") {
        true => say_json(&serde_json::from_str::<Value>(&package.manifest())?),
        false => say(&text(&package)?),
    }
}

/// The description of a package for people.
fn text(package: &Package) -> Result<String, Failure> {
    let mut text = format!("written by {}\n", package.written_by());
    for (key, value) in package.metadata() {
        writeln!(text, "{key}: {value}")?;
    }
    let bytes = |s: &StateInfo| s.shape.iter().product::<i64>() * s.dtype.size() as i64;
    let numbers: i64 = package.states().iter().map(bytes).sum();
    let count = package.states().len();
    writeln!(text, "\n{count} states, {:.2} MB", numbers as f64 / 1e6)?;
    for state in package.states() {
        let (dtype, shape) = (state.dtype, &state.shape);
        writeln!(text, "  {:<40} {dtype}{shape:?}", state.name)?;
    }
    for name in package.entries() {
        let about = package.interface(name)?;
        writeln!(text, "\n{name}")?;
        interface(&mut text, about)?;
        match package.entry(name) {
            Ok(entry) => writeln!(text, "  {}", needs(&entry, about)?)?,
            Err(e) => writeln!(text, "  does not run here: {e}")?,
        }
    }
    let levels: Vec<&str> = package.packed_levels().into_iter().collect();
    if !levels.is_empty() {
        writeln!(text, "\npacked weights: {}", levels.join(", "))?;
    }
    let compiled: Vec<&str> = package.compiled_for().into_iter().collect();
    if !compiled.is_empty() {
        writeln!(text, "\nkernels compiled for: {}", compiled.join(", "))?;
    }
    for machine in package.machines() {
        let ours = package.machine() == Some(machine);
        let note = if ours { ", which this is" } else { "" };
        writeln!(text, "\ntuned for {machine}{note}")?;
    }
    let assets: Vec<&str> = package.assets().collect();
    if !assets.is_empty() {
        writeln!(text, "\nassets: {}", assets.join(", "))?;
    }
    Ok(text)
}

fn interface(text: &mut String, about: &Interface) -> std::fmt::Result {
    for (verb, list) in [("takes", &about.inputs), ("gives", &about.outputs)] {
        for tensor in list {
            writeln!(text, "  {verb} {:<12} {tensor}", tensor.name)?;
        }
    }
    let (reads, writes) = (about.reads.len(), about.writes.len());
    write!(text, "  reads {reads} states, writes {writes}")?;
    let random = if about.random {
        ", draws random numbers"
    } else {
        ""
    };
    writeln!(text, "{random}")
}

/// The memory that a run needs, with every symbolic size at its minimum.
fn needs(entry: &Entry, about: &Interface) -> Result<String, Failure> {
    let sizes: Vec<(&str, i64)> = about.symbols.iter().map(|s| (&s.name[..], s.min)).collect();
    let memory = entry.memory(&sizes)?;
    let mb = |bytes: usize| bytes as f64 / 1e6;
    let sizes_text: Vec<String> = sizes
        .iter()
        .map(|(name, n)| format!("{name} = {n}"))
        .collect();
    let sizes_text = match sizes_text.is_empty() {
        true => String::new(),
        false => format!(" with {}", sizes_text.join(", ")),
    };
    Ok(format!(
        "needs {:.2} MB of weights, {:.2} MB at the peak and {:.2} MB of prepared weights{sizes_text}",
        mb(memory.weights),
        mb(memory.run.peak),
        mb(memory.run.prepared)
    ))
}

/// The `run` command.
pub(crate) fn run(m: &ArgMatches) -> Result<(), Failure> {
    let package = open_named(m, "file")?;
    let first_entry = package.entries().next().unwrap_or_default().to_string();
    let entry = m.get_one::<String>("entry").unwrap_or(&first_entry);
    let entry = package.entry(entry)?;
    let mut inputs = Inputs::new();
    for (name, value) in read_inputs(m)? {
        inputs = inputs.with(name, value);
    }
    let outputs = entry.run(inputs)?;
    let names = entry.interface().outputs.iter().map(|o| &o.name[..]);
    let output_files = files_of_outputs(m, &names.collect::<Vec<_>>())?;
    for (name, file) in &output_files {
        write_npy(file, &tensor(outputs.get(name)?)?)?;
    }
    if output_files.is_empty() {
        for (name, value) in outputs.iter() {
            say(&format!("{name} = {}\n", tensor(value)?))?;
        }
    }
    match m.get_one::<PathBuf>("save") {
        Some(file) => Ok(package.save(file)?),
        None => Ok(()),
    }
}

/// The outputs that are written, of those with these names in order, and the file of each.
pub(crate) fn files_of_outputs<'a>(
    m: &'a ArgMatches,
    names: &[&'a str],
) -> Result<Vec<(&'a str, &'a str)>, Failure> {
    let arguments = m.get_many::<String>("output").into_iter().flatten();
    let arguments: Vec<&String> = arguments.collect();
    if arguments.len() > names.len() {
        return Err(Usage("there are more files than outputs".into()).into());
    }
    let pairs = arguments.into_iter().zip(names);
    let pairs =
        pairs.map(|(argument, name)| argument.split_once('=').unwrap_or((*name, &argument[..])));
    Ok(pairs.collect())
}

/// The inputs given as files.
fn read_inputs(m: &ArgMatches) -> Result<Vec<(&str, Buffer)>, Failure> {
    let mut inputs = Vec::new();
    for argument in m.get_many::<String>("input").into_iter().flatten() {
        let (name, file) = argument
            .split_once('=')
            .ok_or_else(|| Usage(format!("--input {argument}: an input is NAME=FILE.npy")))?;
        inputs.push((name, buffer(&read_npy(file)?)?));
    }
    Ok(inputs)
}

fn buffer(t: &Tensor) -> Result<Buffer, Failure> {
    let shape: Vec<i64> = t.shape()?.iter().map(|n| *n as i64).collect();
    Ok(Buffer::from_bytes(t.dtype(), &shape, &t.to_bytes()?)?)
}

fn tensor(b: &Buffer) -> Result<Tensor, Failure> {
    let shape: Vec<usize> = b.shape().iter().map(|n| *n as usize).collect();
    let tensor = Tensor::from_bytes(&b.to_bytes()?, b.dtype(), shape);
    Ok(tensor.realize().cloned()?)
}

/// The `diff` command: exits with 1 if the packages differ.
pub(crate) fn diff(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let differences = differences(&open_named(m, "file")?, &open_named(m, "other")?)?;
    match m.get_flag("json") {
        true => say_json(&differences)?,
        false => say(&differences
            .iter()
            .map(|line| format!("{line}\n"))
            .collect::<String>())?,
    }
    Ok(ExitCode::from(u8::from(!differences.is_empty())))
}

/// The differences, one per line.
fn differences(a: &Package, b: &Package) -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    let entries = |p: &Package| p.entries().map(String::from).collect();
    for name in common_names("entry", entries(a), entries(b), &mut lines) {
        if a.interface(&name)? != b.interface(&name)? {
            lines.push(format!(
                "entry {name}: takes, gives or changes something else"
            ));
        }
        if a.graph(&name)? != b.graph(&name)? {
            lines.push(format!("entry {name}: computes something else"));
        }
    }
    let states = |p: &Package| p.states().iter().map(|s| s.name.clone()).collect();
    for name in common_names("state", states(a), states(b), &mut lines) {
        let (x, y) = (a.get(&name)?, b.get(&name)?);
        lines.extend(values_differ(&name, &x, &y)?);
    }
    let checksums = |p: &Package| -> Result<Vec<(String, String)>, Failure> {
        let manifest: Value = serde_json::from_str(&p.manifest())?;
        let files = manifest["files"].as_array().cloned().unwrap_or_default();
        let field = |f: &Value, key: &str| f[key].as_str().unwrap_or_default().to_string();
        Ok(files
            .iter()
            .map(|f| (field(f, "name"), field(f, "xxh3")))
            .collect())
    };
    let (x, y) = (checksums(a)?, checksums(b)?);
    let names = |s: &[(String, String)]| s.iter().map(|(name, _)| name.clone()).collect();
    let looked_at = |name: &str| name.ends_with("/graph.txt") || name == "weights.safetensors";
    for name in common_names("file", names(&x), names(&y), &mut lines) {
        let checksum_of = |s: &[(String, String)]| s.iter().find(|(n, _)| *n == name).cloned();
        if checksum_of(&x) != checksum_of(&y) && !looked_at(&name) {
            lines.push(format!("file {name}: other contents"));
        }
    }
    if a.metadata() != b.metadata() {
        lines.push("other metadata".into());
    }
    Ok(lines)
}

/// The names on both sides; adds a line for each name that is on one side only.
fn common_names(
    what: &str,
    a: BTreeSet<String>,
    b: BTreeSet<String>,
    lines: &mut Vec<String>,
) -> Vec<String> {
    let only = |x: &BTreeSet<String>, y: &BTreeSet<String>, side: &str| -> Vec<String> {
        let names = x.difference(y);
        names
            .map(|name| format!("{what} {name}: only in the {side}"))
            .collect()
    };
    lines.extend(only(&a, &b, "first"));
    lines.extend(only(&b, &a, "second"));
    a.intersection(&b).cloned().collect()
}

fn values_differ(name: &str, x: &Buffer, y: &Buffer) -> Result<Option<String>, Failure> {
    if (x.dtype(), x.shape()) != (y.dtype(), y.shape()) {
        let form = |b: &Buffer| format!("{}{:?}", b.dtype(), b.shape());
        return Ok(Some(format!("state {name}: {} and {}", form(x), form(y))));
    }
    let (p, q) = (x.to_bytes()?, y.to_bytes()?);
    if p == q {
        return Ok(None);
    }
    let floats = |bytes: &[u8]| match x.dtype() {
        dtype if dtype.is_float() => dtype.floats(bytes),
        dtype => dtype.ints(bytes).into_iter().map(|n| n as f64).collect(),
    };
    let (p, q) = (floats(&p), floats(&q));
    let differ = p
        .iter()
        .zip(&q)
        .filter(|(a, b)| a.to_bits() != b.to_bits())
        .count();
    let largest = p
        .iter()
        .zip(&q)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max);
    let count = p.len();
    Ok(Some(format!(
        "state {name}: {differ} of {count} elements differ, by up to {largest:.3e}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_differ_are_counted() {
        let of = |values: &[f32]| Buffer::from_slice(values, &[values.len() as i64]).unwrap();
        let (x, y) = (of(&[1.0, 2.0, 3.0]), of(&[1.0, 2.5, 3.0]));
        let text = values_differ("w", &x, &y).unwrap().unwrap();
        assert_eq!(text, "state w: 1 of 3 elements differ, by up to 5.000e-1");
        assert_eq!(values_differ("w", &x, &x.clone()).unwrap(), None);
        let other = values_differ("w", &x, &of(&[1.0])).unwrap().unwrap();
        assert_eq!(other, "state w: f32[3] and f32[1]");
    }
}
