//! Pooling.

use crate::reduce::{positions, zeros_like};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_base::{DType, Dim, Kind, Scalar, numel};
use kiln_ir::ops::{ArgReduce, Axes, Concat, Pad, Scatter, SliceAxis, WindowReduce, cropped};
use kiln_ir::{Builder, OpError, Pw, Shape, ensure};

pub(crate) fn pullback<B: Builder>(
    b: &mut B,
    op: &WindowReduce,
    g: &B::Value,
    x: &B::Value,
) -> Result<B::Value, OpError> {
    match op.kind {
        Reduction::Sum => sum(b, op, g, x),
        Reduction::Max | Reduction::Min => extreme(b, op, g, x),
        Reduction::Prod => Err(OpError::new("products over windows have no derivative")),
    }
}

/// Every window adds its gradient to all its elements: sums over windows of the spaced gradient.
fn sum<B: Builder>(
    b: &mut B,
    op: &WindowReduce,
    g: &B::Value,
    x: &B::Value,
) -> Result<B::Value, OpError> {
    let shape = b.fact(x).shape;
    let first = shape.len() - op.kernel.len();
    let mut g = g.clone();
    let mut padding = Vec::new();
    for a in 0..op.kernel.len() {
        let axis = first + a;
        g = b.spaced(&g, axis, op.stride[a])?;
        let reach = (op.dilation[a] * (op.kernel[a] - 1)) as i64;
        let low = reach - op.padding[a].0 as i64;
        let extent = b.fact(&g).shape[axis].clone();
        let high = &(&(&shape[axis] - &extent) - &Dim::Const(low)) + &Dim::Const(reach);
        let high = high
            .as_const()
            .ok_or_else(|| OpError(format!("needs a known size, not {}", shape[axis])))?;
        let border;
        (g, border) = cropped(b, &g, axis, low, high)?;
        padding.push(border);
    }
    let op = WindowReduce {
        kind: Reduction::Sum,
        kernel: op.kernel.clone(),
        stride: Axes::from_elem(1, op.kernel.len()),
        padding,
        dilation: op.dilation.clone(),
    };
    b.op(op, &[g])
}

/// Each gradient goes to the first extreme of its window.
fn extreme<B: Builder>(
    b: &mut B,
    op: &WindowReduce,
    g: &B::Value,
    x: &B::Value,
) -> Result<B::Value, OpError> {
    let shape = b.fact(x).shape;
    let first = shape.len() - op.kernel.len();
    let out = b.fact(g).shape;
    let taps = taps(b, op, x, &out)?;
    let arg = ArgReduce {
        kind: op.kind,
        axis: shape.len(),
    };
    let tap = b.op(arg, &[taps])?;
    // The place within the plane, from the tap within the window.
    let mut rest = tap;
    let mut place = b.full(0i64, DType::I64, &out)?;
    let mut stride = Dim::ONE;
    for a in (0..op.kernel.len()).rev() {
        let axis = first + a;
        let within = b.with(Pw::Remainder, &rest, op.kernel[a] as i64)?;
        rest = b.with(Pw::FloorDivide, &rest, op.kernel[a] as i64)?;
        let window = positions(b, &out, axis)?;
        let start = b.with(Pw::Mul, &window, op.stride[a] as i64)?;
        let start = b.with(Pw::Sub, &start, op.padding[a].0 as i64)?;
        let offset = b.with(Pw::Mul, &within, op.dilation[a] as i64)?;
        let at = b.pointwise(Pw::Add, &[start, offset])?;
        let step = stride
            .as_const()
            .ok_or_else(|| OpError(format!("needs known sizes, not {stride}")))?;
        let at = b.with(Pw::Mul, &at, step)?;
        place = b.pointwise(Pw::Add, &[place, at])?;
        stride = &stride * &shape[axis];
    }
    let rows = |shape: &Shape| [numel(&shape[..first]), numel(&shape[first..])];
    let place = b.reshape(&place, &rows(&out))?;
    let g = b.reshape(g, &rows(&out))?;
    let zero = zeros_like(b, x)?;
    let zero = b.reshape(&zero, &rows(&shape))?;
    let scatter = Scatter {
        axis: 1,
        kind: ScatterKind::Sum,
    };
    let dx = b.op(scatter, &[zero, place, g])?;
    b.reshape(&dx, &shape)
}

/// The elements of each window along a new last axis, in row-major order of the window.
fn taps<B: Builder>(
    b: &mut B,
    op: &WindowReduce,
    x: &B::Value,
    out: &Shape,
) -> Result<B::Value, OpError> {
    let fact = b.fact(x);
    let first = fact.rank() - op.kernel.len();
    let mut low = Shape::from_elem(Dim::ZERO, fact.rank());
    let mut high = low.clone();
    for (a, p) in op.padding.iter().enumerate() {
        (low[first + a], high[first + a]) = (Dim::from(p.0), Dim::from(p.1));
    }
    let value = never(fact.dtype, op.kind);
    let padded = b.op(Pad { low, high, value }, std::slice::from_ref(x))?;
    let extents = b.fact(&padded).shape;
    let count: usize = op.kernel.iter().product();
    ensure!(count > 0, "a window needs elements");
    let mut column = out.clone();
    column.push(Dim::ONE);
    let mut parts = Vec::with_capacity(count);
    for tap in 0..count {
        let mut axes: Vec<SliceAxis> = extents.iter().map(SliceAxis::all).collect();
        let mut rest = tap;
        for a in (0..op.kernel.len()).rev() {
            axes[first + a] = SliceAxis {
                start: Dim::from(rest % op.kernel[a] * op.dilation[a]),
                len: out[first + a].clone(),
                step: op.stride[a] as i64,
            };
            rest /= op.kernel[a];
        }
        let part = b.op(kiln_ir::ops::Slice { axes }, std::slice::from_ref(&padded))?;
        parts.push(b.reshape(&part, &column)?);
    }
    b.op(Concat { axis: out.len() }, &parts)
}

/// What no extreme prefers.
fn never(dtype: DType, kind: Reduction) -> Scalar {
    match (dtype.kind(), dtype.int_range(), kind) {
        (Kind::Float, _, Reduction::Max) => Scalar::Float(f64::NEG_INFINITY),
        (Kind::Float, ..) => Scalar::Float(f64::INFINITY),
        (_, Some((low, _)), Reduction::Max) => Scalar::Int(low as i64),
        (_, Some((_, high)), _) => Scalar::Int(high as i64),
        _ => Scalar::Int(0),
    }
}
