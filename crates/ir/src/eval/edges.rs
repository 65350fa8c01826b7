//! Edges: values at which a small error in a float changes a result discretely. They are where floats are rounded to
//! integers, compared or sorted.

use super::index::lanes;
use super::{Array, Data, Mode};
use crate::{Graph, Node, Op, Pw};
use kiln_base::DType;
use kiln_base::prim::{RandomKind, Reduction, ScanKind, ScatterKind};

/// For each node, true if engines compute exactly the numbers of the reference: no operand was rounded.
pub(super) fn exact(graph: &Graph) -> Vec<bool> {
    let mut exact = vec![false; graph.len()];
    for (id, node) in graph.iter() {
        let operands_exact = node.inputs.iter().all(|v| exact[v.node.index()]);
        exact[id.index()] = operands_exact && rounds_nothing(graph, node);
    }
    exact
}

fn rounds_nothing(graph: &Graph, node: &Node) -> bool {
    use Pw::*;
    let floats = node.facts.iter().any(|f| f.dtype.is_float());
    match &node.op {
        Op::If(_) | Op::Loop(_) | Op::Custom(_) | Op::Collective(_) => false,
        Op::Cast(cast) => {
            let from = graph.fact(node.inputs[0]).dtype;
            !floats || cast.dtype.size() >= if from.is_float() { from.size() } else { 4 }
        }
        _ if !floats => true,
        Op::Pointwise(op) => op.0.selects() || matches!(op.0, Sign | Floor | Ceil | Round | Trunc),
        Op::Random(op) => op.kind != RandomKind::Normal,
        Op::Reduce(op) => matches!(op.kind, Reduction::Max | Reduction::Min),
        Op::WindowReduce(op) => matches!(op.kind, Reduction::Max | Reduction::Min),
        Op::Scan(op) => matches!(op.kind, ScanKind::Max | ScanKind::Min),
        Op::Scatter(op) => matches!(
            op.kind,
            ScatterKind::Set | ScatterKind::Max | ScatterKind::Min
        ),
        Op::Input(_) | Op::Full(_) | Op::Constant(_) | Op::Iota(_) | Op::Numel(_) => true,
        Op::Gather(_) | Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice(_) => true,
        Op::Pad(_) | Op::Concat(_) | Op::Barrier(_) => true,
        _ => false,
    }
}

/// True if an op has edges.
pub(super) fn has_edges(op: &Op) -> bool {
    match op {
        Op::Pointwise(op) => op.0.has_edges(),
        Op::Cast(cast) => !cast.dtype.is_float(),
        Op::ArgReduce(_) | Op::ArgSort(_) => true,
        _ => false,
    }
}

/// Returns the operands of an op with edges, each element moved by its entry in `off` towards an edge. The two
/// directions together cross every edge within that distance. An operand without `off` stays.
pub(super) fn crossing(op: &Op, x: &[&Array], off: &[Option<Vec<f64>>], up: bool) -> Vec<Array> {
    let direction = if up { 1.0 } else { -1.0 };
    let mut crossed: Vec<Array> = x.iter().map(|a| (*a).clone()).collect();
    let equal = match op {
        Op::Pointwise(op) => matches!(op.0, Pw::Eq | Pw::Ne),
        Op::Cast(cast) => cast.dtype == DType::Bool,
        _ => false,
    };
    for (i, (array, off)) in x.iter().zip(off).enumerate() {
        let (Some(values), Some(off)) = (array.floats(), off) else {
            continue;
        };
        let signs = match op {
            Op::ArgReduce(op) => alternating(array, values, op.axis),
            Op::ArgSort(op) => alternating(array, values, op.axis),
            // Compared operands move away from each other or towards each other.
            _ => vec![if i == 0 { 1.0 } else { -1.0 }; values.len()],
        };
        let elements = values.iter().zip(off).zip(signs);
        let data = elements.enumerate().map(|(e, ((x, off), sign))| {
            if !equal {
                return x + direction * sign * off;
            }
            let partner = crossed.get(1 - i).and_then(Array::floats);
            let partner = partner.map_or(0.0, |y| y[e]);
            let is_close = up && (x - partner).abs() <= 2.0 * off;
            if is_close { partner } else { *x }
        });
        let data = Data::Float(data.collect());
        crossed[i] = Array::with_mode(array.dtype(), array.shape().to_vec(), data, Mode::Exact);
    }
    crossed
}

/// True if an op moves as its operands do, except at its edges.
pub(super) fn is_remainder(op: &Op) -> bool {
    matches!(op, Op::Pointwise(op) if matches!(op.0, Pw::Fmod | Pw::Remainder))
}

/// The remainder of a division by `d`: the crossed value where it jumped across an edge, its own elsewhere.
pub(super) fn jumped(value: &Array, crossed: &Array, d: &Array) -> Array {
    let elements = value.to_f64().into_iter().zip(crossed.to_f64());
    let data = elements.zip(d.to_f64()).map(|((value, crossed), d)| {
        match (value - crossed).abs() < d.abs() / 2.0 {
            true => value,
            false => crossed,
        }
    });
    let (shape, data) = (value.shape().to_vec(), Data::Float(data.collect()));
    Array::with_mode(value.dtype(), shape, data, Mode::Exact)
}

/// Returns signs that alternate in the sorted order of each lane, so neighbours can swap.
fn alternating(array: &Array, values: &[f64], axis: usize) -> Vec<f64> {
    let lanes = lanes(array.shape(), axis);
    let mut signs = vec![1.0; values.len()];
    for start in &lanes.starts {
        let mut order: Vec<usize> = (0..lanes.len).map(|i| start + i * lanes.stride).collect();
        order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
        order
            .iter()
            .skip(1)
            .step_by(2)
            .for_each(|i| signs[*i] = -1.0);
    }
    signs
}
