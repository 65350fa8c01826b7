//! The compiler driver: the pipeline as one readable list, the tuner, the memory plan and
//! the plan cache.

mod anomaly;
mod bisect;
mod cache;
mod dump;
mod entry;
mod explain;
mod generalize;
mod join;
mod lean;
mod order;
mod part;
mod pipeline;
mod place;
mod places;
mod recompute;
mod stages;
pub mod tune;
mod uses;
mod variant;
mod verify;

pub use anomaly::{Anomaly, Inside, first_anomaly};
pub use bisect::{Bisection, bisect, bisect_with};
pub use cache::{Cache, CacheStats, Fit, Found, Reason, Recorded, Recording};
pub use explain::{ConversionInfo, Explain, KernelInfo};
pub use kiln_codegen::{Layout, LayoutReport};
pub use pipeline::{Compilation, CompileError, Options, compile, compile_with};
pub use recompute::Recomputed;
pub use stages::Stages;
pub use verify::{KernelCheck, Verification, verify};

/// The hasher of structures: fast, and the same in every process.
pub type StructureHasher = xxhash_rust::xxh3::Xxh3Default;
