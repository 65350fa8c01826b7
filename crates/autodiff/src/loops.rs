//! The derivative of a loop: a loop over the steps in reverse order, which carries the gradients of the carried
//! values.
//!
//! Each of its steps needs forward values of the same step. Cheap ones are rematerialised. The others are *residuals*
//! that the forward loop stacks: carried values, compared values, and the results of all ops but pointwise work and
//! views. [`with_residuals`] adds them to a loop when it is recorded; a loop without them is run once more.
//!
//! The gradient of an operand that all steps share is a sum over the steps. If a step's term is a matrix product, or
//! the sum of a value that is stacked anyway, the factors are stacked, and the sum is a single product or reduction
//! after the loop. Otherwise the sum is carried.

mod sums;

use crate::erased::{Erased, Id};
use crate::{Call, Gradients, branch, gradients};
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, Op, OpError, Pw, Role, Value, ops};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use sums::{Sum, product};

/// Returns the loop with the residuals for the gradients of the wanted operands as further stacked outputs.
///
/// # Errors
/// If an op of the body has no derivative.
pub fn with_residuals(op: &ops::Loop, needs_grad: &[bool]) -> Result<ops::Loop, OpError> {
    if let Some(masked) = op.masked() {
        return with_residuals(&masked?, needs_grad);
    }
    let outputs = op.body.outputs.iter();
    let seeded: Vec<bool> = outputs.map(|o| is_float(&op.body, o.value)).collect();
    let mut missing = LoopStep::new(op, needs_grad, &seeded)?.residuals();
    missing.retain(|r| stacked(op, *r).is_none());
    Ok(stacking(op, &missing))
}

fn is_float(graph: &Graph, v: Value) -> bool {
    graph.fact(v).dtype.is_float()
}

/// Returns the output of the loop that stacks a value of its body.
fn stacked(op: &ops::Loop, v: Value) -> Option<usize> {
    let mut outputs = op.body.outputs.iter().enumerate().skip(op.carried);
    outputs.find(|(_, o)| o.value == v).map(|(i, _)| i)
}

/// Returns the loop with more values stacked.
fn stacking(op: &ops::Loop, values: &[Value]) -> ops::Loop {
    let mut op = op.clone();
    if !values.is_empty() {
        let body = Arc::make_mut(&mut op.body);
        values.iter().for_each(|v| body.add_output(*v));
    }
    op
}

/// A step and its derivative.
struct LoopStep<'a> {
    op: &'a ops::Loop,
    /// The body, then its pullback.
    joint: Graph,
    /// Number of nodes of the body.
    forward: usize,
    /// The values of the body that the pullback compares.
    compared: BTreeSet<Value>,
    /// The carried values that have gradients, with the inputs and results of the step's pullback.
    carried: Vec<(usize, Value, Option<Value>)>,
    /// The stacked outputs that have cotangents, with their inputs.
    stacked: Vec<(usize, Value)>,
    /// The scanned operands that have gradients (by position among the operands), with the gradients.
    scanned: Vec<(usize, Value)>,
    /// The operands that all steps share, with the gradients.
    shared: Vec<(usize, Value)>,
}

