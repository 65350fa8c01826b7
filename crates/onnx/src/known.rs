//! Operators on elements that are known while recording: what models compute from shapes.
//!
//! They are evaluated here, on sizes that may be symbolic, so that `Shape → Gather → Concat → Reshape` is not part of a
//! program. What is not here is recorded.

use crate::call::{Call, Results, axes, axis};
use crate::fault::invalid;
use crate::proto::DataType;
use crate::tensor;
use crate::value::{Element, Known, MAX_KNOWN, Value};
use kiln_base::{Dim, Kind};
use kiln_tensor::{DType, Result};
use std::rc::Rc;

/// Returns the results of an operator, if its inputs are known and it is one of those that sizes are computed with.
pub(crate) fn evaluate(call: &Call) -> Result<Option<Vec<Value>>> {
    let op = call.node.op_type.as_deref().unwrap_or_default();
    let mut inputs: Vec<Option<Rc<Known>>> = Vec::new();
    for input in &call.inputs {
        inputs.push(match input {
            None => None,
            Some(Value::Tensor(t)) if !t.is_variable() && t.known().is_some() => t.known().cloned(),
            Some(_) => return Ok(None),
        });
    }
    if inputs.is_empty() || inputs.iter().all(Option::is_none) {
        return Ok(None);
    }
    let result = evaluate_one(call, op, &inputs)?;
    let fits = |k: &Known| {
        k.elements.len() <= MAX_KNOWN && k.elements.iter().all(|e| in_range(e, k.dtype))
    };
    Ok(result.filter(fits).map(|k| vec![k.into()]))
}

/// True if the dtype holds the element.
fn in_range(e: &Element, dtype: DType) -> bool {
    match (e, dtype.kind()) {
        (Element::Float(_), Kind::Float) => true,
        (Element::Int(_), Kind::Float) | (Element::Float(_), _) => false,
        (Element::Int(d), Kind::Bool) => d.as_const().is_none_or(|n| n == 0 || n == 1),
        (Element::Int(d), Kind::Int) => d.as_const().is_none_or(|n| {
            dtype
                .int_range()
                .is_none_or(|(low, high)| i128::from(n) >= low && i128::from(n) <= high)
        }),
    }
}

/// Returns the sizes of the first input.
fn input_sizes(call: &Call) -> Result<Vec<Dim>> {
    let t = call.traced(0)?;
    Ok(match t.known() {
        Some(known) => {
            let size = |n: &usize| Dim::Const(*n as i64);
            known.shape.iter().map(size).collect()
        }
        None => t.tensor().check()?.dims().to_vec(),
    })
}

/// The number of elements.
pub(crate) fn size(call: &Call) -> Results {
    Ok(vec![
        Known::scalar(DType::I64, kiln_base::numel(&input_sizes(call)?)).into(),
    ])
}

/// The sizes, or a range of them.
pub(crate) fn shape(call: &Call) -> Results {
    range(call, &input_sizes(call)?)
}

/// The sizes `dims`, or a range of them.
pub(crate) fn range(call: &Call, dims: &[Dim]) -> Results {
    let rank = dims.len() as i64;
    let clamp = |n: i64| (if n < 0 { n + rank } else { n }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int("start", 0)?), clamp(call.int("end", rank)?));
    let range = dims.get(start..end).unwrap_or_default();
    Ok(vec![Known::sizes(range).into()])
}

/// True for a Cast to text.
pub(crate) fn to_text(call: &Call) -> Result<bool> {
    Ok(call.int("to", 0)? == DataType::String as i64)
}

