//! Operators that move elements.

use super::Record;
use crate::call::{Call, Results, axes, axis, known_size, single};
use crate::fault::{invalid, unsupported};
use crate::known;
use crate::value::{Value, iota, size_as_tensor};
use kiln_base::{Dim, numel};
use kiln_tensor::{Index, PadMode, Result, Scalar, Tensor, cat, step};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "CenterCropPad" => center_crop_pad,
        "Concat" => |c| {
            let operands = c.tensors(0)?;
            let rank = operands.first().map_or(0, Tensor::ndim);
            single(cat(operands, c.axis("axis", 1, rank)? as i64))
        },
        "DepthToSpace" => depth_to_space,
        "Expand" => expand,
        "Flatten" => |c| {
            let x = c.tensor(0)?;
            let rank = x.ndim() as i64;
            let axis = c.int("axis", 1)?;
            let axis = if axis < 0 { axis + rank } else { axis };
            if !(0..=rank).contains(&axis) {
                return Err(invalid(format!(
                    "the axis {axis} is not one of {rank} dims"
                )));
            }
            let (rows, columns) = x.dims().split_at(axis as usize);
            single(x.reshape(vec![numel(rows), numel(columns)]))
        },
        "Identity" => |c| Ok(vec![c.value(0)?.clone()]),
        "Pad" => pad,
        "Reshape" => reshape,
        "ReverseSequence" => reverse_sequence,
        "Shape" => known::shape,
        "Size" => known::size,
        "Slice" => slice,
        "SpaceToDepth" => space_to_depth,
        "Split" => split,
        "Squeeze" => |c| {
            let x = c.tensor(0)?;
            match c.integers_or(1, "axes")? {
                Some(list) => single(x.squeeze(list)),
                None => single(x.squeeze_all()),
            }
        },
        "Tile" => tile,
        "Transpose" => |c| {
            let x = c.tensor(0)?;
            let reversed = || (0..x.ndim() as i64).rev().collect();
            single(x.permute(c.ints("perm")?.unwrap_or_else(reversed)))
        },
        "Unsqueeze" => |c| {
            let x = c.tensor(0)?;
            let list = c.integers_or(1, "axes")?;
            let list = list.ok_or_else(|| invalid("the axes are missing"))?;
            let mut list = axes(&list, x.ndim() + list.len())?;
            list.sort_unstable();
            single(list.iter().fold(x, |x, a| x.unsqueeze(*a)))
        },
        _ => return None,
    })
}

/// Returns sizes that are an input since a version of the operator, and an attribute before.
fn sizes_or(c: &Call, i: usize, name: &str) -> Result<Option<Vec<Dim>>> {
    match c.sizes(i)? {
        Some(sizes) => Ok(Some(sizes)),
        None => {
            let list = c.ints(name)?;
            Ok(list.map(|l| l.into_iter().map(Dim::Const).collect()))
        }
    }
}

fn reshape(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let shape = sizes_or(c, 1, "shape")?;
    let mut shape = shape.ok_or_else(|| invalid("the shape is missing"))?;
    if !c.flag("allowzero", false)? {
        for (i, d) in shape.iter_mut().enumerate() {
            if d.is(0) {
                let own = x.dims().get(i);
                *d = own
                    .ok_or_else(|| invalid(format!("there is no dim {i} to copy")))?
                    .clone();
            }
        }
    }
    let unknown: Vec<usize> = (0..shape.len()).filter(|i| shape[*i].is(-1)).collect();
    if let [at] = unknown[..] {
        let other_sizes = &numel(&shape[..at]) * &numel(&shape[at + 1..]);
        let total = numel(x.dims());
        shape[at] = match total.div_exact(&other_sizes) {
            Ok(d) => d,
            // Nothing is divided into nothing.
            Err(_) if total.is(0) => Dim::ZERO,
            Err(e) => return Err(invalid(e.to_string())),
        };
    }
    single(x.reshape(shape))
}

