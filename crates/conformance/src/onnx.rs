//! ONNX models with inputs and outputs in files, as the standard's tests have them.

use crate::{Failed, USAGE};
use kiln_onnx::{Data, Model, read_value, write_value};
use kiln_tensor::ErrorKind;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// A model to run.
#[derive(Deserialize)]
pub struct Job {
    /// The model's file.
    pub model: PathBuf,
    /// Files of the inputs, in the order of those without an initial value, or of all.
    pub inputs: Vec<PathBuf>,
    /// The folder that takes the outputs.
    pub output_dir: PathBuf,
}

/// The outcome of a job.
pub enum Outcome {
    /// The outputs are written.
    Done,
    /// The model needs what Kiln does not have.
    Unsupported(String),
    /// The model or an input is wrong, or the run failed.
    Failed(String),
}

impl Job {
    /// Runs the model and writes `output_0.pb`, `output_1.pb` and so on.
    pub fn run(&self) -> Outcome {
        match self.outputs() {
            Ok(()) => Outcome::Done,
            Err(e) => match e.downcast_ref::<kiln_tensor::Error>() {
                Some(e) if e.kind() == ErrorKind::Unsupported => {
                    Outcome::Unsupported(one_line(e.message()))
                }
                Some(e) => Outcome::Failed(one_line(e.message())),
                None => Outcome::Failed(one_line(&e.to_string())),
            },
        }
    }

    fn outputs(&self) -> Result<(), Failed> {
        let model = kiln_onnx::load(&self.model)?;
        let inputs = read_inputs(&model, &self.inputs)?;
        let outputs = model.run(inputs)?;
        std::fs::create_dir_all(&self.output_dir)?;
        for (i, ((name, value), port)) in outputs.iter().zip(model.outputs()).enumerate() {
            let bytes = write_value(name, value, port.kind)?;
            std::fs::write(self.output_dir.join(format!("output_{i}.pb")), bytes)?;
        }
        Ok(())
    }
}

fn read_inputs(model: &Model, files: &[PathBuf]) -> Result<Vec<(String, Data)>, Failed> {
    let mut ports: Vec<_> = model.inputs().iter().collect();
    if files.len() > ports.len() {
        ports = model.all_inputs().collect();
    }
    if files.len() != ports.len() {
        return Err(format!(
            "{} inputs are given, and the model takes {}",
            files.len(),
            ports.len()
        )
        .into());
    }
    let read = |(file, port): (&PathBuf, &kiln_onnx::Port)| {
        let bytes = std::fs::read(file)?;
        Ok((port.name.clone(), read_value(&bytes, port.kind)?))
    };
    files.iter().zip(ports).map(read).collect()
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// Runs one model, or the jobs of a file with one a line and the outcome of each in `status` beside its outputs.
pub fn command(command: &str, mut parser: lexopt::Parser) -> Result<ExitCode, Failed> {
    use lexopt::prelude::*;
    let (mut file, mut inputs, mut output_dir) = (None, Vec::new(), None);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("inputs") => inputs.extend(parser.values()?.map(PathBuf::from)),
            Long("output-dir") => output_dir = Some(PathBuf::from(parser.value()?)),
            Value(v) if file.is_none() => file = Some(PathBuf::from(v)),
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    let file = file.ok_or(USAGE)?;
    if command == "run" {
        let output_dir = output_dir.ok_or(USAGE)?;
        let job = Job {
            model: file,
            inputs,
            output_dir,
        };
        return match job.run() {
            Outcome::Done => Ok(ExitCode::SUCCESS),
            Outcome::Unsupported(why) => {
                eprintln!("unsupported: {why}");
                Ok(ExitCode::from(3))
            }
            Outcome::Failed(message) => Err(message.into()),
        };
    }
    for line in std::fs::read_to_string(file)?
        .lines()
        .filter(|l| !l.trim().is_empty())
    {
        let job: Job = serde_json::from_str(line)?;
        let status = match job.run() {
            Outcome::Done => "ok".to_string(),
            Outcome::Unsupported(why) => format!("unsupported: {why}"),
            Outcome::Failed(message) => format!("error: {message}"),
        };
        std::fs::create_dir_all(&job.output_dir)?;
        std::fs::write(job.output_dir.join("status"), status)?;
    }
    Ok(ExitCode::SUCCESS)
}