impl<'a> LoopStep<'a> {
    fn new(
        op: &'a ops::Loop,
        needs_grad: &[bool],
        seeded: &[bool],
    ) -> Result<LoopStep<'a>, OpError> {
        if op.conditional {
            return Err(OpError::new(
                "while_loop has no derivative unless `max_trips` bounds its steps; scan has one",
            ));
        }
        let mut joint = Graph::clone(&op.body);
        let outputs = std::mem::take(&mut joint.outputs);
        let inputs = joint.inputs();
        let active = active(op, needs_grad);
        let forward = joint.len();
        let mut seeds = Vec::new();
        let mut seed = |joint: &mut Graph, i: usize| {
            let (output, g) = branch::seed(joint, outputs[i].value);
            seeds.push((output, g));
            g
        };
        let mut carried: Vec<(usize, Value, Option<Value>)> = Vec::new();
        for i in (0..op.carried).filter(|i| active[*i]) {
            carried.push((i, seed(&mut joint, i), None));
        }
        let mut stacked = Vec::new();
        for i in (op.carried..outputs.len()).filter(|i| seeded[*i]) {
            stacked.push((i, seed(&mut joint, i)));
        }
        let fixed = (op.carried..needs_grad.len()).filter(|i| needs_grad[*i]);
        let fixed: Vec<usize> = fixed.collect();
        let operands = carried.iter().map(|c| c.0).chain(fixed.iter().copied());
        let targets: Vec<Value> = operands.map(|i| inputs[i + 1].value()).collect();
        let grads = gradients(&mut joint, &seeds, &targets).map_err(|p| p.error)?;
        let mut grads = grads.into_iter();
        for c in &mut carried {
            c.2 = grads.next().flatten();
        }
        let (mut scanned, mut shared) = (Vec::new(), Vec::new());
        for (i, g) in fixed.into_iter().zip(grads) {
            let is_scanned = i < op.carried + op.scanned;
            let to = if is_scanned {
                &mut scanned
            } else {
                &mut shared
            };
            to.extend(g.map(|g| (i, g)));
        }
        Ok(LoopStep {
            op,
            compared: compared(&joint, forward),
            joint,
            forward,
            carried,
            stacked,
            scanned,
            shared,
        })
    }

    /// Returns the gradients that a step computes.
    fn results(&self) -> impl Iterator<Item = Value> {
        let carried = self.carried.iter().filter_map(|c| c.2);
        carried.chain(self.scanned.iter().chain(&self.shared).map(|(_, g)| *g))
    }

    /// Returns the forward values that the pullback needs and does not rematerialise, ascending.
    fn residuals(&self) -> Vec<Value> {
        let mut residuals = BTreeSet::new();
        let mut visited = vec![false; self.joint.len()];
        let mut stack: Vec<Value> = self.results().collect();
        while let Some(v) = stack.pop() {
            if self.is_residual(v) {
                residuals.insert(v);
            } else if !std::mem::replace(&mut visited[v.node.index()], true) {
                stack.extend(&self.joint.node(v.node).inputs);
            }
        }
        residuals.into_iter().collect()
    }

    fn is_residual(&self, v: Value) -> bool {
        if v.node.index() >= self.forward {
            return false;
        }
        match &self.joint.node(v.node).op {
            Op::Input(i) => (1..=self.op.carried).contains(&(i.index as usize)),
            op => !is_cheap(op) || self.compared.contains(&v),
        }
    }
}

/// Returns the floats that a derivative compares with values selected from them. A body that recomputed them might
/// get others in the last bit.
fn compared(joint: &Graph, forward: usize) -> BTreeSet<Value> {
    let derivative = joint.iter().skip(forward).map(|(_, node)| node);
    let equal = derivative.filter(|n| matches!(&n.op, Op::Pointwise(row) if row.0 == Pw::Eq));
    let operands = equal.flat_map(|n| n.inputs.iter().copied());
    operands
        .filter(|v| v.node.index() < forward && joint.fact(*v).dtype.is_float())
        .filter(|v| !matches!(joint.node(v.node).op, Op::Full(_) | Op::Constant(_)))
        .collect()
}

/// True if an op is rematerialised rather than kept.
fn is_cheap(op: &Op) -> bool {
    op.is_cheap() || matches!(op, Op::Barrier(_))
}

/// Returns the carried values through which gradients flow to wanted operands.
fn active(op: &ops::Loop, needs_grad: &[bool]) -> Vec<bool> {
    let body = &op.body;
    let mut active: Vec<bool> = (0..op.carried).map(|i| needs_grad[i]).collect();
    loop {
        let mut reached = vec![false; body.len()];
        for (id, node) in body.iter() {
            reached[id.index()] = match &node.op {
                Op::Input(i) => match (i.index as usize).checked_sub(1) {
                    Some(operand) if operand < op.carried => active[operand],
                    Some(operand) => needs_grad[operand],
                    None => false,
                },
                _ => {
                    let mut inputs = node.inputs.iter();
                    inputs.any(|v| reached[v.node.index()] && is_float(body, *v))
                }
            };
        }
        let previous = active.clone();
        for (a, o) in active.iter_mut().zip(&body.outputs) {
            *a |= reached[o.value.node.index()] && is_float(body, o.value);
        }
        if active == previous {
            return active;
        }
    }
}

