//! Reads and writes by index, and order.

use super::attributes::{int, text};
use super::pointwise::cast;
use super::refusals::needs_opset;
use super::writer::{Name, Value, Writer};
use kiln_base::Dim;
use kiln_base::prim::ScatterKind;
use kiln_ir::{DType, Fact, OpError, ops};

/// Writes a gather. An index that is the same off the axis selects whole slices.
pub(super) fn gather(w: &mut Writer, inputs: &[Value], axis: usize, fact: Fact) -> Value {
    let (x, index) = (&inputs[0], &inputs[1]);
    let off_axis = |shape: &[Dim]| -> Vec<Dim> {
        let mut off_axis = shape.to_vec();
        off_axis.remove(axis);
        off_axis
    };
    let attributes = vec![int("axis", axis as i64)];
    let missing = x.rank() - index.held.len();
    let selects = axis >= missing
        && index.held[axis - missing] == index.fact.shape[axis]
        && (index.held.iter().enumerate()).all(|(i, d)| i + missing == axis || d.is(1))
        && off_axis(&x.fact.shape) == off_axis(&index.fact.shape);
    let source = w.name(x);
    if selects && !index.fact.shape[axis].is(1) {
        let mut rows = index.name.clone();
        if index.held.len() != 1 {
            let flat = w.ints(&[-1]);
            rows = w.node("Reshape", &[rows, flat], 1, vec![]).swap_remove(0);
        }
        return w.single("Gather", &[source, rows], attributes, fact);
    }
    let index = w.name(index);
    w.single("GatherElements", &[source, index], attributes, fact)
}

pub(super) fn scatter(
    w: &mut Writer,
    inputs: &[Value],
    op: &ops::Scatter,
    fact: Fact,
) -> Result<Value, OpError> {
    let reduction = match op.kind {
        ScatterKind::Set => "none",
        ScatterKind::Sum => "add",
        ScatterKind::Prod => "mul",
        ScatterKind::Max | ScatterKind::Min if w.opset < 18 => {
            return needs_opset("an extreme of scattered elements", 18);
        }
        ScatterKind::Max => "max",
        ScatterKind::Min => "min",
    };
    let dtype = match (fact.dtype, op.kind) {
        (DType::Bool, ScatterKind::Max | ScatterKind::Min) => DType::I32,
        (dtype, ScatterKind::Set) => dtype,
        // Runtimes lack other reductions of narrow floats.
        (dtype, _) if dtype.is_half() => DType::F32,
        (dtype, _) => dtype,
    };
    let (x, source) = (cast(w, &inputs[0], dtype), cast(w, &inputs[2], dtype));
    let names: Vec<Name> = [&x, &inputs[1], &source].map(|v| w.name(v)).into();
    let mut attributes = vec![int("axis", op.axis as i64)];
    if op.kind != ScatterKind::Set {
        attributes.push(text("reduction", reduction));
    }
    let result = w.single(
        "ScatterElements",
        &names,
        attributes,
        fact.with_dtype(dtype),
    );
    Ok(cast(w, &result, fact.dtype))
}

/// Writes the order of elements: the indices of the largest or smallest, of which equal ones keep their order.
pub(super) fn arg_sort(w: &mut Writer, x: &Value, op: &ops::ArgSort, fact: Fact) -> Value {
    let inputs = [w.name(x), w.size(&fact.shape[op.axis])];
    let attributes = vec![
        int("axis", op.axis as i64),
        int("largest", i64::from(op.descending)),
    ];
    let names = w.node("TopK", &inputs, 2, attributes);
    Value::new(names[1].clone(), fact)
}