fn expand(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let target = c.sizes(1)?.ok_or_else(|| invalid("the shape is missing"))?;
    single(broadcast_with(&x, &target))
}

/// Broadcasts a tensor with a shape.
fn broadcast_with(x: &Tensor, target: &[Dim]) -> Tensor {
    let rank = target.len().max(x.ndim());
    let mut shape = vec![Dim::ONE; rank];
    shape[rank - target.len()..].clone_from_slice(target);
    for (s, d) in shape[rank - x.ndim()..].iter_mut().zip(x.dims()) {
        if s.is(1) {
            *s = d.clone();
        }
    }
    x.expand(shape)
}

fn tile(c: &Call) -> Results {
    let x = c.tensor(0)?;
    if c.version < 6 {
        return Err(unsupported("Tile before version 6"));
    }
    let repeats = c.required_integers(1)?;
    if repeats.len() != x.ndim() {
        return Err(invalid(format!(
            "{} repeats for {} dims",
            repeats.len(),
            x.ndim()
        )));
    }
    single(x.tile(repeats))
}

fn split(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let axis = c.axis("axis", 0, x.ndim())?;
    let sizes = match c.integers_or(1, "split")? {
        Some(sizes) => sizes,
        None => {
            let count = c.int("num_outputs", c.node.output.len() as i64)?.max(1);
            let n = known_size(&x, axis)?;
            let size = (n + count - 1) / count;
            (0..count)
                .map(|i| size.min((n - i * size).max(0)))
                .collect()
        }
    };
    let chunks = x.split_with_sizes(sizes, axis as i64);
    Ok(chunks.into_iter().map(Value::from).collect())
}

fn slice(c: &Call) -> Results {
    let mut x = c.tensor(0)?;
    let missing = || invalid("the starts or ends are missing");
    let starts = sizes_or(c, 1, "starts")?.ok_or_else(missing)?;
    let ends = sizes_or(c, 2, "ends")?.ok_or_else(missing)?;
    let list = match c.integers_or(3, "axes")? {
        Some(list) => axes(&list, x.ndim())?,
        None => (0..starts.len()).collect(),
    };
    let steps = c.integers(4)?.unwrap_or(vec![1; starts.len()]);
    if [ends.len(), list.len(), steps.len()] != [starts.len(); 3] {
        return Err(invalid("starts, ends, axes and steps are not equally many"));
    }
    for i in 0..starts.len() {
        let axis = axis(list[i] as i64, x.ndim())?;
        x = slice_axis(&x, axis, &starts[i], &ends[i], steps[i])?;
    }
    single(x)
}

/// Returns the elements of an axis from a start to an end.
pub(super) fn slice_axis(
    x: &Tensor,
    dim: usize,
    start: &Dim,
    end: &Dim,
    stride: i64,
) -> Result<Tensor> {
    if stride == 0 {
        return Err(invalid("a step is 0"));
    }
    axis(dim as i64, x.ndim())?;
    let n = &x.dims()[dim];
    let along = |item: Index| {
        let mut items: Vec<Index> = (0..dim).map(|_| Index::from(..)).collect();
        items.push(item);
        x.i(items)
    };
    if let (Some(start), Some(end), Some(n)) = (start.as_const(), end.as_const(), n.as_const()) {
        let from_start = |i: i64| if i < 0 { i.saturating_add(n) } else { i };
        let (start, end) = (from_start(start), from_start(end));
        if stride > 0 {
            let (start, end) = (start.clamp(0, n), end.clamp(0, n));
            return Ok(along(step(start..end.max(start), stride)));
        }
        let (start, end) = (start.clamp(-1, n - 1), end.clamp(-1, n - 1));
        if start <= end {
            return Ok(along(Index::from(0..0)));
        }
        // The last position first.
        return Ok(along(step(end + 1..start + 1, stride)));
    }
    if stride == -1 && start.is(-1) && end.as_const().is_some_and(|e| e <= -i64::from(i32::MAX)) {
        return Ok(x.flip(dim as i64));
    }
    if stride < 0 {
        return Err(invalid("a negative step needs known sizes"));
    }
    // Ends are compared with sizes that are not known: those that are a size lie within it.
    let is_all = |d: &Dim| d == n || d.as_const().is_some_and(|e| e >= i64::from(i32::MAX));
    match (start.as_const(), end.as_const()) {
        (Some(start), last) if is_all(end) || last.is_some() => Ok(along(Index::Slice {
            start: Some(start),
            end: last.filter(|_| !is_all(end)),
            step: stride,
        })),
        _ if stride == 1 => {
            let end = if is_all(end) { n.clone() } else { end.clone() };
            let positions = iota(&(&end - start));
            let positions = match start.as_const() {
                Some(0) => positions,
                Some(s) => positions + s,
                None => positions + size_as_tensor(start),
            };
            Ok(x.index_select(dim as i64, positions))
        }
        _ => Err(invalid("a step needs known sizes")),
    }
}

