//! The CUDA engine: runs plans of [CUDA kernels](kiln_base::cuda) on NVIDIA GPUs. Everything of
//! NVIDIA's is found and opened at run time, so that builds need none of it.
//!
//! | environment | meaning |
//! |---|---|
//! | `KILN_CUDA_DRIVER` | the file of the driver (`libcuda`), in place of the system's |
//! | `KILN_NVRTC` | the file or folder of NVRTC, before the usual places |
//! | `KILN_CACHE_DIR` | where compiled kernels are kept; empty: nowhere |
//! | `KILN_CUDA_GRAPHS` | `0`: kernels are launched one by one |
//! | `CUDA_VISIBLE_DEVICES` | which devices there are, as the driver understands it |
//!
//! # Order
//! A run goes through a *lane* (a stream and an error record) that it holds while it is given to the
//! device; runs one after the other use the same lane, runs at the same time different ones. Memory
//! knows the events of its last uses: whoever reads it on another stream waits, on the device, for what
//! wrote it, and whoever writes or frees it for all of them. A run returns as soon as it is given to the
//! device, unless it can report a data error: then it is waited for, and its error record is read.

mod cache;
mod device;
mod driver;
mod launch;
mod library;
mod memory;
mod module;
mod nvrtc;
mod resources;
mod stream;

pub use cache::cache_hits;
pub use device::{Device, count};
pub use driver::set_driver;
pub(crate) use launch::{Call, Graphs, Launch, Session};
pub(crate) use memory::Memory;
pub use module::compile_units;
pub use nvrtc::{Code, Compiled, Nvrtc, compilations};
pub use resources::Resources;
