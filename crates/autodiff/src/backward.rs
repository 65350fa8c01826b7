//! The chain rule over a program.

use crate::slices::Slices;
use crate::{Call, Gradients, pullback};
use kiln_ir::{Builder, Graph, GraphBuilder, Loc, NodeId, Op, OpError, Pw, Value};
use smallvec::SmallVec;

/// One result of a program: (step, output).
pub type StepOutput = (usize, u32);

/// A step of a program.
pub struct BackwardStep<'a, V> {
    /// The rule for gradients of the step.
    pub rule: Rule<'a, V>,
    /// The operands, each with the earlier step that produced it, if any.
    pub inputs: SmallVec<[(V, Option<StepOutput>); 3]>,
    /// The results. Required only for a [`Rule::Op`].
    pub outputs: SmallVec<[V; 1]>,
}

/// A user-defined derivative: from the operands, the results, the cotangents of the results and the flags of wanted
/// operands to the cotangents of the operands.
pub type Custom<'a, V> =
    dyn Fn(&[V], &[V], &[Option<V>], &[bool]) -> Result<Vec<Option<V>>, OpError> + 'a;

/// The rule for gradients of a step.
pub enum Rule<'a, V> {
    /// No gradients pass the step.
    Leaf,
    /// The derivative of an op.
    Op(&'a Op),
    /// A user's function.
    Custom(&'a Custom<'a, V>),
}

/// The reason why a program could not be differentiated.
#[derive(Debug)]
pub struct Problem {
    /// The step without a derivative.
    pub step: usize,
    /// The error at that step.
    pub error: OpError,
}

/// An observer of a backward pass.
pub trait Observer<B: Builder> {
    /// Called before the derivative of a step is recorded.
    fn enter(&mut self, _b: &mut B, _step: usize) {}

    /// Called once the gradient of a result is complete; may replace it.
    ///
    /// # Errors
    /// If the replacement is invalid.
    fn gradient(&mut self, _b: &mut B, _of: StepOutput, g: B::Value) -> Result<B::Value, OpError> {
        Ok(g)
    }
}

impl<B: Builder> Observer<B> for () {}