fn evaluate_one(call: &Call, op: &str, inputs: &[Option<Rc<Known>>]) -> Result<Option<Known>> {
    let Some(Some(a)) = inputs.first() else {
        return Ok(None);
    };
    let b = inputs.get(1).and_then(Option::as_deref);
    let reshaped = |shape: Vec<usize>| {
        Ok(Some(Known {
            shape,
            ..a.as_ref().clone()
        }))
    };
    match op {
        "Identity" => reshaped(a.shape.clone()),
        "Unsqueeze" => {
            let Some(list) = call.integers_or(1, "axes")? else {
                return Ok(None);
            };
            let mut list = axes(&list, a.shape.len() + list.len())?;
            list.sort_unstable();
            let mut shape = a.shape.clone();
            for i in list {
                if i > shape.len() {
                    return Err(invalid("the axes of Unsqueeze are not distinct"));
                }
                shape.insert(i, 1);
            }
            reshaped(shape)
        }
        "Squeeze" => {
            let list = call.integers_or(1, "axes")?;
            let list = list.map(|l| axes(&l, a.shape.len())).transpose()?;
            let keep = |i: &usize| match &list {
                Some(list) => !list.contains(i),
                None => a.shape[*i] != 1,
            };
            let shape: Vec<usize> = (0..a.shape.len())
                .filter(keep)
                .map(|i| a.shape[i])
                .collect();
            if shape.iter().product::<usize>() != a.elements.len() {
                return Ok(None);
            }
            reshaped(shape)
        }
        "Reshape" => {
            let Some(sizes) = b.and_then(Known::integers) else {
                return Ok(None);
            };
            let mut shape = Vec::new();
            for (i, n) in sizes.iter().enumerate() {
                match n {
                    0 if !call.flag("allowzero", false)? => match a.shape.get(i) {
                        Some(n) => shape.push(*n),
                        None => return Ok(None),
                    },
                    -1 => shape.push(usize::MAX),
                    n => {
                        shape.push(usize::try_from(*n).map_err(|_| invalid("a size is negative"))?)
                    }
                }
            }
            if let Some(inferred) = shape.iter().position(|n| *n == usize::MAX) {
                let known_count: usize = shape.iter().filter(|n| **n != usize::MAX).product();
                if known_count == 0 || a.elements.len() % known_count != 0 {
                    return Ok(None);
                }
                shape[inferred] = a.elements.len() / known_count;
            }
            let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
            if count != Some(a.elements.len()) {
                return Ok(None);
            }
            reshaped(shape)
        }
        "Cast" if call.packed("to")?.is_none() && !to_text(call)? => {
            Ok(cast(a, tensor::dtype(call.int("to", 0)?)?))
        }
        "Gather" => gather(call, a, b),
        "Slice" => slice(call, a, inputs),
        "Concat" => concat(call, inputs),
        "Range" => Ok(range_of(inputs, a.dtype)),
        "ConstantOfShape" => {
            let value = match call.tensor_attribute("value")? {
                Some(t) => tensor::read_constant(t, None)?.1,
                None => Some(Known::vector(DType::F32, vec![Element::Float(0.0)])),
            };
            Ok(value.and_then(|value| fill(&a.integers()?, &value)))
        }
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => reduce(call, op, a),
        "Where" => match (b, inputs.get(2)) {
            (Some(x), Some(Some(y))) => Ok(select(a, x, y)),
            _ => Ok(None),
        },
        "Neg" | "Floor" | "Ceil" | "Not" | "Abs" => Ok(map(a, |e| unary(op, e))),
        _ => match b {
            Some(b) if inputs.len() == 2 => Ok(map_pairs(op, a, b)),
            _ => Ok(None),
        },
    }
}

fn range_of(inputs: &[Option<Rc<Known>>], dtype: DType) -> Option<Known> {
    let number = |i: usize| inputs.get(i)?.as_ref()?.integers()?.first().copied();
    let (start, end, step) = (number(0)?, number(1)?, number(2)?);
    let span = i128::from(end) - i128::from(start);
    if step == 0 || span / i128::from(step) > MAX_KNOWN as i128 {
        return None;
    }
    let mut elements = Vec::new();
    let mut n = start;
    while (step > 0 && n < end) || (step < 0 && n > end) {
        elements.push(Element::Int(Dim::Const(n)));
        n += step;
    }
    Some(Known::vector(dtype, elements))
}

fn fill(sizes: &[i64], fill: &Known) -> Option<Known> {
    let shape: Option<Vec<usize>> = sizes.iter().map(|n| usize::try_from(*n).ok()).collect();
    let shape = shape?;
    let count = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let count = count.filter(|n| *n <= MAX_KNOWN)?;
    let [element] = &fill.elements[..] else {
        return None;
    };
    Some(Known {
        dtype: fill.dtype,
        shape,
        elements: vec![element.clone(); count],
    })
}

