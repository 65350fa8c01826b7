//! The CUDA engine: runs plans of [CUDA kernels](kiln_plan::cuda) on NVIDIA GPUs. NVIDIA's libraries are found and
//! opened at run time, so that builds need none of them.
//!
//! | environment | meaning |
//! |---|---|
//! | `KILN_CUDA_DRIVER` | the file of the driver (`libcuda`), in place of the system's |
//! | `KILN_NVML` | the file of NVML (`libnvidia-ml`), in place of the system's |
//! | `KILN_CUBLASLT` | the file or folder of cuBLASLt, before the usual places |
//! | `KILN_NCCL` | the file or folder of NCCL, before the usual places |
//! | `KILN_NVRTC` | the file or folder of NVRTC, before the usual places |
//! | `KILN_CACHE_DIR` | the folder for compiled kernels; if empty, none are kept |
//! | `KILN_CACHE_SIZE` | the limit of that folder in MiB, for the most recently used kernels; 1024 unless set |
//! | `KILN_CUDA_PTX` | `1`: machine code holds the PTX that it came from too, so that an emulated device runs it |
//! | `KILN_CUDA_GRAPHS` | `0`: kernels are launched one by one |
//! | `CUDA_VISIBLE_DEVICES` | the devices that are visible, as the driver understands it |
//!
//! # Order
//! A run uses a *lane* (a stream and an error record) that it holds while its work is given to the device.
//! Consecutive runs use the same lane, concurrent runs different ones. From its second run on, a plan is a graph
//! whose kernels depend only on kernels that touch the same memory. Memory records the events of its last uses. A
//! reader on another stream waits, on the device, for the last write; a writer, or freeing, waits for all uses. A run
//! returns as soon as its work is given to the device.
//!
//! # Data errors
//! After a run, its error record is copied to the host. The buffers that would be wrong after an error hold the run's
//! [`Outcome`]. Reading one waits and returns the error, and so does a run that takes one as an input, before it
//! begins. The plan determines these buffers: those that depend on a step that can fail, and those written from
//! `commit` on, whose steps do nothing after an error. *Prepare* is waited for, since its results are kept.
//!
//! # Kernels that are compiled ahead of time
//! A package may hold compiled kernels ([`Image`]). They run where the device takes their code. They replace kernels
//! compiled from exactly the source that a plan holds, with the same flags, and are called in the same way. A
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
mod collective;
mod collective_graph;
mod context;
mod control;
mod cublaslt;
mod custom;
mod device;
mod driver;
mod elf;
mod graph;
mod image;
mod lane;
mod launch;
mod libraries;
mod library;
mod loader;
mod memory;
mod module;
mod nvrtc;
mod outcome;
mod pool;
mod resources;
mod session;
mod stream;
mod tensor_map;

#[cfg(feature = "cudarc")]
use ::cudarc;
#[cfg(not(feature = "cudarc"))]
use absent as cudarc;

pub use ahead::compile_ahead;
pub use cache::cache_hits;
pub use collective::Collective;
pub use control::{SIDES, branch, copy, copy_rows, guard, joined};
pub use cublaslt::{LibraryAlgorithm, LibraryLaunch, cublas_lt_version, library_algorithms};
pub use device::{Device, count, driver};
pub use driver::set_driver;
pub use graph::{Graph, Graphs};
pub use image::Image;
pub use launch::Launch;
pub use libloading::Library as DynamicLibrary;
pub use libraries::{Library, Sensors, libraries, nccl_version};
pub use library::nccl;
pub use loader::Loader;
pub use memory::Memory;
pub use module::Function;
pub use module::compile_units;
pub use nvrtc::{Code, Compiled, Nvrtc, compilations};
pub use outcome::{Note, Outcome};
pub use resources::Resources;
pub use session::{Job, Session};
