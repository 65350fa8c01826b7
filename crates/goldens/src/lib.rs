//! Results of PyTorch, and comparisons of Kiln with them.
//!
//! [`opinfo`](run) cases are sample calls of PyTorch operators with expected outputs. The contract of the runner: one
//! case id per line (`add/f32_00`); for each case an output `<id>.safetensors`, or an `<id>.status` of one line,
//! `unsupported: why` or `error: message`. [`samples`] judges them.
//!
//! A [`Run`] trains a small network from given weights on given batches; [`training`] judges it.

mod args;
mod case;
mod compare;
mod engine;
mod golden;
mod network;
mod ops;
mod run;
pub mod samples;
mod train;
pub mod training;

pub use args::{Arg, Args};
pub use case::{Case, CaseError, Kind, read_tensors, write_tensors};
pub use compare::{Verdict, judge};
pub use engine::{Array, Engine};
pub use golden::{Folder, GoldenError, ids, unpack};
pub use run::{Outcome, record, run, run_together};
pub use train::{Run, TrainError};
