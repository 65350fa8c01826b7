//! Probability distributions, under the names of `torch.distributions`.
//!
//! Parameters are tensors that broadcast; their shape is that of the *batch*. Samples put the
//! requested shape in front of it. Everything is recorded like any operation, and differentiable. Nothing is validated: a scale of 0 or
//! a value outside of the support gives what the formula gives.
//!
//! ```
//! use kiln_distributions::{Distribution, Normal, Reparametrized, kl_divergence};
//! use kiln_tensor::Tensor;
//!
//! let (mean, scale) = (Tensor::from([0.0f32, 1.0]), Tensor::from([1.0f32, 0.5]));
//! let posterior = Normal::new(&mean, &scale);
//! let prior = Normal::new(mean.zeros_like(), mean.ones_like());
//! assert_eq!(posterior.rsample(8).shape()?, [8, 2]);
//! assert_eq!(posterior.log_prob(&mean).shape()?, [2]);
//! let divergence = kl_divergence(&posterior, &prior).to_vec::<f32>()?;
//! assert!((divergence[0]).abs() < 1e-6 && (divergence[1] - 0.81815).abs() < 1e-4);
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

mod continuous;
mod discrete;
mod divergence;
mod independent;

pub use continuous::{Exponential, Gumbel, Laplace, LogNormal, Normal, Uniform};
pub use discrete::{Bernoulli, Categorical};
pub use divergence::{KlDivergence, kl_divergence};
pub use independent::Independent;

use kiln_tensor::{AsTensor, DType, Dim, IntoShape, Tensor};

/// A distribution of numbers.
pub trait Distribution {
    /// Independent samples of the shape `[shape.., batch..]`; `()` for one of each. No gradient flows through them.
    fn sample(&self, shape: impl IntoShape) -> Tensor;

    /// The logarithm of the density, or of the probability, at values that broadcast with the batch.
    fn log_prob(&self, value: impl AsTensor) -> Tensor;

    /// The entropy, in nats.
    fn entropy(&self) -> Tensor;

    /// The mean.
    fn mean(&self) -> Tensor;

    /// The variance.
    fn variance(&self) -> Tensor;

    /// The standard deviation.
    #[track_caller]
    fn stddev(&self) -> Tensor {
        self.variance().sqrt()
    }
}

/// A distribution whose samples are functions of its parameters and of numbers that don't depend on them.
pub trait Reparametrized: Distribution {
    /// [`Distribution::sample`] with gradients to the parameters.
    fn rsample(&self, shape: impl IntoShape) -> Tensor;
}

/// Two parameters in their common shape.
#[track_caller]
fn broadcast(a: impl AsTensor, b: impl AsTensor) -> (Tensor, Tensor) {
    let (a, b) = (a.as_tensor(), b.as_tensor());
    let shape = a.zeros_like() + b.zeros_like();
    (a.expand_as(&shape), b.expand_as(&shape))
}

/// A parameter repeated for samples of a shape.
#[track_caller]
fn repeat_for_samples(x: &Tensor, shape: impl IntoShape) -> Tensor {
    let shape: Vec<Dim> = shape
        .into_shape()
        .into_iter()
        .chain(x.dims().iter().cloned())
        .collect();
    x.expand(shape)
}

/// The distance from 1 to the next larger number of a dtype.
fn epsilon(dtype: DType) -> f64 {
    let float = dtype.float();
    float.map_or(f64::from(f32::EPSILON), |f| f.epsilon())
}

/// Uniform numbers above 0 and below 1, in the shape and dtype of a tensor.
#[track_caller]
fn uniform(like: &Tensor) -> Tensor {
    let eps = epsilon(like.dtype());
    like.rand_like().clamp(eps, 1.0 - eps)
}
