//! Samples of images at positions that are data: regions, and convolutions whose windows are moved.

use super::Record;
use super::conv::{Windows, per_channel};
use crate::call::{Call, Results, known_size, single};
use crate::fault::{invalid, unsupported};
use crate::value::iota;
use kiln_base::Dim;
use kiln_tensor::{DType, PadMode, Result, Scalar, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "DeformConv" => deform_conv,
        "RoiAlign" => roi_align,
        _ => return None,
    })
}

/// The four elements around a position and their weights.
struct Corners {
    positions: [Tensor; 4],
    weights: [Tensor; 4],
}

/// Returns the corners around positions in images of `height · width` elements, by bilinear interpolation.
fn corners(y: &Tensor, x: &Tensor, [height, width]: [i64; 2]) -> Corners {
    let (top, left) = (y.floor(), x.floor());
    let (down, right) = (y - &top, x - &left);
    let (up, to_left) = (1.0 - &down, 1.0 - &right);
    let position = |y: &Tensor, x: &Tensor| {
        let y = y.clamp(0.0, (height - 1) as f64).to_dtype(DType::I64);
        let x = x.clamp(0.0, (width - 1) as f64).to_dtype(DType::I64);
        y * width + x
    };
    let (bottom, far) = (&top + 1.0, &left + 1.0);
    Corners {
        positions: [
            position(&top, &left),
            position(&top, &far),
            position(&bottom, &left),
            position(&bottom, &far),
        ],
        weights: [&up * &to_left, up * &right, &down * to_left, down * right],
    }
}

/// Returns the elements of images `[n, c, h · w]` at positions `[n, p]`, as `[n, c, p]`.
fn gather_elements(images: &Tensor, positions: &Tensor) -> Tensor {
    let shape = vec![
        images.dims()[0].clone(),
        images.dims()[1].clone(),
        positions.dims()[1].clone(),
    ];
    images.gather(2, positions.unsqueeze(1).expand(shape))
}