/// Elements of `x` where the condition holds, else of `y`.
fn select(condition: &Known, x: &Known, y: &Known) -> Option<Known> {
    let shape = broadcast(&[&condition.shape, &x.shape, &y.shape])?;
    let [c, x, y] = [condition, x, y].map(|k| expand(k, &shape));
    let chosen = c.elements.iter().zip(x.elements).zip(y.elements);
    let chosen = chosen.map(|((c, x), y)| Some(if c.number()? != 0.0 { x } else { y }));
    Some(Known {
        dtype: x.dtype,
        elements: chosen.collect::<Option<_>>()?,
        shape,
    })
}

fn map(a: &Known, f: impl Fn(&Element) -> Option<Element>) -> Option<Known> {
    Some(Known {
        elements: a.elements.iter().map(f).collect::<Option<_>>()?,
        ..a.clone()
    })
}

fn unary(op: &str, e: &Element) -> Option<Element> {
    let int = |n: i64| Some(Element::Int(Dim::Const(n)));
    Some(match (op, e) {
        ("Neg", Element::Int(d)) => Element::Int(&Dim::ZERO - d),
        ("Neg", Element::Float(f)) => Element::Float(-f),
        ("Floor", Element::Float(f)) => Element::Float(f.floor()),
        ("Ceil", Element::Float(f)) => Element::Float(f.ceil()),
        ("Abs", Element::Float(f)) => Element::Float(f.abs()),
        ("Abs", Element::Int(d)) => return int(d.as_const()?.checked_abs()?),
        ("Not", Element::Int(d)) => return int(i64::from(d.as_const()? == 0)),
        _ => return None,
    })
}

fn cast(a: &Known, to: DType) -> Option<Known> {
    let cast_one = |e: &Element| -> Option<Element> {
        Some(match (e, to.kind()) {
            (Element::Int(d), Kind::Int) => Element::Int(d.clone()),
            (Element::Int(d), Kind::Float) => Element::Float(round_to(d.as_const()? as f64, to)?),
            (Element::Int(d), Kind::Bool) => Element::Int(Dim::Const((d.as_const()? != 0).into())),
            (Element::Float(f), Kind::Float) => Element::Float(round_to(*f, to)?),
            (Element::Float(f), Kind::Bool) => Element::Int(Dim::Const((*f != 0.0).into())),
            (Element::Float(f), Kind::Int) => {
                let truncated = f.trunc();
                if truncated.abs() >= 2f64.powi(53) || truncated.is_nan() {
                    return None;
                }
                Element::Int(Dim::Const(truncated as i64))
            }
        })
    };
    Some(Known {
        dtype: to,
        ..map(a, cast_one)?
    })
}

fn round_to(f: f64, dtype: DType) -> Option<f64> {
    match dtype {
        DType::F32 => Some(f64::from(f as f32)),
        DType::F64 => Some(f),
        _ => None,
    }
}

/// Returns the broadcast shape.
pub(crate) fn broadcast(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|s| s.len()).max()?;
    let mut out = vec![1; rank];
    for s in shapes {
        for (o, d) in out[rank - s.len()..].iter_mut().zip(*s) {
            match (*o, *d) {
                (1, d) => *o = d,
                (o, d) if o == d || d == 1 => {}
                _ => return None,
            }
        }
    }
    Some(out)
}

/// Returns the elements expanded to a shape that the own shape broadcasts to.
fn expand(a: &Known, shape: &[usize]) -> Known {
    Known {
        dtype: a.dtype,
        shape: shape.to_vec(),
        elements: source_positions(&a.shape, shape)
            .map(|i| a.elements[i].clone())
            .collect(),
    }
}

