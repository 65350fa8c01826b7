//! Rematerialises forward values in the backward pass, for `checkpoint`.

use super::edge::{CustomRule, Edge, GradNode, Leaf};
use crate::node::{Handle, Node, NodeState, Operand, serial};
use crate::postorder::{Key, postorder};
use crate::recorder::Recorder;
use crate::{Error, ErrorKind};
use hashbrown::HashMap;
use kiln_autodiff::{BackwardStep, Observer, Problem, Rule, StepOutput};
use kiln_ir::{Builder, OpError, ops};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::panic::Location;
use std::sync::Arc;

/// Runs `f` on `function_operands`. The gradients of its results are computed from these alone: they record `f`'s
/// operations again.
pub fn again<T>(
    function_operands: &[Handle],
    loc: &'static Location<'static>,
    f: impl FnOnce(&[Handle]) -> (T, Vec<Handle>),
) -> (T, Vec<Handle>) {
    let start = serial();
    let as_leaf = |t: &Handle| {
        let mut t = t.clone();
        if t.requires_grad() {
            t.edge = Edge::Leaf(Leaf::new(t.fact().clone(), t.device()));
        }
        t
    };
    let leaves: Vec<Handle> = function_operands.iter().map(as_leaf).collect();
    let (result, outputs) = f(&leaves);
    if outputs.iter().any(|t| t.error().is_some()) {
        return (result, outputs);
    }
    let mut region = Region {
        start,
        function_operands: function_operands.to_vec(),
        entries: Vec::new(),
        known: HashMap::new(),
        frontier: Vec::new(),
        loc,
    };
    let pairs = leaves.iter().zip(function_operands);
    for (inner, outer) in pairs.filter(|(inner, _)| inner.edge.is_some()) {
        let index = region.frontier.len();
        region
            .known
            .extend(inner.edge.key().map(|key| (key, Destination::Outer(index))));
        region.frontier.push(outer.clone());
    }
    let destinations: Vec<Destination> = outputs.iter().map(|t| region.add(t)).collect();
    region.entries.iter().for_each(|e| e.grad.release());
    let with_edge = |(mut t, edge): (Handle, Edge)| {
        t.edge = edge;
        t
    };
    let is_entry = |d: &Destination| matches!(d, Destination::Entry(..));
    if !destinations.iter().any(is_entry) || region.frontier.is_empty() {
        let edges = destinations.iter().map(|s| region.edge(*s));
        let detached = outputs.into_iter().zip(edges).map(with_edge);
        return (result, detached.collect());
    }
    let detached: Vec<Handle> = outputs.iter().map(Handle::plain).collect();
    let device = detached.iter().find_map(|t| t.node.device);
    let mut b = Recorder::new(loc, "checkpoint", device);
    let barrier = match b.emit(ops::Barrier { detach: false }.into(), &detached) {
        Ok(barrier) => barrier,
        Err(e) => {
            let failed = Error::new(ErrorKind::Op, "checkpoint", e.0, loc);
            return (result, vec![Handle::poisoned(failed, loc); detached.len()]);
        }
    };
    let (region, output_destinations) = (Arc::new(region), destinations.clone());
    let rule: Arc<CustomRule> = {
        let region = region.clone();
        Arc::new(move |_, _, cotangents, _| region.pullback(&output_destinations, cotangents))
    };
    let frontier: Vec<&Handle> = region.frontier.iter().collect();
    let node = GradNode::new(&barrier[0].node, Some(rule), &frontier);
    let outputs = barrier
        .into_iter()
        .zip(destinations)
        .map(|(t, destination)| {
            let edge = match destination {
                Destination::Entry(..) => Edge::Node(node.clone(), t.output),
                other => region.edge(other),
            };
            with_edge((t, edge))
        });
    (result, outputs.collect())
}

/// The destination of the gradient of a value.
#[derive(Copy, Clone)]
enum Destination {
    None,
    /// Out of the region: an index into [`Region::frontier`].
    Outer(usize),
    /// To an output of an entry.
    Entry(usize, u32),
}

