//! Pooling.

use crate::erased::{Erased, Id};
use crate::reduce::positions;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Scalar, numel};
use kiln_ir::ops::{Axes, Pad, Slice, SliceAxis, WindowReduce, crop};
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &WindowReduce,
    g: &Id,
    x: &Id,
) -> Result<Id, OpError> {
    match op.kind {
        Reduction::Sum => sum(b, op, g, x),
        Reduction::Max | Reduction::Min => extreme(b, op, g, x),
        Reduction::Prod => Err(OpError::new("products over windows have no derivative")),
    }
}

/// Adds the gradient of every window to all its elements, by sums over windows of the spaced gradient.
fn sum(b: &mut Erased<'_>, op: &WindowReduce, g: &Id, x: &Id) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let first_axis = shape.len() - op.kernel.len();
    let mut g = g.clone();
    let mut padding = Vec::new();
    for a in 0..op.kernel.len() {
        let axis = first_axis + a;
        g = b.spaced(&g, axis, op.stride[a])?;
        let span = (op.dilation[a] * (op.kernel[a] - 1)) as i64;
        let low = span - op.padding[a].0 as i64;
        let extent = b.fact(&g).shape[axis].clone();
        let high = &(&(&shape[axis] - &extent) - &Dim::Const(low)) + &Dim::Const(span);
        // An upper bound of the elements that the stride left out at the end.
        let bound = span - op.padding[a].1 as i64 + op.stride[a] as i64 - 1;
        let high = high.as_const().unwrap_or(bound);
        let border;
        (g, border) = crop(b, &g, axis, low, high)?;
        padding.push(border);
    }
    let op = WindowReduce {
        kind: Reduction::Sum,
        kernel: op.kernel.clone(),
        stride: Axes::from_elem(1, op.kernel.len()),
        padding,
        dilation: op.dilation.clone(),
    };
    let mut dx = b.op(op, &[g])?;
    for (axis, extent) in shape.iter().enumerate().skip(first_axis) {
        dx = b.narrow(&dx, axis, 0i64, extent.clone())?;
    }
    Ok(dx)
}

/// Passes each gradient to the first extreme of its window, or to the first NaN.
fn extreme(b: &mut Erased<'_>, op: &WindowReduce, g: &Id, x: &Id) -> Result<Id, OpError> {
    let shape = b.fact(x).shape;
    let first_axis = shape.len() - op.kernel.len();
    let out = b.fact(g).shape;
    let steps = (first_axis..shape.len()).map(|a| numel(&shape[a + 1..]));
    let steps: Vec<Dim> = steps.collect();
    // The positions in the plane of the start of each window, and of its first element outside the padding, which
    // stays the extreme if all are infinite.
    let mut start = b.full(0i64, DType::I64, &out)?;
    let mut best_position = start.clone();
    for (a, step) in steps.iter().enumerate() {
        let window = positions(b, &out, first_axis + a)?;
        let position = b.with(Pw::Mul, &window, op.stride[a] as i64)?;
        let position = b.with(Pw::Sub, &position, op.padding[a].0 as i64)?;
        let first_inside = inside(b, &position, op.dilation[a] as i64, op.padding[a].0 > 0)?;
        for (sum, position) in [(&mut start, position), (&mut best_position, first_inside)] {
            let position = b.with_size(Pw::Mul, &position, step)?;
            *sum = b.pointwise(Pw::Add, &[sum.clone(), position])?;
        }
    }
    let taps = taps(b, op, x, &out)?;
    let is_no_better = match op.kind {
        Reduction::Max => Pw::Le,
        _ => Pw::Ge,
    };
    let mut best = taps[0].0.clone();
    for (value, tap) in &taps[1..] {
        let offset = tap.iter().zip(&steps);
        let offset = offset.fold(Dim::ZERO, |sum, (w, s)| &sum + &(&Dim::Const(*w) * s));
        // A NaN is not worse than any value, so it is selected, and then kept.
        let worse = b.pointwise(is_no_better, &[value.clone(), best.clone()])?;
        let is_number = b.pointwise(Pw::Eq, &[best.clone(), best.clone()])?;
        let better = b.pointwise(Pw::Not, &[worse])?;
        let better = b.pointwise(Pw::And, &[better, is_number])?;
        let position = b.with_size(Pw::Add, &start, &offset)?;
        best = b.pointwise(Pw::Select, &[better.clone(), value.clone(), best])?;
        best_position = b.pointwise(Pw::Select, &[better, position, best_position])?;
    }
    let plane_shape = |shape: &Shape| [numel(&shape[..first_axis]), numel(&shape[first_axis..])];
    let best_position = b.reshape(&best_position, &plane_shape(&out))?;
    let g = b.reshape(g, &plane_shape(&out))?;
    let zero = b.full_like(0.0, x)?;
    let zero = b.reshape(&zero, &plane_shape(&shape))?;
    let dx = b.scatter_add(&zero, 1, &best_position, &g)?;
    b.reshape(&dx, &shape)
}

/// Returns the first of start, start + dilation, … that is not negative.
fn inside(b: &mut Erased<'_>, start: &Id, dilation: i64, padded: bool) -> Result<Id, OpError> {
    if !padded {
        return Ok(start.clone());
    }
    let steps = b.with(Pw::Mul, start, -1i64)?;
    let steps = b.with(Pw::Add, &steps, dilation - 1)?;
    let steps = b.with(Pw::Maximum, &steps, 0i64)?;
    let skipped = b.with(Pw::FloorDivide, &steps, dilation)?;
    let skipped = b.with(Pw::Mul, &skipped, dilation)?;
    b.pointwise(Pw::Add, &[start.clone(), skipped])
}

/// The values of one element of a window in all windows, and its offset from the window's start.
type Tap<V> = (V, Vec<i64>);

/// Returns, for each element of a window, its values in all windows and its offset from the window's start, in
/// row-major order.
fn taps(
    b: &mut Erased<'_>,
    op: &WindowReduce,
    x: &Id,
    out: &Shape,
) -> Result<Vec<Tap<Id>>, OpError> {
    let fact = b.fact(x);
    let first_axis = fact.rank() - op.kernel.len();
    let mut low = Shape::from_elem(Dim::ZERO, fact.rank());
    let mut high = low.clone();
    for (a, p) in op.padding.iter().enumerate() {
        (low[first_axis + a], high[first_axis + a]) = (Dim::from(p.0), Dim::from(p.1));
    }
    let value = Scalar::Float(match op.kind {
        Reduction::Max => f64::NEG_INFINITY,
        _ => f64::INFINITY,
    });
    let padded = b.op(Pad { low, high, value }, std::slice::from_ref(x))?;
    let extents = b.fact(&padded).shape;
    let count: usize = op.kernel.iter().product();
    ensure!(count > 0, "a window needs elements");
    let mut taps = Vec::with_capacity(count);
    for tap in 0..count {
        let mut axes: Vec<SliceAxis> = extents.iter().map(SliceAxis::all).collect();
        let mut window_offset = vec![0; op.kernel.len()];
        let mut remaining = tap;
        for a in (0..op.kernel.len()).rev() {
            let offset = remaining % op.kernel[a] * op.dilation[a];
            window_offset[a] = offset as i64;
            axes[first_axis + a] = SliceAxis {
                start: Dim::from(offset),
                len: out[first_axis + a].clone(),
                step: op.stride[a] as i64,
            };
            remaining /= op.kernel[a];
        }
        let values = b.op(Slice { axes }, std::slice::from_ref(&padded))?;
        taps.push((values, window_offset));
    }
    Ok(taps)
}
