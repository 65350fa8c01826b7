//! The derivative of a branch: a branch over the pullbacks of its graphs, which recompute the forward values that
//! they need.

use crate::erased::{Erased, Id};
use crate::{Call, Gradients, gradients};
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, OpError, Role, Value, ops};
use std::sync::Arc;

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &ops::If,
    call: &Call<'_, Id>,
    cotangents: &[Option<Id>],
) -> Result<Gradients<Id>, OpError> {
    let seeded: Vec<usize> = (0..cotangents.len())
        .filter(|i| cotangents[*i].is_some())
        .collect();
    let differentiated: Vec<usize> = (1..call.inputs.len())
        .filter(|i| call.needs_grad[*i])
        .collect();
    let mut graphs = Vec::new();
    let mut found: Vec<Vec<Option<Value>>> = Vec::new();
    for branch in &op.branches {
        let (graph, grads) = branch_pullback(branch, &seeded, &differentiated)?;
        graphs.push(graph);
        found.push(grads);
    }
    // Operands that neither branch depends on have no gradient; if only one depends on them, the other's is zero.
    let with_gradient: Vec<usize> = (0..differentiated.len())
        .filter(|i| found.iter().any(|grads| grads[*i].is_some()))
        .collect();
    let mut gradient = Gradients::from_elem(None, call.inputs.len());
    if with_gradient.is_empty() {
        return Ok(gradient);
    }
    for (graph, grads) in graphs.iter_mut().zip(found) {
        for &i in &with_gradient {
            let fact = graph
                .node(graph.inputs()[differentiated[i] - 1])
                .fact()
                .clone();
            let g = match grads[i] {
                Some(g) => g,
                None => {
                    GraphBuilder::new(graph, Loc::UNKNOWN).full(0.0, fact.dtype, &fact.shape)?
                }
            };
            graph.add_output(g);
        }
    }
    let [then, other] = [graphs.remove(0), graphs.remove(0)].map(Arc::new);
    let mut operands = call.inputs.to_vec();
    operands.extend(cotangents.iter().flatten().cloned());
    let results = b.emit(
        ops::If {
            branches: [then, other],
        }
        .into(),
        &operands,
    )?;
    for (i, g) in with_gradient.into_iter().zip(results) {
        gradient[differentiated[i]] = Some(g);
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
    let outputs: Vec<Value> = std::mem::take(&mut graph.outputs)
        .iter()
        .map(|o| o.value)
        .collect();
    let inputs = graph.inputs();
    let mut seeds = Vec::new();
    for &i in seeded {
        let fact = graph.fact(outputs[i]).clone();
        let g = GraphBuilder::new(&mut graph, Loc::UNKNOWN).input(fact, Role::Data);
        seeds.push((outputs[i], g));
    }
    let targets: Vec<Value> = differentiated
        .iter()
        .map(|i| inputs[i - 1].value())
        .collect();
    let grads = gradients(&mut graph, &seeds, &targets).map_err(|p| p.error)?;
    Ok((graph, grads))
}