fn pad(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let rank = x.ndim();
    let pads = match c.integers(1)? {
        Some(list) => list,
        None => c
            .ints("pads")?
            .or(c.ints("paddings")?)
            .ok_or_else(|| invalid("the pads are missing"))?,
    };
    let list = match c.integers(3)? {
        Some(list) => axes(&list, rank)?,
        None => (0..rank).collect(),
    };
    if pads.len() != 2 * list.len() {
        return Err(invalid(format!(
            "{} pads for {} axes",
            pads.len(),
            list.len()
        )));
    }
    let (before, after) = pads.split_at(list.len());
    match c.text("mode", "constant")? {
        "constant" => {
            let value = match c.optional(2)? {
                None => c.float("value", 0.0)?,
                Some(_) => c.first_number(2)?.unwrap_or(0.0),
            };
            let value = match x.dtype().is_float() {
                true => Scalar::Float(value),
                false => Scalar::Int(value as i64),
            };
            single(pad_constant(&x, &list, before, after, value))
        }
        mode => {
            let mut y = x;
            for (i, axis) in list.into_iter().enumerate() {
                if (before[i], after[i]) != (0, 0) {
                    let positions =
                        border_positions(mode, known_size(&y, axis)?, before[i], after[i])?;
                    y = y.index_select(axis as i64, Tensor::from(positions));
                }
            }
            single(y)
        }
    }
}

/// Pads axes with a value; negative sizes crop.
pub(super) fn pad_constant(
    x: &Tensor,
    list: &[usize],
    before: &[i64],
    after: &[i64],
    value: Scalar,
) -> Tensor {
    let mut padding = vec![0; 2 * x.ndim()];
    for (i, axis) in list.iter().enumerate() {
        let Some(from_last) = x.ndim().checked_sub(1 + axis) else {
            return x.clone(); // an error
        };
        (padding[2 * from_last], padding[2 * from_last + 1]) = (before[i], after[i]);
    }
    if padding.iter().all(|s| *s == 0) {
        return x.clone();
    }
    x.pad(padding, PadMode::Constant(value))
}

/// Returns the positions of the elements of a padded axis.
fn border_positions(mode: &str, n: i64, before: i64, after: i64) -> Result<Vec<i64>> {
    let limit = 1 << 32;
    if n < 1 || before.abs() > limit || after.abs() > limit {
        return Err(invalid(format!(
            "can't pad a size of {n} by {before} and {after}"
        )));
    }
    let source = |i: i64| match mode {
        "edge" => Ok(i.clamp(0, n - 1)),
        "wrap" => Ok(i.rem_euclid(n)),
        "reflect" if n == 1 => Ok(0),
        "reflect" => {
            let period = 2 * (n - 1);
            let i = i.rem_euclid(period);
            Ok(i.min(period - i))
        }
        other => Err(invalid(format!("there is no mode {other:?}"))),
    };
    (-before..n + after).map(source).collect()
}

