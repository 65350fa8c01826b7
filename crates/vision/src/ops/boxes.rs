//! Areas, overlaps and forms of boxes.

use super::check_columns;
use crate::fault::{SOURCE, invalid};
use kiln_tensor::{Ellipsis, NewAxis, Reduction, Result, Tensor, on_behalf_of_caller, stack};
use std::str::FromStr;

/// The numbers that describe a box.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoxFormat {
    /// The left, upper, right and lower edge.
    Xyxy,
    /// The left and upper edge, the width and the height.
    Xywh,
    /// The centre, the width and the height.
    Cxcywh,
}

impl FromStr for BoxFormat {
    type Err = kiln_tensor::Error;

    #[track_caller]
    fn from_str(name: &str) -> Result<BoxFormat> {
        match name {
            "xyxy" => Ok(BoxFormat::Xyxy),
            "xywh" => Ok(BoxFormat::Xywh),
            "cxcywh" => Ok(BoxFormat::Cxcywh),
            _ => {
                let message = format!("{name:?} is not one of \"xyxy\", \"xywh\", \"cxcywh\"");
                Err(invalid("box_convert", message))
            }
        }
    }
}

/// The columns of boxes.
#[track_caller]
fn columns(boxes: &Tensor) -> [Tensor; 4] {
    on_behalf_of_caller(SOURCE, || [0, 1, 2, 3].map(|n| boxes.i((Ellipsis, n))))
}

/// Boxes `[n, 4]` in another format.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::ops::{BoxFormat, box_convert};
/// let boxes = Tensor::from([[10.0f32, 15.0, 30.0, 35.0]]);
/// let centres = box_convert(&boxes, BoxFormat::Xyxy, BoxFormat::Cxcywh)?;
/// assert_eq!(centres.to_vec::<f32>()?, [20.0, 25.0, 20.0, 20.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If `boxes` has another shape.
#[track_caller]
pub fn box_convert(boxes: &Tensor, from: BoxFormat, to: BoxFormat) -> Result<Tensor> {
    if from == to {
        return check_columns("box_convert", "boxes", boxes, 4).cloned();
    }
    let [a, b, c, d] = columns(check_columns("box_convert", "boxes", boxes, 4)?);
    let [x1, y1, x2, y2] = match from {
        BoxFormat::Xyxy => [a, b, c, d],
        BoxFormat::Xywh => [a.clone(), b.clone(), a + c, b + d],
        BoxFormat::Cxcywh => {
            let (w, h) = (c * 0.5, d * 0.5);
            [&a - &w, &b - &h, a + w, b + h]
        }
    };
    let (w, h) = (&x2 - &x1, &y2 - &y1);
    let converted = match to {
        BoxFormat::Xyxy => [x1, y1, x2, y2],
        BoxFormat::Xywh => [x1, y1, w, h],
        BoxFormat::Cxcywh => [(x1 + x2) * 0.5, (y1 + y2) * 0.5, w, h],
    };
    stack(&converted, -1).check().cloned()
}

/// The areas `[n]` of boxes.
///
/// # Errors
/// If `boxes` has another shape than `[n, 4]`.
#[track_caller]
pub fn box_area(boxes: &Tensor) -> Result<Tensor> {
    area(check_columns("box_area", "boxes", boxes, 4)?)
        .check()
        .cloned()
}

#[track_caller]
fn area(boxes: &Tensor) -> Tensor {
    let [x1, y1, x2, y2] = columns(boxes);
    (x2 - x1) * (y2 - y1)
}

/// Returns the areas of the intersections and of the unions of two sets of boxes, which broadcast.
#[track_caller]
fn intersection_and_union(a: &Tensor, b: &Tensor) -> (Tensor, Tensor) {
    let ([ax1, ay1, ax2, ay2], [bx1, by1, bx2, by2]) = (columns(a), columns(b));
    let width = (ax2.minimum(bx2) - ax1.maximum(bx1)).clamp_min(0);
    let height = (ay2.minimum(by2) - ay1.maximum(by1)).clamp_min(0);
    let intersection = width * height;
    let union = area(a) + area(b) - &intersection;
    (intersection, union)
}

/// Returns the area of the smallest enclosing box that neither box covers, and the area of the enclosing box.
#[track_caller]
fn uncovered_fraction(a: &Tensor, b: &Tensor, union: &Tensor) -> [Tensor; 2] {
    let ([ax1, ay1, ax2, ay2], [bx1, by1, bx2, by2]) = (columns(a), columns(b));
    let width = ax2.maximum(bx2) - ax1.minimum(bx1);
    let enclosing = width * (ay2.maximum(by2) - ay1.minimum(by1));
    [&enclosing - union, enclosing]
}

