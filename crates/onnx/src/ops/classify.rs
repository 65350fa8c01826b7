//! Classifiers of `ai.onnx.ml`: labels and scores.

use super::scores::{floats, linear, post_transform};
use crate::call::{Call, Results};
use crate::maps::Keys;
use crate::value::Value;
use kiln_tensor::{DType, Result, Tensor, cat};

/// Returns the classes that attributes list.
pub(super) fn listed_classes(c: &Call, integers: &str) -> Result<Keys> {
    let texts = c.texts("classlabels_strings")?.unwrap_or_default();
    Ok(match texts.is_empty() {
        true => Keys::Integers(c.ints(integers)?.unwrap_or_default().into()),
        false => Keys::Texts(texts.into()),
    })
}

/// Returns the labels of classes with these i64 numbers.
pub(super) fn class_labels(classes: &Keys, index: Tensor) -> Value {
    match classes {
        Keys::Integers(list) => Tensor::from(list.to_vec()).take(index).into(),
        Keys::Texts(list) => Value::Chosen(index, list.clone()),
    }
}

/// The results of a classifier: the label of the largest of `scores` `[n, classes]`, and the transformed scores.
pub(super) fn classifier_results(classes: &Keys, scores: Tensor, transform: &str) -> Results {
    let label = class_labels(classes, scores.argmax(1));
    Ok(vec![label, post_transform(transform, scores)?.into()])
}

/// The score of the first of two classes, where only the second has one and no transform is applied.
#[derive(Copy, Clone)]
pub(super) enum First {
    /// 1 less the second's.
    Complement,
    /// The second's with the other sign.
    Opposite,
}

/// The results of a classifier of two classes from the score `[n, 1]` of the second, which is chosen above a limit.
pub(super) fn two_class_results(
    classes: &Keys,
    score: Tensor,
    limit: f64,
    transform: &str,
    first: First,
) -> Results {
    let index = score.gt(limit).to_dtype(DType::I64).reshape([-1]);
    // One class stands for 0 and 1.
    if classes.len() != 2 {
        return Ok(vec![index.into(), post_transform(transform, score)?.into()]);
    }
    let scores = two_class_scores(score, transform, first);
    Ok(vec![class_labels(classes, index), scores.into()])
}

/// The scores of two classes from the score `[n, 1]` of the second.
pub(super) fn two_class_scores(score: Tensor, transform: &str, first: First) -> Tensor {
    match (transform, first) {
        ("LOGISTIC", _) => cat([-&score, score], 1).sigmoid(),
        (_, First::Complement) => cat([1.0 - &score, score], 1),
        (_, First::Opposite) => cat([-&score, score], 1),
    }
}

pub(super) fn linear_classifier(c: &Call) -> Results {
    let classes = listed_classes(c, "classlabels_ints")?;
    let count = match floats(c, "intercepts")?.len() {
        0 => classes.len(),
        n => n,
    };
    let scores = linear(c, count as i64)?;
    let transform = c.text("post_transform", "NONE")?;
    match count {
        1 => two_class_results(&classes, scores, 0.0, transform, First::Complement),
        _ => classifier_results(&classes, scores, transform),
    }
}
