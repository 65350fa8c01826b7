//! Boxes, their losses and features of regions, torchvision's `ops`.
//!
//! Boxes are rows `[x1, y1, x2, y2]` of a tensor `[n, 4]`, unless [`box_convert`] is told otherwise.

mod boxes;
mod focal;
mod roi;
mod suppression;

pub use boxes::{
    BoxFormat, box_area, box_convert, box_iou, clip_boxes_to_image, generalized_box_iou,
    generalized_box_iou_loss, remove_small_boxes,
};
pub use focal::{FocalLoss, sigmoid_focal_loss, sigmoid_focal_loss_with};
pub use roi::{RoiAlign, roi_align};
pub use suppression::{batched_nms, nms};

use crate::fault::invalid;
use kiln_base::Dim;
use kiln_tensor::{Result, Tensor};

/// Returns the tensor if it has this many columns.
#[track_caller]
fn check_columns<'a>(op: &str, name: &str, x: &'a Tensor, columns: i64) -> Result<&'a Tensor> {
    let x = x.check()?;
    match x.dims() {
        [_, Dim::Const(n)] if *n == columns => Ok(x),
        dims => {
            let message = format!("{name} has the shape [n, {columns}], not {dims:?}");
            Err(invalid(op, message))
        }
    }
}