/// Returns the stacked residuals. A second run of the loop stacks those that the loop itself does not.
fn stacked_residuals(
    b: &mut Erased<'_>,
    op: &ops::Loop,
    call: &Call<'_, Id>,
    residuals: &[Value],
) -> Result<Vec<Id>, OpError> {
    let mut missing = residuals.to_vec();
    missing.retain(|r| stacked(op, *r).is_none());
    let recomputed = match missing.is_empty() {
        true => Default::default(),
        false => b.emit(stacking(op, &missing).into(), call.inputs)?,
    };
    let mut recomputed = recomputed.into_iter().skip(op.body.outputs.len());
    let stack = |r: &Value| match stacked(op, *r) {
        Some(at) => Some(call.outputs[at].clone()),
        None => recomputed.next(),
    };
    let stacks: Option<Vec<Id>> = residuals.iter().map(stack).collect();
    stacks.ok_or_else(|| OpError::new("a residual is missing"))
}

/// The body of the loop over the steps' pullbacks, under construction.
struct Backward<'a> {
    step: &'a LoopStep<'a>,
    graph: Graph,
    /// A map from the values of the joint graph.
    map: BTreeMap<Value, Value>,
    /// The values that it stacks for sums.
    stacks: Vec<Value>,
}

impl Backward<'_> {
    /// Adds the next input.
    fn fresh(&mut self, fact: Fact) -> Value {
        GraphBuilder::new(&mut self.graph, Loc::UNKNOWN).input(fact, Role::Data)
    }

    /// Adds the next input, which replaces a value of the joint graph.
    fn input(&mut self, v: Value) {
        let fact = self.step.joint.fact(v).clone();
        let input = self.fresh(fact);
        self.map.insert(v, input);
    }

    /// Copies the nodes that these values depend on.
    fn copy(&mut self, values: &[Value]) {
        let joint = &self.step.joint;
        let mut needed = vec![false; joint.len()];
        let mut stack = values.to_vec();
        while let Some(v) = stack.pop() {
            let is_copied = self.map.contains_key(&v);
            if !is_copied && !std::mem::replace(&mut needed[v.node.index()], true) {
                stack.extend(&joint.node(v.node).inputs);
            }
        }
        for (id, node) in joint.iter().filter(|(id, _)| needed[id.index()]) {
            let mut node = node.clone();
            for v in &mut node.inputs {
                *v = self.map[v];
            }
            let outputs = node.facts.len() as u32;
            let new = self.graph.push(node);
            for output in 0..outputs {
                let old = Value { node: id, output };
                self.map.entry(old).or_insert(Value { node: new, output });
            }
        }
    }

    /// Adds the outputs: the next carried gradients and sums, the gradients of scanned operands, and the values to
    /// stack for sums.
    fn outputs(&mut self, sums: &[Sum], totals: &[Value]) -> Result<(), OpError> {
        let step = self.step;
        let shared = step.shared.iter().zip(sums);
        let carried = shared.filter(|(_, s)| matches!(s, Sum::Carried));
        let terms: Vec<Value> = carried.map(|((_, g), _)| *g).collect();
        let mut needed: Vec<Value> = step.carried.iter().filter_map(|c| c.2).collect();
        needed.extend(step.scanned.iter().map(|(_, g)| *g));
        needed.extend(terms.iter().chain(&self.stacks));
        self.copy(&needed);
        let mut b = GraphBuilder::new(&mut self.graph, Loc::UNKNOWN);
        let mut outputs = Vec::new();
        for (_, input, g) in &step.carried {
            outputs.push(match g {
                Some(g) => self.map[g],
                None => zeros(&mut b, step.joint.fact(*input))?,
            });
        }
        for (share, total) in terms.iter().zip(totals) {
            outputs.push(b.pointwise(Pw::Add, &[*total, self.map[share]])?);
        }
        outputs.extend(step.scanned.iter().map(|(_, g)| self.map[g]));
        outputs.extend(self.stacks.iter().map(|v| self.map[v]));
        outputs.into_iter().for_each(|v| self.graph.add_output(v));
        Ok(())
    }
}

