//! Ranks in the threads of one process, for tests and for trying programs.

use crate::group::{Context, Scope};
use crate::nccl;
use crate::rendezvous::Assignment;
use crate::store::Server;
use crate::threads::World;
use crate::transport::{DEFAULT_TIMEOUT, Joined, Transport};
use kiln_tensor::{Error, ErrorKind, Result};
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Runs a function in this number of threads at once, each of which is a rank of a world of its own: [`crate::rank`],
/// [`crate::all_reduce`] and all others work in it as in a program that `mpiexec` starts. Returns the results by rank.
///
/// ```
/// use kiln_distributed::{ReduceOp, all_reduce, rank, run_in_threads};
/// use kiln_tensor::Tensor;
/// let sums = run_in_threads(3, |_| {
///     let x = Tensor::from([rank()? as f32, 1.0]);
///     all_reduce(&x, ReduceOp::Sum).to_vec::<f32>()
/// });
/// for sum in sums {
///     assert_eq!(sum?, [3.0, 3.0]);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn run_in_threads<T: Send>(
    ranks: usize,
    f: impl Fn(usize) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    run_in_threads_with(ranks, DEFAULT_TIMEOUT, f)
}

/// [`run_in_threads`] with a timeout for each operation.
pub fn run_in_threads_with<T: Send>(
    ranks: usize,
    timeout: Duration,
    f: impl Fn(usize) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let world = Arc::new(World::new(timeout));
    let join = |rank| {
        let (member, transport) = world.clone().join(ranks, rank, false);
        Ok((member, Arc::new(transport) as Arc<dyn Transport>))
    };
    in_threads(ranks, join, f)
}

/// [`run_in_threads_with`] whose ranks compute on GPUs, rank r on that of number r, and communicate over NCCL.
///
/// # Errors
/// If the system gives no port. Too few GPUs, or no NCCL, are the error of each rank.
#[track_caller]
pub fn run_on_gpus<T: Send>(
    ranks: usize,
    timeout: Duration,
    f: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<Result<T>>> {
    let loc = Location::caller();
    let wrong = |text: String| Error::new(ErrorKind::Value, "run_on_gpus", text, loc);
    let server = Server::open(0).map_err(wrong)?;
    let join = |rank| {
        let assignment = Assignment::local(rank, ranks, server.port());
        let group = nccl::init(&assignment, Some(rank as u32), timeout, false);
        group.map_err(wrong)
    };
    Ok(in_threads(ranks, join, f))
}

fn in_threads<T: Send>(
    ranks: usize,
    join: impl Fn(usize) -> Result<Joined> + Sync,
    f: impl Fn(usize) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let (join, f) = (&join, &f);
    std::thread::scope(|s| {
        let rank = |rank| {
            move || {
                let (member, transport) = join(rank)?;
                let context = Context::new(member, transport)?;
                let _scope = Scope::enter(context.clone());
                let result = f(rank)?;
                context.flush()?;
                Ok(result)
            }
        };
        let threads: Vec<_> = (0..ranks).map(|r| s.spawn(rank(r))).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))
        };
        threads.into_iter().map(join).collect()
    })
}
