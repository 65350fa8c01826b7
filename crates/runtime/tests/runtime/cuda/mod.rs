//! The CUDA engine, on whatever driver there is.

mod alone;
mod build;
mod compile;
mod run;
