//! Reductions, scans, pooling and normalisation.

use super::attributes::{float, int, ints};
use super::pointwise::cast;
use super::refusals::{needs_opset, no_counterpart};
use super::writer::{Name, Value, Writer};
use super::{control, shape};
use kiln_base::Dim;
use kiln_base::prim::{Reduction, ScanKind};
use kiln_ir::{Builder, DType, Fact, OpDef, OpError, Pw, Scalar, Shape, ops};

pub(super) fn reduce(
    w: &mut Writer,
    x: &Value,
    op: &ops::Reduce,
    fact: Fact,
) -> Result<Value, OpError> {
    if op.axes.is_empty() {
        return Ok(x.clone());
    }
    let (name, since) = match op.kind {
        Reduction::Sum => ("ReduceSum", 13),
        Reduction::Prod => ("ReduceProd", 18),
        Reduction::Max => ("ReduceMax", 18),
        Reduction::Min => ("ReduceMin", 18),
    };
    let mut inputs = vec![w.name(x)];
    let mut attributes = vec![int("keepdims", 0)];
    match w.opset < since {
        true => attributes.push(ints("axes", op.axes.iter().copied())),
        false => {
            let axes: Vec<i64> = op.axes.iter().map(|a| *a as i64).collect();
            inputs.push(w.ints(&axes));
        }
    }
    Ok(w.single(name, &inputs, attributes, fact))
}

pub(super) fn arg_reduce(w: &mut Writer, x: &Value, op: &ops::ArgReduce, fact: Fact) -> Value {
    let name = match op.kind {
        Reduction::Max => "ArgMax",
        _ => "ArgMin",
    };
    let x = w.name(x);
    let attributes = vec![int("axis", op.axis as i64), int("keepdims", 0)];
    w.single(name, &[x], attributes, fact)
}

pub(super) fn scan(
    w: &mut Writer,
    x: &Value,
    op: &ops::Scan,
    fact: Fact,
) -> Result<Value, OpError> {
    if op.kind != ScanKind::Sum {
        return control::running(w, x, op);
    }
    let inputs = [w.name(x), w.scalar(op.axis as i64, DType::I64).name];
    let reverse = vec![int("reverse", i64::from(op.reverse))];
    Ok(w.single("CumSum", &inputs, reverse, fact))
}

/// Writes a pooling. A sum is an average over all elements of the window, times their number.
pub(super) fn window(
    w: &mut Writer,
    x: &Value,
    op: &ops::WindowReduce,
    fact: Fact,
) -> Result<Value, OpError> {
    let (rank, spatial) = (x.rank(), op.kernel.len());
    if op.kind == Reduction::Prod {
        return no_counterpart("the product of a window");
    }
    if spatial == 0 {
        return Ok(x.clone());
    }
    let is_dilated = op.dilation.iter().any(|d| *d != 1);
    if op.kind == Reduction::Sum && is_dilated && w.opset < 19 {
        return needs_opset("a dilated average", 19);
    }
    // Integers, up to what floats hold exactly.
    if !fact.dtype.is_float() {
        let bits = 8 * fact.dtype.size();
        let float = if bits <= 16 { DType::F32 } else { DType::F64 };
        if bits > 32 {
            return no_counterpart(&format!("pooling of {}", fact.dtype));
        }
        let x = cast(w, x, float);
        let y = window(w, &x, op, fact.with_dtype(float))?;
        return Ok(cast(w, &y, fact.dtype));
    }
    if op.kind == Reduction::Min {
        let op = ops::WindowReduce {
            kind: Reduction::Max,
            ..op.clone()
        };
        let x = w.op(ops::Pointwise(Pw::Neg), std::slice::from_ref(x))?;
        let y = window(w, &x, &op, fact)?;
        return w.op(ops::Pointwise(Pw::Neg), &[y]);
    }
    let mut x = x.clone();
    if rank != spatial + 2 {
        let (lead, last) = x.fact.shape.split_at(rank - spatial);
        let mut flat: Vec<Dim> = vec![Dim::ONE, kiln_base::numel(lead)];
        flat.extend_from_slice(last);
        x = w.reshape(&x, &flat)?;
    }
    // Runtimes refuse a border as large as the window.
    let mut padding = op.padding.clone();
    let large = |((low, high), kernel): (&(usize, usize), &usize)| *low.max(high) >= *kernel;
    if padding.iter().zip(&op.kernel).any(large) {
        let border = |side: fn(&(usize, usize)) -> usize| {
            let sizes = padding.iter().map(|p| Dim::from(side(p)));
            let border: Shape = [Dim::ZERO, Dim::ZERO].into_iter().chain(sizes).collect();
            border
        };
        let identity = match op.kind {
            Reduction::Sum => 0.0,
            _ => f64::NEG_INFINITY,
        };
        let pad = ops::Pad {
            low: border(|p| p.0),
            high: border(|p| p.1),
            value: Scalar::Float(identity),
        };
        x = w.op(pad, &[x])?;
        padding.fill((0, 0));
    }
    let flat = ops::WindowReduce {
        padding: padding.clone(),
        ..op.clone()
    };
    let inferred = flat.infer(&[&x.fact])?.swap_remove(0);
    let mut attributes = vec![
        ints("kernel_shape", op.kernel.iter().copied()),
        ints("strides", op.stride.iter().copied()),
        ints("pads", pads(&padding)),
    ];
    if is_dilated {
        attributes.push(ints("dilations", op.dilation.iter().copied()));
    }
    let name = w.name(&x);
    let pooled = match op.kind {
        Reduction::Sum => {
            attributes.push(int("count_include_pad", 1));
            let mean = w.single("AveragePool", &[name], attributes, inferred);
            let count = w.scalar(op.kernel.iter().product::<usize>() as f64, fact.dtype);
            w.pointwise(Pw::Mul, &[mean, count])?
        }
        _ => w.single("MaxPool", &[name], attributes, inferred),
    };
    match pooled.rank() == rank {
        true => Ok(pooled),
        false => Ok(shape::reshape(w, &pooled, fact)),
    }
}

/// Borders as ONNX lists them: all in front, then all behind.
pub(super) fn pads(padding: &[(usize, usize)]) -> impl Iterator<Item = usize> {
    let before = padding.iter().map(|p| p.0);
    before.chain(padding.iter().map(|p| p.1))
}

pub(super) fn softmax(w: &mut Writer, x: &Value, op: &ops::Softmax, fact: Fact) -> Value {
    let name = if op.log { "LogSoftmax" } else { "Softmax" };
    let x = w.name(x);
    w.single(name, &[x], vec![int("axis", op.axis as i64)], fact)
}

pub(super) fn batch_norm(
    w: &mut Writer,
    inputs: &[Value],
    op: &ops::BatchNorm,
    fact: Fact,
) -> Result<Value, OpError> {
    let channels = &inputs[1].fact.shape;
    let mut names: Vec<Name> = vec![w.name(&inputs[0])];
    if op.affine {
        names.extend([w.name(&inputs[3]), w.name(&inputs[4])]);
    } else {
        let (unit, zero) = (w.scalar(1.0, fact.dtype), w.scalar(0.0, fact.dtype));
        for v in [unit, zero] {
            names.push(w.name(&v.stretched(channels.clone())));
        }
    }
    names.extend([w.name(&inputs[1]), w.name(&inputs[2])]);
    let eps = vec![float("epsilon", op.eps.as_f64())];
    Ok(w.single("BatchNormalization", &names, eps, fact))
}
