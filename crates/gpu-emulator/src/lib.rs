//! Executes the PTX to which NVRTC compiles Kiln's CUDA kernels, on the CPU, and checks what hardware does not:
//! races in shared memory and between blocks in global memory, accesses out of bounds or of what was never written,
//! asynchronous copies that were not waited for, barriers that only some threads reach, misaligned addresses.
//!
//! ```
//! use kiln_gpu_emulator::{Launch, Memory, Options, Program};
//! use std::sync::Arc;
//!
//! let ptx = "
//! .visible .entry twice(.param .u64 p) {
//!     .reg .f32 %f<2>; .reg .b32 %r; .reg .b64 %rd<3>;
//!     ld.param.u64 %rd0, [p];
//!     mov.u32 %r, %tid.x;
//!     mul.wide.u32 %rd1, %r, 4;
//!     add.u64 %rd2, %rd0, %rd1;
//!     ld.global.f32 %f0, [%rd2];
//!     add.f32 %f1, %f0, %f0;
//!     st.global.f32 [%rd2], %f1;
//!     ret;
//! }";
//! let memory = Arc::new(Memory::default());
//! let program = Program::load(ptx, &memory)?;
//! let address = memory.allocate(4 * 8);
//! let numbers: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
//! memory.write(address, &numbers)?;
//! let launch = Launch {
//!     kernel: program.kernel("twice").unwrap(),
//!     grid: [1, 1, 1],
//!     block: [8, 1, 1],
//!     dynamic_shared: 0,
//!     parameters: &address.to_le_bytes(),
//!     options: Options::default(),
//! };
//! launch.run(&memory)?;
//! let mut last = [0; 4];
//! memory.read(address + 28, &mut last)?;
//! assert_eq!(f32::from_le_bytes(last), 14.0);
//! // One thread more reads behind the allocation.
//! let fault = Launch { block: [9, 1, 1], ..launch }.run(&memory).unwrap_err();
//! assert!(fault.to_string().contains("thread (8, 0, 0)"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The stages: `ptx` parses a text, `decode` turns it into loops over lanes (`lanes`) and operations, `exec` runs the
//! blocks of a [`Launch`]. An instruction that is not emulated is an error when the text is loaded.
//!
//! Not modelled: caches and weak memory ordering, timing, clusters of more than 32 warps. Races between the lanes of
//! one warp, which run in lockstep, are not found. An order that blocks establish among themselves by atomics is not
//! followed.

#![allow(clippy::needless_range_loop)] // lanes are indices into several registers at once

mod code;
mod decode;
mod exec;
mod fault;
mod lanes;
mod launch;
mod memory;
mod program;
mod ptx;
mod vectors;

pub use exec::{Pixels, TensorMap, Traffic, Trail};
pub use fault::{Fault, FaultKind};
pub use launch::{Launch, MAX_SHARED, Options, Statistics};
pub use memory::{Memory, NotAllocated};
pub use program::{Global, Kernel, LoadError, Parameter, Program};
pub use ptx::SyntaxError;
pub use vectors::{Argument, Elements, Vector, vectors};
