//! Operators on images besides convolutions, pooling and resizing.

use super::Record;
use super::shape::pad_constant;
use crate::call::{Call, Results, known_size, single};
use crate::fault::invalid;
use crate::value::iota;
use kiln_base::{Dim, numel};
use kiln_tensor::{DType, GridMode, GridPadding, GridSample, Scalar, Tensor, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "AffineGrid" => affine_grid,
        "Col2Im" => col2im,
        "GridSample" => grid_sample,
        "MaxUnpool" => max_unpool,
        "NonMaxSuppression" => non_max_suppression,
        _ => return None,
    })
}

fn grid_sample(c: &Call) -> Results {
    let options = GridSample::new()
        .mode(match c.text("mode", "linear")? {
            "bilinear" | "linear" => GridMode::Bilinear,
            "nearest" => GridMode::Nearest,
            "bicubic" | "cubic" => GridMode::Bicubic,
            other => return Err(invalid(format!("there is no mode {other:?}"))),
        })
        .padding_mode(match c.text("padding_mode", "zeros")? {
            "zeros" => GridPadding::Zeros,
            "border" => GridPadding::Border,
            "reflection" => GridPadding::Reflection,
            other => return Err(invalid(format!("there is no padding_mode {other:?}"))),
        })
        .align_corners(c.flag("align_corners", false)?);
    single(c.tensor(0)?.grid_sample_with(c.tensor(1)?, options))
}

/// The coordinates of an affine grid of an image, `[N, H, W, 2]`; of a volume's, `[N, D, H, W, 3]`.
fn affine_grid(c: &Call) -> Results {
    let theta = c.tensor(0)?;
    let size = c.required_integers(1)?;
    let spatial = size.get(2..).filter(|s| s.len() == 2 || s.len() == 3);
    let spatial = spatial.ok_or_else(|| invalid(format!("{size:?} is not a size of images")))?;
    let corners = c.flag("align_corners", false)?;
    let n = spatial.len();
    let coordinates = |a: usize| {
        let steps = spatial[a];
        let edge = if corners {
            1.0
        } else {
            (steps - 1) as f64 / steps as f64
        };
        let along = match steps {
            1 if corners => Tensor::full(1, -1.0, DType::F32),
            1 => Tensor::zeros(1, DType::F32),
            _ => Tensor::linspace(-edge, edge, steps, DType::F32),
        };
        let mut shape = vec![1i64; n];
        shape[a] = steps;
        along.reshape(shape).expand(spatial).reshape([-1i64])
    };
    // x first.
    let mut coordinates_by_dim: Vec<Tensor> = (0..n).rev().map(coordinates).collect();
    coordinates_by_dim.push(coordinates_by_dim[0].ones_like());
    let grid = stack(coordinates_by_dim, 0).to_dtype(theta.dtype());
    let mapped = theta.matmul(grid).transpose(1, 2);
    let shape: Vec<i64> = [&size[..1], spatial, &[n as i64]].concat();
    single(mapped.reshape(shape))
}

/// Sums columns `[n, c · k, l]` at the positions of their windows.
fn col2im(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let (image, block) = (c.required_integers(1)?, c.required_integers(2)?);
    let n = image.len();
    let list = |name: &str, default: i64| {
        Ok::<_, kiln_tensor::Error>(c.ints(name)?.unwrap_or(vec![default; n]))
    };
    let (dilations, strides) = (list("dilations", 1)?, list("strides", 1)?);
    let pads = c.ints("pads")?.unwrap_or(vec![0; 2 * n]);
    if [block.len(), dilations.len(), strides.len()] != [n; 3]
        || pads.len() != 2 * n
        || x.ndim() != 3
    {
        return Err(invalid("the shapes and attributes don't fit each other"));
    }
    let sizes = image.iter().chain(&block).chain(&strides).chain(&dilations);
    if sizes.clone().any(|v| !(1..=1 << 24).contains(v)) {
        return Err(invalid("sizes, strides and dilations must be positive"));
    }
    // The flat position of each element of each window, the number of positions for those in the border.
    let total: i64 = image.iter().product();
    let mut positions = vec![0i64];
    let (mut rows, mut columns) = (1, 1);
    for a in 0..n {
        let extent = (block[a] - 1) * dilations[a] + 1;
        let count = (image[a] + pads[a] + pads[n + a] - extent).div_euclid(strides[a]) + 1;
        let (k, inner) = (block[a], count.max(0));
        let mut next = Vec::with_capacity(positions.len() * (k * inner) as usize);
        for r in 0..rows {
            for i in 0..k {
                for col in 0..columns {
                    for w in 0..inner {
                        let before = positions[(r * columns + col) as usize];
                        let p = i * dilations[a] + w * strides[a] - pads[a];
                        let inside = before < total && (0..image[a]).contains(&p);
                        next.push(if inside { before * image[a] + p } else { total });
                    }
                }
            }
        }
        positions = next;
        (rows, columns) = (rows * k, columns * inner);
    }
    let [batch, channels, l] = x.dims() else {
        return Err(invalid("needs 3 dims"));
    };
    if l.as_const() != Some(columns) {
        return Err(invalid(format!(
            "there are {l} columns and {columns} windows"
        )));
    }
    let channels = channels
        .div_exact(&Dim::Const(rows))
        .map_err(|e| invalid(e.to_string()))?;
    let flat = Dim::Const(rows * columns);
    let values = x.reshape(vec![batch * &channels, flat]);
    let image_sums = Tensor::zeros(vec![batch * &channels, Dim::Const(total + 1)], x.dtype());
    let image_sums = image_sums
        .index_add(1, Tensor::from(positions), values)
        .narrow(1, 0, total);
    let mut shape = vec![batch.clone(), channels];
    shape.extend(image.into_iter().map(Dim::Const));
    single(image_sums.reshape(shape))
}

