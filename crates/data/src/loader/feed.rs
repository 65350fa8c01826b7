//! The jobs of a pass: each loads one batch.

use super::BatchIndices;
use crate::dataset::Dataset;
use crate::fault::{SOURCE, invalid};
use crate::iterable::IterableDataset;
use crate::rng::derive;
use crate::sampler::Pass;
use kiln_base::Loc;
use kiln_tensor::{
    Device, Error, Result, Tensor, on_behalf_of, realize_first, with_device, with_seed,
};
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A function that starts a pass and returns its jobs in order.
pub(super) type Recipe<B> = Arc<dyn Fn(Pass) -> Feed<B> + Send + Sync>;

/// The jobs of a pass. Workers take turns in taking a job, which reads indices or a stream; they run jobs
/// concurrently.
pub(super) type Feed<B> = Box<dyn Iterator<Item = Job<B>> + Send>;

/// Loads a batch and returns it with the indices of its samples. Meanwhile it records the sample that it is at.
pub(super) type Job<B> = Box<dyn FnOnce(&AtomicUsize) -> Result<(Vec<usize>, B)> + Send>;

/// A function that collates samples into a batch.
pub(super) type Collator<T, B> = Arc<dyn Fn(Vec<T>) -> Result<B> + Send + Sync>;

/// The value that means that no sample is being loaded.
pub(super) const IDLE: usize = usize::MAX;

type Site = &'static Location<'static>;

/// The jobs of a dataset whose samples are found by index.
pub(super) fn of_dataset<T: Send + 'static, B: Send + 'static>(
    dataset: Arc<dyn Dataset<Item = T>>,
    batches: BatchIndices,
    collate: Collator<T, B>,
    loc: Site,
) -> Recipe<B> {
    Arc::new(move |pass| {
        let (dataset, collate) = (dataset.clone(), collate.clone());
        let mut order = match catch_panic("the sampler", loc, || Ok(batches.order(pass).fuse())) {
            Ok(order) => order,
            Err(e) => return failed_feed(e),
        };
        let (mut drawn, mut ended) = (0u64, false);
        Box::new(std::iter::from_fn(move || {
            if ended {
                return None;
            }
            let indices = match catch_panic("the sampler", loc, || Ok(order.next())) {
                Ok(indices) => indices?,
                Err(e) => {
                    ended = true;
                    return Some(failing_job(e));
                }
            };
            let (dataset, collate, base) = (dataset.clone(), collate.clone(), drawn);
            drawn += indices.len() as u64;
            Some(Box::new(move |position: &AtomicUsize| {
                let mut samples = Vec::with_capacity(indices.len());
                for (n, index) in indices.iter().enumerate() {
                    position.store(*index, Ordering::Relaxed);
                    let seed = sample_seed(pass, base + n as u64);
                    let get = || with_seed(seed, || sample(&*dataset, *index, loc));
                    samples.push(get()?);
                }
                let batch = batch_of(&collate, samples, &indices, sample_seed(pass, base), loc)?;
                Ok((indices, batch))
            }) as Job<B>)
        }))
    })
}

/// The jobs of a dataset that is read in order.
pub(super) fn of_stream<T: Send + 'static, B: Send + 'static>(
    dataset: Arc<dyn IterableDataset<Item = T>>,
    size: usize,
    drop_last: bool,
    collate: Collator<T, B>,
    loc: Site,
) -> Recipe<B> {
    Arc::new(move |pass| {
        let collate = collate.clone();
        let start = || with_seed(sample_seed(pass, 0), || Ok(dataset.iter()));
        let stream = match catch_panic("the iterable dataset", loc, start) {
            Ok(stream) => stream,
            Err(e) => return failed_feed(e),
        };
        // `None` once the stream has ended.
        let (mut stream, mut index) = (Some(stream), 0);
        Box::new(std::iter::from_fn(move || {
            let (base, mut samples) = (index, Vec::with_capacity(size.min(1 << 16)));
            while samples.len() < size {
                let Some(open) = &mut stream else { break };
                let seed = sample_seed(pass, 1 + index as u64);
                let what = format!("sample {index} of the iterable dataset");
                let next = catch_panic(&what, loc, || with_seed(seed, || Ok(open.next())));
                match next {
                    Ok(Some(Ok(sample))) => samples.push(sample),
                    Ok(None) => stream = None,
                    Ok(Some(Err(e))) => {
                        index += 1;
                        return Some(failing_job(e.with_note(format!("loading {what}"))));
                    }
                    Err(panicked) => {
                        stream = None;
                        return Some(failing_job(panicked));
                    }
                }
                index = base + samples.len();
            }
            if samples.is_empty() || drop_last && samples.len() < size {
                return None;
            }
            let (collate, seed) = (collate.clone(), sample_seed(pass, 1 + base as u64));
            Some(Box::new(move |_: &AtomicUsize| {
                let indices: Vec<usize> = (base..base + samples.len()).collect();
                let batch = batch_of(&collate, samples, &indices, seed, loc)?;
                Ok((indices, batch))
            }) as Job<B>)
        }))
    })
}

/// The seed of the sample at a position in the order of a pass.
fn sample_seed(pass: Pass, position: u64) -> u64 {
    derive(derive(pass.seed, pass.epoch), position)
}

fn sample<T: Send + 'static>(
    dataset: &dyn Dataset<Item = T>,
    index: usize,
    loc: Site,
) -> Result<T> {
    let what = format!("sample {index}");
    catch_panic(&what, loc, || {
        let len = dataset.len();
        if index >= len {
            let message = format!("the sampler gave the index {index} of {len} samples");
            return Err(invalid("DataLoader", message, loc));
        }
        dataset
            .get(index)
            .map_err(|e| e.or_at(Loc::from(loc)).with_note(format!("loading {what}")))
    })
}

/// Collates a batch and computes its tensors.
fn batch_of<T, B>(
    collate: &Collator<T, B>,
    samples: Vec<T>,
    indices: &[usize],
    seed: u64,
    loc: Site,
) -> Result<B> {
    let what = format!("collating the samples {indices:?}");
    let batch = catch_panic(&what, loc, || {
        with_seed(derive(seed, 0), || collate(samples))
    });
    let batch = batch.map_err(|e| e.or_at(Loc::from(loc)).with_note(what))?;
    // A tensor that fails stays unrealised and reports its error when it is read.
    let _ = on_behalf_of(SOURCE, loc, || realize_first(None::<&Tensor>));
    Ok(batch)
}

/// Calls the user's code with the CPU as default device; its panic becomes an error that names the call. What this
/// crate records meanwhile counts as recorded at `loc`.
pub(super) fn catch_panic<R>(what: &str, loc: Site, f: impl FnOnce() -> Result<R>) -> Result<R> {
    // State that a panic leaves half changed is not used again.
    let on_cpu = || on_behalf_of(SOURCE, loc, || with_device(Device::Cpu, f));
    catch_unwind(AssertUnwindSafe(on_cpu)).unwrap_or_else(|panic| {
        let message = format!("{what} panicked: {}", panic_text(&*panic));
        Err(invalid("DataLoader", message, loc))
    })
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "with a value that is not text",
    }
}

fn failing_job<B>(e: Error) -> Job<B> {
    Box::new(|_| Err(e))
}

fn failed_feed<B: Send + 'static>(e: Error) -> Feed<B> {
    Box::new(std::iter::once(failing_job(e)))
}
