//! Operators that make tensors from numbers and shapes.

use super::Record;
use crate::call::{Call, Results, single};
use crate::fault::{invalid, unsupported};
use crate::tensor;
use crate::text::Text;
use crate::value::{Element, Known, iota};
use kiln_base::Dim;
use kiln_tensor::{DType, Scalar, Tensor, default_device};
use std::f64::consts::PI;

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "BlackmanWindow" => |c| window(c, &[0.42, -0.5, 0.08]),
        "Constant" => constant,
        "ConstantOfShape" => constant_of_shape,
        "Dropout" => dropout,
        "EyeLike" => eye_like,
        "HammingWindow" => |c| window(c, &[25.0 / 46.0, 25.0 / 46.0 - 1.0]),
        "HannWindow" => |c| window(c, &[0.5, -0.5]),
        "OneHot" => one_hot,
        "Range" => range,
        "Trilu" => |c| {
            let x = c.tensor(0)?;
            let k = c.first_integer(1)?.unwrap_or(0);
            // A mask, since a diagonal may lie far outside.
            let rank = x.ndim();
            if rank < 2 {
                return Err(invalid(format!("needs 2 dims, not {rank}")));
            }
            let rows = iota(&x.dims()[rank - 2]).unsqueeze(-1);
            let distance = iota(&x.dims()[rank - 1]) - rows;
            let kept = match c.flag("upper", true)? {
                true => distance.ge(k),
                false => distance.le(k),
            };
            single(x.where_cond(kept, x.zeros_like()))
        },
        _ => return None,
    })
}

fn constant(c: &Call) -> Results {
    if let Some(t) = c.tensor_attribute("value")? {
        return Ok(vec![tensor::constant(t, c.scope.model.folder.as_deref())?]);
    }
    if let Some(t) = c
        .attribute("sparse_value")
        .and_then(|a| a.sparse_tensor.as_ref())
    {
        return single(tensor::read_sparse(t)?.to(default_device()));
    }
    if let Some(list) = c.texts("value_strings")? {
        let shape = [list.len()];
        return Ok(vec![Text::new(list, &shape)?.into()]);
    }
    if c.attribute("value_string").is_some() {
        return Ok(vec![Text::new([c.text("value_string", "")?], &[])?.into()]);
    }
    let int = |n: &i64| Element::Int(Dim::Const(*n));
    let (dtype, shape, elements) = if let Some(list) = c.ints("value_ints")? {
        (DType::I64, vec![list.len()], list.iter().map(int).collect())
    } else if let Some(list) = c.floats("value_floats")? {
        let elements = list.iter().map(|f| Element::Float(*f)).collect();
        (DType::F32, vec![list.len()], elements)
    } else if c.attribute("value_int").is_some() {
        (DType::I64, vec![], vec![int(&c.int("value_int", 0)?)])
    } else if let Some(f) = c.maybe_float("value_float")? {
        (DType::F32, vec![], vec![Element::Float(f)])
    } else {
        return Err(unsupported("a constant of text"));
    };
    let known = Known {
        dtype,
        shape,
        elements,
    };
    Ok(vec![known.into()])
}

fn constant_of_shape(c: &Call) -> Results {
    let sizes = c.sizes(0)?.ok_or_else(|| invalid("the shape is missing"))?;
    let (dtype, value) = match c.tensor_attribute("value")? {
        Some(t) => {
            let (t, known) = tensor::read_constant(t, None)?;
            let fill = known.and_then(|k| k.elements.into_iter().next());
            let fill = fill.and_then(|e| match e {
                Element::Int(d) => d.as_const().map(Scalar::Int),
                Element::Float(f) => Some(Scalar::Float(f)),
            });
            let message = || unsupported(format!("a constant of {}", t.dtype()));
            (t.dtype(), fill.ok_or_else(message)?)
        }
        None => (DType::F32, Scalar::Float(0.0)),
    };
    single(Tensor::full(sizes, value, dtype))
}

fn eye_like(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let [rows, columns] = x.dims() else {
        return Err(invalid(format!("needs 2 dims, not {}", x.ndim())));
    };
    let distance = iota(columns) - iota(rows).unsqueeze(-1);
    let dtype = c.dtype("dtype", x.dtype())?;
    single(distance.eq(c.int("k", 0)?).to_dtype(dtype))
}

