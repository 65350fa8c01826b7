//! Datasets that are read in order.

use kiln_tensor::Result;

/// The samples of one pass over a stream.
pub type Stream<T> = Box<dyn Iterator<Item = Result<T>> + Send>;

/// Samples that are read in order and may never end: PyTorch's `IterableDataset`.
///
/// The workers of a loader share one stream, so every sample comes once, in order, for any number of workers. They
/// take turns in reading the stream, and collate concurrently. Put costly work into the collation.
///
/// A closure that returns the iterator is an iterable dataset:
///
/// ```
/// use kiln_data::DataLoader;
///
/// let stream = || -> kiln_data::Stream<i64> { Box::new((0..).map(Ok)) };
/// let loader = DataLoader::from_iterable(stream).batch_size(2).build()?;
/// let first = loader.iter().next().unwrap()?;
/// assert_eq!(first.to_vec::<i64>()?, [0, 1]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// One sample.
    type Item: Send + 'static;

    /// Starts a pass. Random numbers drawn by this call and while the stream is read are reproducible under a loader.
    fn iter(&self) -> Stream<Self::Item>;
}

impl<T: Send + 'static, F: Fn() -> Stream<T> + Send + Sync + 'static> IterableDataset for F {
    type Item = T;
    fn iter(&self) -> Stream<T> {
        self()
    }
}
