//! Datasets, samplers and loaders, under PyTorch's names.
//!
//! A [`Dataset`] finds samples by index, an [`IterableDataset`] reads them in order. A [`DataLoader`]
//! makes batches of them, in threads if asked to. [`read_npy`] reads an array from a file; with the feature `npz`
//! `read_npz` reads archives of them, with the feature `csv` `CsvTable` reads tables.

mod collate;
mod dataset;
mod distributed;
mod fault;
mod iterable;
mod loader;
mod npy;
mod npy_header;
#[cfg(feature = "npz")]
mod npz;
mod rng;
mod sampler;
mod split;
#[cfg(feature = "csv")]
mod table;
mod tensor_dataset;

pub use collate::Collate;
pub use dataset::{ConcatDataset, Dataset, FnDataset, Map, Subset};
pub use distributed::DistributedSampler;
pub use iterable::{IterableDataset, Stream};
pub use loader::{
    Batches, CollateWith, Cycle, DataLoader, DefaultCollate, IndexedBatches, IntoCollate,
    LoaderBuilder,
};
pub use npy::{npy_from_bytes, npy_to_bytes, read_npy, write_npy};
#[cfg(feature = "npz")]
pub use npz::{read_npz, write_npz, write_npz_compressed};
pub use rng::Rng;
pub use sampler::{
    BatchSampler, Order, Pass, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler,
    WeightedRandomSampler,
};
pub use split::{Parts, random_split, stratified_split};
#[cfg(feature = "csv")]
pub use table::{CsvOptions, CsvTable, Field};
pub use tensor_dataset::{TensorDataset, Tensors};
