//! Views, padding and concatenation.

use super::attributes::{int, ints};
use super::writer::{Name, Value, Writer};
use kiln_base::Dim;
use kiln_ir::{Fact, ops};

/// Writes a reshape. Sizes that the operand has at the same place are written as 0, and one other unknown size as −1,
/// so that few shapes are computed.
pub(super) fn reshape(w: &mut Writer, x: &Value, fact: Fact) -> Value {
    let from = &x.fact.shape;
    // A product of all rows of a tensor is a product of the tensor.
    if let (Some((last, lead)), Some([a, b])) = (fact.shape.split_last(), w.products.get(&x.name))
        && let Some(rows) = w.rows.get(&a.name)
        && rows.fact.shape[..rows.rank() - 1] == *lead
        && from[1] == *last
    {
        let operands = [rows.name.clone(), b.name.clone()];
        return w.single("MatMul", &operands, vec![], fact);
    }
    let copied = |i: usize, d: &Dim| match d.as_const() {
        Some(n) => n,
        None if from.get(i) == Some(d) => 0,
        None => -1,
    };
    let shape = &fact.shape;
    let sizes: Vec<i64> = shape
        .iter()
        .enumerate()
        .map(|(i, d)| copied(i, d))
        .collect();
    let has_zero = shape.iter().any(|d| d.is(0));
    let is_computed = sizes.iter().filter(|n| **n == -1).count() > 1
        || has_zero && sizes.contains(&-1)
        || has_zero && shape.iter().any(|d| d.as_const().is_none());
    let (to, attributes) = match is_computed {
        true => (w.sizes(shape), vec![int("allowzero", 1)]),
        false if has_zero => (w.ints(&sizes), vec![int("allowzero", 1)]),
        false => (w.ints(&sizes), vec![]),
    };
    let (name, source) = (w.name(x), x.fact.shape.last().cloned());
    let reshaped = w.single("Reshape", &[name.clone(), to], attributes, fact);
    if reshaped.rank() == 2 && x.rank() > 2 && reshaped.fact.shape.last() == source.as_ref() {
        let unnamed = Value::new(name, x.fact.clone());
        w.rows.insert(reshaped.name.clone(), unnamed);
    }
    reshaped
}

pub(super) fn permute(w: &mut Writer, x: &Value, perm: &[usize], fact: Fact) -> Value {
    let x = w.name(x);
    w.single(
        "Transpose",
        &[x],
        vec![ints("perm", perm.iter().copied())],
        fact,
    )
}

pub(super) fn slice(w: &mut Writer, x: &Value, op: &ops::Slice, fact: Fact) -> Value {
    let (mut starts, mut ends, mut axes, mut steps) = (vec![], vec![], vec![], vec![]);
    for (axis, (s, extent)) in op.axes.iter().zip(&x.fact.shape).enumerate() {
        if *s == ops::SliceAxis::all(extent) {
            continue;
        }
        let end = &s.start + &(&s.len * &Dim::Const(s.step));
        // Counted from the end of the axis, where an index in front of it is none of its elements.
        let end = if s.step < 0 { &end - extent } else { end };
        starts.push(s.start.clone());
        ends.push(end);
        axes.push(axis as i64);
        steps.push(s.step);
    }
    if axes.is_empty() {
        return x.clone();
    }
    let mut inputs: Vec<Name> = vec![w.name(x), w.sizes(&starts), w.sizes(&ends), w.ints(&axes)];
    if steps.iter().any(|s| *s != 1) {
        inputs.push(w.ints(&steps));
    }
    w.single("Slice", &inputs, vec![], fact)
}

pub(super) fn pad(w: &mut Writer, x: &Value, op: &ops::Pad, fact: Fact) -> Value {
    if x.rank() == 0 {
        return x.clone();
    }
    let paddings: Vec<Dim> = op.low.iter().chain(&op.high).cloned().collect();
    let (x, pads) = (w.name(x), w.sizes(&paddings));
    let value = w.scalar(op.value, fact.dtype);
    w.single("Pad", &[x, pads, value.name], vec![], fact)
}

pub(super) fn concat(w: &mut Writer, inputs: &[Value], axis: usize, fact: Fact) -> Value {
    if let [one] = inputs {
        return one.clone();
    }
    let names: Vec<Name> = inputs.iter().map(|v| w.name(v)).collect();
    w.single("Concat", &names, vec![int("axis", axis as i64)], fact)
}
