//! The derivative of a composite through its parts.

use crate::backward::StepOutput;
use crate::erased::{Erased, Id};
use crate::{BackwardStep, Call, Gradients, Problem, Rule, backward};
use kiln_ir::{Builder, Fact, Op, OpError};
use smallvec::SmallVec;

/// A [`Builder`] that forwards operations and records them.
struct Tape<'b, 'e> {
    inner: &'b mut Erased<'e>,
    steps: Vec<Taped>,
}

struct Taped {
    /// `None` for the composite's operands.
    op: Option<Op>,
    inputs: SmallVec<[(Id, Option<StepOutput>); 3]>,
    outputs: SmallVec<[Id; 1]>,
}

/// A value of the wrapped builder, and its position on the tape.
#[derive(Clone)]
struct Marked {
    value: Id,
    id: StepOutput,
}

impl Builder for Tape<'_, '_> {
    type Value = Marked;

    fn emit(
        &mut self,
        op: Op,
        inputs: &[Self::Value],
    ) -> Result<SmallVec<[Self::Value; 1]>, OpError> {
        let operands: SmallVec<[Id; 3]> = inputs.iter().map(|v| v.value.clone()).collect();
        let outputs = self.inner.emit(op.clone(), &operands)?;
        let node = self.steps.len();
        let marked = |(i, v): (usize, &Id)| Marked {
            value: v.clone(),
            id: (node, i as u32),
        };
        let result = outputs.iter().enumerate().map(marked).collect();
        let inputs = inputs.iter().map(|v| (v.value.clone(), Some(v.id)));
        self.steps.push(Taped {
            op: Some(op),
            inputs: inputs.collect(),
            outputs,
        });
        Ok(result)
    }

    fn fact(&self, value: &Self::Value) -> Fact {
        self.inner.fact(&value.value)
    }

    fn with_fact<R>(&self, value: &Self::Value, f: impl FnOnce(&Fact) -> R) -> R {
        self.inner.with_fact(&value.value, f)
    }
}

/// Returns the gradients of a composite's operands by differentiating its decomposition.
pub(crate) fn pullback_decomposed(
    b: &mut Erased<'_>,
    call: &Call<'_, Id>,
    g: &Id,
) -> Result<Gradients<Id>, OpError> {
    let mut tape = Tape {
        inner: b,
        steps: Vec::new(),
    };
    let mut operands = Vec::with_capacity(call.inputs.len());
    for (i, v) in call.inputs.iter().enumerate() {
        tape.steps.push(Taped {
            op: None,
            inputs: SmallVec::new(),
            outputs: SmallVec::from_elem(v.clone(), 1),
        });
        let value = v.clone();
        operands.push(Marked { value, id: (i, 0) });
    }
    let result = call.op.decompose(&mut tape, &operands);
    let result = result.unwrap_or_else(|| Err(crate::no_derivative(call.op)))?;
    let steps = std::mem::take(&mut tape.steps);
    let steps: Vec<BackwardStep<'_, Id>> = steps
        .iter()
        .map(|s| BackwardStep {
            rule: s.op.as_ref().map_or(Rule::Leaf, Rule::Op),
            inputs: s.inputs.clone(),
            outputs: s.outputs.clone(),
        })
        .collect();
    let targets = (0..call.inputs.len()).filter(|i| call.needs_grad[*i]);
    let targets: Vec<StepOutput> = targets.map(|i| (i, 0)).collect();
    let grads = backward(b, &steps, vec![(result.id, g.clone())], &targets, &mut ());
    let mut grads = grads.map_err(|p: Problem| p.error)?.into_iter();
    let gradient = |needs_grad: &bool| needs_grad.then(|| grads.next().flatten()).flatten();
    Ok(call.needs_grad.iter().map(gradient).collect())
}
