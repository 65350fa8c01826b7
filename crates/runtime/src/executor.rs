//! Plans that are ready to run.

mod after;
mod binder;
mod bound;
mod check;
mod control;
mod covered;
mod cpu;
mod executable;
mod gpu;
mod guard;
mod link;
mod linker;
mod loc;
mod moved;
mod on_gpu;
mod pack;
mod packed;
mod part;
mod pending;
mod phases;
mod prepare;
mod profile;
mod replay;
mod report;
mod run;
mod slices;
mod step;
mod stored;
mod trace;
mod unread;

pub use executable::{Executable, Stats};
pub use packed::Packed;
pub use profile::{StepEvent, StepTime};
pub use replay::Replays;
pub use report::{MemoryBlock, MemoryReport};
pub use trace::{Traced, Tracer};
