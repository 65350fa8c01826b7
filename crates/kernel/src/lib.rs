//! The common base of the executor, the JIT and the engines: linked kernels and their arguments, proofs that accesses
//! stay inside their arguments, host memory, threads, and vectorised loops by CPU level.
//!
//! This crate depends on no engine. A GPU implements [`Launch`](calls::Launch) and
//! [`DeviceMemory`](memory::DeviceMemory). Start reading at [`work::LinkedKernel`].

#![allow(
    missing_docs,
    reason = "a crate of the engines: fields and methods whose names say what they hold have no other text"
)]

pub mod affine;
pub mod bind;
pub mod bound;
pub mod bugs;
pub mod calls;
pub mod cancel;
pub mod check;
pub mod collective;
pub mod compute;
pub mod custom;
pub mod element;
pub mod error;
pub mod failures;
pub mod footprint;
pub mod fork;
#[cfg(feature = "testing")]
pub mod interpreted;
pub mod lock;
pub mod memory;
pub mod pool;
pub mod simd;
pub mod sums;
mod system;
pub mod view;
pub mod work;
