//! Datasets, samplers and loaders, under PyTorch's names.
//!
//! A [`Dataset`] finds samples by index, an [`IterableDataset`] reads them in order. A [`DataLoader`]
//! makes batches of them, in threads if asked to.

mod collate;
mod dataset;
mod distributed;
mod fault;
mod iterable;
mod loader;
mod rng;
mod sampler;
mod split;
mod tensor_dataset;

pub use collate::Collate;
pub use dataset::{ConcatDataset, Dataset, FnDataset, Map, Subset};
pub use distributed::DistributedSampler;
pub use iterable::{IterableDataset, Stream};
pub use loader::{
    Batches, CollateWith, Cycle, DataLoader, DefaultCollate, IndexedBatches, IntoCollate,
    LoaderBuilder,
};
pub use rng::Rng;
pub use sampler::{
    BatchSampler, Order, Pass, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
    WeightedRandomSampler,
};
pub use split::{Parts, random_split, stratified_split};
pub use tensor_dataset::{TensorDataset, Tensors};
