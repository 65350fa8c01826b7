//! Everything that a GPU must prove, part by part: what it computes is right, the emulator agrees with it, and
//! how fast it is.
//!
//! A part is a function that fills a [`Report`]. The command runs each in a process of its own, so that a fault,
//! which ends a process's use of a GPU, or a part that takes too long, spoils no other. Parts belong to three
//! stages of at most ten minutes: [`Stage`].

/// Prints a line. A closed reader stops nothing: pages are still written, and the exit code reports the result.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

mod bench;
mod binaries;
pub mod command;
mod digits;
mod driver;
mod families;
mod machine;
mod process;
mod programs;
mod report;
mod samples;
mod training;
mod transformer;
mod vectors;

pub use report::{Figure, Report};

use kiln_tensor::Device;
use std::path::PathBuf;
use std::time::Instant;

/// The error that stops a part.
pub type Failed = Box<dyn std::error::Error>;

/// The settings that parts run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The GPU.
    pub device: Device,
    /// The number of random programs.
    pub seeds: u64,
    /// The first of them.
    pub first: u64,
    /// True if parts that check a long run take a small share of it.
    pub short: bool,
    /// The folder for outputs of hardware, if they are stored.
    pub out: Option<PathBuf>,
    /// The folder of the test suites' binaries, if there is one.
    pub tests: Option<PathBuf>,
    /// The Python that may have PyTorch.
    pub python: String,
    /// The time by which the part must end.
    pub deadline: Option<Instant>,
}

impl Settings {
    /// The whole proof on a device, without outputs and test binaries.
    pub fn new(device: Device) -> Settings {
        Settings {
            device,
            seeds: 1000,
            first: 0,
            short: false,
            out: None,
            tests: None,
            python: "python3".to_string(),
            deadline: None,
        }
    }

    /// True if checks that have not begun are to be left out.
    pub fn is_over(&self) -> bool {
        self.deadline.is_some_and(|end| Instant::now() >= end)
    }

    /// True if the device is the emulator, whose timings mean nothing.
    pub fn emulated(&self) -> bool {
        self.device.name().contains("emulator")
    }
}

/// The parts that a machine runs in one go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The machine, and every kernel family at a few sizes.
    A,
    /// Kernels beside the vendor's libraries.
    B,
    /// Programs, training, whole models.
    C,
}

impl Stage {
    /// The stage of this name on the command line.
    pub fn find(name: &str) -> Option<Stage> {
        match name {
            "a" => Some(Stage::A),
            "b" => Some(Stage::B),
            "c" => Some(Stage::C),
            _ => None,
        }
    }
}

/// Seconds of a stage, with what the command itself takes.
pub const STAGE_SECONDS: u64 = 600;

/// A part of the proof.
pub struct Part {
    /// Its name on the command line.
    pub name: &'static str,
    /// The claim that it proves.
    pub claim: &'static str,
    /// The stage that it belongs to.
    pub stage: Stage,
    /// The maximum number of seconds that it is given.
    pub limit: u64,
    run: fn(&Settings, &mut Report) -> Result<(), Failed>,
}

macro_rules! parts {
    ($($stage:ident $name:literal $limit:literal $run:path: $claim:literal;)*) => {
        /// The parts, in the order in which they run.
        pub const PARTS: &[Part] = &[$(Part {
            name: $name,
            claim: $claim,
            stage: Stage::$stage,
            limit: $limit,
            run: $run,
        },)*];
    };
}

parts! {
    A "machine" 60 machine::run: "clocks, and the ceilings of copies and products";
    A "vectors" 60 vectors::run: "the emulator computes what this GPU computes";
    A "families" 300 families::run: "every kernel family at three sizes beside f64";
    A "suites" 140 binaries::run: "the test suites of the engine";
    B "products" 150 bench::products: "products beside cuBLASLt and PyTorch";
    B "convolutions" 150 bench::convolutions: "convolutions, channels last, beside cuDNN";
    B "attention" 100 bench::attention: "attention and its gradients beside PyTorch";
    B "rows" 130 bench::rows: "norms, softmax, losses, optimisers and scans beside copies and PyTorch";
    B "launches" 30 bench::launches: "time of the host for a replayed kernel";
    C "samples" 110 samples::run: "PyTorch's operator samples, values and gradients";
    C "training" 60 training::run: "training runs follow PyTorch's: gradients, every loss, final weights";
    C "transformer" 20 transformer::run: "training steps of a transformer are as near to f64 as the CPU's";
    C "digits" 40 digits::run: "a trained classifier is as good as the CPU's";
    C "models" 180 bench::models: "whole models and their training steps beside PyTorch's compiler";
    C "programs" 80 programs::run: "random programs give what the reference gives";
    C "gradients" 80 programs::run_gradients: "gradients of random programs give what the reference gives";
}

impl Part {
    /// The part of this name.
    pub fn find(name: &str) -> Option<&'static Part> {
        PARTS.iter().find(|p| p.name == name)
    }

    /// Runs the part in this process. An error that stops it is added to the faults.
    pub fn run(&self, settings: &Settings, report: &mut Report) {
        let start = Instant::now();
        if let Err(e) = (self.run)(settings, report) {
            report.wrong(format!("stopped: {e}"));
        }
        report.end(start.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_fit_into_their_stages() {
        for stage in [Stage::A, Stage::B, Stage::C] {
            let parts = PARTS.iter().filter(|p| p.stage == stage);
            let seconds: u64 = parts.map(|p| p.limit).sum();
            // Each part takes a moment more to end its process.
            assert!(seconds <= STAGE_SECONDS - 20, "{stage:?}: {seconds}");
        }
    }
}
