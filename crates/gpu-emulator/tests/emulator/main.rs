//! The emulator on PTX that NVRTC compiled from the CUDA sources beside it.

mod bugs;
mod expressions;
mod fixtures;
mod im2col;
mod kernels;
mod nvrtc;
mod support;
mod vectors;
