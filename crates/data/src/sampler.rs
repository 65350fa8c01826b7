//! The order of a dataset's samples.

use crate::fault::invalid;
use crate::rng::{Rng, derive};
use kiln_tensor::Result;
use std::panic::Location;

/// One pass over the samples. The same pass gives the same order.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The loader's seed.
    pub seed: u64,
    /// The number of earlier passes.
    pub epoch: u64,
}

impl Pass {
    /// Random numbers for the order of this pass.
    pub fn rng(self) -> Rng {
        Rng::new(derive(self.seed, self.epoch))
    }
}

/// The indices of one pass.
pub type Order<T> = Box<dyn Iterator<Item = T> + Send>;

// An `is_empty` of an order would be of no use.
/// A source of the indices of samples (`Item = usize`) or of the indices of each batch's samples (`Item =
/// Vec<usize>`: a batch sampler).
#[allow(clippy::len_without_is_empty)]
pub trait Sampler: Send + Sync + 'static {
    /// An index, or the indices of a batch.
    type Item: Send + 'static;

    /// The number of items in a pass; `None` if it is endless or unknown.
    fn len(&self) -> Option<usize>;

    /// The order of one pass. It must depend only on `pass` and the sampler.
    fn order(&self, pass: Pass) -> Order<Self::Item>;
}

/// `0..len` in order.
#[derive(Copy, Clone, Debug)]
pub struct SequentialSampler {
    len: usize,
}

impl SequentialSampler {
    /// The indices of a dataset of `len` samples.
    pub fn new(len: usize) -> SequentialSampler {
        SequentialSampler { len }
    }
}

impl Sampler for SequentialSampler {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.len)
    }
    fn order(&self, _: Pass) -> Order<usize> {
        Box::new(0..self.len)
    }
}

/// Indices in a random order, another one at each pass.
#[derive(Copy, Clone, Debug)]
pub struct RandomSampler {
    len: usize,
    replacement: bool,
    num_samples: Option<usize>,
}

impl RandomSampler {
    /// Every index below `len` once.
    pub fn new(len: usize) -> RandomSampler {
        RandomSampler {
            len,
            replacement: false,
            num_samples: None,
        }
    }

    /// If true, draws each index independently, so that some come twice.
    pub fn replacement(mut self, replacement: bool) -> RandomSampler {
        self.replacement = replacement;
        self
    }

    /// The number of indices in a pass; `len` by default. Without replacement, each index comes once before any comes
    /// again.
    pub fn num_samples(mut self, num_samples: usize) -> RandomSampler {
        self.num_samples = Some(num_samples);
        self
    }

    fn count(&self) -> usize {
        match self.len {
            0 => 0,
            len => self.num_samples.unwrap_or(len),
        }
    }
}

impl Sampler for RandomSampler {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.count())
    }
    fn order(&self, pass: Pass) -> Order<usize> {
        let (len, mut rng) = (self.len, pass.rng());
        if self.replacement {
            return Box::new((0..self.count()).map(move |_| rng.below(len)));
        }
        let mut order = rng.order(len);
        Box::new((0..self.count()).map(move |n| {
            if n > 0 && n % len == 0 {
                order = rng.order(len);
            }
            order.position(n % len)
        }))
    }
}

/// Some indices in a random order, another one at each pass.
#[derive(Clone, Debug)]
pub struct SubsetRandomSampler {
    indices: Vec<usize>,
}

impl SubsetRandomSampler {
    /// Each of these indices once.
    pub fn new(indices: impl Into<Vec<usize>>) -> SubsetRandomSampler {
        let indices = indices.into();
        SubsetRandomSampler { indices }
    }
}

impl Sampler for SubsetRandomSampler {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.indices.len())
    }
    fn order(&self, pass: Pass) -> Order<usize> {
        let mut indices = self.indices.clone();
        pass.rng().shuffle(&mut indices);
        Box::new(indices.into_iter())
    }
}

/// Indices drawn with given weights, which need not sum to 1.
#[derive(Clone, Debug)]
pub struct WeightedRandomSampler {
    weights: Vec<f64>,
    num_samples: usize,
    replacement: bool,
}

impl WeightedRandomSampler {
    /// `num_samples` indices below the number of weights. Without `replacement`, an index comes at most
    /// once a pass.
    ///
    /// # Errors
    /// If a weight is negative or not finite, all are zero, or fewer are positive than are drawn
    /// without replacement.
    #[track_caller]
    pub fn new(
        weights: impl Into<Vec<f64>>,
        num_samples: usize,
        replacement: bool,
    ) -> Result<WeightedRandomSampler> {
        let loc = Location::caller();
        let wrong = |message| Err(invalid("WeightedRandomSampler::new", message, loc));
        let weights = weights.into();
        if let Some(n) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
            let message = format!(
                "weight {n} is {}; weights are finite and not negative",
                weights[n]
            );
            return wrong(message);
        }
        let positive = weights.iter().filter(|w| **w > 0.0).count();
        let (drawn, means) = match replacement {
            true => (num_samples.min(1), "with"),
            false => (num_samples, "without"),
        };
        if positive < drawn {
            let message = format!(
                "{num_samples} samples can't be drawn {means} replacement: {positive} of {} weights \
                 are positive",
                weights.len()
            );
            return wrong(message);
        }
        Ok(WeightedRandomSampler {
            weights,
            num_samples,
            replacement,
        })
    }
}

