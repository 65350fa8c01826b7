//! Reductions, and softmax, which is two.

use super::Record;
use super::shape::pad_constant;
use crate::call::{Call, Results, axes, known_size, single};
use crate::fault::invalid;
use kiln_base::Dim;
use kiln_tensor::{DType, Scalar, Tensor, keep};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "ReduceL1" => |c| reduce_axes(c, |x, a| x.abs().sum(keep(a)), Scalar::Int(0)),
        "ReduceL2" => |c| reduce_in_floats(c, |x, a| (x * x).sum(keep(a)).sqrt(), Scalar::Int(0)),
        "ReduceLogSum" => |c| {
            reduce_in_floats(
                c,
                |x, a| x.sum(keep(a)).log(),
                Scalar::Float(f64::NEG_INFINITY),
            )
        },
        "ReduceLogSumExp" => |c| {
            reduce_in_floats(
                c,
                |x, a| x.logsumexp(keep(a)),
                Scalar::Float(f64::NEG_INFINITY),
            )
        },
        "ReduceMax" => |c| extreme(c, |x, a| x.amax(keep(a)), false),
        "ReduceMean" => |c| reduce_in_floats(c, |x, a| x.mean(keep(a)), Scalar::Float(f64::NAN)),
        "ReduceMin" => |c| extreme(c, |x, a| x.amin(keep(a)), true),
        "ReduceProd" => |c| reduce_axes(c, |x, a| x.prod(keep(a)), Scalar::Int(1)),
        "ReduceSum" => |c| reduce_axes(c, |x, a| x.sum(keep(a)), Scalar::Int(0)),
        "ReduceSumSquare" => |c| reduce_axes(c, |x, a| (x * x).sum(keep(a)), Scalar::Int(0)),

        "ArgMax" => |c| arg(c, |x, a| x.argmax(keep(a))),
        "ArgMin" => |c| arg(c, |x, a| x.argmin(keep(a))),
        "Hardmax" => |c| {
            along_axis(c, |x, a| {
                let best = x.argmax(keep(a));
                x.zeros_like().scatter(a, best, 1)
            })
        },
        "LogSoftmax" => |c| along_axis(c, |x, a| x.log_softmax(a)),
        "Softmax" => |c| along_axis(c, |x, a| x.softmax(a)),
        "CumProd" => |c| scan_axis(c, |x, a| x.cumprod(a), 1),
        "CumSum" => |c| scan_axis(c, |x, a| x.cumsum(a), 0),
        _ => return None,
    })
}

/// A reduction of `c`'s axes. `f` keeps them with size 1; `empty` is the reduction of nothing.
fn reduce_axes(c: &Call, f: impl Fn(&Tensor, &[i64]) -> Tensor, empty: Scalar) -> Results {
    let x = c.tensor(0)?;
    let list = c.integers_or(1, "axes")?.unwrap_or_default();
    if list.is_empty() && c.flag("noop_with_empty_axes", false)? {
        // Of each element by itself: without an axis, but not without its function.
        return single(f(&x.unsqueeze(-1), &[-1]).squeeze(-1).to_dtype(x.dtype()));
    }
    let list = match list.is_empty() {
        true => (0..x.ndim()).collect(),
        false => axes(&list, x.ndim())?,
    };
    let dims: Vec<i64> = list.iter().map(|a| *a as i64).collect();
    let y = if dims.is_empty() {
        f(&x.unsqueeze(-1), &[-1]).squeeze(-1)
    } else if list.iter().any(|a| x.dims()[*a].is(0)) {
        let mut shape = x.dims().to_vec();
        list.iter().for_each(|a| shape[*a] = Dim::ONE);
        Tensor::full(shape, empty, x.dtype())
    } else {
        f(&x, &dims)
    };
    // Integer sums are of the operand's dtype in ONNX.
    let y = y.to_dtype(x.dtype());
    match c.flag("keepdims", true)? || dims.is_empty() {
        true => single(y),
        false => single(y.squeeze(dims)),
    }
}

/// A reduction that is computed in floats, and rounded towards 0 for integers.
fn reduce_in_floats(c: &Call, f: impl Fn(&Tensor, &[i64]) -> Tensor, empty: Scalar) -> Results {
    let wide = |x: &Tensor, a: &[i64]| match x.dtype().is_float() {
        true => f(x, a),
        false => f(&x.to_dtype(DType::F64), a),
    };
    reduce_axes(c, wide, empty)
}

fn extreme(c: &Call, f: impl Fn(&Tensor, &[i64]) -> Tensor, is_min: bool) -> Results {
    let dtype = c.tensor(0)?.dtype();
    let empty = match dtype.int_range() {
        Some((_, high)) if is_min => Scalar::Int(i64::try_from(high).unwrap_or(i64::MAX)),
        Some((low, _)) => Scalar::Int(low as i64),
        None if dtype == DType::Bool => Scalar::Bool(is_min),
        None if is_min => Scalar::Float(f64::INFINITY),
        None => Scalar::Float(f64::NEG_INFINITY),
    };
    reduce_axes(c, f, empty)
}

fn arg(c: &Call, f: impl Fn(&Tensor, i64) -> Tensor) -> Results {
    let x = c.tensor(0)?;
    let axis = c.axis("axis", 0, x.ndim())? as i64;
    let y = match c.flag("select_last_index", false)? {
        false => f(&x, axis),
        true => f(&x.flip(axis), axis).rsub(known_size(&x, axis as usize)? - 1),
    };
    match c.flag("keepdims", true)? {
        true => single(y),
        false => single(y.squeeze(axis)),
    }
}

/// An operator along an axis. Before version 13, all axes from it on are one.
fn along_axis(c: &Call, f: impl Fn(&Tensor, i64) -> Tensor) -> Results {
    let x = c.tensor(0)?;
    if c.version >= 13 {
        return single(f(&x, c.axis("axis", -1, x.ndim())? as i64));
    }
    let axis = c.axis("axis", 1, x.ndim())?;
    let shape = x.dims().to_vec();
    let rows = kiln_base::numel(&shape[..axis]);
    let columns = kiln_base::numel(&shape[axis..]);
    single(f(&x.reshape(vec![rows, columns]), 1).reshape(shape))
}

/// Sums or products of all elements up to each.
fn scan_axis(c: &Call, f: impl Fn(&Tensor, i64) -> Tensor, initial: i64) -> Results {
    let x = c.tensor(0)?;
    let [at] = axes(&c.required_integers(1)?, x.ndim())?[..] else {
        return Err(invalid("needs one axis"));
    };
    let backwards = c.flag("reverse", false)?;
    let flipped = |t: Tensor| if backwards { t.flip(at as i64) } else { t };
    let y = f(&flipped(x.clone()), at as i64).to_dtype(x.dtype());
    let y = match c.flag("exclusive", false)? {
        true => pad_constant(&y, &[at], &[1], &[-1], Scalar::Int(initial)),
        false => y,
    };
    single(flipped(y))
}
