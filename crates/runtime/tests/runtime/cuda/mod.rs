//! The CUDA engine, on whatever driver there is.

mod alone;
pub mod build;
mod compile;
mod run;