impl Sampler for WeightedRandomSampler {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.num_samples)
    }
    fn order(&self, pass: Pass) -> Order<usize> {
        let mut rng = pass.rng();
        let positive = self.weights.iter().enumerate().filter(|(_, w)| **w > 0.0);
        if !self.replacement {
            // Exponential variables with the weights as rates: in ascending order, their indices are those of
            // weighted draws without replacement (Efraimidis and Spirakis, 2006).
            let arrival = |(i, w): (usize, &f64)| (-(1.0 - rng.unit()).ln() / w, i);
            let mut arrivals: Vec<(f64, usize)> = positive.map(arrival).collect();
            arrivals.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
            let drawn = arrivals.into_iter().map(|(_, i)| i);
            return Box::new(drawn.take(self.num_samples));
        }
        // Scaled so that the sum stays finite.
        let largest = self.weights.iter().copied().fold(0.0, f64::max);
        let (mut ends, mut indices, mut sum) = (Vec::new(), Vec::new(), 0.0);
        for (i, w) in positive {
            sum += w / largest;
            ends.push(sum);
            indices.push(i);
        }
        Box::new((0..self.num_samples).map(move |_| {
            let target = rng.unit() * sum;
            let drawn = ends.partition_point(|end| *end <= target);
            indices[drawn.min(indices.len() - 1)]
        }))
    }
}

/// Groups the indices of a sampler into batches.
pub struct BatchSampler<S> {
    sampler: S,
    batch_size: usize,
    drop_last: bool,
}

impl<S: Sampler<Item = usize>> BatchSampler<S> {
    /// Batches of `batch_size` indices; `drop_last` leaves out a smaller one at the end.
    ///
    /// # Errors
    /// If `batch_size` is 0.
    #[track_caller]
    pub fn new(sampler: S, batch_size: usize, drop_last: bool) -> Result<BatchSampler<S>> {
        if batch_size == 0 {
            let (op, loc) = ("BatchSampler::new", Location::caller());
            return Err(invalid(op, "batch_size must be at least 1", loc));
        }
        Ok(BatchSampler {
            sampler,
            batch_size,
            drop_last,
        })
    }
}

impl<S: Sampler<Item = usize>> Sampler for BatchSampler<S> {
    type Item = Vec<usize>;
    fn len(&self) -> Option<usize> {
        let samples = self.sampler.len()?;
        Some(match self.drop_last {
            true => samples / self.batch_size,
            false => samples.div_ceil(self.batch_size),
        })
    }
    fn order(&self, pass: Pass) -> Order<Vec<usize>> {
        let (size, drop_last) = (self.batch_size, self.drop_last);
        let mut order = self.sampler.order(pass);
        Box::new(std::iter::from_fn(move || {
            let batch: Vec<usize> = order.by_ref().take(size).collect();
            let complete = batch.len() == size;
            (complete || !drop_last && !batch.is_empty()).then_some(batch)
        }))
    }
}

/// These items in this order, at each pass: indices, or the indices of each batch.
///
/// ```
/// use kiln_data::{DataLoader, FnDataset};
/// let data = FnDataset::new(10, Ok);
/// let loader = DataLoader::new(data).sampler(vec![7, 7, 2]).build()?;
/// let seen: kiln_tensor::Result<Vec<_>> = loader.with_indices().map(|b| Ok(b?.0[0])).collect();
/// assert_eq!(seen?, [7, 7, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
impl<T: Clone + Send + Sync + 'static> Sampler for Vec<T> {
    type Item = T;
    fn len(&self) -> Option<usize> {
        Some(Vec::len(self))
    }
    fn order(&self, _: Pass) -> Order<T> {
        Box::new(self.clone().into_iter())
    }
}

/// A sampler whose items a function returns for each pass.
///
/// ```
/// use kiln_data::{DataLoader, FnDataset, FnSampler};
/// // Longer texts come later, and in the first pass only short ones come.
/// let texts = ["four", "a", "bb", "ccc"];
/// let curriculum = FnSampler::new(move |pass| {
///     let mut order: Vec<usize> = (0..texts.len()).collect();
///     order.sort_by_key(|i| texts[*i].len());
///     order.into_iter().take(2 + 2 * pass.epoch as usize)
/// });
/// let loader = DataLoader::new(FnDataset::new(4, move |i| Ok(texts[i]))).sampler(curriculum).build()?;
/// let first: kiln_tensor::Result<Vec<_>> = loader.iter().collect();
/// assert_eq!(first?, [vec!["a"], vec!["bb"]]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct FnSampler<F> {
    f: F,
    len: Option<usize>,
}

impl<F, I> FnSampler<F>
where
    F: Fn(Pass) -> I + Send + Sync + 'static,
    I: IntoIterator,
    I::IntoIter: Send + 'static,
    I::Item: Send + 'static,
{
    /// The items that `f` returns for a pass; random numbers come from [`Pass::rng`]. Their number is unknown.
    pub fn new(f: F) -> FnSampler<F> {
        FnSampler { f, len: None }
    }

    /// The same, with `len` items in each pass.
    pub fn with_len(len: usize, f: F) -> FnSampler<F> {
        FnSampler { f, len: Some(len) }
    }
}

impl<F, I> Sampler for FnSampler<F>
where
    F: Fn(Pass) -> I + Send + Sync + 'static,
    I: IntoIterator,
    I::IntoIter: Send + 'static,
    I::Item: Send + 'static,
{
    type Item = I::Item;
    fn len(&self) -> Option<usize> {
        self.len
    }
    fn order(&self, pass: Pass) -> Order<I::Item> {
        let items = (self.f)(pass).into_iter();
        match self.len {
            Some(len) => Box::new(items.take(len)),
            None => Box::new(items),
        }
    }
}

impl<T: Send + 'static> Sampler for Box<dyn Sampler<Item = T>> {
    type Item = T;
    fn len(&self) -> Option<usize> {
        (**self).len()
    }
    fn order(&self, pass: Pass) -> Order<T> {
        (**self).order(pass)
    }
}
