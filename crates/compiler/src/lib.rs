//! The compiler driver: the pipeline as one readable list, the tuner, the memory plan and
//! the plan cache.

mod anomaly;
mod bisect;
mod cache;
mod dump;
mod entry;
mod error;
mod explain;
mod generalize;
mod guard;
mod join;
mod lean;
mod lines;
mod lowered;
mod node_map;
mod options;
mod order;
mod pipeline;
mod place;
mod recompute;
mod recording;
mod stages;
mod subgraph;
pub mod tune;
mod uses;
mod variant;
mod verify;

pub use anomaly::{Anomaly, Inside, first_anomaly};
pub use bisect::{Bisection, bisect, bisect_with};
pub use cache::{Cache, CacheStats};
pub use error::CompileError;
pub use explain::{ConversionInfo, Explain, KernelInfo, Reasons, html};
pub use kiln_codegen::{Layout, LayoutReport};
pub use options::Options;
pub use pipeline::{Compilation, compile, compile_with};
pub use recompute::Recomputed;
pub use recording::{Fit, Found, Reason, Recorded, Recording};
pub use stages::Stages;
pub use verify::{KernelCheck, Verification, verify};

/// The hasher of structures: fast, and the same in every process.
pub type StructureHasher = xxhash_rust::xxh3::Xxh3Default;
