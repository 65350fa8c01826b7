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
//! // A training step goes on where it was exported, and what it has learnt is saved.
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
//! - `manifest.json`: format, what wrote it, entries with their inputs, outputs and sizes, states, and the size and
//!   checksum of every other member;
//! - `entries/NAME/graph.txt`: the recorded program;
//! - `entries/NAME/*.plan`: the compiled program ([`kiln_plan::Entry`]), one for sizes of 2 and more and one for each
//!   symbol that is 1. Plans hold no machine code: kernels are descriptions that are checked and printed when they
//!   are loaded, for the best instruction set that there is, so one plan serves all processors;
//!   A program that was tuned for one machine stands beside that for any, and runs there take it;
//! - `entries/NAME/*.packed`: on request, weights as the kernels of one level read them ([`Contents::packed`]). Where
//!   level, program, cuts of kernels and weights are those that they were packed for, they are mapped in the place of
//!   packing, so that processes share them; else weights are packed as if they were not there;
//! - `cuda/*.ptx` and `cuda/*.cubin`: kernels of programs for CUDA, compiled for an architecture ([`Contents::cuda`]).
//!   A GPU takes machine code of exactly its architecture, PTX of its own or an older one, and PTX with the features of
//!   one architecture on that alone; they stand for the very sources in the programs, by a hash of these and of the
//!   compiler's flags. What a GPU can't take is compiled from source there, if it has NVRTC, and else refused. Drivers
//!   before CUDA 12.4, which don't tell what a compiled kernel is called with, get none;
//! - `assets/`: files of the exporter's;
//! - `weights.safetensors`: parameters, running statistics, moments and captured tensors, shared by all entries.
//!
//! Any tool reads the archive and the weights in it. It has one form, in which there is nothing left open, and a file
//! in any other is refused; see [`Package::open`].
//!
//! # Versions
//!
//! [`FORMAT`] counts changes of the archive and its manifest. What a package of this or an older format says, its
//! weights, states, assets and graphs, can be read by every later version. Its programs are of a plan format of their
//! own ([`kiln_plan::FORMAT`]), which changes with the kernels: a runtime runs the programs of its own plan format and
//! refuses others with an error that names both, and never takes one for the other. To go on with another runtime,
//! load the weights ([`Package::get`], or the safetensors file in the archive) where the compiler is, and export anew.
//!
//! # Memory and threads
//!
//! [`memory::set_limit`] limits what runs may take, [`Entry::memory`] says what one
//! will take, and [`set_threads`] how many threads share it. Results do not depend on their number.

//!
//! # Size
//!
//! Where a program must be small, build it with the workspace's profile `small` (`cargo build --profile small`), or one
//! like it: optimised for size, all crates as one unit, stripped. Panics must unwind, since damaged plans are caught
//! so. Kernels that are printed when a program is loaded are as fast as ever.

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

/// Sets how many threads run kernels, for the whole process. Results never depend on it.
pub fn set_threads(threads: usize) {
    kiln_runtime::pool::Pool::global().set_threads(threads);
}

/// How many threads run kernels.
pub fn threads() -> usize {
    kiln_runtime::pool::Pool::global().threads()
}
