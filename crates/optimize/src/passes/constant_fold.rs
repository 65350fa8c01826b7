//! Constant folding: an op whose operands are constants is replaced by its result.
//!
//! ```text
//! f(full(a), full(b)) = full(f(a, b))     view(full(a)) = full(a)     cast(full(a)) = full(cast(a))
//! op(constants) = constant, of at most a few KiB                numel of known sizes = full
//! ```
//!
//! Results are those of the reference in rounded mode, so they are exact by definition. A result that
//! holds one number everywhere is a `full`, of any size and with symbolic dims. An op that reports a
//! data error (a division by zero, a bad index) is left to report it when the program runs. Random
//! numbers and ops that own graphs are never folded: they would only grow the program.

use crate::{Pass, Patch, Run, View, rules};
use kiln_base::{Scalar, numel};
use kiln_ir::eval::{Array, Data, Mode, eval_op};
use kiln_ir::ops::{Constant, Full};
use kiln_ir::{Fact, Kind, NodeId, Op, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "constant_fold",
    about: "computes what depends on constants only",
    exact: true,
    run: Run::Rules(rules![full_fold, constant_fold]),
};

/// The maximum number of bytes of a result, and of each operand. Larger ones are computed when the program runs.
const MAX_BYTES: i64 = 4096;

/// Ops on uniform tensors.
fn full_fold(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let first = view.as_full(*node.inputs.first()?)?;
    let value = match &node.op {
        Op::Pointwise(_) | Op::Cast(_) => scalar_result(view, id)?,
        Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice(_) => first.value,
        Op::Pad(pad) if pad.value == first.value => first.value,
        Op::Concat(_) => {
            let all_same = (node.inputs.iter())
                .all(|v| view.as_full(*v).is_some_and(|f| f.value == first.value));
            all_same.then_some(first.value)?
        }
        _ => return None,
    };
    view.replace_with(id, full(value, node.fact()), &[])
}

/// The number that a pointwise op or a cast gives for the numbers of its operands.
fn scalar_result(view: &View<'_>, id: NodeId) -> Option<Scalar> {
    let node = view.node(id);
    let scalars: Option<Vec<Array>> = (node.inputs.iter())
        .map(|v| {
            let f = view.as_full(*v)?;
            let rank_0 = Full {
                shape: Default::default(),
                ..f.clone()
            };
            eval_op(&rank_0.into(), &[], &[], Mode::Rounded).ok()?.pop()
        })
        .collect();
    let scalars = scalars?;
    let operands: Vec<&Array> = scalars.iter().collect();
    let result = eval_op(&node.op, &operands, &[], Mode::Rounded)
        .ok()?
        .pop()?;
    uniform(&result)
}

/// Ops on small constants.
fn constant_fold(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let folds = match &node.op {
        Op::Random(_) | Op::If(_) | Op::Loop(_) | Op::Custom(_) => false,
        Op::Numel(op) => numel(&op.shape).as_const().is_some(),
        _ => !node.inputs.is_empty(),
    };
    // Ops with several outputs, such as barriers, only order values: there is nothing to compute.
    let has_one_output = node.facts.len() == 1;
    if !folds || !has_one_output || !is_small(node.fact()) {
        return None;
    }
    let is_constant = |v: &Value| {
        let op = &view.producer(*v).op;
        matches!(op, Op::Full(_) | Op::Constant(_) | Op::Iota(_)) && is_small(view.fact(*v))
    };
    if !node.inputs.iter().all(is_constant) {
        return None;
    }
    let operands: Option<Vec<Array>> = (node.inputs.iter())
        .map(|v| {
            eval_op(&view.producer(*v).op, &[], &[], Mode::Rounded)
                .ok()?
                .pop()
        })
        .collect();
    let operands = operands?;
    let operands: Vec<&Array> = operands.iter().collect();
    let result = eval_op(&node.op, &operands, &[], Mode::Rounded)
        .ok()?
        .pop()?;
    match uniform(&result) {
        Some(value) => view.replace_with(id, full(value, node.fact()), &[]),
        None => view.replace_with(id, constant(&result), &[]),
    }
}

fn is_small(fact: &Fact) -> bool {
    let small = |n: i64| (0..=MAX_BYTES / fact.dtype.size() as i64).contains(&n);
    // Each dim is checked too: a window may be larger than its result.
    fact.numel().as_const().is_some_and(small)
        && fact.shape.iter().all(|d| d.as_const().is_some_and(small))
}

/// Returns the number that all elements of an array equal.
fn uniform(array: &Array) -> Option<Scalar> {
    let element = |i: usize| match array.data() {
        Data::Float(v) => Scalar::Float(v[i]),
        Data::Int(v) if array.dtype().kind() == Kind::Bool => Scalar::Bool(v[i] != 0),
        Data::Int(v) => Scalar::Int(v[i]),
    };
    // Scalars compare by bits, so 0 and −0 differ.
    (!array.is_empty() && (1..array.len()).all(|i| element(i) == element(0))).then(|| element(0))
}

fn full(value: Scalar, fact: &Fact) -> Full {
    Full {
        value,
        dtype: fact.dtype,
        shape: fact.shape.clone(),
    }
}

fn constant(array: &Array) -> Constant {
    Constant {
        dtype: array.dtype(),
        shape: array.shape().to_vec(),
        bytes: array.to_bytes().into(),
    }
}
