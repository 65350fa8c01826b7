//! Shares of a dataset for the processes of a distributed run.

use crate::fault::invalid;
use crate::sampler::{Order, Pass, Sampler};
use kiln_tensor::Result;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

/// The epoch of a sampler without `set_epoch`: the loader's count is used.
const LOADERS_EPOCH: u64 = u64::MAX;

/// The indices of one of several processes: every `num_replicas`-th index of an order that all processes share. All
/// get the same number: if `num_replicas` does not divide the length, the first indices come twice.
///
/// The order depends on the sampler's own seed, which must be the same in all processes, and on the
/// loader's count of passes, so it changes at each pass without [`DistributedSampler::set_epoch`] too.
pub struct DistributedSampler {
    len: usize,
    num_replicas: usize,
    rank: usize,
    shuffle: bool,
    seed: u64,
    drop_last: bool,
    epoch: AtomicU64,
}

impl DistributedSampler {
    /// The share of process `rank` of `num_replicas` in `len` samples: shuffled, with seed 0.
    ///
    /// # Errors
    /// If `rank` is not below `num_replicas`.
    #[track_caller]
    pub fn new(len: usize, num_replicas: usize, rank: usize) -> Result<DistributedSampler> {
        if rank >= num_replicas {
            let message =
                format!("the rank is {rank}, of {num_replicas} processes; ranks start at 0");
            return Err(invalid(
                "DistributedSampler::new",
                message,
                Location::caller(),
            ));
        }
        Ok(DistributedSampler {
            len,
            num_replicas,
            rank,
            shuffle: true,
            seed: 0,
            drop_last: false,
            epoch: AtomicU64::new(LOADERS_EPOCH),
        })
    }

    /// If true, the order is random.
    pub fn shuffle(mut self, shuffle: bool) -> DistributedSampler {
        self.shuffle = shuffle;
        self
    }

    /// The seed of the order.
    pub fn seed(mut self, seed: u64) -> DistributedSampler {
        self.seed = seed;
        self
    }

    /// If true, leaves out the last indices when `num_replicas` does not divide the length, instead of repeating the
    /// first ones.
    pub fn drop_last(mut self, drop_last: bool) -> DistributedSampler {
        self.drop_last = drop_last;
        self
    }

    /// Sets the epoch of the passes that start from now on. It is only needed if processes count their passes
    /// differently. Share the sampler as an `Arc` to keep access to it.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }

    /// The number of indices of each process.
    fn share(&self) -> usize {
        match self.drop_last {
            true => self.len / self.num_replicas,
            false => self.len.div_ceil(self.num_replicas),
        }
    }
}

impl Sampler for DistributedSampler {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.share())
    }
    fn order(&self, pass: Pass) -> Order<usize> {
        let epoch = match self.epoch.load(Ordering::SeqCst) {
            LOADERS_EPOCH => pass.epoch,
            epoch => epoch,
        };
        let seed = self.seed;
        let shuffle = || Pass { seed, epoch }.rng().order(self.len);
        let order = self.shuffle.then(shuffle);
        let (rank, step, share, len) = (self.rank, self.num_replicas, self.share(), self.len);
        // The modulus is not 0: the share of an empty order is 0.
        Box::new((0..share).map(move |n| {
            let position = (rank as u128 + n as u128 * step as u128) % len as u128;
            let position = position as usize;
            order
                .as_ref()
                .map_or(position, |order| order.position(position))
        }))
    }
}

impl<S: Sampler> Sampler for std::sync::Arc<S> {
    type Item = S::Item;
    fn len(&self) -> Option<usize> {
        (**self).len()
    }
    fn order(&self, pass: Pass) -> Order<S::Item> {
        (**self).order(pass)
    }
}
