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
use feed::Recipe;
use kiln_tensor::Result;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Loads a dataset in batches: PyTorch's `DataLoader`. `B` is what a batch is.
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
/// A sample that can't be loaded, or whose code panics, makes its batch an error that names its index;
/// the next call goes on with the next batch. Each call of `next` computes every unrealised tensor that
/// this thread holds, so that a running sum of losses keeps no batch alive; one that fails reports its
/// error when it is read. Batches come computed.
pub struct DataLoader<B> {
    recipe: Recipe<B>,
    /// How many batches a pass has, if that is known.
    batches: Option<usize>,
    settings: Settings,
    epoch: AtomicU64,
}

/// How the jobs of a loader are run.
#[derive(Clone)]
pub(crate) struct Settings {
    seed: u64,
    workers: usize,
    /// How many batches may be loaded or loading ahead of the one asked for.
    prefetch: usize,
    timeout: Option<Duration>,
    worker_init: Option<Arc<dyn Fn(usize) -> Result<()> + Send + Sync>>,
    /// Where the loader was built: the place that errors of its own point to.
    loc: &'static Location<'static>,
}

impl DataLoader<()> {
    /// Describes a loader of samples that are found by index.
    // A builder is what `new` of a loader with many settings gives.
    #[allow(clippy::new_ret_no_self)]
    pub fn new<D: Dataset>(dataset: D) -> LoaderBuilder<D::Item> {
        LoaderBuilder::of_dataset(Arc::new(dataset))
    }

    /// Describes a loader of samples that are read in order.
    pub fn from_iterable<D: IterableDataset>(dataset: D) -> LoaderBuilder<D::Item> {
        LoaderBuilder::of_stream(Arc::new(dataset))
    }
}

impl<B: Send + 'static> DataLoader<B> {
    /// Starts a pass.
    pub fn iter(&self) -> Batches<B> {
        Batches(self.with_indices())
    }

    /// Starts a pass that gives the indices of the samples beside each batch; of an iterable dataset,
    /// their places in the stream.
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

    /// Passes without end, each with its own order. Ends after a pass that gives nothing.
    pub fn cycle(&self) -> Cycle<'_, B> {
        Cycle::new(self)
    }

    /// How many batches a pass has; `None` for iterable datasets and endless samplers.
    // There is no use for asking whether a loader gives no batch.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Option<usize> {
        self.batches
    }

    /// The number of the pass that starts next.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// Sets the number of the pass that starts next, for going on where an earlier run ended.
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

/// What gives the indices of each batch.
pub(crate) type BatchIndices = Box<dyn Sampler<Item = Vec<usize>>>;