/// The gradient graph of the operations that a function recorded, without their values.
struct Region {
    /// Nodes with smaller serial numbers existed before.
    start: u64,
    /// The function's operands.
    function_operands: Vec<Handle>,
    /// Operands before users.
    entries: Vec<RegionEntry>,
    /// The known destinations, by the keys of edges. An entry's first output has the key of its whole node.
    known: HashMap<Key, Destination>,
    /// The values outside that gradients flow to, with their edges.
    frontier: Vec<Handle>,
    loc: &'static Location<'static>,
}

struct RegionEntry {
    /// For its hooks.
    grad: Arc<GradNode>,
    node: Arc<Node>,
    /// A derivative of the user's own.
    custom: Option<Arc<CustomRule>>,
    inputs: Vec<(Operand, Destination)>,
}

impl Region {
    /// Adds a tensor and all its dependencies; returns the destination of its gradient.
    fn add(&mut self, t: &Handle) -> Destination {
        let visited = postorder(
            (t.operand(), t.edge.clone()),
            |(operand, edge), is_last, pending| {
                let Some(key) = edge.key().filter(|_| self.destination(edge).is_none()) else {
                    return Ok::<_, Infallible>(false);
                };
                let saved = match edge {
                    Edge::Node(node, _) if node.serial >= self.start => node.saved(),
                    _ => None,
                };
                let (Edge::Node(grad, _), Some(saved)) = (edge, saved) else {
                    self.known
                        .insert(key, Destination::Outer(self.frontier.len()));
                    let mut outer = Handle::output_of(&operand.node, operand.output);
                    outer.edge = edge.clone();
                    self.frontier.push(outer);
                    return Ok(false);
                };
                if !is_last {
                    pending.extend(saved.inputs);
                    return Ok(true);
                }
                let inputs = saved.inputs.iter();
                let entry = RegionEntry {
                    grad: grad.clone(),
                    inputs: inputs
                        .map(|(o, e)| (o.clone(), self.destination(e).unwrap_or(Destination::None)))
                        .collect(),
                    node: saved.node.node().clone(),
                    custom: saved.custom,
                };
                let destination = Destination::Entry(self.entries.len(), 0);
                self.known.insert(Key::whole(grad), destination);
                self.entries.push(entry);
                Ok(false)
            },
        );
        let Ok(()) = visited;
        self.destination(&t.edge).unwrap_or(Destination::None)
    }

    /// The edge of a value that belongs to no entry.
    fn edge(&self, destination: Destination) -> Edge {
        match destination {
            Destination::Outer(at) => self.frontier[at].edge.clone(),
            _ => Edge::None,
        }
    }

    fn destination(&self, edge: &Edge) -> Option<Destination> {
        if let Edge::Node(node, output) = edge
            && let Some(Destination::Entry(entry, _)) = self.known.get(&Key::whole(node))
        {
            return Some(Destination::Entry(*entry, *output));
        }
        self.known.get(&edge.key()?).copied()
    }

    /// The gradients of the frontier.
    fn pullback(
        &self,
        ends: &[Destination],
        cotangents: &[Option<Handle>],
    ) -> Result<Vec<Option<Handle>>, OpError> {
        let entries_start = self.frontier.len();
        let step_of = |destination: &Destination| match destination {
            Destination::None => None,
            Destination::Outer(step) => Some((*step, 0)),
            Destination::Entry(step, output) => Some((entries_start + step, *output)),
        };
        let mut seeds: Vec<(StepOutput, Handle)> = Vec::new();
        for (end, g) in ends.iter().zip(cotangents) {
            if let (Some(step), Some(g)) = (step_of(end), g) {
                seeds.push((step, g.clone()));
            }
        }
        let device = self.frontier.first().and_then(|t| t.node.device);
        let mut b = Recorder::new(self.loc, "checkpoint", device);
        let mut recomputed = Again::new(self, &mut b, seeds.iter().map(|(_, g)| g))?;
        let leaf = |_: &Handle| BackwardStep {
            rule: Rule::Leaf,
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
        };
        let mut steps: Vec<BackwardStep<'_, Handle>> = self.frontier.iter().map(leaf).collect();
        for entry in &self.entries {
            let mut inputs = SmallVec::new();
            for (operand, destination) in &entry.inputs {
                let value = recomputed.value(&mut b, operand)?;
                let value = match destination {
                    Destination::None => value.plain(),
                    _ => value,
                };
                inputs.push((value, step_of(destination)));
            }
            let mut outputs = SmallVec::new();
            for output in 0..entry.node.facts.len() as u32 {
                let node = entry.node.clone();
                outputs.push(recomputed.value(&mut b, &Operand { node, output })?);
            }
            let rule = match &entry.custom {
                Some(f) => Rule::Custom(&**f),
                None => Rule::Op(&entry.node.op),
            };
            steps.push(BackwardStep {
                rule,
                inputs,
                outputs,
            });
        }
        let targets: Vec<StepOutput> = (0..entries_start).map(|step| (step, 0)).collect();
        let gradients = kiln_autodiff::backward(&mut b, &steps, seeds, &targets, &mut Watch(self));
        gradients.map_err(|p: Problem| p.error)
    }
}