/// Returns the gradients of the operands of a loop.
pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: &ops::Loop,
    call: &Call<'_, Id>,
    cotangents: &[Option<Id>],
) -> Result<Gradients<Id>, OpError> {
    if let Some(masked) = op.masked() {
        return pullback(b, &masked?, call, cotangents);
    }
    let seeded: Vec<bool> = cotangents.iter().map(Option::is_some).collect();
    let step = LoopStep::new(op, call.needs_grad, &seeded)?;
    let residuals = step.residuals();
    let inputs: Vec<Value> = op.body.inputs().iter().map(|id| id.value()).collect();
    let fixed_inputs = &inputs[1 + op.carried..];
    let sums = step.sums();
    let mut backward_body = Backward {
        step: &step,
        graph: Graph::default(),
        map: BTreeMap::new(),
        stacks: Vec::new(),
    };
    for v in sums.iter().flat_map(Sum::stacked) {
        let is_available = residuals.contains(&v) || fixed_inputs[..op.scanned].contains(&v);
        if !is_available && !backward_body.stacks.contains(&v) {
            backward_body.stacks.push(v);
        }
    }
    backward_body.graph.symbols.clone_from(&op.body.symbols);
    // Operands and inputs have the same order: carried, scanned, shared by all steps.
    backward_body.input(inputs[0]);
    let mut operands: Vec<Id> = Vec::new();
    for (i, g, _) in &step.carried {
        backward_body.input(*g);
        operands.push(match &cotangents[*i] {
            Some(g) => g.clone(),
            None => zeros(b, step.joint.fact(*g))?,
        });
    }
    let mut totals = Vec::new();
    let shared = sums.iter().zip(&step.shared);
    for (_, (_, g)) in shared.filter(|(s, _)| matches!(s, Sum::Carried)) {
        let fact = step.joint.fact(*g).clone();
        operands.push(zeros(b, &fact)?);
        totals.push(backward_body.fresh(fact));
    }
    let carried = operands.len();
    let stacked_residuals = stacked_residuals(b, op, call, &residuals)?;
    operands.extend(stacked_residuals.iter().cloned());
    residuals.iter().for_each(|v| backward_body.input(*v));
    for (i, g) in &step.stacked {
        operands.extend(cotangents[*i].clone());
        backward_body.input(*g);
    }
    operands.extend(call.inputs[op.carried..].iter().cloned());
    fixed_inputs.iter().for_each(|v| backward_body.input(*v));
    backward_body.outputs(&sums, &totals)?;
    let (stacks, graph) = (backward_body.stacks, backward_body.graph);
    let mut gradient = Gradients::from_elem(None, call.inputs.len());
    if graph.outputs.is_empty() {
        return Ok(gradient);
    }
    let backward = ops::Loop {
        trips: op.trips.clone(),
        carried,
        scanned: residuals.len() + step.stacked.len() + op.scanned,
        reverse: !op.reverse,
        conditional: false,
        body: Arc::new(graph),
    };
    let results = b.emit(backward.into(), &operands)?;
    let mut results = results.into_iter();
    for (i, _, _) in &step.carried {
        let g = results.next();
        gradient[*i] = g.filter(|_| call.needs_grad[*i]);
    }
    let totals: Vec<Id> = results.by_ref().take(totals.len()).collect();
    for (i, _) in &step.scanned {
        gradient[*i] = results.next();
    }
    let stacked: Vec<Id> = results.collect();
    let stack = |v: &Value| {
        let index = |list: &[Value]| list.iter().position(|x| x == v);
        let new = index(&stacks).map(|i| stacked[i].clone());
        let new = new.or_else(|| index(&residuals).map(|i| stacked_residuals[i].clone()));
        let new = new.or_else(|| index(fixed_inputs).map(|i| call.inputs[op.carried + i].clone()));
        new.ok_or_else(|| OpError::new("a term of a sum is missing"))
    };
    let mut totals = totals.into_iter();
    for (sum, (i, g)) in sums.iter().zip(&step.shared) {
        gradient[*i] = match sum {
            Sum::Carried => totals.next(),
            Sum::Product {
                left,
                right,
                views,
                swapped,
            } => Some(product(b, (stack(left)?, *swapped), stack(right)?, views)?),
            Sum::Reduced { term, axes } => {
                let axes = std::iter::once(0).chain(axes.iter().map(|a| a + 1));
                let sum = b.sum(&stack(term)?, &axes.collect::<Vec<_>>())?;
                Some(b.reshape(&sum, &step.joint.fact(*g).shape)?)
            }
        };
    }
    Ok(gradient)
}

fn zeros<B: Builder>(b: &mut B, like: &Fact) -> Result<B::Value, OpError> {
    b.full(0.0, like.dtype, &like.shape)
}
