//! The builder of loaders.

use super::feed::{self, Collator, Recipe};
use super::{BatchIndices, DataLoader, Settings};
use crate::collate::Collate;
use crate::dataset::Dataset;
use crate::device::ToDevice;
use crate::fault::invalid;
use crate::iterable::IterableDataset;
use crate::sampler::{BatchSampler, RandomSampler, Sampler, SequentialSampler};
use kiln_tensor::{Device, Error, Result, draw_seed};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// The default number of batches that a worker loads ahead.
const PREFETCH: usize = 2;

/// Describes a [`DataLoader`] of samples `T`. Nothing is checked before [`LoaderBuilder::build`].
pub struct LoaderBuilder<T, C = DefaultCollate> {
    data: Data<T>,
    collate: C,
    options: Options,
}

/// The settings of a [`LoaderBuilder`].
#[derive(Default)]
struct Options {
    unbatched: bool,
    batch_size: Option<usize>,
    shuffle: Option<bool>,
    drop_last: Option<bool>,
    sampler: Option<Box<dyn Sampler<Item = usize>>>,
    batch_sampler: Option<BatchIndices>,
    seed: Option<u64>,
    workers: usize,
    prefetch: Option<usize>,
    timeout: Option<Duration>,
    worker_init: Option<Arc<dyn Fn(usize) -> Result<()> + Send + Sync>>,
}

pub(super) enum Data<T> {
    Map(Arc<dyn Dataset<Item = T>>),
    Stream(Arc<dyn IterableDataset<Item = T>>),
}

/// Collates by [`Collate`].
pub struct DefaultCollate;

/// Collates by the function given to [`LoaderBuilder::collate`].
pub struct CollateWith<T, B>(Collator<T, B>);

/// A collation of a loader's samples: [`DefaultCollate`] or [`CollateWith`].
pub trait IntoCollate<T> {
    /// The type of a batch.
    type Batch: Send + 'static;
    /// The function that collates.
    fn into_collate(self) -> Arc<dyn Fn(Vec<T>) -> Result<Self::Batch> + Send + Sync>;
}

impl<T: Collate + 'static> IntoCollate<T> for DefaultCollate {
    type Batch = T::Batch;
    fn into_collate(self) -> Collator<T, T::Batch> {
        // The location of a call through a pointer would be in the standard library.
        Arc::new(|samples| T::collate(samples))
    }
}

impl<T, B: Send + 'static> IntoCollate<T> for CollateWith<T, B> {
    type Batch = B;
    fn into_collate(self) -> Collator<T, B> {
        self.0
    }
}

impl<T: Send + 'static> LoaderBuilder<T> {
    pub(super) fn of(data: Data<T>) -> LoaderBuilder<T> {
        LoaderBuilder {
            data,
            collate: DefaultCollate,
            options: Options::default(),
        }
    }

    /// Collates by a function, in the workers.
    pub fn collate<B: Send + 'static>(
        self,
        f: impl Fn(Vec<T>) -> Result<B> + Send + Sync + 'static,
    ) -> LoaderBuilder<T, CollateWith<T, B>> {
        self.map_collate(|_| CollateWith(Arc::new(f)))
    }

    /// Returns the samples one by one, without collation: PyTorch's `batch_size=None`.
    pub fn unbatched(mut self) -> LoaderBuilder<T, CollateWith<T, T>> {
        self.options.unbatched = true;
        self.collate(|mut samples| {
            let sample = samples.pop();
            sample.ok_or_else(|| invalid("DataLoader", "a sample is missing", Location::caller()))
        })
    }
}

impl<T: Send + 'static, C: IntoCollate<T>> LoaderBuilder<T, C>
where
    C::Batch: ToDevice,
{
    /// Copies each batch to a device in the thread that collates it. With workers this happens ahead of its use, and
    /// concurrent with the device's work.
    ///
    /// ```no_run
    /// use kiln_data::{DataLoader, TensorDataset};
    /// use kiln_tensor::{DType, Device, Tensor};
    /// let data = TensorDataset::new(Tensor::rand([1000, 3, 64, 64], DType::F32))?;
    /// let gpu = Device::cuda(0)?;
    /// let loader = DataLoader::new(data).batch_size(50).workers(2).device(gpu).build()?;
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn device(self, device: Device) -> LoaderBuilder<T, CollateWith<T, C::Batch>> {
        self.map_collate(|collate| {
            let collate = collate.into_collate();
            CollateWith(Arc::new(move |samples| Ok(collate(samples)?.to(device))))
        })
    }
}

