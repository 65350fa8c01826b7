//! The area under the ROC curve.

use crate::{SOURCE, lock};
use kiln_tensor::{
    AsTensor, DType, Error, Result, SearchSorted, Tensor, cat, is_recording, on_behalf_of_caller,
};
use std::sync::{Mutex, MutexGuard};

/// The area under the ROC curve, exactly, with ties: scikit-learn's `roc_auc_score`, for several classes the mean of
/// one against the rest. It keeps the scores of all batches, so updates can't be inside `compile`.
#[derive(Default)]
pub struct AUROC {
    batches: Mutex<Vec<(Tensor, Tensor)>>,
}

impl AUROC {
    /// A metric without batches.
    pub fn new() -> AUROC {
        AUROC::default()
    }

    fn batches(&self) -> MutexGuard<'_, Vec<(Tensor, Tensor)>> {
        lock(&self.batches)
    }

    /// Adds a batch: scores `[n]` of class 1 and targets `[n]` of 0 and 1, or scores `[n, classes]` and classes `[n]`.
    ///
    /// # Errors
    /// If the shapes don't fit or differ from those before, or inside `compile`.
    #[track_caller]
    pub fn update(&self, preds: impl AsTensor, target: impl AsTensor) -> Result<()> {
        let (preds, target) = (
            preds.as_tensor().check()?.detach(),
            target.as_tensor().check()?.detach(),
        );
        if is_recording() {
            let message = "AUROC keeps scores, which it can't inside compile";
            return Err(Error::invalid("update", message));
        }
        let (p, t) = (preds.shape()?, target.shape()?);
        let mut batches = self.batches();
        let previous = batches
            .first()
            .map(|(scores, _)| scores.shape())
            .transpose()?;
        let matches = t.len() == 1 && (p == t || p.len() == 2 && p[0] == t[0]);
        if !matches || previous.is_some_and(|previous| previous[1..] != p[1..]) {
            let message = format!("scores {p:?} don't fit targets {t:?} and the batches before");
            return Err(Error::invalid("update", message));
        }
        batches.push((preds, target));
        Ok(())
    }

    /// Returns the area in f64; NaN without elements of a class or of the rest.
    #[track_caller]
    pub fn compute(&self) -> Tensor {
        let batches = self.batches();
        let (scores, targets): (Vec<&Tensor>, Vec<&Tensor>) = batches
            .iter()
            .map(|(scores, target)| (scores, target))
            .unzip();
        if batches.is_empty() {
            return Tensor::full((), f64::NAN, DType::F64);
        }
        on_behalf_of_caller(SOURCE, || area(&cat(&scores, 0), &cat(&targets, 0)))
    }

    /// Forgets all batches.
    pub fn reset(&self) {
        self.batches().clear();
    }
}

/// The share of pairs of an element inside and one outside a class whose scores are in order; a tie counts half. It
/// follows from the ranks of the class's elements.
fn area(scores: &Tensor, target: &Tensor) -> Tensor {
    let (scores, is_class) = match scores.ndim() {
        1 => (scores.unsqueeze(0), target.unsqueeze(0).ne(0)),
        _ => {
            let scores = scores.transpose(0, 1);
            let classes = Tensor::arange(0, scores.dims()[0].as_const().unwrap_or(0), 1);
            (scores, target.unsqueeze(0).eq(classes.unsqueeze(1)))
        }
    };
    let (sorted, _) = scores.sort(-1);
    let below = sorted.searchsorted(&scores);
    let up_to = sorted.searchsorted_with(&scores, SearchSorted::new().right(true));
    let rank = (below + up_to + 1).to_dtype(DType::F64) * 0.5;
    let is_class = is_class.to_dtype(DType::F64);
    let inside = is_class.sum(-1);
    let outside = (is_class.ones_like() - &is_class).sum(-1);
    let in_order = (rank * is_class).sum(-1) - &inside * (&inside + 1.0) * 0.5;
    (in_order / (inside * outside)).mean(())
}
