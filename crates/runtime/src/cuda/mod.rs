//! The CUDA engine: everything of NVIDIA's is found and opened at run time.

mod library;
mod nvrtc;

pub use nvrtc::{Code, Compiled, Nvrtc, compilations};