/// The mean or maximum of samples in the cells of each region.
fn roi_align(c: &Call) -> Results {
    let (x, regions, batch) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    if [x.ndim(), regions.ndim(), batch.ndim()] != [4, 2, 1] {
        return Err(invalid("takes [n, c, h, w], [regions, 4] and [regions]"));
    }
    let size = [known_size(&x, 2)?, known_size(&x, 3)?];
    let cells = [c.int("output_height", 1)?, c.int("output_width", 1)?];
    let ratio = c.int("sampling_ratio", 0)?;
    let scale = c.float("spatial_scale", 1.0)?;
    // Before version 16, regions were not moved by half a pixel.
    let default = if c.version < 16 {
        "output_half_pixel"
    } else {
        "half_pixel"
    };
    let half = c.text("coordinate_transformation_mode", default)? == "half_pixel";
    let mean = match c.text("mode", "avg")? {
        "avg" => true,
        "max" => false,
        other => return Err(invalid(format!("there is no mode {other:?}"))),
    };
    if cells.iter().any(|n| !(1..=1 << 16).contains(n)) || !(0..=1 << 12).contains(&ratio) {
        return Err(invalid(format!(
            "{cells:?} cells with {ratio} samples each"
        )));
    }
    let edges = regions.to_dtype(DType::F64) * scale - if half { 0.5 } else { 0.0 };
    let edge = |i: i64| edges.select(1, i);
    let clamp = |size: Tensor| if half { size } else { size.clamp_min(1.0) };
    let extent = [clamp(edge(3) - edge(1)), clamp(edge(2) - edge(0))];
    let counts = match ratio {
        // The number of samples follows from each region. The largest is taken, and what lies behind counts nothing.
        0 => [0, 1].map(|i| (&extent[i] / cells[i] as f64).ceil()),
        n => [0, 1].map(|i| extent[i].full_like(n as f64)),
    };
    let max: Vec<i64> = match ratio {
        0 if regions.dims()[0].is(0) => vec![0; 2],
        0 => {
            let max_counts = counts.iter().map(|t| Ok(t.amax(()).item::<f64>()? as i64));
            max_counts.collect::<Result<_>>()?
        }
        n => vec![n; 2],
    };
    if max.iter().zip(&size).any(|(n, size)| *n > 64 * size + 64) {
        return Err(unsupported(format!("{max:?} samples in each cell")));
    }
    let max = [max[0].max(1), max[1].max(1)];
    // Positions and whether they count, [regions, cells · samples].
    let positions = |i: usize| {
        let start = [edge(1), edge(0)][i].unsqueeze(1).unsqueeze(1);
        let cell = (&extent[i] / cells[i] as f64).unsqueeze(1).unsqueeze(1);
        let count = counts[i].unsqueeze(1).unsqueeze(1);
        let (bin, sample) = (
            Tensor::arange_dtype(0, cells[i], 1, DType::F64).unsqueeze(1),
            Tensor::arange_dtype(0, max[i], 1, DType::F64),
        );
        let offset = (&sample + 0.5) / &count;
        let position = (bin + offset) * cell + start;
        let counted = sample.lt(&count).expand(position.dims());
        (position.flatten((1, 2)), counted.flatten((1, 2)))
    };
    let ((y, y_counts), (x_at, x_counts)) = (positions(0), positions(1));
    let inside = |t: &Tensor, size: i64| t.ge(-1.0).logical_and(t.le(size as f64));
    let (rows, columns) = (cells[0] * max[0], cells[1] * max[1]);
    let grid = |y: &Tensor, x: &Tensor| {
        let shape = [y.dims()[0].clone(), Dim::Const(rows), Dim::Const(columns)];
        let y = y.unsqueeze(2).expand(&shape[..]).flatten((1, 2));
        (y, x.unsqueeze(1).expand(&shape[..]).flatten((1, 2)))
    };
    let (y_inside, x_inside) = grid(&inside(&y, size[0]), &inside(&x_at, size[1]));
    let (y_counts, x_counts) = grid(&y_counts, &x_counts);
    let (inside, counted) = (
        y_inside.logical_and(x_inside),
        y_counts.logical_and(x_counts),
    );
    let clamped = |t: Tensor, size: i64| t.clamp(0.0, (size - 1) as f64);
    let (y, x_at) = grid(&clamped(y, size[0]), &clamped(x_at, size[1]));
    let around = corners(&y, &x_at, size);
    let images = x
        .index_select(0, batch.to_dtype(DType::I64))
        .flatten((2, 3));
    let terms: Vec<Tensor> = around
        .positions
        .iter()
        .zip(&around.weights)
        .map(|(corner, weight)| {
            let weight = weight
                .masked_fill(inside.logical_not(), 0.0)
                .to_dtype(x.dtype());
            gather_elements(&images, corner) * weight.unsqueeze(1)
        })
        .collect();
    let cells = |t: Tensor| {
        let mut shape = t.dims()[..2].to_vec();
        shape.extend([cells[0], max[0], cells[1], max[1]].map(Dim::Const));
        t.reshape(shape)
    };
    let uncounted = counted.logical_not().unsqueeze(1);
    if mean {
        let sum = terms
            .into_iter()
            .reduce(|a, b| a + b)
            .unwrap_or_else(|| x.clone());
        let sum = cells(sum.masked_fill(uncounted, 0.0)).sum([3, 5]);
        let count = (&counts[0] * &counts[1]).clamp_min(1.0).to_dtype(x.dtype());
        return single(
            sum / count.reshape(vec![count.dims()[0].clone(), Dim::ONE, Dim::ONE, Dim::ONE]),
        );
    }
    // The maximum is that of the weighted corners, as in the standard.
    let largest = terms
        .into_iter()
        .reduce(|a, b| a.maximum(b))
        .unwrap_or_else(|| x.clone());
    single(cells(largest.masked_fill(uncounted, f64::NEG_INFINITY)).amax([3, 5]))
}

