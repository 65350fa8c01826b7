//! Kullback–Leibler divergences.

use crate::{
    Bernoulli, Categorical, Exponential, Gumbel, Independent, Laplace, LogNormal, Normal, Uniform,
};
use kiln_tensor::{Tensor, where_};

/// A distribution whose divergence from another is known.
pub trait KlDivergence {
    /// The divergence KL(self ‖ other), in nats.
    #[track_caller]
    fn divergence(&self, other: &Self) -> Tensor;
}

/// The divergence KL(p ‖ q) of two distributions, in nats.
#[track_caller]
pub fn kl_divergence<D: KlDivergence>(p: &D, q: &D) -> Tensor {
    p.divergence(q)
}

#[track_caller]
fn normal(loc: [&Tensor; 2], scale: [&Tensor; 2]) -> Tensor {
    let ratio = (scale[0] / scale[1]).square();
    let distance = ((loc[0] - loc[1]) / scale[1]).square();
    (&ratio + distance - 1.0 - ratio.log()) / 2.0
}

impl KlDivergence for Normal {
    #[track_caller]
    fn divergence(&self, q: &Normal) -> Tensor {
        normal([&self.loc, &q.loc], [&self.scale, &q.scale])
    }
}

impl KlDivergence for LogNormal {
    #[track_caller]
    fn divergence(&self, q: &LogNormal) -> Tensor {
        normal([&self.loc, &q.loc], [&self.scale, &q.scale])
    }
}

impl KlDivergence for Laplace {
    #[track_caller]
    fn divergence(&self, q: &Laplace) -> Tensor {
        let (ratio, distance) = (&self.scale / &q.scale, (&self.loc - &q.loc).abs());
        let near = &ratio * (-&distance / &self.scale).exp();
        distance / &q.scale + near - 1.0 - ratio.log()
    }
}

impl KlDivergence for Gumbel {
    #[track_caller]
    fn divergence(&self, q: &Gumbel) -> Tensor {
        let (ratio, distance) = (&self.scale / &q.scale, (&self.loc - &q.loc) / &q.scale);
        let tail = ((&ratio + 1.0).lgamma() - &distance).exp();
        distance - ratio.log() + tail + (ratio - 1.0) * crate::continuous::EULER - 1.0
    }
}

impl KlDivergence for Uniform {
    #[track_caller]
    fn divergence(&self, q: &Uniform) -> Tensor {
        let inside = q.low.le(&self.low).logical_and(q.high.ge(&self.high));
        let ratio = (&q.high - &q.low) / (&self.high - &self.low);
        where_(inside, ratio.log(), f64::INFINITY)
    }
}

impl KlDivergence for Exponential {
    #[track_caller]
    fn divergence(&self, q: &Exponential) -> Tensor {
        let ratio = &q.rate / &self.rate;
        &ratio - ratio.log() - 1.0
    }
}

impl KlDivergence for Bernoulli {
    #[track_caller]
    fn divergence(&self, q: &Bernoulli) -> Tensor {
        let one = self.logits.logsigmoid() - q.logits.logsigmoid();
        let zero = (-&self.logits).logsigmoid() - (-&q.logits).logsigmoid();
        &self.probs * one + (1.0 - &self.probs) * zero
    }
}

impl KlDivergence for Categorical {
    #[track_caller]
    fn divergence(&self, q: &Categorical) -> Tensor {
        let part = &self.probs * (&self.logits - &q.logits);
        part.masked_fill(self.probs.eq(0.0), 0.0).sum(-1)
    }
}

impl<D: KlDivergence + crate::Distribution> KlDivergence for Independent<D> {
    #[track_caller]
    fn divergence(&self, q: &Independent<D>) -> Tensor {
        self.summed(self.base.divergence(&q.base))
    }
}