fn one_hot(c: &Call) -> Results {
    let (indices, values) = (c.tensor(0)?, c.tensor(2)?);
    let depth = match c.numbers(1)?.as_deref() {
        Some([depth]) => *depth as i64,
        _ => return Err(invalid("the depth must be one number")),
    };
    let axis = c.axis("axis", -1, indices.ndim() + 1)?;
    let indices = indices.to_dtype(DType::I64);
    let positive = (&indices + depth).where_cond(indices.lt(0), &indices);
    let mut shape = vec![Dim::ONE; indices.ndim() + 1];
    shape[axis] = Dim::Const(depth);
    let classes = Tensor::arange_dtype(0, depth, 1, DType::I64).reshape(shape);
    let hot = positive.unsqueeze(axis).eq(classes);
    single(values.select(0, 1).where_cond(hot, values.select(0, 0)))
}

fn range(c: &Call) -> Results {
    let dtype = c.tensor(0)?.dtype();
    if dtype.is_float() {
        let number = |i: usize| match c.numbers(i)?.as_deref() {
            Some([n]) => Ok(*n),
            _ => Err(invalid(format!("input {i} must be one number"))),
        };
        let (start, end, step) = (number(0)?, number(1)?, number(2)?);
        let count = ((end - start) / step).ceil().max(0.0);
        if !count.is_finite() || count > 1e12 {
            return Err(invalid(format!(
                "{start} to {end} by {step} is not a range"
            )));
        }
        let steps = Tensor::arange_dtype(0, count as i64, 1, DType::F64);
        return single((steps * step + start).to_dtype(dtype));
    }
    let size = |i: usize| match c.sizes(i)?.as_deref() {
        Some([n]) => Ok(n.clone()),
        _ => Err(invalid(format!("input {i} must be one number"))),
    };
    let (start, end, step) = (size(0)?, size(1)?, size(2)?);
    match (start.as_const(), end.as_const(), step.as_const()) {
        (Some(_), Some(_), Some(0)) => Err(invalid("the step is 0")),
        (Some(start), Some(end), Some(step)) => {
            single(Tensor::arange_dtype(start, end, step, dtype))
        }
        (Some(0), _, Some(1)) => single(iota(&end).to_dtype(dtype)),
        (Some(start), _, Some(1)) => {
            single((iota(&(&end - &Dim::Const(start))) + start).to_dtype(dtype))
        }
        _ => Err(invalid(
            "the range's start and step must be known when the model is compiled",
        )),
    }
}

/// Windows of sums of cosines, with these factors.
fn window(c: &Call, factors: &[f64]) -> Results {
    let size = c.first_integer(0)?;
    let size = size
        .filter(|n| *n >= 0)
        .ok_or_else(|| invalid("the size is missing or negative"))?;
    let period = if c.flag("periodic", true)? {
        size
    } else {
        size - 1
    };
    let angle = Tensor::arange_dtype(0, size, 1, DType::F64) * (2.0 * PI / period.max(1) as f64);
    let term = angle.full_like(factors[0]);
    let sum = factors
        .iter()
        .enumerate()
        .skip(1)
        .fold(term, |sum, (k, f)| sum + (&angle * k as f64).cos() * *f);
    let dtype = c.dtype("output_datatype", DType::F32)?;
    single(sum.to_dtype(dtype))
}

fn dropout(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let training = match c.version {
        v if v >= 12 => c.first_flag(2)?,
        v if v >= 7 => false,
        _ => !c.flag("is_test", false)?,
    };
    let ratio = match c.version >= 12 {
        true => c.first_number(1)?.unwrap_or(0.5),
        false => c.float("ratio", 0.5)?,
    };
    if !training || ratio == 0.0 {
        let mask = Tensor::ones(x.dims(), DType::Bool);
        return Ok(vec![x.into(), mask.into()]);
    }
    let kept = x.to_dtype(DType::F32).rand_like().ge(ratio);
    let y = (&x * (1.0 / (1.0 - ratio))).where_cond(&kept, x.zeros_like());
    Ok(vec![y.into(), kept.into()])
}