/// A convolution, each of whose weights is moved by an offset for each position.
fn deform_conv(c: &Call) -> Results {
    let (x, weight, offset) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    if x.ndim() != 4 || weight.ndim() != 4 || offset.ndim() != 4 {
        return Err(unsupported("DeformConv of other than 2 spatial dims"));
    }
    let (groups, offset_groups) = (c.int("group", 1)?, c.int("offset_group", 1)?);
    let kernel = vec![known_size(&weight, 2)?, known_size(&weight, 3)?];
    let windows = Windows::new(c, &x, Some(kernel))?;
    let size = [known_size(&x, 2)?, known_size(&x, 3)?];
    let (channels, filters) = (known_size(&x, 1)?, known_size(&weight, 0)?);
    let out = [known_size(&offset, 2)?, known_size(&offset, 3)?];
    let taps = windows.kernel.iter().product::<i64>();
    let is_divided = channels > 0
        && groups > 0
        && offset_groups > 0
        && channels % groups == 0
        && filters % groups == 0
        && channels % offset_groups == 0;
    let offsets = 2 * i128::from(taps) * i128::from(offset_groups);
    if !is_divided || i128::from(known_size(&offset, 1)?) != offsets {
        return Err(invalid(format!(
            "{channels} channels and {} offsets don't fit {groups} and {offset_groups} groups",
            known_size(&offset, 1)?
        )));
    }
    let n = x.dims()[0].clone();
    let dims = |list: &[i64]| -> Vec<Dim> {
        let trailing_dims = list.iter().map(|d| Dim::Const(*d));
        [n.clone()].into_iter().chain(trailing_dims).collect()
    };
    let offset = offset.reshape(dims(&[offset_groups, taps, 2, out[0], out[1]]));
    // Positions [n, groups, taps, oh, ow].
    let position = |i: usize| {
        let tap = iota(&Dim::Const(windows.kernel[i])) * windows.dilations[i];
        let (rows, columns) = (Dim::Const(windows.kernel[0]), Dim::Const(windows.kernel[1]));
        let tap = match i {
            0 => tap.unsqueeze(1).expand(vec![rows, columns]),
            _ => tap.expand(vec![rows, columns]),
        };
        let starts = iota(&Dim::Const(out[i])) * windows.strides[i] - windows.before[i];
        let starts = if i == 0 { starts.unsqueeze(1) } else { starts };
        let base = tap.reshape([taps, 1, 1]) + starts;
        offset.select(3, i as i64) + base.to_dtype(offset.dtype())
    };
    let (y, x_at) = (position(0), position(1));
    // Elements outside are 0, as those of the border around each image.
    let (y, x_at) = (y + 1.0, x_at + 1.0);
    let bordered = [size[0] + 2, size[1] + 2];
    let inside = |t: &Tensor, size: i64| t.gt(0.0).logical_and(t.lt((size - 1) as f64));
    let inside = inside(&y, bordered[0]).logical_and(inside(&x_at, bordered[1]));
    let around = corners(&y, &x_at, bordered);
    let padded = x.pad([1, 1, 1, 1], PadMode::Constant(Scalar::Float(0.0)));
    // Each group of offsets is an image of its channels.
    let batch = &n * &Dim::Const(offset_groups);
    let images = padded.reshape(vec![
        batch.clone(),
        Dim::Const(channels / offset_groups),
        Dim::Const(bordered[0] * bordered[1]),
    ]);
    let flat = |t: &Tensor| t.reshape(vec![batch.clone(), Dim::Const(taps * out[0] * out[1])]);
    let mask = match c.optional(4)? {
        Some(mask) => flat(&mask) * flat(&inside).to_dtype(x.dtype()),
        None => flat(&inside).to_dtype(x.dtype()),
    };
    let terms = around
        .positions
        .iter()
        .zip(&around.weights)
        .map(|(corner, weight)| {
            let weight = flat(weight).to_dtype(x.dtype()) * &mask;
            gather_elements(&images, &flat(corner)) * weight.unsqueeze(1)
        });
    let samples = terms.reduce(|a, b| a + b).unwrap_or_else(|| images.clone());
    // A product of the filters and the samples of each group.
    let columns = samples.reshape(dims(&[groups, channels / groups * taps, out[0] * out[1]]));
    let rows = weight.reshape([groups, filters / groups, channels / groups * taps]);
    let y = rows
        .matmul(columns)
        .reshape(dims(&[filters, out[0], out[1]]));
    single(match c.optional(3)? {
        Some(bias) => y + per_channel(&bias, 2),
        None => y,
    })
}
