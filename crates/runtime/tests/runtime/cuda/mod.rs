//! The CUDA engine, on the driver that is found.

mod alone;
pub mod build;
mod compile;
mod library;
mod run;
mod slices;
