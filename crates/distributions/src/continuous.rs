//! Distributions with a density.

use crate::{Distribution, Reparametrized, broadcast, repeat_for_samples, uniform};
use kiln_tensor::{AsTensor, IntoShape, Tensor, set_grad_enabled, where_};
use std::f64::consts::{LN_2, PI, SQRT_2};

/// Euler's constant.
pub(crate) const EULER: f64 = 0.577_215_664_901_532_9;

/// Distributions by two parameters.
macro_rules! distributions {
    ($($(#[$meta:meta])* $name:ident($(#[$first:meta])* $a:ident, $(#[$second:meta])* $b:ident);)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $(#[$first])*
            pub $a: Tensor,
            $(#[$second])*
            pub $b: Tensor,
        }

        impl $name {
            /// The distribution with these parameters, which broadcast.
            #[track_caller]
            pub fn new($a: impl AsTensor, $b: impl AsTensor) -> $name {
                let ($a, $b) = broadcast($a, $b);
                $name { $a, $b }
            }
        }
    )*};
}

distributions! {
    /// The normal distribution.
    Normal(
        /// The mean.
        loc,
        /// The standard deviation.
        scale
    );
    /// The distribution of the exponentials of numbers of a [`Normal`].
    LogNormal(
        /// The mean of the logarithm.
        loc,
        /// The standard deviation of the logarithm.
        scale
    );
    /// Laplace's distribution.
    Laplace(
        /// The mean.
        loc,
        /// The mean distance from the mean.
        scale
    );
    /// Gumbel's distribution of maxima.
    Gumbel(
        /// The mode.
        loc,
        /// The scale.
        scale
    );
    /// The uniform distribution.
    Uniform(
        /// The smallest number.
        low,
        /// The end of the interval, which is not in it.
        high
    );
}

/// The exponential distribution.
#[derive(Clone, Debug)]
pub struct Exponential {
    /// The rate, one divided by the mean.
    pub rate: Tensor,
}

impl Exponential {
    /// The distribution with these rates.
    #[track_caller]
    pub fn new(rate: impl AsTensor) -> Exponential {
        let rate = rate.as_tensor().into_owned();
        Exponential { rate }
    }
}

impl Normal {
    /// The probability of numbers up to `value`.
    #[track_caller]
    pub fn cdf(&self, value: impl AsTensor) -> Tensor {
        ((&*value.as_tensor() - &self.loc) / &self.scale).ndtr()
    }

    /// The number that the probability of smaller ones is `probability` of.
    #[track_caller]
    pub fn icdf(&self, probability: impl AsTensor) -> Tensor {
        &self.loc + &self.scale * (2.0 * &*probability.as_tensor() - 1.0).erfinv() * SQRT_2
    }
}

impl LogNormal {
    /// The distribution of the logarithm.
    fn base(&self) -> Normal {
        Normal {
            loc: self.loc.clone(),
            scale: self.scale.clone(),
        }
    }
}

/// The methods of a distribution that is reparametrised. `self` is named `$this`.
macro_rules! impl_distribution {
    ($name:ident, |$this:ident|
        rsample($shape:ident) = $rsample:expr;
        log_prob($value:ident) = $log_prob:expr;
        entropy = $entropy:expr;
        mean = $mean:expr;
        variance = $variance:expr;
    ) => {
        impl Distribution for $name {
            #[track_caller]
            fn sample(&self, shape: impl IntoShape) -> Tensor {
                let _none = set_grad_enabled(false);
                self.rsample(shape)
            }

            #[track_caller]
            fn log_prob(&self, value: impl AsTensor) -> Tensor {
                let ($this, $value) = (self, &*value.as_tensor());
                $log_prob
            }

            #[track_caller]
            fn entropy(&self) -> Tensor {
                let $this = self;
                $entropy
            }

            #[track_caller]
            fn mean(&self) -> Tensor {
                let $this = self;
                $mean
            }

            #[track_caller]
            fn variance(&self) -> Tensor {
                let $this = self;
                $variance
            }
        }

        impl Reparametrized for $name {
            #[track_caller]
            fn rsample(&self, $shape: impl IntoShape) -> Tensor {
                let $this = self;
                $rsample
            }
        }
    };
}

impl_distribution! { Normal, |p|
    rsample(shape) = &p.loc + &p.scale * repeat_for_samples(&p.loc, shape).randn_like();
    log_prob(x) = ((x - &p.loc) / &p.scale).square() * -0.5 - p.scale.log() - (2.0 * PI).ln() / 2.0;
    entropy = p.scale.log() + (1.0 + (2.0 * PI).ln()) / 2.0;
    mean = p.loc.clone();
    variance = p.scale.square();
}

impl_distribution! { LogNormal, |p|
    rsample(shape) = p.base().rsample(shape).exp();
    log_prob(x) = p.base().log_prob(x.log()) - x.log();
    entropy = p.base().entropy() + &p.loc;
    mean = (&p.loc + p.scale.square() / 2.0).exp();
    variance = p.scale.square().expm1() * (2.0 * &p.loc + p.scale.square()).exp();
}

impl_distribution! { Laplace, |p|
    rsample(shape) = {
        let u = 2.0 * uniform(&repeat_for_samples(&p.loc, shape)) - 1.0;
        &p.loc - &p.scale * u.sign() * (-u.abs()).log1p()
    };
    log_prob(x) = -(x - &p.loc).abs() / &p.scale - p.scale.log() - LN_2;
    entropy = p.scale.log() + (1.0 + LN_2);
    mean = p.loc.clone();
    variance = 2.0 * p.scale.square();
}

impl_distribution! { Gumbel, |p|
    rsample(shape) = &p.loc - &p.scale * (-uniform(&repeat_for_samples(&p.loc, shape)).log()).log();
    log_prob(x) = {
        let z = (&p.loc - x) / &p.scale;
        &z - z.exp() - p.scale.log()
    };
    entropy = p.scale.log() + (1.0 + EULER);
    mean = &p.loc + EULER * &p.scale;
    variance = p.scale.square() * (PI * PI / 6.0);
}

impl_distribution! { Uniform, |p|
    rsample(shape) = &p.low + (&p.high - &p.low) * repeat_for_samples(&p.low, shape).rand_like();
    log_prob(x) = {
        let inside = x.ge(&p.low).logical_and(x.lt(&p.high));
        where_(inside, -(&p.high - &p.low).log(), f64::NEG_INFINITY)
    };
    entropy = (&p.high - &p.low).log();
    mean = (&p.low + &p.high) / 2.0;
    variance = (&p.high - &p.low).square() / 12.0;
}

impl_distribution! { Exponential, |p|
    rsample(shape) = -uniform(&repeat_for_samples(&p.rate, shape)).log() / &p.rate;
    log_prob(x) = p.rate.log() - &p.rate * x;
    entropy = 1.0 - p.rate.log();
    mean = p.rate.reciprocal();
    variance = p.rate.square().reciprocal();
}
