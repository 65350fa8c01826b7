//! Transforms of the samples of data sets of pairs.

use crate::transforms::Transform;
use kiln_data::Dataset;
use kiln_tensor::Result;
use std::ops::Deref;

/// Data sets of pairs, such as an image and its label, with torchvision's `transform` and `target_transform` as
/// methods. The transformed sets dereference to the original one, so its methods stay available.
pub trait Pairs<X, Y>: Dataset<Item = (X, Y)> + Sized {
    /// The set with its images transformed anew at each access.
    fn transform<T: Transform<X> + 'static>(self, transform: T) -> Transformed<Self, T> {
        Transformed {
            dataset: self,
            transform,
        }
    }

    /// The set with its targets mapped, for example to coarser classes.
    fn target_transform<Z, F>(self, transform: F) -> TargetTransformed<Self, F>
    where
        F: Fn(Y) -> Result<Z> + Send + Sync + 'static,
    {
        TargetTransformed {
            dataset: self,
            transform,
        }
    }
}

impl<X, Y, D: Dataset<Item = (X, Y)>> Pairs<X, Y> for D {}

/// See [`Pairs::transform`].
pub struct Transformed<D, T> {
    dataset: D,
    transform: T,
}

impl<X, Y, D, T> Dataset for Transformed<D, T>
where
    Y: Send + 'static,
    D: Dataset<Item = (X, Y)>,
    T: Transform<X> + 'static,
    T::Output: Send + 'static,
{
    type Item = (T::Output, Y);
    fn len(&self) -> usize {
        self.dataset.len()
    }
    fn get(&self, index: usize) -> Result<Self::Item> {
        let (x, y) = self.dataset.get(index)?;
        Ok((self.transform.call(x)?, y))
    }
}

impl<D, T> Deref for Transformed<D, T> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.dataset
    }
}

/// See [`Pairs::target_transform`].
pub struct TargetTransformed<D, F> {
    dataset: D,
    transform: F,
}

impl<X, Y, Z, D, F> Dataset for TargetTransformed<D, F>
where
    X: Send + 'static,
    Z: Send + 'static,
    D: Dataset<Item = (X, Y)>,
    F: Fn(Y) -> Result<Z> + Send + Sync + 'static,
{
    type Item = (X, Z);
    fn len(&self) -> usize {
        self.dataset.len()
    }
    fn get(&self, index: usize) -> Result<(X, Z)> {
        let (x, y) = self.dataset.get(index)?;
        Ok((x, (self.transform)(y)?))
    }
}

impl<D, F> Deref for TargetTransformed<D, F> {
    type Target = D;
    fn deref(&self) -> &D {
        &self.dataset
    }
}
