//! Scores of `ai.onnx.ml`'s models.

use crate::call::Call;
use crate::fault::{invalid, unsupported};
use kiln_tensor::{DType, Result, Tensor};

/// Returns an attribute of floats.
pub(super) fn floats(c: &Call, name: &str) -> Result<Vec<f32>> {
    let list = c.floats(name)?.unwrap_or_default();
    Ok(list.into_iter().map(|f| f as f32).collect())
}

/// Scores of `targets` linear functions.
pub(super) fn linear(c: &Call, targets: i64) -> Result<Tensor> {
    let x = c.tensor(0)?.to_dtype(DType::F32);
    let coefficients = floats(c, "coefficients")?;
    if targets < 1 || !coefficients.len().is_multiple_of(targets as usize) {
        return Err(invalid(format!(
            "{} coefficients are not those of {targets} targets",
            coefficients.len()
        )));
    }
    let weight = Tensor::from(coefficients).reshape([targets, -1]);
    let intercepts = floats(c, "intercepts")?;
    let intercepts = (!intercepts.is_empty()).then(|| Tensor::from(intercepts));
    Ok(x.linear_with(weight, intercepts))
}

/// Applies the transform of scores `[n, targets]` that an attribute names.
pub(super) fn post_transform(name: &str, y: Tensor) -> Result<Tensor> {
    Ok(match name {
        "NONE" => y,
        "LOGISTIC" => y.sigmoid(),
        "PROBIT" => y.ndtri(),
        "SOFTMAX" => y.softmax(-1),
        "SOFTMAX_ZERO" => {
            let zero = y.eq(0.0);
            let chances = y.masked_fill(&zero, f64::NEG_INFINITY).softmax(-1);
            chances.masked_fill(zero, 0.0)
        }
        other => return Err(unsupported(format!("the transform {other:?}"))),
    })
}
