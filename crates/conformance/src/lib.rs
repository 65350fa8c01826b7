//! Runs other projects' test suites through Kiln and compares.
//!
//! [`opinfo`](run) cases are sample calls of PyTorch operators with expected outputs. The contract of
//! the runner: one case id a line (`add/f32_00`); for each case an output `<id>.safetensors`, or an
//! `<id>.status` of one line, `unsupported: why` or `error: message`.
//!
//! [`programs`] are random ones, which an [`oracle`] judges. A [`Run`] trains a small network from given weights on given batches. [`gpu`] is the proof of a GPU, and `kiln-conformance gpu` its command.

mod args;
mod case;
mod compare;
mod engine;
mod golden;
pub mod gpu;
mod network;
mod ops;
pub mod oracle;
pub mod programs;
pub mod rules;
mod run;
pub mod samples;
pub mod sweep;
mod train;
pub mod training;

pub use args::{Arg, Args};
pub use case::{Case, CaseError, Kind, read_tensors, write_tensors};
pub use compare::{Verdict, judge};
pub use engine::{Array, Engine};
pub use golden::{Folder, GoldenError, ids, unpack};
pub use run::{Outcome, record, run};
pub use train::{Run, TrainError};
