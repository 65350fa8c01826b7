//! Choosing algorithms: the fastest candidate of each kernel, measured once for a device and remembered.
//!
//! # The way of a choice
//! A task of a lowered program has [ways](kiln_codegen::Way) to be computed: those that lowering gives, on the CPU
//! other algorithms that are legal for its exact sizes, of a custom op its further kernels; all of them within the
//! [`Precision`]. Its key says all that the best one depends on. Under that key the [`Store`] may hold a [`Record`] of what was
//! tried, from which the choice follows; else the candidates are tried. Those that the cost model gives no chance are left out. The others run on operands of the
//! kernel's sizes and must give what the kernel must give (within a bound that follows from the
//! algorithm); wrong ones, failing ones, and those that never answer are out and reported. The right ones
//! are timed in interleaved rounds on cold operands, and all their times go into the record.
//!
//! A record says nothing of modes and limits: it is of every candidate, and what may be chosen from it is
//! decided anew each time. So changing a limit measures only what was not tried before.
//!
//! # The settings
//! [`Settings`] are part of a compilation's [`Options`](crate::Options); those of the process are what is
//! [`set`] or what the environment says. The mode is [`Mode::Off`] unless asked for, as in PyTorch,
//! where `torch.backends.cudnn.benchmark` is off: compiling takes no longer, and results are those of the
//! program alone.

mod alone;
mod choose;
mod expect;
mod fusion;
mod key;
mod layouts;
mod program;
mod record;
mod search;
mod settings;
mod store;
mod subject;
mod ways;

pub use choose::{Choice, Chooser, Tuning, Why, measured};
pub use key::device;
pub(crate) use layouts::known;
pub use program::measure;
pub(crate) use program::{Tuned, tune};
pub use record::{Limits, Outcome, Record, SCHEMA, Trial};
pub use search::{
    Answer, Candidate, Checked, Clock, Effort, Rejected, Subject, SystemClock, search,
};
pub(crate) use settings::problem;
pub use settings::{Mode, Precision, Settings, UnknownWord, set, set_precision, store_path};
pub use store::{Damage, Measuring, Merged, Store};
