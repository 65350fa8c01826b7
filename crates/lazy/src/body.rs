//! Recording a function as the body of an op, for `scan` and `cond`.
//!
//! The function runs once, on placeholders. The body's graph consists of everything that a branch records, or of the
//! part of a step that depends on the placeholders. Everything else is computed once, outside, and passed in
//! (*captured*), except numbers and views, which cost nothing inside.

use crate::grad::edge::Edge;
use crate::grad::is_grad_enabled;
use crate::node::{Handle, Node, NodeState, Operand, input_op, serial};
use crate::postorder::{Key, postorder};
use crate::{Device, Error, Result, scope};
use hashbrown::HashMap;
use kiln_base::{DType, Dim, Loc};
use kiln_ir::{Builder, Fact, Graph, NodeId, Op, OpError, Pw, Role, Value, ops};
use std::cell::RefCell;
use std::convert::Infallible;
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    static TRACES: RefCell<Vec<Trace>> = const { RefCell::new(Vec::new()) };
}

/// A function being recorded as a body.
pub struct Trace {
    /// Nodes with smaller serial numbers existed before.
    start: u64,
    /// The edges of operands, by their keys.
    edges: HashMap<Key, Edge>,
    /// The number of the step, and the number of steps.
    step: Option<(Handle, Dim)>,
    /// True if gradients are recorded around the function.
    grad: bool,
}

/// Ends the trace even if the user's function panics.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        let trace = TRACES.with_borrow_mut(Vec::pop);
        drop(trace); // not under the borrow
    }
}

/// True if this thread is recording a body.
#[inline]
pub fn is_tracing() -> bool {
    TRACES.with_borrow(|t| !t.is_empty())
}

/// True if operations recorded now must be detached from gradients in the body being recorded.
#[inline]
pub fn detaches() -> bool {
    TRACES.with_borrow(|t| t.last().is_some_and(|t| t.grad)) && !is_grad_enabled()
}

/// True if gradients may be needed through operations that are recorded in a body.
#[inline]
pub fn may_flow() -> bool {
    TRACES.with_borrow(|t| t.last().is_some_and(|t| t.grad)) && is_grad_enabled()
}

/// Remembers the edges of operands.
pub fn saw<T: AsRef<Handle>>(inputs: &[T]) {
    TRACES.with_borrow_mut(|traces| {
        if let Some(trace) = traces.last_mut() {
            trace.saw(inputs.iter().map(AsRef::as_ref));
        }
    });
}

impl Trace {
    fn saw<'t>(&mut self, inputs: impl Iterator<Item = &'t Handle>) {
        for t in inputs.filter(|t| t.edge.is_some()) {
            self.edges.insert(t.key(), t.edge.clone());
        }
    }
}

/// Returns the key of `count` random numbers. Each step of the loops being recorded gets its own key, derived from
/// `base`, which returns a key for any count.
pub fn random_key<B: Builder<Value = Handle>>(
    b: &mut B,
    count: &Dim,
    base: impl FnOnce(&Dim) -> Result<Handle, OpError>,
) -> Result<Handle, OpError> {
    let steps: Vec<(Handle, Dim)> =
        TRACES.with_borrow(|traces| traces.iter().filter_map(|t| t.step.clone()).collect());
    if steps
        .iter()
        .any(|(_, trips)| *trips == ops::Loop::UNBOUNDED)
    {
        return Err(OpError::new(
            "random numbers in a while_loop need `max_trips`, so that no step uses those of another",
        ));
    }
    // Inner steps are adjacent.
    let mut counts = vec![count.clone()];
    for (_, trips) in steps.iter().rev() {
        counts.push(&counts[counts.len() - 1] * trips);
    }
    let mut key = base(&counts.pop().unwrap_or(Dim::ONE))?;
    for (step, _) in &steps {
        let step_count = counts.pop().unwrap_or(Dim::ONE);
        let ones = b.full(1i64, DType::I64, &[step_count])?;
        let step_count = b.sum(&ones, &[0])?;
        let skipped = b.pointwise(Pw::Mul, &[step.clone(), step_count])?;
        let skipped = b.reshape(&skipped, &[Dim::ONE])?;
        let skipped = b.pad_axis_zero(&skipped, 0, 1i64, 0i64)?;
        key = b.pointwise(Pw::Add, &[key, skipped])?;
    }
    Ok(key)
}