impl<T: Send + 'static, C> LoaderBuilder<T, C> {
    /// The builder with its collation replaced by `f` of it.
    fn map_collate<D>(self, f: impl FnOnce(C) -> D) -> LoaderBuilder<T, D> {
        LoaderBuilder {
            data: self.data,
            collate: f(self.collate),
            options: self.options,
        }
    }

    /// The number of samples in a batch: 1 by default. The last batch of a pass may be smaller.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.options.batch_size = Some(batch_size);
        self
    }

    /// If true, each pass has a random order of its own.
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.options.shuffle = Some(shuffle);
        self
    }

    /// If true, a last batch that is smaller than the others is left out.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.options.drop_last = Some(drop_last);
        self
    }

    /// The order of the samples, in place of `shuffle`.
    pub fn sampler(mut self, sampler: impl Sampler<Item = usize>) -> Self {
        self.options.sampler = Some(Box::new(sampler));
        self
    }

    /// The samples of each batch, in place of `batch_size`, `shuffle`, `sampler` and `drop_last`.
    pub fn batch_sampler(mut self, batch_sampler: impl Sampler<Item = Vec<usize>>) -> Self {
        self.options.batch_sampler = Some(Box::new(batch_sampler));
        self
    }

    /// The seed of the order and of the dataset's random numbers. By default it comes from the generator of
    /// [`kiln_tensor::manual_seed`].
    pub fn seed(mut self, seed: u64) -> Self {
        self.options.seed = Some(seed);
        self
    }

    /// The number of threads that load batches ahead; with 0, the default, `next` loads its batch itself.
    pub fn workers(mut self, workers: usize) -> Self {
        self.options.workers = workers;
        self
    }

    /// The number of batches that each worker loads ahead: 2 by default.
    pub fn prefetch_factor(mut self, batches: usize) -> Self {
        self.options.prefetch = Some(batches);
        self
    }

    /// The time for which `next` waits for a batch. After it, `next` returns an error that says what the workers are
    /// doing, and ends the pass. Without a timeout it waits as long as they live.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// A function that each worker calls with its number before it loads, once its random numbers are seeded. An
    /// error ends the pass.
    pub fn worker_init_fn(
        mut self,
        f: impl Fn(usize) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.options.worker_init = Some(Arc::new(f));
        self
    }

    /// Builds the loader.
    ///
    /// # Errors
    /// If the settings contradict each other; the message says which and what to leave out.
    #[track_caller]
    pub fn build(self) -> Result<DataLoader<C::Batch>>
    where
        C: IntoCollate<T>,
    {
        let loc = Location::caller();
        if let Some(message) = self.contradiction() {
            return Err(invalid("DataLoader", message, loc));
        }
        let options = self.options;
        let settings = Settings {
            seed: options.seed.unwrap_or_else(draw_seed),
            workers: options.workers,
            prefetch: options
                .workers
                .saturating_mul(options.prefetch.unwrap_or(PREFETCH)),
            timeout: options.timeout,
            worker_init: options.worker_init,
            loc,
        };
        let collate = self.collate.into_collate();
        let size = options.batch_size.unwrap_or(1);
        let drop_last = options.drop_last.unwrap_or(false);
        let (recipe, batches): (Recipe<C::Batch>, _) = match self.data {
            Data::Stream(stream) => (feed::of_stream(stream, size, drop_last, collate, loc), None),
            Data::Map(dataset) => {
                let batches = match (options.batch_sampler, options.sampler) {
                    (Some(batches), _) => batches,
                    (None, Some(sampler)) => group_indices(sampler, size, drop_last)?,
                    (None, None) if options.shuffle == Some(true) => {
                        group_indices(RandomSampler::new(dataset.len()), size, drop_last)?
                    }
                    (None, None) => {
                        group_indices(SequentialSampler::new(dataset.len()), size, drop_last)?
                    }
                };
                let len = batches.len();
                (feed::of_dataset(dataset, batches, collate, loc), len)
            }
        };
        Ok(DataLoader {
            recipe,
            batches,
            settings,
            epoch: AtomicU64::new(0),
        })
    }

    /// A message about settings that contradict each other.
    fn contradiction(&self) -> Option<String> {
        let options = &self.options;
        let set = |name, is_set| if is_set { Some(name) } else { None };
        let batch_size = set("batch_size", options.batch_size.is_some());
        let drop_last = set("drop_last", options.drop_last == Some(true));
        let shuffle = set("shuffle", options.shuffle == Some(true));
        let sampler = set("sampler", options.sampler.is_some());
        let batch_sampler = set("batch_sampler", options.batch_sampler.is_some());
        let excluded = |why: &str, names: &[Option<&str>]| {
            let names: Vec<&str> = names.iter().flatten().copied().collect();
            (!names.is_empty()).then(|| format!("{why}; leave out {}", names.join(", ")))
        };
        if matches!(self.data, Data::Stream(_)) {
            let why = "an iterable dataset decides the order of its samples";
            if let Some(wrong) = excluded(why, &[shuffle, sampler, batch_sampler]) {
                return Some(wrong);
            }
        }
        if options.unbatched {
            let why = "unbatched samples come one by one";
            if let Some(wrong) = excluded(why, &[batch_size, drop_last, batch_sampler]) {
                return Some(wrong);
            }
        }
        if batch_sampler.is_some() {
            let why = "batch_sampler decides which samples make a batch";
            if let Some(wrong) = excluded(why, &[batch_size, shuffle, sampler, drop_last]) {
                return Some(wrong);
            }
        }
        if sampler.is_some() && shuffle.is_some() {
            return excluded("sampler decides the order of the samples", &[shuffle]);
        }
        if options.workers == 0 {
            let prefetch = set("prefetch_factor", options.prefetch.is_some());
            let timeout = set("timeout", options.timeout.is_some());
            let why = "without workers, batches are loaded in place; set workers, or";
            if let Some(wrong) = excluded(why, &[prefetch, timeout]) {
                return Some(wrong.replacen("or; ", "or ", 1));
            }
        }
        let zero = |name| Some(format!("{name} must be at least 1"));
        match () {
            _ if options.batch_size == Some(0) => zero("batch_size"),
            _ if options.prefetch == Some(0) => zero("prefetch_factor"),
            _ if options.workers > MAX_WORKERS => Some(format!(
                "workers must be at most {MAX_WORKERS}, not {}",
                options.workers
            )),
            _ if options.timeout == Some(Duration::ZERO) => Some("timeout must not be zero".into()),
            _ => None,
        }
    }
}

/// The maximum number of threads; a machine has far fewer cores.
const MAX_WORKERS: usize = 1 << 12;

fn group_indices<S: Sampler<Item = usize>>(
    sampler: S,
    size: usize,
    drop_last: bool,
) -> Result<BatchIndices, Error> {
    Ok(Box::new(BatchSampler::new(sampler, size, drop_last)?))
}
