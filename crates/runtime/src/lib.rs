//! The Kiln runtime: runs a [`Plan`](kiln_plan::Plan) on the CPU with nothing above it linked.
//!
//! ```
//! # use kiln_runtime::{Buffer, Executable};
//! # use kiln_base::DType;
//! # use kiln_plan::*;
//! # let plan = Plan { symbols: vec![], outputs: vec![], constants: vec![], kernels: vec![],
//! #     inputs: vec![Input { dtype: DType::F32, shape: vec![2i64.into()], role: Role::Data, buffer: BufferId(0) }],
//! #     buffers: vec![kiln_plan::Buffer { dtype: DType::F32, len: 2i64.into(), allocation: Allocation::Input }],
//! #     prepare: vec![], run: vec![], commit: 0, sites: vec![], needs: vec![] };
//! let program = Executable::new(plan)?;
//! let x = Buffer::from_slice(&[1.0f32, 2.0], &[2])?;
//! let outputs = program.run(&mut [x], &[])?;
//! # assert!(outputs.is_empty());
//! # Ok::<(), kiln_runtime::Error>(())
//! ```

mod buffer;
mod executor;
pub mod peaks;

use kiln_base::{Cpu, Machine};

pub use buffer::Buffer;
pub use executor::{
    Executable, MemoryBlock, MemoryReport, Packed, Replays, Stats, StepEvent, StepTime, Traced,
    Tracer,
};
pub use kiln_base::{Element, custom as custom_ops};
pub use kiln_cpu::{schedule, tile_elements, workspace};
pub use kiln_cuda as cuda;
pub use kiln_kernel::cancel::Cancel;
pub use kiln_kernel::error::{Error, Result};
pub use kiln_kernel::simd::Features;
pub use kiln_kernel::{fork, lock, memory, pool};

/// The machine that programs are compiled for: a GPU, or the CPU.
///
/// # Errors
/// [`Error::Level`] if the environment asks for a CPU level that does not exist or that this machine lacks.
pub fn machine(gpu: Option<&cuda::Device>) -> Result<Machine> {
    match gpu {
        None => Ok(Machine::Cpu(Cpu::current()?)),
        Some(gpu) => Ok(gpu.machine()),
    }
}
