//! A CUDA driver without a GPU: a `libcuda.so` whose kernels run on [`kiln_gpu_emulator`], so that an engine runs
//! unchanged, down to streams, events, memory pools and graphs. It loads PTX, and machine code with its PTX inside,
//! as Kiln's engine compiles it with `KILN_CUDA_PTX=1`. That machine code must be for the device's own architecture,
//! as on hardware; its PTX is what runs. Other machine code is refused.
//!
//! # Using it
//!
//! Depend on this crate under `[dev-dependencies]`: Cargo then builds the shared library next to the tests. Before
//! the first call of cudarc, a test calls [`install`], which loads the library. The library is named `libcuda.so`,
//! which is the name that cudarc asks for, so the loader returns the library that is loaded already.
//!
//! Work is queued, and executed only when someone waits for it: a program that forgets to wait sees old data. The
//! nodes of a graph run in an order drawn anew at every launch. Kernels of a graph that conflict in memory without a
//! dependency between them are a fault. Any fault that the emulator finds, such as a race, makes this and every later
//! call fail, as a fault does on hardware. It is printed, and [`last_fault`] returns it.
//!
//! The same library has NVML and NCCL. NCCL's ranks are threads of one process with a device each; it checks that they
//! make the same calls in the same order, and that all ranks or none take an operation from a graph. cuBLASLt is
//! there too: it checks its calls and computes products.
//!
//! # Environment
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `KILN_FAKE_CUDA_DEVICES` | number of devices | 1 |
//! | `KILN_FAKE_CUDA_MEMORY` | bytes of memory of each | 4 GiB |
//! | `KILN_FAKE_CUDA_CAPABILITY` | compute capability, without the dot | 90 |
//! | `KILN_FAKE_CUDA_CHECKS` | 0: don't look for races, nor for missing waits and uninitialised reads in shared memory | 1 |
//! | `KILN_FAKE_CUDA_SEED` | order of warps and blocks, and how early queued work is executed, natural for 0; order of a graph's nodes | 0 |
//! | `KILN_FAKE_CUDA_THREADS` | threads of the host for a kernel | all |
//! | `KILN_FAKE_CUDA_LIMIT` | instructions of a block before it is taken for endless | 2³¹ |
//! | `KILN_FAKE_CUDA_FAULT_FILE` | where to write the last fault | – |
//! | `KILN_FAKE_CUDA_CLOCK` | a virtual clock ([`timeline`]): the nanoseconds of a launch and of a byte that a rank sends, as `5000,0.01` | – |
//! | `KILN_FAKE_CUDA_EXECUTE` | 0: kernels and operations of NCCL do nothing but take time | 1 |
//! | `KILN_FAKE_CUDA_NO_CAPTURE` | a rank whose operations of NCCL can't be captured | – |
//! | `KILN_FAKE_CUDA_HANG` | the number of an operation in its communicator, from 0, that never ends | – |
//! | `KILN_FAKE_CUDA_TIMED` | nanoseconds of an instruction, if events are to tell the time by these; devices then have another name, by which an engine takes times for true | 0 |
//! | `KILN_FAKE_CUBLASLT_TIME` | nanoseconds of a product of cuBLASLt by such events | 1000 |
//! | `KILN_FAKE_CUDA_STATISTICS` | 1: print what each kernel took | 0 |
//!
//! They are read at the first call; a test may set them before it.

pub mod abi;
pub mod api;
mod clock;
mod config;
mod cublaslt;
mod driver;
mod elf;
mod execute;
mod find;
mod graph;
mod nccl;
mod pool;
mod queue;
mod status;
mod stream;
mod work;

pub use clock::Span;
pub use driver::Counters;
pub use find::{counters, current_context, install, last_fault, library, reset, timeline};