fn center_crop_pad(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let target_sizes = c.required_integers(1)?;
    let list = match c.ints("axes")? {
        Some(list) => axes(&list, x.ndim())?,
        None => (0..x.ndim()).collect(),
    };
    if target_sizes.len() != list.len() {
        return Err(invalid(format!(
            "{} sizes for {} axes",
            target_sizes.len(),
            list.len()
        )));
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (axis, target_sizes) in list.iter().zip(target_sizes) {
        let n = known_size(&x, *axis)?;
        // An odd element more is padded or cropped at the end.
        let half = (target_sizes - n).abs() / 2 * (target_sizes - n).signum();
        before.push(half);
        after.push(target_sizes - n - half);
    }
    single(pad_constant(&x, &list, &before, &after, Scalar::Int(0)))
}

/// Returns the sizes of an image `[n, c, h, w]`, and the block size.
fn block_sizes(c: &Call, x: &Tensor) -> Result<[Dim; 5]> {
    let [n, channels, h, w] = x.dims() else {
        return Err(invalid(format!("needs 4 dims, not {}", x.ndim())));
    };
    let size = c.int("blocksize", 0)?;
    if size < 1 {
        return Err(invalid(format!("a block can't have the size {size}")));
    }
    Ok([
        n.clone(),
        channels.clone(),
        h.clone(),
        w.clone(),
        size.into(),
    ])
}

fn divide(a: &Dim, b: &Dim) -> Result<Dim> {
    a.div_exact(b).map_err(|e| invalid(e.to_string()))
}

fn depth_to_space(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let [n, channels, h, w, b] = block_sizes(c, &x)?;
    let depth = divide(&channels, &(&b * &b))?;
    let split = |shape: [&Dim; 6]| x.reshape(shape.map(Dim::clone).to_vec());
    let moved = match c.text("mode", "DCR")? {
        "DCR" => split([&n, &b, &b, &depth, &h, &w]).permute([0, 3, 4, 1, 5, 2]),
        "CRD" => split([&n, &depth, &b, &b, &h, &w]).permute([0, 1, 4, 2, 5, 3]),
        other => return Err(invalid(format!("there is no mode {other:?}"))),
    };
    single(moved.reshape(vec![n, depth, &h * &b, &w * &b]))
}

fn space_to_depth(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let [n, channels, h, w, b] = block_sizes(c, &x)?;
    let (rows, columns) = (divide(&h, &b)?, divide(&w, &b)?);
    let split = [&n, &channels, &rows, &b, &columns, &b].map(Dim::clone);
    let split = x.reshape(split.to_vec());
    let depth = &(&channels * &b) * &b;
    let moved = match c.text("mode", "DCR")? {
        "DCR" => split.permute([0, 3, 5, 1, 2, 4]),
        "CRD" => split.permute([0, 1, 3, 5, 2, 4]),
        other => return Err(invalid(format!("there is no mode {other:?}"))),
    };
    single(moved.reshape(vec![n, depth, rows, columns]))
}

fn reverse_sequence(c: &Call) -> Results {
    let (x, lengths) = (c.tensor(0)?, c.tensor(1)?);
    let time = c.axis("time_axis", 0, x.ndim())?;
    let batch = c.axis("batch_axis", 1, x.ndim())?;
    let mut shape = vec![Dim::ONE; x.ndim()];
    shape[batch] = x.dims()[batch].clone();
    let lengths = lengths.reshape(shape);
    let mut shape = vec![Dim::ONE; x.ndim()];
    shape[time] = x.dims()[time].clone();
    let position = iota(&x.dims()[time]).reshape(shape);
    let reversed = &lengths - 1i64 - &position;
    let index = reversed.where_cond(position.lt(&lengths), &position);
    single(x.gather(time as i64, index.expand(x.dims())))
}
