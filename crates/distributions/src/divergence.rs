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

macro_rules! divergences {
    ($($distribution:ident |$p:ident, $q:ident| $divergence:expr;)*) => {$(
        impl KlDivergence for $distribution {
            #[track_caller]
            fn divergence(&self, $q: &$distribution) -> Tensor {
                let $p = self;
                $divergence
            }
        }
    )*};
}

divergences! {
    Normal |p, q| normal([&p.loc, &q.loc], [&p.scale, &q.scale]);
    LogNormal |p, q| normal([&p.loc, &q.loc], [&p.scale, &q.scale]);
    Laplace |p, q| {
        let (ratio, distance) = (&p.scale / &q.scale, (&p.loc - &q.loc).abs());
        let decay = &ratio * (-&distance / &p.scale).exp();
        distance / &q.scale + decay - 1.0 - ratio.log()
    };
    Gumbel |p, q| {
        let (ratio, distance) = (&p.scale / &q.scale, (&p.loc - &q.loc) / &q.scale);
        let tail = ((&ratio + 1.0).lgamma() - &distance).exp();
        distance - ratio.log() + tail + (ratio - 1.0) * crate::continuous::EULER - 1.0
    };
    Uniform |p, q| {
        let inside = q.low.le(&p.low).logical_and(q.high.ge(&p.high));
        let ratio = (&q.high - &q.low) / (&p.high - &p.low);
        where_(inside, ratio.log(), f64::INFINITY)
    };
    Exponential |p, q| {
        let ratio = &q.rate / &p.rate;
        &ratio - ratio.log() - 1.0
    };
    Bernoulli |p, q| {
        let log_ratio_of_one = p.logits.logsigmoid() - q.logits.logsigmoid();
        let zero = (-&p.logits).logsigmoid() - (-&q.logits).logsigmoid();
        &p.probs * log_ratio_of_one + (1.0 - &p.probs) * zero
    };
    Categorical |p, q| {
        let terms = &p.probs * (&p.logits - &q.logits);
        terms.masked_fill(p.probs.eq(0.0), 0.0).sum(-1)
    };
}

impl<D: KlDivergence + crate::Distribution> KlDivergence for Independent<D> {
    #[track_caller]
    fn divergence(&self, q: &Independent<D>) -> Tensor {
        self.sum_event(self.base.divergence(&q.base))
    }
}
