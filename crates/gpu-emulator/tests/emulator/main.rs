//! The emulator on PTX that NVRTC made of the CUDA sources beside it.

mod kernels;
mod support;
