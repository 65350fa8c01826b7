//! Choosing algorithms: the fastest candidate of each kernel, measured once for a device and remembered.
//!
//! # How a choice is made
//! A task of a lowered program has [candidates](kiln_codegen::Candidate) to compute it, all of them within the
//! [`Precision`]: those that lowering gives; on the CPU, other algorithms that are legal for its exact sizes; for a
//! custom op, its further kernels. Its key holds everything that the best candidate depends on. Under that key the
//! [`Store`] may hold a [`Record`] of earlier trials, from which the choice follows; else the candidates are tried.
//! Those that the cost model gives no chance are left out. The others run on operands of the kernel's sizes, and
//! their results are checked within a bound that follows from the algorithm. Candidates that are wrong, fail or never
//! answer are excluded and reported. The right ones are timed in interleaved rounds on cold operands, and all their
//! times go into the record.
//!
//! A record does not depend on modes and limits: it covers every candidate, and the ones that may be chosen from it
//! are determined anew each time. So a changed limit measures only the candidates that were not tried before.
//!
//! # The settings
//! [`Settings`] are part of a compilation's [`Options`](crate::Options). Those of the process come from [`set`], or
//! else from the environment. The mode is [`Mode::Off`] unless asked for, as in PyTorch, where
//! `torch.backends.cudnn.benchmark` is off: compiling takes no longer, and results depend on the program alone.

mod alone;
mod candidates;
mod choose;
mod expect;
mod fusion;
mod key;
mod layouts;
mod library;
mod program;
mod record;
mod search;
mod settings;
mod store;
mod subject;

pub use choose::{Choice, Chooser, Tuning, Why, measured};
pub use key::device;
pub(crate) use layouts::known;
pub use program::measure;
pub(crate) use program::{Tuned, for_packages, tune};
pub use record::{Limits, Outcome, Record, SCHEMA, Trial};
pub use search::{Answer, CandidateInfo, Checked, Clock, Effort, Subject, SystemClock, search};
pub(crate) use settings::problem;
pub use settings::{Mode, Precision, Settings, UnknownWord, set, set_precision, store_path};
pub use store::{Damage, Measuring, Merged, Store};
