//! Running the blocks of a launch on threads of the host.

use super::block::{Random, ThreadBlock};
use super::footprint::{Footprint, Trail};
use super::index_in;
use crate::fault::Fault;
use crate::launch::{Launch, Statistics};
use crate::memory::Memory;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

impl Launch<'_> {
    /// Runs every block against `memory`.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn run(&self, memory: &Memory) -> Result<Statistics, Box<Fault>> {
        let alone = self.grid == [1; 3];
        let (statistics, _) = self.run_noting(memory, !alone)?;
        Ok(statistics)
    }

    /// Runs every block, and returns their accesses. These are empty unless races in global memory are checked.
    ///
    /// # Errors
    /// The first fault that is found.
    pub fn traced(&self, memory: &Memory) -> Result<(Statistics, Trail), Box<Fault>> {
        self.run_noting(memory, true)
    }

    fn run_noting(&self, memory: &Memory, notes: bool) -> Result<(Statistics, Trail), Box<Fault>> {
        self.check()?;
        let view = memory.view();
        let cluster = self.kernel.cluster;
        let clusters: [u32; 3] = std::array::from_fn(|axis| self.grid[axis] / cluster[axis]);
        let total: usize = clusters.iter().map(|&n| n as usize).product();
        let order = self.order(total);
        let footprint = (self.options.global_races && notes).then(Footprint::default);
        let (next, result) = (
            AtomicUsize::new(0),
            Mutex::new((Statistics::default(), None)),
        );
        let work = || {
            let mut block = ThreadBlock::new(self, self.parameters, &view, footprint.as_ref());
            let mut fault = None;
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= total {
                    break;
                }
                let i = order.as_ref().map_or(i, |order| order[i]);
                let cluster_index = index_in(clusters, i as u32);
                let index = std::array::from_fn(|axis| cluster_index[axis] * cluster[axis]);
                if let Err(raised) = block.run(index) {
                    // A fault ends the launch: no thread starts another block.
                    next.store(total, Ordering::Relaxed);
                    fault = Some(raised);
                    break;
                }
            }
            let mut result = result
                .lock()
                .expect("no worker panics while it holds the lock");
            result.0.add(&block.statistics());
            result.1 = result.1.take().or(fault);
        };
        let threads = if self.kernel.has_global_atomics {
            1
        } else {
            self.options.threads
        };
        let threads = threads.min(total);
        if threads <= 1 {
            work();
        } else {
            std::thread::scope(|scope| {
                for _ in 0..threads {
                    scope.spawn(work);
                }
            });
        }
        match result.into_inner().expect("no worker panicked") {
            (_, Some(fault)) => Err(fault),
            (statistics, None) => {
                let trail = footprint.map(|f| f.trail(&view));
                Ok((statistics, trail.unwrap_or_default()))
            }
        }
    }

    /// The order of blocks under a seed.
    fn order(&self, total: usize) -> Option<Vec<usize>> {
        (self.options.seed != 0).then(|| {
            let mut order: Vec<usize> = (0..total).collect();
            Random(self.options.seed).shuffle(&mut order);
            order
        })
    }
}
