//! Ranks in the threads of one process, for tests and for trying programs.

use crate::group::{Context, Scope};
use crate::threads::World;
use crate::transport::DEFAULT_TIMEOUT;
use kiln_tensor::Result;
use std::sync::Arc;
use std::time::Duration;

/// Runs a function in so many threads at once, each of which is a rank of a world of its own: [`crate::rank`],
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
    let f = &f;
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let world = world.clone();
                s.spawn(move || {
                    let (member, transport) = world.join(ranks, rank, false);
                    let context = Context::new(member, Arc::new(transport))?;
                    let _scope = Scope::enter(context.clone());
                    let result = f(rank)?;
                    context.flush()?;
                    Ok(result)
                })
            })
            .collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, Result<T>>| {
            t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))
        };
        threads.into_iter().map(join).collect()
    })
}
