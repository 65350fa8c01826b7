//! `kiln-conformance opinfo --root R --cases LIST --out D [--engine cpu|plain|reference|cuda]` runs cases and
//! writes their outputs; `kiln-conformance compare --root R [--cases LIST] [--engine …]` runs cases and
//! compares with the expected outputs; `kiln-conformance train RUN_DIR --out F` trains a run and writes its
//! losses, first gradients and final values; `kiln-conformance tensors FILE --out DUMP` writes every tensor of a
//! checkpoint as one safetensors file; `kiln-conformance run` and `run-batch` run ONNX models on inputs in files;
//! `kiln-conformance gpu` proves the GPU of this machine.

mod onnx;

use kiln_goldens::{Case, Engine, Run, Verdict, ids, judge, run, write_tensors};
use kiln_gpu_proof::say;
use kiln_tensor::Device;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str =
    "usage: kiln-conformance opinfo --root DIR --cases LIST --out DIR [--engine cpu|plain|reference|cuda]
       kiln-conformance compare --root DIR [--cases LIST] [--engine cpu|plain|reference|cuda]
       kiln-conformance train RUN_DIR --out FILE
       kiln-conformance tensors FILE --out FILE
       kiln-conformance run MODEL.onnx --inputs FILE… --output-dir DIR
       kiln-conformance run-batch JOBS.jsonl
       kiln-conformance gpu [options], which --help lists";

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match command() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

struct Options {
    command: String,
    root: PathBuf,
    cases: Option<PathBuf>,
    out: Option<PathBuf>,
    engine: Engine,
}

fn command() -> Result<ExitCode, Failed> {
    let mut parser = lexopt::Parser::from_env();
    if std::env::args().nth(1).is_some_and(|a| a == "gpu") {
        parser.next()?;
        return Ok(ExitCode::from(kiln_gpu_proof::command::run(parser)?));
    }
    if let Some(command @ ("run" | "run-batch")) = std::env::args().nth(1).as_deref() {
        parser.next()?;
        return onnx::command(command, parser);
    }
    let options = parse(parser)?;
    if options.command == "train" {
        let out = options.out.as_deref().ok_or(USAGE)?;
        write_tensors(out, &Run::load(&options.root)?.train(Device::Cpu)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    if options.command == "tensors" {
        let out = options.out.as_deref().ok_or(USAGE)?;
        kiln_formats::load(&options.root)?.tensors()?.save(out)?;
        return Ok(ExitCode::SUCCESS);
    }
    let cases = match &options.cases {
        Some(list) => {
            let text = std::fs::read_to_string(list)?;
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty());
            lines.map(str::to_string).collect()
        }
        None => ids(&options.root)?,
    };
    match options.command.as_str() {
        "opinfo" => opinfo(&options, &cases),
        "compare" => compare(&options, &cases),
        other => Err(format!("unknown command {other:?}\n{USAGE}").into()),
    }
}

fn parse(mut parser: lexopt::Parser) -> Result<Options, Failed> {
    use lexopt::prelude::*;
    let mut command = None;
    let (mut root, mut cases, mut out) = (None, None, None);
    let mut engine = Engine::Cpu;
    while let Some(arg) = parser.next()? {
        match arg {
            Long("root") => root = Some(PathBuf::from(parser.value()?)),
            Long("cases") => cases = Some(PathBuf::from(parser.value()?)),
            Long("out") => out = Some(PathBuf::from(parser.value()?)),
            Long("engine") => {
                engine = match parser.value()?.string()?.as_str() {
                    "cpu" => Engine::Cpu,
                    "plain" => Engine::Plain,
                    "reference" => Engine::Reference,
                    "cuda" => Engine::Cuda(Device::cuda(0)?),
                    other => return Err(format!("unknown engine {other:?}\n{USAGE}").into()),
                }
            }
            Value(v) if command.is_none() => command = Some(v.string()?),
            Value(v)
                if root.is_none() && matches!(command.as_deref(), Some("train" | "tensors")) =>
            {
                root = Some(PathBuf::from(v));
            }
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    let root: PathBuf = root.ok_or(USAGE)?;
    // The root holds the folder of cases, or is it.
    let inner = root.join("opinfo");
    Ok(Options {
        command: command.ok_or(USAGE)?,
        root: if inner.is_dir() { inner } else { root },
        cases,
        out,
        engine,
    })
}

fn opinfo(options: &Options, cases: &[String]) -> Result<ExitCode, Failed> {
    let out: &Path = options.out.as_deref().ok_or(USAGE)?;
    for id in cases {
        let case = Case::load(&options.root, id)?.move_to(options.engine.device());
        run(&case, options.engine).write(out, id)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn compare(options: &Options, cases: &[String]) -> Result<ExitCode, Failed> {
    let mut by_op: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for id in cases {
        let case = Case::load(&options.root, id)?.move_to(options.engine.device());
        let op = id.split('/').next().unwrap_or(id);
        let [pass, unsupported, wrong] = by_op.entry(op).or_default();
        match judge(&case, &run(&case, options.engine)) {
            Verdict::Pass => *pass += 1,
            Verdict::Unsupported(why) => {
                *unsupported += 1;
                say!("unsupported {id}: {why}");
            }
            Verdict::Wrong(why) => {
                *wrong += 1;
                say!("WRONG {id}: {why}");
            }
        }
    }
    let text = |[pass, unsupported, wrong]: [usize; 3]| {
        format!("{pass} pass, {unsupported} unsupported, {wrong} wrong")
    };
    let mut totals = [0; 3];
    for (op, counts) in by_op {
        say!("{op}: {}", text(counts));
        totals = std::array::from_fn(|i| totals[i] + counts[i]);
    }
    say!("all: {}", text(totals));
    Ok(ExitCode::from(u8::from(totals[2] > 0)))
}
