//! Trading time for memory: forward values that a backward pass computes again.

use super::edge::{CustomRule, Edge, GradNode, Leaf};
use super::is_grad_enabled;
use crate::caller::user_line;
use crate::node::{Node, Operand, State, serial};
use crate::record::{Recorder, compose_many};
use crate::{Nest, Tensor, trace};
use hashbrown::HashMap;
use kiln_autodiff::{Observer, Place, Problem, Rule, Step};
use kiln_ir::{Builder, OpError, ops};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// `f(inputs)`, of which a backward pass keeps the inputs alone: it records what `f` recorded once more,
/// behind the gradient of the result (`torch.utils.checkpoint.checkpoint`). Random numbers and what was
/// read of `Var`s are the same in both; what `f` assigned to a `Var` is assigned once.
///
/// ```
/// use kiln_tensor::{DType, Tensor, checkpoint};
/// let x = Tensor::ones([2, 3], DType::F32).requires_grad_(true);
/// let y = checkpoint(|x: Tensor| (x.exp() + 1.0).sin(), x.clone());
/// y.sum(()).backward()?;
/// assert!(x.grad().is_some());
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[track_caller]
pub fn checkpoint<I: Nest, T: Nest>(f: impl FnOnce(I) -> T, inputs: I) -> T {
    let loc = user_line(Location::caller());
    let given = inputs.tensors();
    // A loop that a body stands in decides itself what to keep.
    if !is_grad_enabled() || trace::is_tracing() || given.iter().any(|t| t.error().is_some()) {
        return f(inputs);
    }
    let start = serial();
    let leaf = |t: &Tensor| {
        let mut t = t.clone();
        if t.requires_grad() {
            t.edge = Edge::Leaf(Leaf::new(t.fact().clone(), t.device()));
        }
        t
    };
    let leaves: Vec<Tensor> = given.iter().map(leaf).collect();
    let result = f(inputs.with(&mut leaves.iter().cloned()));
    let outputs = result.tensors();
    if outputs.iter().any(|t| t.error().is_some()) {
        return result;
    }
    let mut region = Region {
        start,
        given: given.clone(),
        entries: Vec::new(),
        known: HashMap::new(),
        frontier: Vec::new(),
        loc,
    };
    for (own, outer) in leaves
        .iter()
        .zip(&given)
        .filter(|(own, _)| own.edge.is_some())
    {
        let at = region.frontier.len();
        region
            .known
            .extend(address(&own.edge).map(|a| (a, Known::Outer(at))));
        region.frontier.push(outer.clone());
    }
    let sources: Vec<Source> = outputs.iter().map(|t| region.add(t)).collect();
    region.entries.iter().for_each(|e| e.grad.release());
    if !sources.iter().any(|s| matches!(s, Source::Entry(..))) || region.frontier.is_empty() {
        let edges = sources.iter().map(|s| region.edge(*s));
        let plain = outputs.into_iter().zip(edges).map(|(mut t, edge)| {
            t.edge = edge;
            t
        });
        return result.with(&mut plain.collect::<Vec<_>>().into_iter());
    }
    let plain: Vec<Tensor> = outputs.iter().map(Tensor::plain).collect();
    let refs: Vec<&Tensor> = plain.iter().collect();
    let joined = compose_many("checkpoint", &refs, plain.len(), |b| {
        Ok(b.emit(ops::Barrier { detach: false }.into(), &plain)?
            .into_vec())
    });
    if joined.iter().any(|t| t.error().is_some()) {
        return result.with(&mut joined.into_iter());
    }
    let (region, ends) = (Arc::new(region), sources.clone());
    let rule: Arc<CustomRule> = {
        let region = region.clone();
        Arc::new(move |_, _, cotangents, _| region.pullback(&ends, cotangents))
    };
    let node = GradNode::new(&joined[0].node, Some(rule), &region.frontier);
    let mut outputs = joined.into_iter().zip(sources).map(|(mut t, source)| {
        t.edge = match source {
            Source::Entry(..) => Edge::Node(node.clone(), t.output),
            other => region.edge(other),
        };
        t
    });
    result.with(&mut outputs)
}

/// Where the gradient of a value goes.
#[derive(Copy, Clone)]
enum Source {
    None,
    /// Out of the region: index into [`Region::frontier`].
    Outer(usize),
    /// To an output of an entry.
    Entry(usize, u32),
}

#[derive(Copy, Clone)]
enum Known {
    Outer(usize),
    Entry(usize),
}

