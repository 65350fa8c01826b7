//! Features of regions.

use super::check_columns;
use crate::fault::{SOURCE, invalid};
use crate::transforms::Count;
use kiln_base::Dim;
use kiln_tensor::{DType, NewAxis, Result, Tensor, on_behalf_of_caller, options};

options! {
    /// The cells that [`roi_align`] gives of a region, and its samples.
    RoiAlign (
        /// The rows and columns of cells.
        output_size: (usize, usize)
    ) {
        /// The length on the features of a unit of the boxes.
        spatial_scale: f64 = 1.0,
        /// Samples along each side of a cell of the output; if 0, as many as a cell is long, which computes the boxes.
        sampling_ratio: Count = 0,
        /// If true, boxes are moved by half a cell of the features, and may be smaller than one.
        aligned: bool = false,
    }
}

/// The means of bilinear samples of features `[N, C, H, W]` in the cells of regions, as `[K, C, height, width]` (He et
/// al., 2017). A region is a row of `[K, 5]`: the number of its image, then its box.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::ops::{RoiAlign, roi_align};
/// let features = Tensor::arange(0.0, 16.0, 1.0).reshape([1, 1, 4, 4]);
/// let regions = Tensor::from([[0.0f32, 0.0, 0.0, 2.0, 2.0]]);
/// let options = RoiAlign::new((1, 1)).sampling_ratio(2).aligned(true);
/// assert_eq!(roi_align(&features, &regions, options)?.to_vec::<f32>()?, [2.5]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the shapes or dtypes don't fit or the output is empty; while running, if the number of an image is out of range.
#[track_caller]
pub fn roi_align(input: &Tensor, boxes: &Tensor, options: RoiAlign) -> Result<Tensor> {
    on_behalf_of_caller(SOURCE, || align(input, boxes, options))
}

fn align(input: &Tensor, boxes: &Tensor, options: RoiAlign) -> Result<Tensor> {
    let op = "roi_align";
    let boxes = check_columns(op, "boxes", boxes, 5)?;
    let [_, _, Dim::Const(h), Dim::Const(w)] = *input.check()?.dims() else {
        let message = format!("input has the shape [N, C, H, W], not {:?}", input.dims());
        return Err(invalid(op, message));
    };
    if !input.dtype().is_float() || boxes.dtype() != input.dtype() {
        let message = format!(
            "input and boxes are floats of one dtype, not {} and {}",
            input.dtype(),
            boxes.dtype()
        );
        return Err(invalid(op, message));
    }
    let (rows, columns) = options.output_size;
    if rows == 0 || columns == 0 || h == 0 || w == 0 {
        let message = "the input and the output hold at least one row and column";
        return Err(invalid(op, message));
    }
    let image = boxes.i((.., 0)).to_dtype(DType::I64);
    let offset = if options.aligned { 0.5 } else { 0.0 };
    let edge = |n: usize| boxes.i((.., n)) * options.spatial_scale - offset;
    let side = |low: &Tensor, high: Tensor| match options.aligned {
        true => high - low,
        false => (high - low).clamp_min(1.0),
    };
    let (left, top) = (edge(1), edge(2));
    let (width, height) = (side(&left, edge(3)), side(&top, edge(4)));
    let y = Samples::new(&top, &height, rows, h, options.sampling_ratio.0)?;
    let x = Samples::new(&left, &width, columns, w, options.sampling_ratio.0)?;
    // [N, H, W, C], so that an element is the features at a position.
    let features = input.permute([0, 2, 3, 1]);
    let image = image.i((.., NewAxis, NewAxis));
    let mut sum = None;
    for (row, row_weight) in &y.ends {
        for (column, column_weight) in &x.ends {
            let (row, column) = (row.i((.., .., NewAxis)), column.i((.., NewAxis, ..)));
            let weight = row_weight.i((.., .., NewAxis)) * column_weight.i((.., NewAxis, ..));
            let term = features.i((&image, &row, &column)) * weight.unsqueeze(-1);
            sum = Some(match sum {
                None => term,
                Some(sum) => term + sum,
            });
        }
    }
    let Some(samples) = sum else {
        unreachable!("there are four corners")
    };
    // [K, rows, samples, columns, samples, C]
    let samples = samples
        .unflatten(2, [columns as i64, -1])
        .unflatten(1, [rows as i64, -1]);
    samples.sum([2, 4]).permute([0, 3, 1, 2]).check().cloned()
}

/// Samples along one dim: `[K, cells · samples]`.
struct Samples {
    /// The positions below and above each sample, and their weights divided by the samples of a cell.
    ends: [(Tensor, Tensor); 2],
}

impl Samples {
    fn new(
        start: &Tensor,
        length: &Tensor,
        cells: usize,
        size: i64,
        ratio: usize,
    ) -> Result<Samples> {
        let cell = (length / cells as f64).unsqueeze(1);
        // As many samples in each cell of a region as it is long, or as are asked for.
        let count = match ratio {
            0 => cell.ceil(),
            ratio => cell.full_like(ratio as i64),
        };
        let max_count = match ratio {
            0 if start.numel()? == 0 => 1,
            0 => count.amax(()).to_dtype(DType::I64).item::<i64>()?.max(1) as usize,
            ratio => ratio,
        };
        let number =
            |n: usize| Tensor::arange_dtype(0, n as i64, 1, start.dtype()).to(start.device());
        let sample = number(max_count);
        let counted = sample.i(NewAxis).lt(&count).i((.., NewAxis, ..));
        let inside = ((&sample + 0.5) / count.clamp_min(1)).i((.., NewAxis, ..));
        let position = number(cells).i((NewAxis, .., NewAxis)) + inside;
        let position = start.i((.., NewAxis, NewAxis)) + position * cell.unsqueeze(2);
        let used = counted
            .logical_and(position.ge(-1))
            .logical_and(position.le(size));
        let share = used.to_dtype(start.dtype()) / count.clamp_min(1).unsqueeze(2);
        let position = position.clamp(0, size - 1);
        let below = position.floor();
        let above_weight = (&position - &below) * &share;
        let below_weight = share - &above_weight;
        let below = below.to_dtype(DType::I64);
        let above = (&below + 1).clamp_max(size - 1);
        let flat = |t: Tensor| t.flatten(1);
        Ok(Samples {
            ends: [
                (flat(below), flat(below_weight)),
                (flat(above), flat(above_weight)),
            ],
        })
    }
}
