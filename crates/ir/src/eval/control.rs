use super::{Array, EvalError, Mode, Problem, evaluate};
use crate::ops::{If, Loop};
use kiln_base::DType;

/// The outputs of the branch that the condition chooses.
pub(super) fn branch(
    op: &If,
    x: &[&Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Array>, EvalError> {
    let condition = x.first().filter(|c| c.dtype() == DType::Bool);
    let Some([condition]) = condition.and_then(|c| c.ints()) else {
        return Err(wrong("if", "the condition must be bool[]"));
    };
    let inputs: Vec<Array> = x[1..].iter().map(|a| (*a).clone()).collect();
    let body = &op.branches[(*condition == 0) as usize];
    evaluate(body, &inputs, symbols, mode)
}

/// The carried values after the last step.
pub(super) fn repeat(
    op: &Loop,
    x: &[&Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Array>, EvalError> {
    let Some(trips) = op.trips.eval_checked(symbols) else {
        return Err(wrong("loop", "the number of steps has no value"));
    };
    let mut carried: Vec<Array> = x.iter().map(|a| (*a).clone()).collect();
    for step in 0..trips {
        let number = Array::from_i64(DType::I64, &[], &[step]);
        let mut inputs = vec![number.map_err(|e| wrong("loop", &e.to_string()))?];
        inputs.append(&mut carried);
        carried = evaluate(&op.body, &inputs, symbols, mode)?;
        let keeps = |(a, b): (&Array, &&Array)| a.dtype() == b.dtype() && a.shape() == b.shape();
        if carried.len() != x.len() || !carried.iter().zip(x).all(keeps) {
            return Err(wrong(
                "loop",
                "the body changes the facts of carried values",
            ));
        }
    }
    Ok(carried)
}

fn wrong(op: &'static str, text: &str) -> EvalError {
    EvalError {
        path: vec![],
        op,
        problem: Problem::Inputs(text.into()),
    }
}