/// What a function recorded, as gradients see it. It holds operations but none of their values.
struct Region {
    /// Nodes with smaller numbers were there before.
    start: u64,
    /// What the function was given.
    given: Vec<Tensor>,
    /// Operands before users.
    entries: Vec<Entry>,
    /// By address of what edges lead to and output; entries stand at [`ALL`].
    known: HashMap<(usize, u32), Known>,
    /// What gradients leave to, with their edges.
    frontier: Vec<Tensor>,
    loc: &'static Location<'static>,
}

struct Entry {
    /// For its hooks.
    grad: Arc<GradNode>,
    node: Arc<Node>,
    /// A derivative of the user's own.
    custom: Option<Arc<CustomRule>>,
    inputs: Vec<(Operand, Source)>,
}

/// Stands for all outputs of an entry.
const ALL: u32 = u32::MAX;

/// What tells edges apart.
fn address(edge: &Edge) -> Option<(usize, u32)> {
    match edge {
        Edge::None => None,
        Edge::Leaf(leaf) => Some((Arc::as_ptr(leaf) as usize, 0)),
        Edge::Node(node, output) => Some((Arc::as_ptr(node) as usize, *output)),
    }
}

impl Region {
    /// Where the gradient of a tensor goes; adds what lies behind.
    fn add(&mut self, t: &Tensor) -> Source {
        let mut stack = vec![(t.operand(), t.edge.clone(), false)];
        while let Some((operand, edge, seen)) = stack.pop() {
            let Some(at) = address(&edge).filter(|_| self.source(&edge).is_none()) else {
                continue;
            };
            let saved = match &edge {
                Edge::Node(node, _) if node.serial >= self.start => node.saved(),
                _ => None,
            };
            let (Edge::Node(grad, _), Some(saved)) = (&edge, saved) else {
                self.known.insert(at, Known::Outer(self.frontier.len()));
                let mut outer = Tensor::output_of(&operand.node, operand.output);
                outer.edge = edge;
                self.frontier.push(outer);
                continue;
            };
            if !seen {
                stack.push((operand, edge.clone(), true));
                let inputs = saved
                    .inputs
                    .iter()
                    .map(|(o, e)| (o.clone(), e.clone(), false));
                stack.extend(inputs);
                continue;
            }
            let inputs = saved.inputs.iter();
            let entry = Entry {
                grad: grad.clone(),
                inputs: inputs
                    .map(|(o, e)| (o.clone(), self.source(e).unwrap_or(Source::None)))
                    .collect(),
                node: saved.held.node().clone(),
                custom: saved.custom,
            };
            self.known
                .insert((at.0, ALL), Known::Entry(self.entries.len()));
            self.entries.push(entry);
        }
        self.source(&t.edge).unwrap_or(Source::None)
    }

    /// The edge of a value that is no entry's.
    fn edge(&self, source: Source) -> Edge {
        match source {
            Source::Outer(at) => self.frontier[at].edge.clone(),
            _ => Edge::None,
        }
    }

    fn source(&self, edge: &Edge) -> Option<Source> {
        let (at, output) = address(edge)?;
        let known = self
            .known
            .get(&(at, ALL))
            .or_else(|| self.known.get(&(at, output)))?;
        Some(match known {
            Known::Outer(at) => Source::Outer(*at),
            Known::Entry(at) => Source::Entry(*at, output),
        })
    }

    /// The gradients of the frontier.
    fn pullback(
        &self,
        ends: &[Source],
        cotangents: &[Option<Tensor>],
    ) -> Result<Vec<Option<Tensor>>, OpError> {
        let first = self.frontier.len();
        let place = |source: &Source| match source {
            Source::None => None,
            Source::Outer(at) => Some((*at, 0)),
            Source::Entry(at, output) => Some((first + at, *output)),
        };
        let mut seeds: Vec<(Place, Tensor)> = Vec::new();
        for (end, g) in ends.iter().zip(cotangents) {
            if let (Some(at), Some(g)) = (place(end), g) {
                seeds.push((at, g.clone()));
            }
        }
        let device = self.frontier.first().and_then(|t| t.node.device);
        let mut b = Recorder::new(self.loc, "checkpoint", device);
        let mut again = Again::new(self, &mut b, seeds.iter().map(|(_, g)| g))?;
        let leaf = |_: &Tensor| Step {
            rule: Rule::Leaf,
            inputs: SmallVec::new(),
            outputs: SmallVec::new(),
        };
        let mut steps: Vec<Step<'_, Tensor>> = self.frontier.iter().map(leaf).collect();
        for entry in &self.entries {
            let mut inputs = SmallVec::new();
            for (operand, source) in &entry.inputs {
                let value = again.value(&mut b, operand)?;
                let value = if let Source::None = source {
                    value.plain()
                } else {
                    value
                };
                inputs.push((value, place(source)));
            }
            let mut outputs = SmallVec::new();
            for output in 0..entry.node.facts.len() as u32 {
                let node = entry.node.clone();
                outputs.push(again.value(&mut b, &Operand { node, output })?);
            }
            let rule = match &entry.custom {
                Some(f) => Rule::Custom(&**f),
                None => Rule::Op(&entry.node.op),
            };
            steps.push(Step {
                rule,
                inputs,
                outputs,
            });
        }
        let targets: Vec<Place> = (0..first).map(|at| (at, 0)).collect();
        let found = kiln_autodiff::backward(&mut b, &steps, seeds, &targets, &mut Watch(self));
        found.map_err(|p: Problem| p.error)
    }
}

