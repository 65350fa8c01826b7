//! Packages: compiled programs with their weights and state in one file, which runs with the Kiln runtime and nothing
//! above it.
//!
//! ```no_run
//! use kiln_package::{Buffer, Package};
//!
//! let package = Package::open("digits.kiln")?;
//! let forward = package.entry("forward")?;
//! println!("{:?}", forward.interface().inputs);
//! let images = Buffer::from_slice(&[0.0f32; 2 * 64], &[2, 1, 8, 8])?;
//! let out = forward.run([("images", images)])?;
//! println!("{:?}", out.get("digits")?.to_vec::<i64>()?);
//!
//! // A training step continues from where it was exported, and what it has learnt is saved.
//! let step = package.entry("train_step")?;
//! package.set_number("optimizer.numbers", "lr", 1e-3)?;
//! # let (images, labels) = (Buffer::from_slice(&[0f32; 64], &[1, 1, 8, 8])?, Buffer::from_slice(&[0i64], &[1])?);
//! step.run([("images", images), ("labels", labels)])?;
//! package.save("digits-later.kiln")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The file
//!
//! A zip archive whose members are stored as they are and begin at multiples of 64 bytes:
//!
//! - `manifest.json`: the format and its writer; entries with their inputs, outputs and sizes; states; and the size
//!   and checksum of every other member;
//! - `entries/NAME/graph.txt`: the recorded program;
//! - `entries/NAME/*.plan`: the compiled program ([`kiln_plan::Entry`]), one for sizes of 2 and more and one for each
//!   symbol that is 1. Plans hold no machine code: kernels are descriptions that are checked when they are loaded.
//!   Their code is emitted then, for the best instruction set of the processor, so one plan serves all processors. A
//!   program that was tuned for one machine is stored next to the general one, and runs on that machine take it;
//! - `entries/NAME/*.packed`: on request, weights as the kernels of one level read them ([`Contents::packed`]). If
//!   level, program, schedules of kernels and weights are those that they were packed for, they are mapped instead of
//!   being packed, so that processes share them; else weights are packed as if there were none;
//! - `cuda/*.ptx` and `cuda/*.cubin`: kernels of programs for CUDA, compiled for an architecture
//!   ([`Contents::cuda`]). A GPU takes machine code of exactly its architecture, and PTX of its own or an older one;
//!   PTX with the features of one architecture runs on that one only. A compiled kernel is found by a hash of its
//!   source in the program and of the compiler's flags. A kernel without compiled code that the GPU takes is compiled
//!   from source there, if there is NVRTC, and else refused. Drivers before CUDA 12.4 don't report the parameters of
//!   a compiled kernel, and get no compiled kernels;
//! - `assets/`: files of the exporter;
//! - `weights.safetensors`: parameters, running statistics, moments and captured tensors, shared by all entries.
//!
//! Any tool can read the archive and the weights in it. The archive has exactly one form, and a file in any other is
//! refused; see [`Package::open`].
//!
//! # Versions
//!
//! [`FORMAT`] counts changes of the archive and its manifest. Every later version can read the contents of this or an
//! older format: weights, states, assets and graphs. The programs have a plan format of their own
//! ([`kiln_plan::FORMAT`]), which changes with the kernels. A runtime runs the programs of its own plan format, and
//! refuses others with an error that names both formats. To use the package with another runtime, load the weights
//! ([`Package::get`], or the safetensors file in the archive) where the compiler is, and export anew.
//!
//! # Memory and threads
//!
//! [`memory::set_limit`] limits the memory of runs, [`Entry::memory`] predicts it for one run, and [`set_threads`]
//! sets the number of threads that share a run. Results do not depend on this number.
//!
//! # Size
//!
//! For a small program, build it with the workspace's profile `small` (`cargo build --profile small`), or a similar
//! one: optimised for size, all crates as one unit, stripped. Panics must unwind, since that is how damaged plans are
//! caught. Kernels are as fast as with any other profile, because their code is emitted when a program is loaded.

mod buffers;
mod compiled;
mod contents;
mod entry;
mod error;
mod interface;
mod manifest;
mod map;
mod open;
mod package;
mod packed;
mod program;
mod shared;
mod state;
mod tensors;
mod values;
mod write;
mod zip;

pub use entry::{Entry, Memory};
pub use error::{Error, Result};
pub use interface::{Interface, Size, StateInfo, SymbolInfo, TensorInfo};
pub use kiln_base::{DType, Element};
pub use kiln_runtime::cuda::Code;
pub use kiln_runtime::{Buffer, Cancel, Error as RuntimeError, Features, MemoryReport, memory};
pub use manifest::{FORMAT, Requires};
pub use open::Options;
pub use package::Package;
pub use state::RNG_STATE;
pub use tensors::{read_safetensors, write_safetensors};
pub use values::{Inputs, Outputs};
pub use write::{Contents, NewEntry, NewProgram};

/// Sets the number of threads that run kernels, for the whole process: at least 1, at most 1024; a number outside is
/// taken as the nearest one. Results never depend on it.
pub fn set_threads(threads: usize) {
    kiln_runtime::pool::Pool::global().set_threads(threads);
}

/// The number of threads that run kernels.
pub fn threads() -> usize {
    kiln_runtime::pool::Pool::global().threads()
}
