//! Non-maximum suppression.

use super::check_columns;
use crate::fault::{SOURCE, invalid};
use kiln_tensor::{DType, Result, Sort, Tensor, on_behalf_of_caller};

/// Non-maximum suppression: the indices (i64) of the boxes that remain, best scores first. A box is removed if it
/// overlaps a remaining box of a better score by more than the threshold ([`super::box_iou`]). Computes boxes and
/// scores.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::ops::nms;
/// let boxes = Tensor::from([[0.0f32, 0.0, 9.0, 9.0], [0.0, 0.0, 9.0, 8.0], [20.0, 0.0, 29.0, 9.0]]);
/// let kept = nms(&boxes, &Tensor::from([0.5f32, 0.9, 0.7]), 0.5)?;
/// assert_eq!(kept.to_vec::<i64>()?, [1, 2]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `boxes` is not `[n, 4]` or `scores` not `[n]`, or inside `compile`, where nothing can be read.
#[track_caller]
pub fn nms(boxes: &Tensor, scores: &Tensor, iou_threshold: f64) -> Result<Tensor> {
    suppress("nms", boxes, scores, None, iou_threshold)
}

/// [`nms`] among the boxes of each class alone. `idxs` holds the classes, integers `[n]`.
///
/// # Errors
/// As [`nms`], and if `idxs` has another shape or dtype.
#[track_caller]
pub fn batched_nms(
    boxes: &Tensor,
    scores: &Tensor,
    idxs: &Tensor,
    iou_threshold: f64,
) -> Result<Tensor> {
    suppress("batched_nms", boxes, scores, Some(idxs), iou_threshold)
}

#[track_caller]
fn suppress(
    op: &str,
    boxes: &Tensor,
    scores: &Tensor,
    classes: Option<&Tensor>,
    threshold: f64,
) -> Result<Tensor> {
    let count = check_columns(op, "boxes", boxes, 4)?.shape()?[0];
    for (name, x) in [("scores", Some(scores)), ("idxs", classes)] {
        if let Some(shape) = x.map(Tensor::shape).transpose()?
            && shape != [count]
        {
            let message =
                format!("{name} has the shape [{count}], as there are boxes, not {shape:?}");
            return Err(invalid(op, message));
        }
    }
    if let Some(c) = classes
        && c.dtype().is_float()
    {
        let message = format!("idxs holds integers, not {}", c.dtype());
        return Err(invalid(op, message));
    }
    let order = scores.argsort_with(0, Sort::new().descending(true));
    let edges = boxes
        .to_dtype(DType::F64)
        .index_select(0, &order)
        .to_vec::<f64>()?;
    let sorted = |c: &Tensor| {
        c.index_select(0, &order)
            .to_dtype(DType::I64)
            .to_vec::<i64>()
    };
    let classes = on_behalf_of_caller(SOURCE, || classes.map(sorted).transpose())?;
    let boxes: Vec<[f64; 4]> = edges.as_chunks().0.to_vec();
    let area = |b: &[f64; 4]| (b[2] - b[0]) * (b[3] - b[1]);
    let overlap = |a: &[f64; 4], b: &[f64; 4]| {
        let width = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
        let intersection = width * (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
        intersection / (area(a) + area(b) - intersection)
    };
    let same = |a: usize, b: usize| classes.as_ref().is_none_or(|c| c[a] == c[b]);
    let mut kept: Vec<usize> = Vec::new();
    for n in 0..boxes.len() {
        let covers = |&k: &usize| same(k, n) && overlap(&boxes[k], &boxes[n]) > threshold;
        if !kept.iter().any(covers) {
            kept.push(n);
        }
    }
    let kept: Vec<i64> = kept.into_iter().map(|n| n as i64).collect();
    let kept = Tensor::from_slice(&kept, [kept.len()]).to(order.device());
    order.index_select(0, kept).check().cloned()
}
