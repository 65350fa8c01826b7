//! Loading a dataset in batches.

mod batches;
mod builder;
mod feed;
mod workers;

pub use batches::{Batches, Cycle, IndexedBatches};
pub use builder::{CollateWith, DefaultCollate, IntoCollate, LoaderBuilder};

use crate::dataset::Dataset;
use crate::iterable::IterableDataset;
use crate::sampler::{Pass, Sampler};
use builder::Data;
use feed::Recipe;
use kiln_tensor::Result;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Loads a dataset in batches: PyTorch's `DataLoader`. `B` is the type of a batch.
///
/// ```
/// use kiln_data::{DataLoader, TensorDataset};
/// use kiln_tensor::Tensor;
///
/// let (x, y) = (Tensor::arange(0, 20, 1).reshape([10, 2]), Tensor::arange(0, 10, 1));
/// let data = TensorDataset::new((x, y))?;
/// let loader = DataLoader::new(data).batch_size(4).shuffle(true).seed(7).workers(2).build()?;
/// for batch in &loader {
///     let (x, y) = batch?;
///     assert_eq!(x.shape()?[0], y.shape()?[0]);
/// }
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// Each pass (`for batch in &loader`, or [`DataLoader::iter`]) is an epoch with an order of its own. The
/// batches and the random numbers that the dataset draws depend on the seed and the epoch, never on the
/// number of workers.
///
/// A sample that can't be loaded, or whose code panics, makes its batch an error that names its index; the next call
/// continues with the next batch. Each call of `next` computes every unrealised tensor of this thread, so that a
/// running sum of losses keeps no batch alive. A tensor that fails reports its error when it is read. The tensors of
/// batches are already computed.
pub struct DataLoader<B> {
    recipe: Recipe<B>,
    /// The number of batches in a pass, if it is known.
    batches: Option<usize>,
    settings: Settings,
    epoch: AtomicU64,
}

/// The settings for running the jobs of a loader.
#[derive(Clone)]
pub(crate) struct Settings {
    seed: u64,
    workers: usize,
    /// The number of batches that may be loaded or loading ahead of the next one.
    prefetch: usize,
    timeout: Option<Duration>,
    worker_init: Option<Arc<dyn Fn(usize) -> Result<()> + Send + Sync>>,
    /// The line where the loader was built, to which its own errors point.
    loc: &'static Location<'static>,
}

impl DataLoader<()> {
    /// Describes a loader of samples that are found by index.
    // `new` returns a builder, because a loader has many settings.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<D: Dataset>(dataset: D) -> LoaderBuilder<D::Item> {
        LoaderBuilder::of(Data::Map(Arc::new(dataset)))
    }

    /// Describes a loader of samples that are read in order.
    pub fn from_iterable<D: IterableDataset>(dataset: D) -> LoaderBuilder<D::Item> {
        LoaderBuilder::of(Data::Stream(Arc::new(dataset)))
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Starts a pass.
    pub fn iter(&self) -> Batches<B> {
        Batches(self.with_indices())
    }

    /// Starts a pass that also returns the indices of each batch's samples; for an iterable dataset, their positions
    /// in the stream.
    ///
    /// ```
    /// # use kiln_data::{DataLoader, FnDataset};
    /// let loader = DataLoader::new(FnDataset::new(5, Ok)).batch_size(2).build()?;
    /// let indices: kiln_tensor::Result<Vec<_>> = loader.with_indices().map(|b| Ok(b?.0)).collect();
    /// assert_eq!(indices?, [vec![0, 1], vec![2, 3], vec![4]]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn with_indices(&self) -> IndexedBatches<B> {
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst);
        let seed = self.settings.seed;
        IndexedBatches::start(
            &self.recipe,
            Pass { seed, epoch },
            &self.settings,
            self.batches,
        )
    }

    /// Passes without end, each with its own order. Ends after an empty pass.
    pub fn cycle(&self) -> Cycle<'_, B> {
        Cycle::new(self)
    }

    /// The number of batches in a pass; `None` for iterable datasets and endless samplers.
    // An `is_empty` would be of no use.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Option<usize> {
        self.batches
    }

    /// The number of the pass that starts next.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Sets the number of the pass that starts next, to continue an earlier run.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::SeqCst);
    }
}

impl<B: Send + 'static> IntoIterator for &DataLoader<B> {
    type Item = Result<B>;
    type IntoIter = Batches<B>;
    fn into_iter(self) -> Batches<B> {
        self.iter()
    }
}

/// A sampler of the indices of each batch.
pub(crate) type BatchIndices = Box<dyn Sampler<Item = Vec<usize>>>;
