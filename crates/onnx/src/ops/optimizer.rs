//! Steps of optimisers (`ai.onnx.preview.training`): learning rate, number of the step, and for each of n values the
//! value, its gradient and one or two states.

use super::Record;
use crate::call::{Call, Results};
use crate::fault::invalid;
use kiln_tensor::{DType, Result, Tensor};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Adagrad" => adagrad,
        "Adam" => adam,
        "Momentum" => momentum,
        _ => return None,
    })
}

/// Updates each value with its gradient and `states` states. The results are all values, then all of each state.
fn update(
    c: &Call,
    states: usize,
    step: impl Fn(&Tensor, &Tensor, &[Tensor]) -> Result<Vec<Tensor>>,
) -> Results {
    let operands = c.tensors(2)?;
    let count = operands.len() / (2 + states);
    if count * (2 + states) != operands.len() {
        return Err(invalid(format!(
            "takes {} inputs for each value",
            2 + states
        )));
    }
    let decay = c.float("norm_coefficient", 0.0)?;
    let mut results = vec![Vec::new(); 1 + states];
    for i in 0..count {
        let x = &operands[i];
        let gradient = x * decay + &operands[count + i];
        let states: Vec<Tensor> = (2..2 + states)
            .map(|s| operands[s * count + i].clone())
            .collect();
        for (list, t) in results.iter_mut().zip(step(x, &gradient, &states)?) {
            list.push(t.to_dtype(x.dtype()).into());
        }
    }
    Ok(results.concat())
}

/// Returns the learning rate, and the number of the step as a float.
fn progress(c: &Call) -> Result<(Tensor, Tensor)> {
    let rate = c.tensor(0)?.reshape(());
    let step = c.tensor(1)?.reshape(()).to_dtype(rate.dtype());
    Ok((rate, step))
}

fn adagrad(c: &Call) -> Results {
    let (rate, step) = progress(c)?;
    let rate = rate / (step * c.float("decay_factor", 0.0)? + 1.0);
    let eps = c.float("epsilon", 1e-6)?;
    update(c, 1, |x, gradient, states| {
        let squares = &states[0] + gradient * gradient;
        let y = x - &rate * gradient / (squares.sqrt() + eps);
        Ok(vec![y, squares])
    })
}

fn adam(c: &Call) -> Results {
    let (rate, step) = progress(c)?;
    let (alpha, beta) = (c.float("alpha", 0.9)?, c.float("beta", 0.999)?);
    let eps = c.float("epsilon", 1e-6)?;
    let after = c.float("norm_coefficient_post", 0.0)?;
    // Averages of few steps are corrected, but for those of none.
    let remaining = |factor: f64| 1.0 - (step.to_dtype(DType::F64) * factor.ln()).exp();
    let corrected = rate.to_dtype(DType::F64) * remaining(beta).sqrt() / remaining(alpha);
    let rate = corrected
        .to_dtype(rate.dtype())
        .where_cond(step.gt(0.0), &rate);
    update(c, 2, |x, gradient, states| {
        let mean = &states[0] * alpha + gradient * (1.0 - alpha);
        let squares = &states[1] * beta + gradient * gradient * (1.0 - beta);
        let y = x - &rate * (&mean / (squares.sqrt() + eps));
        Ok(vec![y * (1.0 - after), mean, squares])
    })
}

fn momentum(c: &Call) -> Results {
    let (rate, step) = progress(c)?;
    let (alpha, beta) = (c.float("alpha", 0.9)?, c.float("beta", 0.0)?);
    let nesterov = match c.text("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        other => return Err(invalid(format!("there is no mode {other:?}"))),
    };
    // The first gradient counts in full.
    let factor = step.full_like(beta).where_cond(step.gt(0.0), 1.0);
    update(c, 1, |x, gradient, states| {
        let velocity = &states[0] * alpha + gradient * &factor;
        let direction = match nesterov {
            true => gradient + &velocity * alpha,
            false => velocity.clone(),
        };
        Ok(vec![x - &rate * direction, velocity])
    })
}
