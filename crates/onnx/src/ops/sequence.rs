//! Sequences and optional values.

use super::Record;
use crate::call::{Call, Results, axis, known_size, single};
use crate::fault::invalid;
use crate::value::{Known, Value};
use kiln_tensor::{DType, Result, Tensor, cat, stack};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "ConcatFromSequence" => |c| {
            let list = tensors(c)?;
            match c.flag("new_axis", false)? {
                true => single(stack(list, c.int("axis", 0)?)),
                false => single(cat(list, c.int("axis", 0)?)),
            }
        },
        "Optional" => |c| match c.has(0) {
            true => Ok(vec![c.value(0)?.clone()]),
            false => Ok(vec![Value::Nothing]),
        },
        "OptionalGetElement" => |c| match c.value(0)? {
            Value::Nothing => Err(invalid("the optional has no content")),
            value => Ok(vec![value.clone()]),
        },
        "OptionalHasElement" => {
            |c| Ok(vec![Known::scalar(DType::Bool, i64::from(c.has(0))).into()])
        }
        "SequenceAt" => |c| {
            let list = sequence(c, 0)?;
            let index = position(c, 1, list.len(), false)?;
            Ok(vec![list[index].clone()])
        },
        "SequenceConstruct" => |c| {
            let list = (0..c.inputs.len()).map(|i| c.value(i).cloned());
            Ok(vec![Value::Sequence(list.collect::<Result<_>>()?)])
        },
        "SequenceEmpty" => |_| Ok(vec![Value::Sequence(Vec::new())]),
        "SequenceErase" => |c| {
            let mut list = sequence(c, 0)?.to_vec();
            let index = match c.has(1) {
                true => position(c, 1, list.len(), false)?,
                false if list.is_empty() => return Err(invalid("the sequence is empty")),
                false => list.len() - 1,
            };
            list.remove(index);
            Ok(vec![Value::Sequence(list)])
        },
        "SequenceInsert" => |c| {
            let mut list = sequence(c, 0)?.to_vec();
            let index = match c.has(2) {
                true => position(c, 2, list.len(), true)?,
                false => list.len(),
            };
            list.insert(index, c.value(1)?.clone());
            Ok(vec![Value::Sequence(list)])
        },
        "SequenceLength" => |c| {
            let length = sequence(c, 0)?.len() as i64;
            Ok(vec![Known::scalar(DType::I64, length).into()])
        },
        "SplitToSequence" => split,
        _ => return None,
    })
}

fn sequence<'a>(c: &'a Call, i: usize) -> Result<&'a [Value]> {
    match c.value(i)? {
        Value::Sequence(list) => Ok(list),
        _ => Err(invalid(format!("input {i} is not a sequence"))),
    }
}

fn tensors(c: &Call) -> Result<Vec<Tensor>> {
    let tensor = |v: &Value| match v {
        Value::Tensor(t) => Ok(t.tensor()),
        _ => Err(invalid("an element is not a tensor")),
    };
    sequence(c, 0)?.iter().map(tensor).collect()
}

/// Returns a position from an input; negative ones count from the end.
fn position(c: &Call, i: usize, len: usize, end: bool) -> Result<usize> {
    let index = c.first_integer(i)?;
    let index = index.ok_or_else(|| invalid("the position is missing"))?;
    let from_start = if index < 0 { index + len as i64 } else { index };
    match usize::try_from(from_start) {
        Ok(p) if p < len || end && p == len => Ok(p),
        _ => Err(invalid(format!("the position {index} is not one of {len}"))),
    }
}

fn split(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let axis = axis(c.int("axis", 0)?, x.ndim())?;
    let n = known_size(&x, axis)?;
    let one_each = !c.has(1);
    let sizes: Vec<i64> = match c.integers(1)? {
        None => vec![1; usize::try_from(n).unwrap_or(0)],
        Some(list) if c.traced(1)?.tensor().ndim() == 0 => {
            let size = list.first().copied().filter(|s| *s > 0);
            let size = size.ok_or_else(|| invalid("parts must have a positive size"))?;
            (0..(n + size - 1) / size)
                .map(|i| size.min(n - i * size))
                .collect()
        }
        Some(list) => list,
    };
    let squeezed = one_each && !c.flag("keepdims", true)?;
    let chunks = x.split_with_sizes(sizes, axis as i64).into_iter();
    let chunks = chunks.map(|t| if squeezed { t.squeeze(axis as i64) } else { t });
    Ok(vec![Value::Sequence(chunks.map(Value::from).collect())])
}
