//! The CUDA engine: runs plans of [CUDA kernels](kiln_plan::cuda) on NVIDIA GPUs. Everything of
//! NVIDIA's is found and opened at run time, so that builds need none of it.
//!
//! | environment | meaning |
//! |---|---|
//! | `KILN_CUDA_DRIVER` | the file of the driver (`libcuda`), in place of the system's |
//! | `KILN_NVRTC` | the file or folder of NVRTC, before the usual places |
//! | `KILN_CACHE_DIR` | where compiled kernels are kept; empty: nowhere |
//! | `KILN_CACHE_SIZE` | how many MiB of them are kept, those used last; 1024 unless set |
//! | `KILN_CUDA_PTX` | `1`: machine code holds the PTX that it came from too, so that an emulated device runs it |
//! | `KILN_CUDA_GRAPHS` | `0`: kernels are launched one by one |
//! | `CUDA_VISIBLE_DEVICES` | which devices there are, as the driver understands it |
//!
//! # Order
//! A run goes through a *lane* (a stream and an error record) that it holds while it is given to the
//! device; runs one after the other use the same lane, runs at the same time different ones. From its
//! second run on a plan is a graph, whose kernels depend on those alone that they meet in memory. Memory
//! knows the events of its last uses: whoever reads it on another stream waits, on the device, for what
//! wrote it, and whoever writes or frees it for all of them. A run returns as soon as it is given to the
//! device.
//!
//! # Data errors
//! What a run recorded is copied to the host behind it. The buffers that would be wrong after an error
//! hold the run's [`Outcome`]: reading one waits and gives the error, and so does a run that takes one as
//! an input, before it begins. Which buffers these are follows from the plan: what is computed from a
//! step that can fail, and what is written behind `commit`, whose steps do nothing after an error.
//! *Prepare* is waited for, since its results are kept.
//!
//! # Kernels that were compiled before
//! A package may hold compiled kernels ([`Image`]). They run where the device takes their code, stand in the place of
//! what would be compiled of the very source that a plan holds, with the same flags, and are called as that is; a
//! [`Loader`] takes each kernel from there, or compiles it.

#![allow(
    missing_docs,
    reason = "a crate of the engines: fields and methods whose names say what they hold have no other text"
)]
// Without cudarc nothing is called.
#![cfg_attr(not(feature = "cudarc"), allow(unused))]

#[cfg(not(feature = "cudarc"))]
mod absent;
mod ahead;
mod cache;
mod context;
mod control;
mod custom;
mod device;
mod driver;
mod elf;
mod graph;
mod image;
mod lane;
mod launch;
mod library;
mod loader;
mod memory;
mod module;
mod nvrtc;
mod outcome;
mod pool;
mod resources;
mod session;
mod slot;
mod stream;

#[cfg(feature = "cudarc")]
use ::cudarc;
#[cfg(not(feature = "cudarc"))]
use absent as cudarc;

pub use ahead::compile_ahead;
pub use cache::cache_hits;
pub use control::{SIDES, branch, copy, guard, joined};
pub use device::{Device, count};
pub use driver::set_driver;
pub use graph::{Graph, Graphs};
pub use image::Image;
pub use launch::Launch;
pub use loader::Loader;
pub use memory::Memory;
pub use module::Function;
pub use module::compile_units;
pub use nvrtc::{Code, Compiled, Nvrtc, compilations};
pub use outcome::{Note, Outcome};
pub use resources::Resources;
pub use session::{Job, Session};