/// Records the region once more.
struct Again<'a> {
    region: &'a Region,
    /// The new values, by the keys of the first recording's values.
    map: HashMap<Key, Handle>,
    /// The entries of nodes.
    entries: HashMap<Key, &'a RegionEntry>,
}

impl<'a> Again<'a> {
    /// Begins with a barrier of the function's operands and the gradients of its results. No value is computed before
    /// these, or merged with a value of the first recording.
    fn new<'t>(
        region: &'a Region,
        b: &mut Recorder,
        cotangents: impl Iterator<Item = &'t Handle>,
    ) -> Result<Again<'a>, OpError> {
        let mut operands = region.function_operands.clone();
        operands.extend(cotangents.cloned());
        let barrier = b.emit(ops::Barrier { detach: false }.into(), &operands)?;
        let entry = |e: &'a RegionEntry| (Key::whole(&e.node), e);
        Ok(Again {
            region,
            map: region
                .function_operands
                .iter()
                .map(Handle::key)
                .zip(barrier)
                .collect(),
            entries: region.entries.iter().map(entry).collect(),
        })
    }

    fn value(&mut self, b: &mut Recorder, root: &Operand) -> Result<Handle, OpError> {
        postorder(root.clone(), |operand, is_last, first| {
            if self.map.contains_key(&operand.key()) {
                return Ok::<_, OpError>(false);
            }
            let node = &operand.node;
            let inputs = match &*node.state() {
                NodeState::Lazy { inputs, .. } if node.serial >= self.region.start => {
                    Some(inputs.clone())
                }
                _ => None,
            };
            let Some(inputs) = inputs.filter(|_| node.ready(operand.output).is_none()) else {
                let t = Handle::output_of(node, operand.output);
                self.map.insert(operand.key(), t);
                return Ok(false);
            };
            if !is_last {
                first.extend(inputs);
                return Ok(true);
            }
            let entry = self.entries.get(&Key::whole(node));
            let operand_of = |(i, o): (usize, &Operand)| {
                let t = &self.map[&o.key()];
                let flows = entry.is_some_and(|e| !matches!(e.inputs[i].1, Destination::None));
                if flows { t.clone() } else { t.plain() }
            };
            let inputs: Vec<Handle> = inputs.iter().enumerate().map(operand_of).collect();
            b.at(node.loc, node.called, node.device);
            let outputs = b.emit(node.op.clone(), &inputs)?;
            let keys = (0..).map(|output| Key::of(node, output));
            self.map.extend(keys.zip(outputs));
            Ok(false)
        })?;
        Ok(self.map[&root.key()].clone())
    }
}

/// Passes gradients to hooks, and records derivatives at the user's lines.
struct Watch<'a>(&'a Region);

impl Watch<'_> {
    fn grad(&self, step: usize) -> Option<&Arc<GradNode>> {
        let entry = step.checked_sub(self.0.frontier.len())?;
        Some(&self.0.entries[entry].grad)
    }
}

impl Observer<Recorder> for Watch<'_> {
    fn enter(&mut self, b: &mut Recorder, step: usize) {
        if let Some(node) = self.grad(step) {
            b.at(node.loc, node.called, node.device);
        }
    }

    fn gradient(&mut self, _: &mut Recorder, of: StepOutput, g: Handle) -> Result<Handle, OpError> {
        match self.grad(of.0) {
            Some(node) => node.observe(of.1, g),
            None => Ok(g),
        }
    }
}
