//! Groups, collective operations and data parallel training with ranks in threads.

mod collectives;
mod faults;
mod hooks;
mod order;
mod overlap;
mod training;
mod uneven;

use kiln_distributed::run_in_threads;
use kiln_tensor::Result;

/// The results of every rank.
fn every<T: Send>(ranks: usize, f: impl Fn(usize) -> Result<T> + Sync) -> Vec<T> {
    let results = run_in_threads(ranks, f).into_iter();
    results
        .map(|r| r.unwrap_or_else(|e| panic!("{e}")))
        .collect()
}
