//! The `kiln` command, and the same as functions: [`mod@bench`] measures workloads given as text ([`spec`]),
//! [`report`] writes the measurements, [`tuning`] fills and maintains the store of measurements from which algorithms
//! are chosen. Packages are inspected, run, verified, measured, tuned, compared and exported as C99.
//!
//! ```no_run
//! use kiln::{CompileOptions, DType, Device};
//! use kiln_cli::bench::{Effort, Ready, measure};
//!
//! let options = CompileOptions::default();
//! let workloads = kiln_cli::spec::parse("matmul:256,512x512x512")?;
//! let ready = workloads.iter().map(|w| Ready::new(w, DType::F32, Device::Cpu, &options));
//! let results = measure(ready.collect::<Result<_, _>>()?, &Effort::default(), |_, _| {})?;
//! println!("{}: {:.1} GFLOP/s", results[0].workload, results[0].flops_per_second() / 1e9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod args;
pub mod bench;
mod cache;
mod command;
mod converted;
pub mod devices;
pub mod doctor;
mod failure;
pub mod groups;
mod launch;
mod onnx;
mod package;
pub mod report;
pub mod spec;
pub mod tuning;

pub use args::command;
pub use command::run;
pub use failure::{Failure, Usage, exit_code};