/// Returns the elements of a tensor of shape `own` that stand at those of the shape that it is expanded to.
pub(crate) fn source_positions(own: &[usize], shape: &[usize]) -> impl Iterator<Item = usize> {
    let strides = strides(own);
    let skipped = shape.len() - own.len();
    let source_index = move |flat: usize| {
        let mut remaining = flat;
        let mut index = 0;
        for i in (0..shape.len()).rev() {
            let position = remaining % shape[i];
            remaining /= shape[i];
            if i >= skipped && own[i - skipped] != 1 {
                index += position * strides[i - skipped];
            }
        }
        index
    };
    let count: usize = shape.iter().product();
    (0..count).map(source_index)
}

fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i];
    }
    strides
}

fn map_pairs(op: &str, a: &Known, b: &Known) -> Option<Known> {
    let compares = matches!(
        op,
        "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual"
    );
    let shape = broadcast(&[&a.shape, &b.shape])?;
    if shape.iter().product::<usize>() > MAX_KNOWN {
        return None;
    }
    let (x, y) = (expand(a, &shape), expand(b, &shape));
    let elements = x
        .elements
        .iter()
        .zip(&y.elements)
        .map(|(x, y)| binary(op, x, y, a.dtype));
    Some(Known {
        dtype: if compares { DType::Bool } else { a.dtype },
        elements: elements.collect::<Option<_>>()?,
        shape,
    })
}

fn binary(op: &str, a: &Element, b: &Element, dtype: DType) -> Option<Element> {
    let truth = |t: bool| Some(Element::Int(Dim::Const(t.into())));
    let (a, b) = match (a, b) {
        (Element::Int(a), Element::Int(b)) => (a, b),
        (Element::Float(a), Element::Float(b)) => {
            return Some(Element::Float(match op {
                "Add" => round_to(a + b, dtype)?,
                "Sub" => round_to(a - b, dtype)?,
                "Mul" => round_to(a * b, dtype)?,
                "Div" => round_to(a / b, dtype)?,
                "Equal" => return truth(a == b),
                "Less" => return truth(a < b),
                "LessOrEqual" => return truth(a <= b),
                "Greater" => return truth(a > b),
                "GreaterOrEqual" => return truth(a >= b),
                _ => return None,
            }));
        }
        _ => return None,
    };
    let constants = a.as_const().zip(b.as_const());
    Some(Element::Int(match op {
        "Add" => a + b,
        "Sub" => a - b,
        "Mul" => a * b,
        "Div" => match constants {
            Some((a, b)) => Dim::Const(a.checked_div(b)?),
            None => divide_sizes(a, b)?,
        },
        "Mod" => match constants {
            Some((a, b)) => Dim::Const(a.checked_rem_euclid(b).filter(|_| b > 0)?),
            None => a - &(&divide_sizes(a, b)? * b),
        },
        "Min" => Dim::Const(constants.map(|(a, b)| a.min(b))?),
        "Max" => Dim::Const(constants.map(|(a, b)| a.max(b))?),
        "And" => Dim::Const(constants.map(|(a, b)| (a != 0 && b != 0).into())?),
        "Or" => Dim::Const(constants.map(|(a, b)| (a != 0 || b != 0).into())?),
        "Equal" => match (&(a - b), constants) {
            (Dim::Const(0), _) => return truth(true),
            (Dim::Const(_), _) => return truth(false),
            // A size is not negative.
            _ if a.as_const().or(b.as_const()).is_some_and(|n| n < 0) => return truth(false),
            _ => return None,
        },
        "Less" => return constants.and_then(|(a, b)| truth(a < b)),
        "LessOrEqual" => return constants.and_then(|(a, b)| truth(a <= b)),
        "Greater" => return constants.and_then(|(a, b)| truth(a > b)),
        "GreaterOrEqual" => return constants.and_then(|(a, b)| truth(a >= b)),
        _ => return None,
    }))
}

/// Returns the quotient of sizes, rounded down.
fn divide_sizes(a: &Dim, b: &Dim) -> Option<Dim> {
    match b.as_const() {
        Some(by) if by > 0 => Some(a.div_floor(by)),
        _ => a.div_exact(b).ok(),
    }
}