/// The operations that a function recorded.
pub struct Traced {
    inputs: Vec<Handle>,
    trace: Trace,
}

/// Runs `f` on placeholders for values of these facts. In a loop of `trips` steps, the traced inputs begin with the
/// number of the step.
pub fn trace<T>(
    facts: &[(Fact, Option<Device>)],
    trips: Option<&Dim>,
    called: &'static str,
    loc: &'static Location<'static>,
    f: impl FnOnce(&[Handle]) -> T,
) -> (T, Traced) {
    let placeholder = |f: Fact, device| scope::placeholder(f, Role::Data, device, loc, called);
    let start = serial();
    let step = trips.map(|trips| {
        let number = Fact::new(DType::I64, [0i64; 0]);
        (placeholder(number, None), trips.clone())
    });
    let facts = facts.iter();
    let placeholders = facts.map(|(f, device)| placeholder(f.clone(), *device));
    let placeholders: Vec<Handle> = placeholders.collect();
    let mut inputs: Vec<Handle> = step.iter().map(|(t, _)| t.clone()).collect();
    inputs.extend(placeholders.iter().cloned());
    let trace = Trace {
        start,
        edges: HashMap::new(),
        step,
        grad: is_grad_enabled(),
    };
    TRACES.with_borrow_mut(|t| t.push(trace));
    let ended = Ended;
    let result = f(&placeholders);
    std::mem::forget(ended);
    let trace = TRACES.with_borrow_mut(Vec::pop);
    let trace = trace.expect("pushed above, and traces end in order");
    (result, Traced { inputs, trace })
}

/// Values that bodies take from outside.
#[derive(Default)]
pub struct Captured {
    /// The values, in the order of the inputs, which follow the body's own.
    pub values: Vec<Handle>,
    known: HashMap<Key, usize>,
}

impl Traced {
    /// The graph of the outputs. The inputs after the function's own are those captured so far, and further ones;
    /// see [`Captured::complete`].
    pub fn graph<H: AsRef<Handle>>(
        &mut self,
        outputs: &[H],
        captured: &mut Captured,
    ) -> Result<Graph> {
        let outputs = outputs.iter().map(AsRef::as_ref);
        self.trace.saw(outputs.clone());
        let mut body = Body {
            trace: &self.trace,
            inputs: &self.inputs,
            depends: HashMap::new(),
            map: HashMap::new(),
            graph: Graph::default(),
            captured,
        };
        for (i, t) in self.inputs.iter().enumerate() {
            let v = add_input(&mut body.graph, i, t.fact(), t.node.loc);
            body.map.insert(t.key(), v);
        }
        for t in outputs {
            let v = body.value(&t.operand())?;
            body.graph.add_output(v);
        }
        Ok(body.graph)
    }
}

impl Captured {
    /// Adds the missing inputs for captured values to a body with `own` inputs.
    pub fn complete(&self, graph: &mut Graph, own: usize) {
        for (i, t) in self
            .values
            .iter()
            .enumerate()
            .skip(graph.inputs().len() - own)
        {
            add_input(graph, own + i, t.fact(), t.node.loc);
        }
    }
}

fn add_input(
    graph: &mut Graph,
    index: usize,
    fact: &Fact,
    loc: &'static Location<'static>,
) -> Value {
    let mut op = input_op(fact.clone(), Role::Data);
    if let Op::Input(input) = &mut op {
        input.index = index as u32;
    }
    graph
        .push(kiln_ir::Node {
            op,
            inputs: Default::default(),
            facts: kiln_ir::Facts::from_buf([fact.clone()]),
            loc: Loc::from(loc),
        })
        .value()
}

