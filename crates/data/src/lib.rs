//! Datasets, samplers and loaders, under PyTorch's names.
//!
//! A [`Dataset`] finds samples by index, an [`IterableDataset`] reads them in order. A [`DataLoader`] makes batches
//! of them, optionally in threads. [`tqdm`] and [`Progress`] show the progress, with the feature `progress`;
//! `check_integrity` verifies files, with the feature `checksum`.

#[cfg(feature = "checksum")]
mod checksum;
mod collate;
mod dataset;
mod device;
mod distributed;
mod fault;
mod iterable;
mod loader;
mod progress;
mod rng;
mod sampler;
mod split;
mod tensor_dataset;

#[cfg(feature = "checksum")]
pub use checksum::check_integrity;
pub use collate::Collate;
pub use dataset::{ConcatDataset, Dataset, FnDataset, Map, Subset};
pub use device::ToDevice;
pub use distributed::DistributedSampler;
pub use iterable::{IterableDataset, Stream};
pub use loader::{
    Batches, CollateWith, Cycle, DataLoader, DefaultCollate, IndexedBatches, IntoCollate,
    LoaderBuilder,
};
pub use progress::{Metric, Progress, Tqdm, tqdm};
pub use rng::Rng;
pub use sampler::{
    BatchSampler, FnSampler, Order, Pass, RandomSampler, Sampler, SequentialSampler,
    SubsetRandomSampler, WeightedRandomSampler,
};
pub use split::{Fold, SplitSizes, k_fold, random_split, stratified_k_fold, stratified_split};
pub use tensor_dataset::{TensorDataset, Tensors};