fn gather(call: &Call, a: &Known, b: Option<&Known>) -> Result<Option<Known>> {
    let Some((b, indices)) = b.and_then(|b| Some((b, b.integers()?))) else {
        return Ok(None);
    };
    let axis = call.axis("axis", 0, a.shape.len())?;
    let n = a.shape[axis];
    let (outer, inner): (usize, usize) = (
        a.shape[..axis].iter().product(),
        a.shape[axis + 1..].iter().product(),
    );
    let mut elements = Vec::new();
    for o in 0..outer {
        for i in &indices {
            let i = if *i < 0 { i + n as i64 } else { *i };
            let Some(i) = usize::try_from(i).ok().filter(|i| *i < n) else {
                return Err(invalid(format!("the index {i} is not below {n}")));
            };
            let start = (o * n + i) * inner;
            elements.extend_from_slice(&a.elements[start..start + inner]);
        }
    }
    let shape = [&a.shape[..axis], &b.shape, &a.shape[axis + 1..]].concat();
    Ok(Some(Known {
        dtype: a.dtype,
        shape,
        elements,
    }))
}

/// Slices of vectors.
fn slice(call: &Call, a: &Known, inputs: &[Option<Rc<Known>>]) -> Result<Option<Known>> {
    if a.shape.len() != 1 {
        return Ok(None);
    }
    let list = |i: usize, name: &str| match inputs.get(i).and_then(Option::as_ref) {
        Some(known) => Ok(known.integers()),
        None => call.ints(name),
    };
    let (Some(starts), Some(ends)) = (list(1, "starts")?, list(2, "ends")?) else {
        return Ok(None);
    };
    let steps = list(4, "steps")?.unwrap_or(vec![1]);
    let ([start], [end], [step]) = (&starts[..], &ends[..], &steps[..]) else {
        return Ok(None);
    };
    if *step < 1 {
        return Ok(None);
    }
    let n = a.shape[0] as i64;
    let clamp = |i: i64| (if i < 0 { i.saturating_add(n) } else { i }).clamp(0, n) as usize;
    let range = a
        .elements
        .get(clamp(*start)..clamp(*end))
        .unwrap_or_default();
    let elements: Vec<Element> = range.iter().step_by(*step as usize).cloned().collect();
    Ok(Some(Known::vector(a.dtype, elements)))
}

/// Concatenation of vectors.
fn concat(call: &Call, inputs: &[Option<Rc<Known>>]) -> Result<Option<Known>> {
    let Some(parts) = inputs.iter().cloned().collect::<Option<Vec<_>>>() else {
        return Ok(None);
    };
    if parts.iter().any(|k| k.shape.len() != 1) {
        return Ok(None);
    }
    axis(call.int("axis", 0)?, 1)?;
    let elements: Vec<Element> = parts
        .iter()
        .flat_map(|k| k.elements.iter().cloned())
        .collect();
    Ok(Some(Known::vector(parts[0].dtype, elements)))
}

/// Reductions of vectors to one element.
fn reduce(call: &Call, op: &str, a: &Known) -> Result<Option<Known>> {
    let list = call.integers_or(1, "axes")?;
    let reduces_all = list.is_none_or(|l| l.is_empty() || l == [0] || l == [-1]);
    if a.shape.len() > 1 || !reduces_all || call.flag("noop_with_empty_axes", false)? {
        return Ok(None);
    }
    let Some(dims) = a.dims() else {
        return Ok(None);
    };
    let element = match op {
        "ReduceProd" => Some(kiln_base::numel(&dims)),
        "ReduceSum" => Some(dims.iter().fold(Dim::ZERO, |sum, d| &sum + d)),
        _ => {
            let numbers: Option<Vec<i64>> = dims.iter().map(Dim::as_const).collect();
            let numbers = numbers.unwrap_or_default().into_iter();
            let extreme = match op {
                "ReduceMax" => numbers.max(),
                _ => numbers.min(),
            };
            extreme.map(Dim::Const)
        }
    };
    let shape = if call.flag("keepdims", true)? {
        vec![1; a.shape.len()]
    } else {
        vec![]
    };
    Ok(element.map(|d| Known {
        dtype: a.dtype,
        shape,
        elements: vec![Element::Int(d)],
    }))
}