struct Body<'a> {
    trace: &'a Trace,
    inputs: &'a [Handle],
    /// For each node, true if it depends on the inputs.
    depends: HashMap<Key, bool>,
    map: HashMap<Key, Value>,
    graph: Graph,
    captured: &'a mut Captured,
}

impl Body<'_> {
    /// Returns the operands of a node that may be in the body: an unrealised node recorded in it, or a number.
    fn operands(&self, node: &Arc<Node>) -> Option<Vec<Operand>> {
        let new = node.serial >= self.trace.start;
        let number = matches!(node.op, Op::Full(_));
        match &*node.state() {
            NodeState::Lazy { inputs, .. } if new || number => Some(inputs.to_vec()),
            _ => None,
        }
    }

    fn depends(&mut self, operand: &Operand) -> bool {
        let visited = postorder(operand.node.clone(), |node, is_last, pending| {
            if self.depends.contains_key(&Key::whole(node)) {
                return Ok::<_, Infallible>(false);
            }
            let is_input = self.inputs.iter().any(|t| Arc::ptr_eq(&t.node, node));
            let operands = self.operands(node).unwrap_or_default();
            if !is_input && !is_last {
                pending.extend(operands.into_iter().map(|o| o.node));
                return Ok(true);
            }
            let depends = |o: &Operand| self.depends.get(&Key::whole(&o.node)) == Some(&true);
            let depends_on_input = is_input || operands.iter().any(depends);
            self.depends.insert(Key::whole(node), depends_on_input);
            Ok(false)
        });
        let Ok(()) = visited;
        self.depends[&Key::whole(&operand.node)]
    }

    /// True if a node becomes part of the body. In a branch, all of its nodes do, since it may not run.
    fn belongs(&mut self, operand: &Operand) -> bool {
        let op = &operand.node.op;
        let is_free = op.is_view()
            || matches!(
                op,
                Op::Full(_) | Op::Iota(_) | Op::Numel(_) | Op::Barrier(_)
            );
        let is_branch = self.trace.step.is_none();
        self.operands(&operand.node).is_some() && (is_free || is_branch || self.depends(operand))
    }

    fn value(&mut self, root: &Operand) -> Result<Value> {
        postorder(root.clone(), |operand, is_last, first| {
            if self.map.contains_key(&operand.key()) {
                return Ok::<_, Error>(false);
            }
            if !is_last && !self.belongs(operand) {
                let v = self.capture(operand)?;
                self.map.insert(operand.key(), v);
                return Ok(false);
            }
            let node = &operand.node;
            let operands = self.operands(node).unwrap_or_default();
            if !is_last {
                first.extend(operands);
                return Ok(true);
            }
            let id: NodeId = self.graph.push(kiln_ir::Node {
                op: node.op.clone(),
                inputs: operands.iter().map(|o| self.map[&o.key()]).collect(),
                facts: node.facts.clone(),
                loc: Loc::from(node.loc).calling(node.called),
            });
            for output in 0..node.facts.len() as u32 {
                let value = Value { node: id, output };
                self.map.insert(Key::of(node, output), value);
            }
            Ok(false)
        })?;
        Ok(self.map[&root.key()])
    }

    fn capture(&mut self, operand: &Operand) -> Result<Value> {
        let mut t = Handle::output_of(&operand.node, operand.output);
        t.check()?;
        if let Some(edge) = self.trace.edges.get(&operand.key()) {
            t.edge = edge.clone();
        }
        let known = &mut self.captured.known;
        let index = *known
            .entry(operand.key())
            .or_insert(self.captured.values.len());
        if index == self.captured.values.len() {
            self.captured.values.push(t);
        } else if !self.captured.values[index].edge.is_some() {
            self.captured.values[index].edge = t.edge.clone();
        }
        let own_inputs = self.inputs.len();
        // Inputs are dense: those that an earlier body captured come first.
        for i in self.graph.inputs().len() - own_inputs..=index {
            let t = &self.captured.values[i];
            let v = add_input(&mut self.graph, own_inputs + i, t.fact(), t.node.loc);
            self.map.insert(t.key(), v);
        }
        Ok(self.map[&operand.key()])
    }
}
