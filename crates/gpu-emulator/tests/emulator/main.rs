//! The emulator on PTX that NVRTC made of the CUDA sources beside it.

mod bugs;
mod expressions;
mod fixtures;
mod kernels;
mod nvrtc;
mod support;
mod vectors;
