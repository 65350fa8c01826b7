//! Distributions of counts and classes.

use crate::{Distribution, epsilon, repeat_for_samples, uniform};
use kiln_tensor::{AsTensor, DType, IntoShape, Tensor, set_grad_enabled};

/// 1 with a probability, else 0. Values are of the dtype of the parameter.
#[derive(Clone, Debug)]
pub struct Bernoulli {
    /// The probability of 1.
    pub probs: Tensor,
    /// The logarithm of the odds of 1.
    pub logits: Tensor,
}

impl Bernoulli {
    /// The distribution with these probabilities of 1.
    #[track_caller]
    pub fn new(probs: impl AsTensor) -> Bernoulli {
        let probs = probs.as_tensor().into_owned();
        let inside = clamp_probs(&probs);
        let logits = inside.log() - (-inside).log1p();
        Bernoulli { probs, logits }
    }

    /// The distribution with these scores, whose sigmoids are the probabilities.
    #[track_caller]
    pub fn from_logits(logits: impl AsTensor) -> Bernoulli {
        let logits = logits.as_tensor().into_owned();
        let probs = logits.sigmoid();
        Bernoulli { probs, logits }
    }
}

impl Distribution for Bernoulli {
    #[track_caller]
    fn sample(&self, shape: impl IntoShape) -> Tensor {
        let _none = set_grad_enabled(false);
        repeat_for_samples(&self.probs, shape).bernoulli()
    }

    #[track_caller]
    fn log_prob(&self, value: impl AsTensor) -> Tensor {
        let value = &*value.as_tensor();
        let (log_one, log_zero) = (self.logits.logsigmoid(), (-&self.logits).logsigmoid());
        value * log_one + (1.0 - value) * log_zero
    }

    #[track_caller]
    fn entropy(&self) -> Tensor {
        -self.log_prob(&self.probs)
    }

    #[track_caller]
    fn mean(&self) -> Tensor {
        self.probs.clone()
    }

    #[track_caller]
    fn variance(&self) -> Tensor {
        &self.probs * (1.0 - &self.probs)
    }
}

/// One of the classes that the last dim of the parameter holds, as i64. It has no mean and no variance: both are NaN.
#[derive(Clone, Debug)]
pub struct Categorical {
    /// The probabilities of the classes.
    pub probs: Tensor,
    /// Their logarithms.
    pub logits: Tensor,
}

impl Categorical {
    /// The distribution with these weights of classes, which need not sum to 1.
    #[track_caller]
    pub fn new(probs: impl AsTensor) -> Categorical {
        let probs = &*probs.as_tensor();
        let probs = probs / probs.sum(kiln_tensor::keep(-1));
        let logits = clamp_probs(&probs).log();
        Categorical { probs, logits }
    }

    /// The distribution with these scores, whose softmax are the probabilities.
    #[track_caller]
    pub fn from_logits(logits: impl AsTensor) -> Categorical {
        let logits = logits.as_tensor().log_softmax(-1);
        let probs = logits.exp();
        Categorical { probs, logits }
    }
}

impl Distribution for Categorical {
    /// As [`Distribution::sample`]: the classes with the largest of scores to which Gumbel's noise is added.
    #[track_caller]
    fn sample(&self, shape: impl IntoShape) -> Tensor {
        let _none = set_grad_enabled(false);
        let scores = match self.probs.dtype() {
            DType::F64 => self.probs.log(),
            _ => self.probs.to_dtype(DType::F32).log(),
        };
        let scores = repeat_for_samples(&scores, shape);
        (&scores - (-uniform(&scores).log()).log()).argmax(-1)
    }

    #[track_caller]
    fn log_prob(&self, value: impl AsTensor) -> Tensor {
        let value = value.as_tensor().to_dtype(DType::I64);
        // In the common shape of the values and the batch.
        let batch = self.logits.select(-1, 0).to_dtype(DType::I64).zeros_like();
        let value = (value + batch).unsqueeze(-1);
        let logits = &self.logits + value.zeros_like().to_dtype(self.logits.dtype());
        logits.gather(-1, value).squeeze(-1)
    }

    #[track_caller]
    fn entropy(&self) -> Tensor {
        let log = self.logits.masked_fill(self.logits.isneginf(), 0.0);
        -(&self.probs * log).sum(-1)
    }

    #[track_caller]
    fn mean(&self) -> Tensor {
        self.probs.select(-1, 0).full_like(f64::NAN)
    }

    #[track_caller]
    fn variance(&self) -> Tensor {
        self.mean()
    }
}

/// Probabilities whose logarithms are finite, as PyTorch's.
#[track_caller]
fn clamp_probs(probs: &Tensor) -> Tensor {
    let eps = epsilon(probs.dtype());
    probs.clamp(eps, 1.0 - eps)
}
