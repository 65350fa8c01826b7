//! Dims of a batch as dims of an event.

use crate::{Distribution, Reparametrized};
use kiln_tensor::{AsTensor, IntoShape, Tensor};

/// A distribution whose last dims of the batch are one event: their log probabilities are summed.
#[derive(Clone, Debug)]
pub struct Independent<D> {
    /// The distribution of each number.
    pub base: D,
    /// The dims of an event.
    pub reinterpreted_batch_ndims: usize,
}

impl<D: Distribution> Independent<D> {
    /// The distribution with the last dims as events.
    pub fn new(base: D, reinterpreted_batch_ndims: usize) -> Independent<D> {
        Independent {
            base,
            reinterpreted_batch_ndims,
        }
    }

    /// The sum over the dims of an event.
    #[track_caller]
    pub(crate) fn sum_event(&self, x: Tensor) -> Tensor {
        match self.reinterpreted_batch_ndims as i64 {
            0 => x,
            n => x.sum((-n..0).collect::<Vec<_>>()),
        }
    }
}

impl<D: Distribution> Distribution for Independent<D> {
    #[track_caller]
    fn sample(&self, shape: impl IntoShape) -> Tensor {
        self.base.sample(shape)
    }

    #[track_caller]
    fn log_prob(&self, value: impl AsTensor) -> Tensor {
        self.sum_event(self.base.log_prob(value))
    }

    #[track_caller]
    fn entropy(&self) -> Tensor {
        self.sum_event(self.base.entropy())
    }

    #[track_caller]
    fn mean(&self) -> Tensor {
        self.base.mean()
    }

    #[track_caller]
    fn variance(&self) -> Tensor {
        self.base.variance()
    }
}

impl<D: Reparametrized> Reparametrized for Independent<D> {
    #[track_caller]
    fn rsample(&self, shape: impl IntoShape) -> Tensor {
        self.base.rsample(shape)
    }
}