fn max_unpool(c: &Call) -> Results {
    let (x, index) = (c.tensor(0)?, c.tensor(1)?);
    let kernel = c
        .ints("kernel_shape")?
        .ok_or_else(|| invalid("kernel_shape is missing"))?;
    let n = kernel.len();
    let strides = c.ints("strides")?.unwrap_or(vec![1; n]);
    let pads = c.ints("pads")?.unwrap_or(vec![0; 2 * n]);
    if x.ndim() != n + 2 || strides.len() != n || pads.len() != 2 * n {
        return Err(invalid("the attributes don't fit the input"));
    }
    let mut inner = Vec::new();
    for a in 0..n {
        inner.push((known_size(&x, a + 2)? - 1) * strides[a] - pads[a] - pads[n + a] + kernel[a]);
    }
    let lead = &x.dims()[..2];
    let plane: i64 = inner.iter().product();
    let images = iota(&numel(lead)).reshape([lead, &vec![Dim::ONE; n]].concat());
    let flat = vec![numel(lead), numel(&x.dims()[2..])];
    let positions = (index - images * plane).reshape(&flat);
    let empty = Tensor::zeros(vec![numel(lead), Dim::Const(plane)], x.dtype());
    let y = empty.scatter(1, positions, x.reshape(flat));
    let shape: Vec<Dim> = inner.iter().map(|d| Dim::Const(*d)).collect();
    let y = y.reshape([lead, &shape].concat());
    // A larger result has the image at its start.
    let extra = match c.integers(2)? {
        Some(target) if target.len() == n + 2 => (0..n).map(|a| target[a + 2] - inner[a]).collect(),
        Some(_) => return Err(invalid("the output's shape has another number of dims")),
        None => vec![0; n],
    };
    let axes: Vec<usize> = (2..n + 2).collect();
    single(pad_constant(&y, &axes, &vec![0; n], &extra, Scalar::Int(0)))
}

/// Boxes of each class in descending order of their scores, without those that overlap a better one. How many there
/// are depends on values, so boxes and scores are read.
fn non_max_suppression(c: &Call) -> Results {
    let (boxes, scores) = (c.tensor(0)?, c.tensor(1)?);
    let ([batch, count, 4], [_, classes, _]) = (&boxes.shape()?[..], &scores.shape()?[..]) else {
        return Err(invalid(
            "needs boxes [n, count, 4] and scores [n, classes, count]",
        ));
    };
    let (batch, count, classes) = (*batch, *count, *classes);
    if scores.shape()? != [batch, classes, count] {
        return Err(invalid("boxes and scores are not equally many"));
    }
    let centred = c.flag("center_point_box", false)?;
    let max_boxes = c.first_integer(2)?.unwrap_or(0).max(0) as usize;
    let overlap = c.first_number(3)?.unwrap_or(0.0);
    let score_threshold = c.first_number(4)?;
    let boxes = boxes.to_dtype(DType::F32).to_vec::<f32>()?;
    let scores = scores.to_dtype(DType::F32).to_vec::<f32>()?;
    let corners = |b: &[f32]| {
        let (a, b, c, d) = (b[0], b[1], b[2], b[3]);
        match centred {
            true => (a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0),
            false => (a.min(c), b.min(d), a.max(c), b.max(d)),
        }
    };
    let mut chosen: Vec<i64> = Vec::new();
    for n in 0..batch {
        let corners: Vec<_> = (0..count)
            .map(|i| corners(&boxes[(n * count + i) * 4..][..4]))
            .collect();
        for class in 0..classes {
            let scores = &scores[(n * classes + class) * count..][..count];
            let passes = |i: &usize| {
                score_threshold.is_none_or(|threshold| f64::from(scores[*i]) > threshold)
            };
            let mut order: Vec<usize> = (0..count).filter(passes).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            let mut kept: Vec<usize> = Vec::new();
            for i in order {
                if kept.len() >= max_boxes {
                    break;
                }
                let free = kept
                    .iter()
                    .all(|k| f64::from(iou(&corners[i], &corners[*k])) <= overlap);
                if free {
                    kept.push(i);
                    chosen.extend([n as i64, class as i64, i as i64]);
                }
            }
        }
    }
    let rows = chosen.len() / 3;
    single(Tensor::from_slice(&chosen, [rows, 3]))
}

/// Returns the intersection of two boxes over their union.
fn iou(a: &(f32, f32, f32, f32), b: &(f32, f32, f32, f32)) -> f32 {
    let area = |(a, b, c, d): &(f32, f32, f32, f32)| (c - a) * (d - b);
    let width = (a.2.min(b.2) - a.0.max(b.0)).max(0.0);
    let height = (a.3.min(b.3) - a.1.max(b.1)).max(0.0);
    let both = width * height;
    let union = area(a) + area(b) - both;
    if union > 0.0 { both / union } else { 0.0 }
}
