//! Running the trained network outside of this program: exported as one file, in a process that links only the
//! runtime.

use crate::data::Digits;
use crate::network::Network;
use crate::say::sayln;
use crate::{Failure, Training};
use kiln::formats::StateDict;
use kiln::package::Builder;
use kiln::{Compiled, Tensor, stack};
use std::env::consts::EXE_SUFFIX;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The epochs for which both processes continue training.
pub const EPOCHS: usize = 3;

/// The learning rate of these epochs.
const LR: f64 = 1e-3;

/// Writes the package, continues training on further batches, and has the other process do the same. Returns whether
/// both got the same bits.
pub fn run(
    out: &Path,
    (network, classifier): (&Network, &Compiled<Tensor, Tensor>),
    training: &mut Training,
    test: &Digits,
    batches: &[(Tensor, Tensor)],
) -> Result<bool, Failure> {
    let package = export(out, network, classifier, training)?;
    let (images, _) = test.tensors();
    let predictions = classifier.run(&images)?;
    training.optimizer.set_lr(LR)?;
    let mut losses = Vec::new();
    for (images, labels) in batches {
        let (loss, _) = training.step.run((images, labels))?;
        losses.push(loss.item::<f32>()?);
    }
    let initial_file = out.join("given.safetensors");
    let trained_file = out.join("found.safetensors");
    let mut tensors = StateDict::default();
    tensors.insert("images", images);
    tensors.insert("train_images", stack(batches.iter().map(|b| &b.0), 0));
    tensors.insert("train_labels", stack(batches.iter().map(|b| &b.1), 0));
    tensors.insert("lr", Tensor::from([LR]));
    tensors.save(&initial_file)?;

    let program = program()?;
    let status = Command::new(&program)
        .args([&package, &initial_file, &trained_file])
        .status()?;
    if !status.success() {
        return Err(format!("{} failed: {status}", program.display()).into());
    }
    let trained_file = StateDict::load(&trained_file)?;
    let same = |name: &str, bytes: Vec<u8>| -> kiln::Result<bool> {
        let trained_bytes = trained_file.get(name).map(Tensor::to_bytes).transpose()?;
        Ok(trained_bytes == Some(bytes))
    };
    let predicted = same("predictions", predictions.to_bytes()?)?;
    let trained = same("losses", Tensor::from(&losses[..]).to_bytes()?)?;
    let equal = |same| {
        if same {
            "equal to the bit"
        } else {
            "DIFFERENT"
        }
    };
    sayln!(
        "run with the runtime alone ({:.1} MB program): predictions {}, losses of {EPOCHS} more epochs {}",
        std::fs::metadata(&program)?.len() as f64 / 1e6,
        equal(predicted),
        equal(trained)
    );
    Ok(predicted && trained)
}

/// Writes the package.
fn export(
    out: &Path,
    network: &Network,
    classifier: &Compiled<Tensor, Tensor>,
    training: &Training,
) -> Result<PathBuf, Failure> {
    let package = out.join("digits.kiln");
    Builder::new()
        .module("", network)
        .optimizer("optimizer", &training.optimizer)
        .entry("forward", classifier)
        .inputs(["images"])
        .outputs(["digits"])
        .entry("train_step", &training.step)
        .inputs(["images", "labels"])
        .outputs(["loss", "right"])
        .metadata("task", "handwritten digits")
        .asset("classes.txt", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n")
        .save(&package)?;
    let bytes = std::fs::metadata(&package)?.len();
    sayln!(
        "exported: forward and train_step with all state, {:.0} KB ({})",
        bytes as f64 / 1e3,
        package.display()
    );
    Ok(package)
}

/// The program that links only the runtime, in the same folder as this one. `cargo run` builds one program at a time,
/// so if Cargo started this one, it is asked to build the other.
fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe()?;
    let folder = own.parent().ok_or("this program lies nowhere")?;
    let program = folder.join(format!("elsewhere{EXE_SUFFIX}"));
    if let Some(cargo) = std::env::var_os("CARGO") {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let mut build = Command::new(cargo);
        build.args([
            "build",
            "--quiet",
            "--bin",
            "elsewhere",
            "--manifest-path",
            root,
        ]);
        if folder.ends_with("release") {
            build.arg("--release");
        }
        if !build.status()?.success() {
            return Err("the program `elsewhere` can't be built".into());
        }
    }
    match program.exists() {
        true => Ok(program),
        false => Err(format!(
            "{} is not there: cargo build --release --bin elsewhere",
            program.display()
        )
        .into()),
    }
}
