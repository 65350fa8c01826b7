//! The derivative of a branch: a branch over the pullbacks of its graphs, which recompute the forward values that
//! they need.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients, gradients};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Role, Value, ops};
use std::sync::Arc;

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &ops::If,
    call: &Call<'_, Id>,
    cotangents: &[Option<Id>],
) -> Result<Gradients<Id>, OpError> {
    let seeded = (0..cotangents.len()).filter(|i| cotangents[*i].is_some());
    let seeded: Vec<usize> = seeded.collect();
    let differentiated = (1..call.inputs.len()).filter(|i| call.needs_grad[*i]);
    let differentiated: Vec<usize> = differentiated.collect();
    let [then, otherwise] = &op.branches;
    let (mut then, then_grads) = branch_pullback(then, &seeded, &differentiated)?;
    let (mut otherwise, otherwise_grads) = branch_pullback(otherwise, &seeded, &differentiated)?;
    // An operand that neither branch uses has no gradient. If only one uses it, the other's gradient is zero.
    let mut with_gradient = Vec::new();
    for (i, grads) in differentiated
        .into_iter()
        .zip(then_grads.into_iter().zip(otherwise_grads))
    {
        if let (None, None) = grads {
            continue;
        }
        for (graph, g) in [(&mut then, grads.0), (&mut otherwise, grads.1)] {
            let g = match g {
                Some(g) => g,
                None => {
                    let Fact { dtype, shape } = graph.node(graph.inputs()[i - 1]).fact().clone();
                    GraphBuilder::new(graph, Loc::UNKNOWN).full(0.0, dtype, &shape)?
                }
            };
            graph.add_output(g);
        }
        with_gradient.push(i);
    }
    let mut gradient = Gradients::from_elem(None, call.inputs.len());
    if with_gradient.is_empty() {
        return Ok(gradient);
    }
    let mut operands = call.inputs.to_vec();
    operands.extend(cotangents.iter().flatten().cloned());
    let branches = [then, otherwise].map(Arc::new);
    let results = b.emit(ops::If { branches }.into(), &operands)?;
    for (i, g) in with_gradient.into_iter().zip(results) {
        gradient[i] = Some(g);
    }
    Ok(gradient)
}

/// Returns a branch's graph with one more input for each output that has a cotangent, and the gradients of its
/// inputs. `differentiated` holds their positions among the op's operands.
fn branch_pullback(
    branch: &Graph,
    seeded: &[usize],
    differentiated: &[usize],
) -> Result<(Graph, Vec<Option<Value>>), OpError> {
    let mut graph = branch.clone();
    let outputs = std::mem::take(&mut graph.outputs);
    let inputs = graph.inputs();
    let seeds = seeded.iter().map(|&i| seed(&mut graph, outputs[i].value));
    let seeds: Vec<(Value, Value)> = seeds.collect();
    let targets = differentiated.iter().map(|i| inputs[i - 1].value());
    let targets: Vec<Value> = targets.collect();
    let grads = gradients(&mut graph, &seeds, &targets).map_err(|p| p.error)?;
    Ok((graph, grads))
}

/// Returns a value of a graph, and the next input as its cotangent.
pub(crate) fn seed(graph: &mut Graph, value: Value) -> (Value, Value) {
    let fact = graph.fact(value).clone();
    let mut b = GraphBuilder::new(graph, Loc::UNKNOWN);
    (value, b.input(fact, Role::Data))
}
