//! Means over batches.

use super::zeros;
use crate::SOURCE;
use kiln_tensor::{AsTensor, DType, Error, Result, Tensor, Var, on_behalf_of_caller, where_};

/// The mean of all elements of all updates, such as losses.
pub struct MeanMetric {
    /// The sum and the number of elements.
    totals: Var,
}

impl MeanMetric {
    /// A mean without elements.
    ///
    /// # Errors
    /// Inside `compile`: make metrics before.
    #[track_caller]
    pub fn new() -> Result<MeanMetric> {
        let totals = zeros(&[2], DType::F64)?;
        Ok(MeanMetric { totals })
    }

    /// Adds the elements of a tensor.
    ///
    /// # Errors
    /// If the value carries an error.
    #[track_caller]
    pub fn update(&self, value: impl AsTensor) -> Result<()> {
        let value = &*value.as_tensor();
        on_behalf_of_caller(SOURCE, || {
            let value = value.detach().to_dtype(DType::F64);
            self.add(value.sum(()), value.ones_like().sum(()))
        })
    }

    #[track_caller]
    fn add(&self, sum: Tensor, count: Tensor) -> Result<()> {
        self.totals
            .assign(self.totals.get() + kiln_tensor::stack(&[sum, count], 0))
    }

    /// Returns the mean in f64; NaN without elements.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        let totals = self.totals.get();
        totals.select(0, 0) / totals.select(0, 1)
    }

    /// Forgets all elements.
    ///
    /// # Errors
    /// None outside of a run that fails.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.totals.zero_()
    }
}

/// The mean of the last updates.
pub struct RunningMean {
    values: Var,
    count: Var,
    window: usize,
}

impl RunningMean {
    /// The mean of the last `window` updates.
    ///
    /// # Errors
    /// If the window is empty, or inside `compile`: make metrics before.
    #[track_caller]
    pub fn new(window: usize) -> Result<RunningMean> {
        if window == 0 {
            let message = "needs a window of at least one update";
            return Err(Error::invalid("RunningMean", message));
        }
        Ok(RunningMean {
            values: zeros(&[window], DType::F64)?,
            count: zeros(&[], DType::I64)?,
            window,
        })
    }

    /// Adds the mean of a tensor's elements.
    ///
    /// # Errors
    /// If the value carries an error.
    #[track_caller]
    pub fn update(&self, value: impl AsTensor) -> Result<()> {
        let value = &*value.as_tensor();
        on_behalf_of_caller(SOURCE, || {
            let mean = value.detach().to_dtype(DType::F64).mean(());
            let slot = self.count.get().remainder(self.window as i64);
            let is_slot = Tensor::arange(0, self.window as i64, 1).eq(slot);
            self.values
                .assign(where_(is_slot, &mean, self.values.get()))?;
            self.count.assign(self.count.get() + 1)
        })
    }

    /// Returns the mean in f64; NaN without updates.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        let count = self.count.get().clamp_max(self.window as i64);
        self.values.get().sum(()) / count.to_dtype(DType::F64)
    }

    /// Forgets all updates.
    ///
    /// # Errors
    /// None outside of a run that fails.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.values.zero_()?;
        self.count.zero_()
    }
}

/// `exp` of the mean negative log-likelihood of tokens.
pub struct Perplexity {
    mean: MeanMetric,
    ignore_index: Option<i64>,
}

impl Perplexity {
    /// A metric without tokens.
    ///
    /// # Errors
    /// Inside `compile`: make metrics before.
    #[track_caller]
    pub fn new() -> Result<Perplexity> {
        Ok(Perplexity {
            mean: MeanMetric::new()?,
            ignore_index: None,
        })
    }

    /// Leaves out elements with this target, such as padding.
    pub fn ignore_index(mut self, token: i64) -> Perplexity {
        self.ignore_index = Some(token);
        self
    }

    /// Adds a batch: scores (logits) `[.., vocabulary]` and tokens `[..]`.
    ///
    /// # Errors
    /// If the shapes don't fit. A token out of range is an error when a value is read.
    #[track_caller]
    pub fn update(&self, preds: impl AsTensor, target: impl AsTensor) -> Result<()> {
        let (preds, target) = (&*preds.as_tensor(), &*target.as_tensor());
        let (p, t) = (preds.check()?.dims(), target.check()?.dims());
        if p.len() != t.len() + 1 || p[..t.len()] != *t {
            let message = format!(
                "scores of {} dims don't fit targets of {} dims",
                p.len(),
                t.len()
            );
            return Err(Error::invalid("update", message));
        }
        on_behalf_of_caller(SOURCE, || {
            let target = target.detach().to_dtype(DType::I64);
            let counted = match self.ignore_index {
                Some(token) => target.ne(token),
                None => target.ones_like().to_dtype(DType::Bool),
            };
            let token = target.masked_fill(counted.logical_not(), 0).unsqueeze(-1);
            let likelihood = preds.detach().to_dtype(DType::F64).log_softmax(-1);
            let likelihood = likelihood.gather(-1, token).squeeze(-1);
            let lost = where_(&counted, -likelihood, 0.0);
            self.mean
                .add(lost.sum(()), counted.to_dtype(DType::F64).sum(()))
        })
    }

    /// Returns the perplexity in f64; NaN without tokens.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        self.mean.compute().exp()
    }

    /// Forgets all batches.
    ///
    /// # Errors
    /// None outside of a run that fails.
    #[track_caller]
    pub fn reset(&self) -> Result<()> {
        self.mean.reset()
    }
}