/// Two sets of boxes whose pairs are the elements of `[n, m]`.
#[track_caller]
fn pair(op: &str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let (a, b) = (
        check_columns(op, "boxes1", a, 4)?,
        check_columns(op, "boxes2", b, 4)?,
    );
    Ok((a.i((.., NewAxis)), b.i(NewAxis)))
}

/// The intersection over union `[n, m]` of each of `n` boxes with each of `m`. Two empty boxes give NaN.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::ops::box_iou;
/// let a = Tensor::from([[0.0f32, 0.0, 2.0, 2.0]]);
/// let b = Tensor::from([[1.0f32, 0.0, 3.0, 2.0], [5.0, 5.0, 6.0, 6.0]]);
/// assert_eq!(box_iou(&a, &b)?.to_vec::<f32>()?, [1.0 / 3.0, 0.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If either has another shape than `[n, 4]`, or they are on several devices.
#[track_caller]
pub fn box_iou(boxes1: &Tensor, boxes2: &Tensor) -> Result<Tensor> {
    let (a, b) = pair("box_iou", boxes1, boxes2)?;
    let (intersection, union) = intersection_and_union(&a, &b);
    (intersection / union).check().cloned()
}

/// The generalised intersection over union `[n, m]` of Rezatofighi et al. (2019): less than [`box_iou`] by the share
/// of the smallest box around two that neither covers.
///
/// # Errors
/// As [`box_iou`].
#[track_caller]
pub fn generalized_box_iou(boxes1: &Tensor, boxes2: &Tensor) -> Result<Tensor> {
    let (a, b) = pair("generalized_box_iou", boxes1, boxes2)?;
    let (intersection, union) = intersection_and_union(&a, &b);
    let [uncovered, enclosing] = uncovered_fraction(&a, &b, &union);
    (intersection / union - uncovered / enclosing)
        .check()
        .cloned()
}

/// 1 − the generalised intersection over union of each box with the one in the same row.
///
/// # Errors
/// If either has another shape than `[n, 4]`, or they have several lengths.
#[track_caller]
pub fn generalized_box_iou_loss(
    boxes1: &Tensor,
    boxes2: &Tensor,
    reduction: Reduction,
) -> Result<Tensor> {
    let op = "generalized_box_iou_loss";
    let (a, b) = (
        check_columns(op, "boxes1", boxes1, 4)?,
        check_columns(op, "boxes2", boxes2, 4)?,
    );
    if a.dims() != b.dims() {
        let message = format!("{:?} and {:?} boxes are not pairs", a.dims(), b.dims());
        return Err(invalid(op, message));
    }
    let eps = 1e-7;
    let (intersection, union) = intersection_and_union(a, b);
    let [uncovered, enclosing] = uncovered_fraction(a, b, &union);
    let loss = 1.0 - intersection / (union + eps) + uncovered / (enclosing + eps);
    reduce_loss(loss, reduction).check().cloned()
}

/// A loss of each element as one.
#[track_caller]
pub(super) fn reduce_loss(loss: Tensor, reduction: Reduction) -> Tensor {
    match reduction {
        Reduction::None => loss,
        Reduction::Mean => loss.mean(()),
        Reduction::Sum => loss.sum(()),
    }
}

/// Boxes with their edges inside of an image of this height and width.
///
/// # Errors
/// If `boxes` has another shape than `[n, 4]`.
#[track_caller]
pub fn clip_boxes_to_image(boxes: &Tensor, (height, width): (usize, usize)) -> Result<Tensor> {
    let [x1, y1, x2, y2] = columns(check_columns("clip_boxes_to_image", "boxes", boxes, 4)?);
    let (w, h) = (width as i64, height as i64);
    let clipped = [
        x1.clamp(0, w),
        y1.clamp(0, h),
        x2.clamp(0, w),
        y2.clamp(0, h),
    ];
    stack(&clipped, -1).check().cloned()
}

/// The indices of boxes whose sides are at least `min_size` long. Computes the boxes.
///
/// # Errors
/// If `boxes` has another shape than `[n, 4]`, or can't be computed.
#[track_caller]
pub fn remove_small_boxes(boxes: &Tensor, min_size: f64) -> Result<Tensor> {
    let [x1, y1, x2, y2] = columns(check_columns("remove_small_boxes", "boxes", boxes, 4)?);
    let large = (x2 - x1).ge(min_size).logical_and((y2 - y1).ge(min_size));
    large.nonzero().squeeze(1).check().cloned()
}
