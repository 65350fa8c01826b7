//! Everything that a GPU must prove, part by part: what it computes is right, the emulator agrees with it, and
//! how fast it is.
//!
//! A part is a function that fills a [`Report`]. The command runs each in a process of its own, so that a fault,
//! which ends a process's use of a GPU, or a part that takes too long, spoils no other.

/// Prints a line. That nobody reads any more stops nothing: pages are written, and the exit code says the rest.
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
mod programs;
mod report;
mod samples;
mod training;
mod transformer;
mod vectors;

pub use report::{Figure, Report};

use kiln_tensor::Device;
use std::path::PathBuf;

/// What stops a part.
pub type Failed = Box<dyn std::error::Error>;

/// What parts are run with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The GPU.
    pub device: Device,
    /// Random programs to run.
    pub seeds: u64,
    /// The first of them.
    pub first: u64,
    /// Whether parts that check a long run take a small share of it.
    pub short: bool,
    /// Where outputs of hardware are stored, if anywhere.
    pub out: Option<PathBuf>,
    /// Where the binaries of the test suites are, if anywhere.
    pub tests: Option<PathBuf>,
    /// The Python that may have PyTorch.
    pub python: String,
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
        }
    }

    /// Whether the device is the emulator, whose timings mean nothing.
    pub fn emulated(&self) -> bool {
        self.device.name().contains("emulator")
    }
}

/// A part of the proof.
pub struct Part {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What it shows.
    pub claim: &'static str,
    /// The most seconds that it is given.
    pub limit: u64,
    run: fn(&Settings, &mut Report) -> Result<(), Failed>,
}

/// The parts, in the order in which they run.
pub const PARTS: &[Part] = &[
    Part {
        name: "vectors",
        claim: "the emulator computes what this GPU computes",
        limit: 120,
        run: vectors::run,
    },
    Part {
        name: "samples",
        claim: "PyTorch's operator samples, values and gradients",
        limit: 300,
        run: samples::run,
    },
    Part {
        name: "programs",
        claim: "random programs give what the reference gives",
        limit: 400,
        run: programs::run,
    },
    Part {
        name: "gradients",
        claim: "gradients of random programs give what the reference gives",
        limit: 400,
        run: programs::run_gradients,
    },
    Part {
        name: "training",
        claim: "training runs follow PyTorch's: gradients, every loss, final weights",
        limit: 200,
        run: training::run,
    },
    Part {
        name: "transformer",
        claim: "training steps of a transformer are as near to f64 as the CPU's",
        limit: 100,
        run: transformer::run,
    },
    Part {
        name: "digits",
        claim: "a trained classifier is as good as the CPU's",
        limit: 300,
        run: digits::run,
    },
    Part {
        name: "suites",
        claim: "the test suites of the engine",
        limit: 500,
        run: binaries::run,
    },
    Part {
        name: "bandwidth",
        claim: "fused kernels as a share of the bandwidth of copies",
        limit: 200,
        run: bench::bandwidth,
    },
    Part {
        name: "launches",
        claim: "time of the host for a replayed kernel",
        limit: 100,
        run: bench::launches,
    },
    Part {
        name: "products",
        claim: "products and convolutions beside cuBLAS and cuDNN",
        limit: 200,
        run: bench::products,
    },
    Part {
        name: "models",
        claim: "whole models beside PyTorch",
        limit: 300,
        run: bench::models,
    },
];

impl Part {
    /// The part of this name.
    pub fn named(name: &str) -> Option<&'static Part> {
        PARTS.iter().find(|p| p.name == name)
    }

    /// Runs the part in this process. An error that stops it is among what is wrong.
    pub fn run(&self, settings: &Settings) -> Report {
        let mut report = Report::default();
        if let Err(e) = (self.run)(settings, &mut report) {
            report.wrong(format!("stopped: {e}"));
        }
        report
    }
}
