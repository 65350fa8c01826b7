//! The compiler driver: the pipeline as one readable list, the memory plan and the plan cache.

mod cache;
mod explain;
mod join;
mod pipeline;
mod place;
mod variant;

pub use cache::{Cache, CacheStats, Found, Recorded, Recording};
pub use explain::{Explain, KernelInfo, marker};
pub use pipeline::{Compilation, CompileError, Options, compile};

/// The hasher of structures: fast, and the same in every process.
pub type StructureHasher = xxhash_rust::xxh3::Xxh3Default;
