//! Programs of several processes, under the names of `torch.distributed`.
//!
//! Each process runs the same program on its share of the data. They meet in collective operations, which are recorded
//! and compiled like any other: a training step with the sum of all gradients is one plan. The transport is MPI between
//! CPUs and NCCL between GPUs, opened at run time; [`run_in_threads`] needs none. `docs/distributed.md` is the guide.
//!
//! ```
//! use kiln_distributed::{DistributedDataParallel, rank, run_in_threads};
//! use kiln_nn::optim::{Optimizer, SGD};
//! use kiln_nn::{Forward, Linear, Module};
//! use kiln_tensor::{DType, Tensor, with_seed};
//!
//! // In a program of its own: `init_process_group("mpi")?` first, and `destroy_process_group()?` in the end.
//! let weights = run_in_threads(2, |_| {
//!     let model = DistributedDataParallel::new(Linear::new(3, 1)?)?;
//!     let mut opt = Optimizer::new(model.parameters(), SGD::new().lr(0.1))?;
//!     let share = with_seed(rank()? as u64, || Tensor::randn([4, 3], DType::F32));
//!     model.call(&share).square().mean(()).backward()?;
//!     opt.step()?;
//!     model.module().weight.to_vec::<f32>()
//! });
//! let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(weights[0], weights[1]);
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

mod comm_hooks;
mod data_parallel;
mod ddp;
mod group;
mod join;
mod mpi;
mod nccl;
mod objects;
mod ops;
mod processes;
mod reducer;
mod rendezvous;
mod signature;
mod spawn;
mod store;
mod sync_batch_norm;
mod threads;
mod transport;

pub use comm_hooks::{GradBucket, allreduce_hook, bf16_compress_hook, fp16_compress_hook};
pub use data_parallel::{DataParallel, Replicas};
pub use ddp::{DataParallelOptions, DistributedDataParallel};
pub use group::{
    Init, ProcessGroup, destroy_process_group, init_process_group, init_process_group_with,
    is_initialized, is_main, is_mpi_available, is_nccl_available, new_group, rank, world,
    world_size,
};
pub use join::Join;
pub use kiln_base::collective::Reducer as ReduceOp;
pub use mpi::folder as mpi_folder;
pub use objects::{all_gather_object, broadcast_object};
pub use ops::{
    all_gather, all_reduce, all_to_all, barrier, broadcast, gather, recv, reduce, reduce_scatter,
    scatter, send,
};
pub use processes::spawn;
pub use spawn::{run_in_threads, run_in_threads_with, run_on_gpus};
pub use sync_batch_norm::SyncBatchNorm;
