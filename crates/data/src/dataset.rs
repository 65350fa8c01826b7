//! Datasets whose samples are found by index, and datasets derived from them.

use crate::fault::invalid;
use kiln_tensor::Result;
use std::panic::Location;
use std::sync::Arc;

/// Samples that are found by index: PyTorch's map-style `Dataset`.
///
/// ```
/// use kiln_data::Dataset;
///
/// struct Squares;
/// impl Dataset for Squares {
///     type Item = (usize, f32);
///     fn len(&self) -> usize {
///         100
///     }
///     fn get(&self, index: usize) -> kiln_tensor::Result<(usize, f32)> {
///         Ok((index, (index * index) as f32))
///     }
/// }
/// assert_eq!(Squares.get(3)?, (3, 9.0));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// One sample, such as `(image, label)`.
    type Item: Send + 'static;

    /// The number of samples.
    fn len(&self) -> usize;

    /// Returns the sample at `index`, which is below [`Dataset::len`]. Random numbers drawn here, from
    /// [`crate::Rng::from_default`] or by functions such as `Tensor::rand`, are reproducible under a loader.
    ///
    /// # Errors
    /// Any failure to load the sample; the loader passes it on and names the index.
    fn get(&self, index: usize) -> Result<Self::Item>;

    /// True if there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The samples with `f` applied to each, anew at each access.
    fn map<U, F>(self, f: F) -> Map<Self, F>
    where
        Self: Sized,
        U: Send + 'static,
        F: Fn(Self::Item) -> Result<U> + Send + Sync + 'static,
    {
        Map { dataset: self, f }
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<D: Dataset + ?Sized> Dataset for $pointer {
            type Item = D::Item;
            fn len(&self) -> usize {
                (**self).len()
            }
            fn get(&self, index: usize) -> Result<D::Item> {
                (**self).get(index)
            }
        }
    )*};
}
forward!(Arc<D>, Box<D>);

/// Samples that a function computes from their indices.
///
/// ```
/// use kiln_data::{Dataset, FnDataset};
/// let words = ["a", "b", "c"];
/// let data = FnDataset::new(words.len(), move |i| Ok((i, words[i])));
/// assert_eq!(data.get(1)?, (1, "b"));
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub struct FnDataset<F> {
    len: usize,
    f: F,
}

impl<T: Send + 'static, F: Fn(usize) -> Result<T> + Send + Sync + 'static> FnDataset<F> {
    /// The samples `f(0)` to `f(len - 1)`.
    pub fn new(len: usize, f: F) -> FnDataset<F> {
        FnDataset { len, f }
    }
}

impl<T: Send + 'static, F: Fn(usize) -> Result<T> + Send + Sync + 'static> Dataset
    for FnDataset<F>
{
    type Item = T;
    fn len(&self) -> usize {
        self.len
    }
    fn get(&self, index: usize) -> Result<T> {
        (self.f)(index)
    }
}

pub(crate) fn out_of_range(
    op: &str,
    index: usize,
    len: usize,
    loc: &'static Location<'static>,
) -> kiln_tensor::Error {
    let message = format!("the index {index} is out of range for {len} samples");
    invalid(op, message, loc)
}

/// See [`Dataset::map`].
pub struct Map<D, F> {
    dataset: D,
    f: F,
}

impl<D, U, F> Dataset for Map<D, F>
where
    D: Dataset,
    U: Send + 'static,
    F: Fn(D::Item) -> Result<U> + Send + Sync + 'static,
{
    type Item = U;
    fn len(&self) -> usize {
        self.dataset.len()
    }
    fn get(&self, index: usize) -> Result<U> {
        (self.f)(self.dataset.get(index)?)
    }
}

/// Some samples of a dataset, in the order of their indices.
#[derive(Clone)]
pub struct Subset<D> {
    dataset: D,
    indices: Vec<usize>,
}

impl<D: Dataset> Subset<D> {
    /// The samples at `indices`.
    ///
    /// # Errors
    /// If the dataset has no sample at one of the indices.
    #[track_caller]
    pub fn new(dataset: D, indices: impl Into<Vec<usize>>) -> Result<Subset<D>> {
        let (indices, len) = (indices.into(), dataset.len());
        match indices.iter().find(|i| **i >= len) {
            Some(i) => Err(out_of_range("Subset::new", *i, len, Location::caller())),
            None => Ok(Subset { dataset, indices }),
        }
    }

    /// The indices of the samples in the whole dataset.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// The whole dataset.
    pub fn dataset(&self) -> &D {
        &self.dataset
    }
}

impl<D: Dataset> Dataset for Subset<D> {
    type Item = D::Item;
    fn len(&self) -> usize {
        self.indices.len()
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<D::Item> {
        match self.indices.get(index) {
            Some(i) => self.dataset.get(*i),
            None => {
                let loc = Location::caller();
                Err(out_of_range("Subset::get", index, self.len(), loc))
            }
        }
    }
}

/// The samples of several datasets, one after another. Datasets of different types with the same sample type can be
/// passed as `Box<dyn Dataset<Item = …>>`.
pub struct ConcatDataset<D> {
    datasets: Vec<D>,
    /// The end of each dataset in the sequence.
    ends: Vec<usize>,
}

impl<D: Dataset> ConcatDataset<D> {
    /// These datasets, one after another.
    pub fn new(datasets: impl Into<Vec<D>>) -> ConcatDataset<D> {
        let datasets = datasets.into();
        let sum = |end: &mut usize, d: &D| {
            *end += d.len();
            Some(*end)
        };
        let ends = datasets.iter().scan(0, sum).collect();
        ConcatDataset { datasets, ends }
    }
}

impl<D: Dataset> Dataset for ConcatDataset<D> {
    type Item = D::Item;
    fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }
    #[track_caller]
    fn get(&self, index: usize) -> Result<D::Item> {
        let index_of_part = self.ends.partition_point(|end| *end <= index);
        let start = index_of_part.checked_sub(1).map_or(0, |p| self.ends[p]);
        match self.datasets.get(index_of_part) {
            Some(dataset) => dataset.get(index - start),
            None => {
                let loc = Location::caller();
                Err(out_of_range("ConcatDataset::get", index, self.len(), loc))
            }
        }
    }
}
