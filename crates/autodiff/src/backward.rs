//! The chain rule over a program.

use crate::{Call, pullback};
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, Op, OpError, Pw, Value};
use smallvec::SmallVec;

/// An op of a program, with its operands as (step, output) of earlier steps.
pub struct Step<'a, V> {
    /// The op; `None` for what has no derivative on purpose: inputs, detached values.
    pub op: Option<&'a Op>,
    /// The operands.
    pub inputs: SmallVec<[(usize, u32); 3]>,
    /// The results.
    pub outputs: SmallVec<[V; 1]>,
}

/// Why a program could not be differentiated.
#[derive(Debug)]
pub struct Problem {
    /// The step without a derivative.
    pub step: usize,
    /// What is wrong there.
    pub error: OpError,
}

/// The gradients of `targets`: the cotangents in `seeds`, of values of the program, chained back
/// through all steps. `None` for targets that the seeded values don't depend on.
///
/// # Errors
/// If a step between the seeds and the targets has no derivative.
pub fn backward<B: Builder>(
    b: &mut B,
    steps: &[Step<'_, B::Value>],
    seeds: Vec<((usize, u32), B::Value)>,
    targets: &[(usize, u32)],
) -> Result<Vec<Option<B::Value>>, Problem> {
    let mut wanted = vec![false; steps.len()];
    for (step, _) in targets {
        wanted[*step] = true;
    }
    for (i, step) in steps.iter().enumerate() {
        wanted[i] |= step.op.is_some() && step.inputs.iter().any(|(from, _)| wanted[*from]);
    }
    let mut sums: Vec<SmallVec<[Option<B::Value>; 1]>> = steps
        .iter()
        .map(|s| s.outputs.iter().map(|_| None).collect())
        .collect();
    let problem = |step: usize| move |error: OpError| Problem { step, error };
    for ((step, output), g) in seeds {
        add(b, &mut sums[step][output as usize], g).map_err(problem(step))?;
    }
    let is_target = |i: usize| targets.iter().any(|(step, _)| *step == i);
    for (i, step) in steps.iter().enumerate().rev() {
        let Some(op) = step.op.filter(|_| wanted[i]) else {
            continue;
        };
        if sums[i].iter().all(Option::is_none) {
            continue;
        }
        let cotangents = match is_target(i) {
            true => sums[i].clone(),
            false => std::mem::take(&mut sums[i]),
        };
        let inputs: SmallVec<[B::Value; 3]> = step
            .inputs
            .iter()
            .map(|(from, output)| steps[*from].outputs[*output as usize].clone())
            .collect();
        let needs: SmallVec<[bool; 3]> = step
            .inputs
            .iter()
            .zip(&inputs)
            .map(|((from, _), v)| wanted[*from] && b.fact(v).dtype.is_float())
            .collect();
        if !needs.contains(&true) {
            continue;
        }
        let call = Call {
            op,
            inputs: &inputs,
            outputs: &step.outputs,
            wanted: &needs,
        };
        let gradients = pullback(b, &call, &cotangents).map_err(problem(i))?;
        for (((from, output), g), needs) in step.inputs.iter().zip(gradients).zip(&needs) {
            if let Some(g) = g.filter(|_| *needs) {
                add(b, &mut sums[*from][*output as usize], g).map_err(problem(i))?;
            }
        }
    }
    Ok(targets
        .iter()
        .map(|(step, output)| sums[*step].get(*output as usize).cloned().flatten())
        .collect())
}

fn add<B: Builder>(b: &mut B, sum: &mut Option<B::Value>, g: B::Value) -> Result<(), OpError> {
    *sum = Some(match sum.take() {
        None => g,
        Some(so_far) => b.pointwise(Pw::Add, &[so_far, g])?,
    });
    Ok(())
}

/// Appends to a graph the gradients of `inputs`, given cotangents of some of its values. `None` for
/// inputs that those values don't depend on.
///
/// # Errors
/// If an op between them has no derivative.
pub fn gradients(
    graph: &mut Graph,
    seeds: &[(Value, Value)],
    inputs: &[Value],
) -> Result<Vec<Option<Value>>, Problem> {
    let forward = graph.clone();
    let steps: Vec<Step<'_, Value>> = forward
        .iter()
        .map(|(id, node)| Step {
            op: Some(&node.op),
            inputs: node
                .inputs
                .iter()
                .map(|v| (v.node.index(), v.output))
                .collect(),
            outputs: (0..node.facts.len() as u32)
                .map(|output| Value { node: id, output })
                .collect(),
        })
        .collect();
    let at = |v: &Value| (v.node.index(), v.output);
    let seeds = seeds.iter().map(|(y, g)| (at(y), *g)).collect();
    let targets: Vec<(usize, u32)> = inputs.iter().map(at).collect();
    let mut b = GraphBuilder::new(graph, Loc::UNKNOWN);
    backward(&mut b, &steps, seeds, &targets)
}