/// Recording the region once more.
struct Again<'a> {
    region: &'a Region,
    /// By the address of the first recording's node and the output.
    map: HashMap<(usize, u32), Tensor>,
    /// The entries of nodes.
    entries: HashMap<usize, &'a Entry>,
}

impl<'a> Again<'a> {
    /// Begins behind a barrier of what the function was given and the gradients of its results, so that
    /// no value is computed before these are, and none is taken for one of the first time.
    fn new<'t>(
        region: &'a Region,
        b: &mut Recorder,
        cotangents: impl Iterator<Item = &'t Tensor>,
    ) -> Result<Again<'a>, OpError> {
        let mut operands = region.given.clone();
        operands.extend(cotangents.cloned());
        let behind = b.emit(ops::Barrier { detach: false }.into(), &operands)?;
        let key = |t: &Tensor| (Arc::as_ptr(&t.node) as usize, t.output);
        let entry = |e: &'a Entry| (Arc::as_ptr(&e.node) as usize, e);
        Ok(Again {
            region,
            map: region.given.iter().map(key).zip(behind).collect(),
            entries: region.entries.iter().map(entry).collect(),
        })
    }

    fn value(&mut self, b: &mut Recorder, root: &Operand) -> Result<Tensor, OpError> {
        let key = |o: &Operand| (Arc::as_ptr(&o.node) as usize, o.output);
        let mut stack = vec![(root.clone(), false)];
        while let Some((operand, seen)) = stack.pop() {
            if self.map.contains_key(&key(&operand)) {
                continue;
            }
            let node = &operand.node;
            let inputs = match &*node.state() {
                State::Lazy { inputs, .. } if node.serial >= self.region.start => {
                    Some(inputs.clone())
                }
                _ => None,
            };
            let Some(inputs) = inputs.filter(|_| node.ready(operand.output).is_none()) else {
                let t = Tensor::output_of(node, operand.output);
                self.map.insert(key(&operand), t);
                continue;
            };
            if !seen {
                stack.push((operand, true));
                stack.extend(inputs.into_iter().map(|o| (o, false)));
                continue;
            }
            let entry = self.entries.get(&(Arc::as_ptr(node) as usize));
            let operand_of = |(i, o): (usize, &Operand)| {
                let t = &self.map[&key(o)];
                let flows = entry.is_some_and(|e| !matches!(e.inputs[i].1, Source::None));
                if flows { t.clone() } else { t.plain() }
            };
            let inputs: Vec<Tensor> = inputs.iter().enumerate().map(operand_of).collect();
            b.at(node.loc, node.called, node.device);
            let outputs = b.emit(node.op.clone(), &inputs)?;
            for (output, t) in outputs.into_iter().enumerate() {
                self.map
                    .insert((Arc::as_ptr(node) as usize, output as u32), t);
            }
        }
        Ok(self.map[&key(root)].clone())
    }
}

/// Shows hooks the gradients, and records derivatives at the user's lines.
struct Watch<'a>(&'a Region);

impl Watch<'_> {
    fn grad(&self, step: usize) -> Option<&Arc<GradNode>> {
        let at = step.checked_sub(self.0.frontier.len())?;
        Some(&self.0.entries[at].grad)
    }
}

impl Observer<Recorder> for Watch<'_> {
    fn enter(&mut self, b: &mut Recorder, step: usize) {
        if let Some(node) = self.grad(step) {
            b.at(node.loc, node.called, node.device);
        }
    }

    fn gradient(&mut self, _: &mut Recorder, of: Place, g: Tensor) -> Result<Tensor, OpError> {
        match self.grad(of.0) {
            Some(node) => node.observe(of.1, g),
            None => Ok(g),
        }
    }
}