/// Returns the gradients of `targets`. The `seeds` are cotangents of results of the program, chained back through all
/// steps. `None` for targets that the seeded results don't depend on.
///
/// # Errors
/// If a step between the seeds and the targets has no derivative.
pub fn backward<B: Builder>(
    b: &mut B,
    steps: &[BackwardStep<'_, B::Value>],
    seeds: Vec<(StepOutput, B::Value)>,
    targets: &[StepOutput],
    observer: &mut impl Observer<B>,
) -> Result<Vec<Option<B::Value>>, Problem> {
    let mut needs_grad = vec![false; steps.len()];
    let mut is_target = vec![false; steps.len()];
    for (step, _) in targets {
        (needs_grad[*step], is_target[*step]) = (true, true);
    }
    let mut grads: Vec<SmallVec<[Option<B::Value>; 1]>> = Vec::with_capacity(steps.len());
    for (i, step) in steps.iter().enumerate() {
        let from_needed =
            |(_, from): &(B::Value, Option<StepOutput>)| from.is_some_and(|f| needs_grad[f.0]);
        needs_grad[i] |= step.inputs.iter().any(from_needed);
        grads.push(SmallVec::from_elem(None, step.outputs.len().max(1)));
    }
    let problem = |step: usize| move |error: OpError| Problem { step, error };
    for ((step, output), g) in seeds {
        add(b, &mut grads[step], output, g).map_err(problem(step))?;
    }
    let mut slices = Slices::new(steps);
    for (i, step) in steps.iter().enumerate().rev() {
        for (output, g) in slices.gradients(b, i).map_err(problem(i))? {
            add(b, &mut grads[i], output, g).map_err(problem(i))?;
        }
        if !needs_grad[i] || grads[i].iter().all(Option::is_none) {
            continue;
        }
        observer.enter(b, i);
        for (output, grad) in grads[i].iter_mut().enumerate() {
            if let Some(g) = grad.take() {
                let g = observer.gradient(b, (i, output as u32), g);
                *grad = Some(g.map_err(problem(i))?);
            }
        }
        let cotangents = match is_target[i] {
            true => grads[i].clone(),
            false => std::mem::take(&mut grads[i]),
        };
        let active: SmallVec<[bool; 3]> = step
            .inputs
            .iter()
            .map(|(v, from)| {
                from.is_some_and(|f| needs_grad[f.0]) && b.with_fact(v, |f| f.dtype).is_float()
            })
            .collect();
        if !active.contains(&true) || slices.keep(b, step, &cotangents) {
            continue;
        }
        let gradients = pull_back(b, step, &cotangents, &active).map_err(problem(i))?;
        for (((_, from), g), active) in step.inputs.iter().zip(gradients).zip(&active) {
            if let (Some((producer, output)), Some(g), true) = (from, g, active) {
                add(b, &mut grads[*producer], *output, g).map_err(problem(i))?;
            }
        }
    }
    let grad_of =
        |(step, output): &StepOutput| grads[*step].get(*output as usize).cloned().flatten();
    Ok(targets.iter().map(grad_of).collect())
}

/// Returns the gradients of a step's operands.
fn pull_back<B: Builder>(
    b: &mut B,
    step: &BackwardStep<'_, B::Value>,
    cotangents: &[Option<B::Value>],
    needs_grad: &[bool],
) -> Result<Gradients<B::Value>, OpError> {
    let inputs: SmallVec<[B::Value; 3]> = step.inputs.iter().map(|(v, _)| v.clone()).collect();
    match &step.rule {
        Rule::Leaf => Ok(Gradients::new()),
        Rule::Custom(rule) => {
            let gradients = rule(&inputs, &step.outputs, cotangents, needs_grad)?;
            Ok(gradients.into_iter().collect())
        }
        Rule::Op(op) => {
            let call = Call {
                op,
                inputs: &inputs,
                outputs: &step.outputs,
                needs_grad,
            };
            pullback(b, &call, cotangents)
        }
    }
}

/// Adds to the gradient of an output.
fn add<B: Builder>(
    b: &mut B,
    grads: &mut SmallVec<[Option<B::Value>; 1]>,
    output: u32,
    g: B::Value,
) -> Result<(), OpError> {
    let output = output as usize;
    if grads.len() <= output {
        grads.resize(output + 1, None);
    }
    let grad = &mut grads[output];
    *grad = Some(match grad.take() {
        None => g,
        Some(partial) => b.pointwise(Pw::Add, &[partial, g])?,
    });
    Ok(())
}

/// Appends to a graph the gradients of `inputs`, for the given cotangents of some of its values. `None` for inputs
/// that those values don't depend on.
///
/// # Errors
/// If an op between them has no derivative.
pub fn gradients(
    graph: &mut Graph,
    seeds: &[(Value, Value)],
    inputs: &[Value],
) -> Result<Vec<Option<Value>>, Problem> {
    let forward = graph.clone();
    let key = |v: &Value| (v.node.index(), v.output);
    let steps: Vec<BackwardStep<'_, Value>> = forward
        .iter()
        .map(|(id, node)| BackwardStep {
            rule: Rule::Op(&node.op),
            inputs: node.inputs.iter().map(|v| (*v, Some(key(v)))).collect(),
            outputs: (0..node.facts.len() as u32)
                .map(|output| Value { node: id, output })
                .collect(),
        })
        .collect();
    let seeds = seeds.iter().map(|(y, g)| (key(y), *g)).collect();
    let targets: Vec<StepOutput> = inputs.iter().map(key).collect();
    let mut b = GraphBuilder::new(graph, Loc::UNKNOWN);
    backward(&mut b, &steps, seeds, &targets, &mut Lines(&forward))
}

/// Records derivatives at the lines of the nodes that they belong to.
struct Lines<'a>(&'a Graph);

impl<'g> Observer<GraphBuilder<'g>> for Lines<'_> {
    fn enter(&mut self, b: &mut GraphBuilder<'g>, step: usize) {
        b.at(self.0.node(NodeId(step as u32)).loc.clone());
    }
}
