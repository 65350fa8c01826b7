//! Losses.

use super::Record;
use crate::call::Call;
use crate::fault::invalid;
use kiln_tensor::{DType, Result, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "NegativeLogLikelihoodLoss" => |c| {
            let log_chances = c.tensor(0)?;
            Ok(vec![negative_log_likelihood(c, &log_chances)?.into()])
        },
        "SoftmaxCrossEntropyLoss" => |c| {
            let log_chances = c.tensor(0)?.log_softmax(1);
            let loss = negative_log_likelihood(c, &log_chances)?;
            Ok(vec![loss.into(), log_chances.into()])
        },
        _ => return None,
    })
}

/// The loss of log-probabilities `[n, c, ..]` for labels `[n, ..]`.
fn negative_log_likelihood(c: &Call, log_chances: &Tensor) -> Result<Tensor> {
    let labels = c.tensor(1)?.to_dtype(DType::I64);
    if log_chances.ndim() < 2 {
        return Err(invalid(format!(
            "needs at least 2 dims, not {}",
            log_chances.ndim()
        )));
    }
    let ignored = match c.attribute("ignore_index") {
        Some(_) => Some(labels.eq(c.int("ignore_index", 0)?)),
        None => None,
    };
    let safe = match &ignored {
        Some(ignored) => labels.zeros_like().where_cond(ignored, &labels),
        None => labels.clone(),
    };
    let picked = -log_chances.gather(1, safe.unsqueeze(1)).squeeze(1);
    let mut weight = match c.optional(2)? {
        Some(w) => w
            .index_select(0, safe.reshape(vec![kiln_base::numel(safe.dims())]))
            .reshape(safe.dims()),
        None => picked.ones_like(),
    };
    if let Some(ignored) = &ignored {
        weight = weight.zeros_like().where_cond(ignored, &weight);
    }
    let losses = picked * &weight;
    match c.text("reduction", "mean")? {
        "none" => Ok(losses),
        "sum" => Ok(losses.sum(())),
        "mean" => Ok(losses.sum(()) / weight.sum(())),
        other => Err(invalid(format!("there is no reduction {other:?}"))),
    }
}
