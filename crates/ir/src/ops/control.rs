//! Ops that own graphs.

use super::prelude::*;
use crate::Graph;
use std::sync::Arc;

/// Runs one of two graphs. Operands are a rank-0 bool and the inputs of both graphs; the outputs are
/// those of the graph that runs. Both graphs have the same facts.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct If {
    /// `[then, else]`.
    pub branches: [Arc<Graph>; 2],
}

impl OpDef for If {
    fn name(&self) -> &'static str {
        "if"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        1..=usize::MAX
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        let condition = inputs[0];
        ensure!(
            condition.dtype == DType::Bool && condition.rank() == 0,
            "the condition must be bool[], not {condition}"
        );
        let then = body_facts(&self.branches[0], &inputs[1..])?;
        let other = body_facts(&self.branches[1], &inputs[1..])?;
        ensure!(
            then == other,
            "the branches give different facts: {then:?} and {other:?}"
        );
        Ok(then)
    }

    fn bodies(&self) -> &[Arc<Graph>] {
        &self.branches
    }
}

/// Runs a graph a number of times. Operands are the carried values' first values; the body takes the
/// i64 step number and the carried values, and gives the next carried values, which are also the
/// outputs after the last step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Loop {
    /// How many times.
    pub trips: Dim,
    /// One step.
    pub body: Arc<Graph>,
}

impl OpDef for Loop {
    fn name(&self) -> &'static str {
        "loop"
    }

    fn arity(&self) -> RangeInclusive<usize> {
        0..=usize::MAX
    }

    fn infer(&self, inputs: &[&Fact]) -> Result<Facts, OpError> {
        ensure!(
            self.trips.as_const().is_none_or(|n| n >= 0),
            "can't run {} times",
            self.trips
        );
        let step = Fact::new(DType::I64, [0i64; 0]);
        let mut given = vec![&step];
        given.extend(inputs);
        let facts = body_facts(&self.body, &given)?;
        let carried: Facts = inputs.iter().map(|f| (*f).clone()).collect();
        ensure!(
            facts == carried,
            "the body turns {carried:?} into {facts:?}; carried values keep their facts"
        );
        Ok(facts)
    }

    fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        f(&mut self.trips);
    }

    fn bodies(&self) -> &[Arc<Graph>] {
        std::slice::from_ref(&self.body)
    }
}

/// The facts that a body gives for these inputs.
fn body_facts(body: &Graph, inputs: &[&Fact]) -> Result<Facts, OpError> {
    let wanted = body.inputs();
    ensure!(
        wanted.len() == inputs.len(),
        "the body takes {} inputs, not {}",
        wanted.len(),
        inputs.len()
    );
    for (i, (id, given)) in wanted.iter().zip(inputs).enumerate() {
        let wants = body.node(*id).fact();
        ensure!(
            wants == *given,
            "input {i} of the body is {wants}, not {given}"
        );
    }
    Ok(body
        .outputs
        .iter()
        .map(|o| body.fact(o.value).clone())
        .collect())
}
