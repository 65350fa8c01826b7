//! What the executor, the JIT and the engines agree on: work with known sizes and what it is called with, proofs that
//! accesses stay inside their arguments, memory of the host, threads, and loops by CPU level.
//!
//! Nothing here knows an engine: a GPU is a [`Launch`](calls::Launch) and a [`DeviceMemory`](memory::DeviceMemory). Begin
//! with [`work::Work`].

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
pub mod compute;
pub mod custom;
pub mod element;
pub mod error;
pub mod failures;
pub mod fork;
#[cfg(feature = "testing")]
pub mod interpreted;
pub mod lock;
pub mod memory;
pub mod pool;
pub mod reach;
pub mod simd;
pub mod sums;
pub mod work;
