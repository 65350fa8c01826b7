use super::{Array, EvalError, Mode, Problem, concat, shape_of};
use crate::Graph;
use crate::ops::{If, Loop};
use kiln_base::DType;

/// Evaluates a body with these inputs.
pub type Body<'a> = &'a mut dyn FnMut(&Graph, &[Array]) -> Result<Vec<Array>, EvalError>;

/// The outputs of the branch that the condition chooses.
pub(super) fn branch(op: &If, x: &[&Array], run: Body<'_>) -> Result<Vec<Array>, EvalError> {
    let condition = x.first().filter(|c| c.dtype() == DType::Bool);
    let Some([condition]) = condition.and_then(|c| c.ints()) else {
        return Err(wrong("if", "the condition must be bool[]"));
    };
    let inputs: Vec<Array> = x[1..].iter().map(|a| (*a).clone()).collect();
    let body = &op.branches[(*condition == 0) as usize];
    run(body, &inputs)
}

/// Returns the carried values after the last step, then the stacked ones.
pub(super) fn repeat(
    op: &Loop,
    x: &[&Array],
    symbols: &[i64],
    run: Body<'_>,
) -> Result<Vec<Array>, EvalError> {
    let Some(trips) = op.trips.eval_checked(symbols) else {
        return Err(wrong("loop", "the number of steps has no value"));
    };
    if x.len() < op.carried + op.scanned || op.body.outputs.len() < op.carried {
        return Err(wrong("loop", "operands are missing"));
    }
    let (initial, other_operands) = x.split_at(op.carried);
    let (scanned, shared) = other_operands.split_at(op.scanned);
    let has_other_length = |a: &&Array| a.shape().first() != Some(&(trips as usize));
    if scanned.iter().any(has_other_length) {
        return Err(wrong("loop", "what is scanned has another length"));
    }
    let mut carried: Vec<Array> = initial.iter().map(|a| (*a).clone()).collect();
    let mut stacked: Vec<Vec<Array>> = vec![vec![]; op.body.outputs.len() - op.carried];
    for step in 0..trips {
        if op.conditional && carried.first().and_then(Array::ints) == Some(&[0]) {
            break;
        }
        let step = if op.reverse { trips - 1 - step } else { step };
        let number = Array::from_i64(DType::I64, &[], &[step]);
        let mut inputs = vec![number.map_err(|e| wrong("loop", &e.to_string()))?];
        inputs.append(&mut carried);
        inputs.extend(scanned.iter().map(|a| row(a, step)));
        inputs.extend(shared.iter().map(|a| (*a).clone()));
        carried = run(&op.body, &inputs)?;
        let slices = carried.split_off(op.carried);
        let has_same_fact =
            |(a, b): (&Array, &&Array)| a.dtype() == b.dtype() && a.shape() == b.shape();
        if !carried.iter().zip(initial).all(has_same_fact) {
            return Err(wrong(
                "loop",
                "the body changes the facts of carried values",
            ));
        }
        for (slices_so_far, slice_of_step) in stacked.iter_mut().zip(slices) {
            slices_so_far.push(slice_of_step);
        }
    }
    for (i, mut slices) in stacked.into_iter().enumerate() {
        if op.reverse {
            slices.reverse();
        }
        let fact = op.body.fact(op.body.outputs[op.carried + i].value);
        let slice = shape_of(fact, symbols).map_err(|e| wrong("loop", &e.to_string()))?;
        let data = concat::eval(fact.dtype, 0, &slices.iter().collect::<Vec<_>>());
        let shape = [&[slices.len()], &slice[..]].concat();
        carried.push(Array::with_mode(fact.dtype, shape, data, Mode::Exact));
    }
    Ok(carried)
}

/// One slice along the first dim.
fn row(x: &Array, index: i64) -> Array {
    let shape = x.shape()[1..].to_vec();
    let len: usize = shape.iter().product();
    let first = index as usize * len;
    let positions: Vec<usize> = (first..first + len).collect();
    Array::with_mode(x.dtype(), shape, x.data().pick(&positions), Mode::Exact)
}

fn wrong(op: &'static str, text: &str) -> EvalError {
    EvalError {
        path: vec![],
        op,
        problem: Problem::Inputs(text.into()),
    }
}
