//! The backward pass over recorded tensors.

use super::edge::{CustomRule, Edge, GradNode, Leaf, Saved, fitting};
use super::{enable_grad, no_grad};
use crate::node::Node;
use crate::record::Recorder;
use crate::{Error, ErrorKind, Result, Tensor};
use hashbrown::HashMap;
use kiln_autodiff::{Custom, Observer, Place, Rule, Step};
use kiln_base::Loc;
use kiln_ir::OpError;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// The part of the gradient graph behind some tensors, operands before users.
pub(super) struct Trace {
    pub(super) entries: Vec<Entry>,
    known: HashMap<usize, usize>,
}

pub(super) enum Entry {
    Leaf(Arc<Leaf>),
    Node(Arc<GradNode>, Saved),
    /// An operation behind which the walk does not go on.
    End,
}

struct Frame {
    node: Arc<GradNode>,
    saved: Saved,
    next: usize,
}

impl Trace {
    pub(super) fn of(tensors: &[&Tensor], loc: &'static Location<'static>) -> Result<Trace> {
        let mut trace = Trace {
            entries: Vec::new(),
            known: HashMap::new(),
        };
        for t in tensors {
            trace.add(&t.edge, loc, |_| false)?;
        }
        Ok(trace)
    }

    /// The part behind some tensors whose values are not computed yet; what was differentiated already is
    /// left out.
    pub(super) fn of_pending(tensors: &[&Tensor], loc: &'static Location<'static>) -> Trace {
        let mut trace = Trace {
            entries: Vec::new(),
            known: HashMap::new(),
        };
        let computed = |saved: &Saved| {
            let node = saved.held.node();
            (0..node.facts.len() as u32).all(|output| node.ready(output).is_some())
        };
        for t in tensors {
            let _ = trace.add(&t.edge, loc, computed);
        }
        trace
    }

    fn add(
        &mut self,
        edge: &Edge,
        loc: &'static Location<'static>,
        ends: impl Fn(&Saved) -> bool,
    ) -> Result<()> {
        let mut stack: Vec<Frame> = Vec::new();
        self.open(edge, &mut stack, loc, &ends)?;
        while let Some(frame) = stack.last_mut() {
            if let Some((_, edge)) = frame.saved.inputs.get(frame.next) {
                frame.next += 1;
                let edge = edge.clone();
                self.open(&edge, &mut stack, loc, &ends)?;
            } else if let Some(frame) = stack.pop() {
                let address = Arc::as_ptr(&frame.node) as usize;
                self.known.insert(address, self.entries.len());
                self.entries.push(Entry::Node(frame.node, frame.saved));
            }
        }
        Ok(())
    }

    fn open(
        &mut self,
        edge: &Edge,
        stack: &mut Vec<Frame>,
        loc: &'static Location<'static>,
        ends: &impl Fn(&Saved) -> bool,
    ) -> Result<()> {
        if self.place(edge).is_some() {
            return Ok(());
        }
        match edge {
            Edge::None => {}
            Edge::Leaf(leaf) => {
                let address = Arc::as_ptr(leaf) as usize;
                self.known.insert(address, self.entries.len());
                self.entries.push(Entry::Leaf(leaf.clone()));
            }
            Edge::Node(node, _) => {
                let saved = node.saved().ok_or_else(|| {
                    let message = format!(
                        "what the derivative of {} needs was released by an earlier backward; keep \
                         it with retain_graph",
                        node.called
                    );
                    Error::new(ErrorKind::Value, "backward", message, loc)
                })?;
                if ends(&saved) {
                    let address = Arc::as_ptr(node) as usize;
                    self.known.insert(address, self.entries.len());
                    self.entries.push(Entry::End);
                    return Ok(());
                }
                stack.push(Frame {
                    node: node.clone(),
                    saved,
                    next: 0,
                });
            }
        }
        Ok(())
    }

    pub(super) fn place(&self, edge: &Edge) -> Option<Place> {
        match edge {
            Edge::None => None,
            Edge::Leaf(leaf) => Some((*self.known.get(&(Arc::as_ptr(leaf) as usize))?, 0)),
            Edge::Node(node, output) => {
                Some((*self.known.get(&(Arc::as_ptr(node) as usize))?, *output))
            }
        }
    }

    /// The steps for [`kiln_autodiff::backward`]; with `live`, values keep their edges so that the
    /// derivatives can be differentiated again.
    fn steps(&self, live: bool) -> Vec<Step<'_, Tensor>> {
        let with = |mut t: Tensor, edge: &Edge| {
            if live {
                t.edge = edge.clone();
            }
            t
        };
        self.steps_of(
            |f| f,
            |node, output, edge| with(Tensor::output_of(node, output), edge),
        )
    }

    /// The steps over other values: `custom` stands for a user's derivative, and `value` makes an output
    /// of a node, whose gradient flows along the edge.
    pub(super) fn steps_of<'a, V>(
        &'a self,
        custom: impl Fn(&'a CustomRule) -> &'a Custom<'a, V>,
        value: impl Fn(&Arc<Node>, u32, &Edge) -> V,
    ) -> Vec<Step<'a, V>> {
        let step = |entry: &'a Entry| match entry {
            Entry::Leaf(_) | Entry::End => Step {
                rule: Rule::Leaf,
                inputs: SmallVec::new(),
                outputs: SmallVec::new(),
            },
            Entry::Node(node, saved) => Step {
                rule: match &saved.custom {
                    None => Rule::Op(&saved.held.node().op),
                    Some(f) => Rule::Custom(custom(&**f)),
                },
                inputs: (saved.inputs.iter())
                    .map(|(o, edge)| (value(&o.node, o.output, edge), self.place(edge)))
                    .collect(),
                outputs: (0..node.facts.len() as u32)
                    .map(|o| value(saved.held.node(), o, &Edge::Node(node.clone(), o)))
                    .collect(),
            },
        };
        self.entries.iter().map(step).collect()
    }
}

/// Shows hooks the gradients as they become complete, and records derivatives at the user's lines.
struct Watch<'a> {
    trace: &'a Trace,
}

impl Observer<Recorder> for Watch<'_> {
    fn enter(&mut self, b: &mut Recorder, step: usize) {
        if let Entry::Node(node, _) = &self.trace.entries[step] {
            b.at(node.loc, node.called, node.device);
        }
    }

    fn gradient(&mut self, _: &mut Recorder, of: Place, g: Tensor) -> Result<Tensor, OpError> {
        match &self.trace.entries[of.0] {
            Entry::Leaf(leaf) => {
                let fact = g.fact().clone();
                fitting(leaf.hooks.apply(g), &fact)
            }
            Entry::Node(node, _) => node.observe(of.1, g),
            Entry::End => Ok(g),
        }
    }
}

/// What a backward pass keeps.
#[derive(Copy, Clone)]
pub(crate) struct Keep {
    /// What the derivatives need, for another pass.
    pub(crate) graph: bool,
    /// The gradients' own history, to differentiate them.
    pub(crate) create: bool,
}

/// A leaf, where leaves were asked for, and the gradient found.
pub(crate) type Found = (Option<Arc<Leaf>>, Option<Tensor>);

/// The gradients of `targets` (all leaves where `None`) and the leaves themselves.
pub(crate) fn run(
    outputs: &[(&Tensor, Tensor)],
    targets: Option<&[&Tensor]>,
    keep: Keep,
    loc: &'static Location<'static>,
) -> Result<Vec<Found>> {
    let roots: Vec<&Tensor> = outputs.iter().map(|(y, _)| *y).collect();
    let trace = Trace::of(&roots, loc)?;
    let mut places: Vec<Option<Place>> = Vec::new();
    let mut leaves: Vec<Option<Arc<Leaf>>> = Vec::new();
    match targets {
        Some(targets) => {
            places.extend(targets.iter().map(|t| trace.place(&t.edge)));
            leaves.resize(places.len(), None);
        }
        None => {
            for (i, entry) in trace.entries.iter().enumerate() {
                if let Entry::Leaf(leaf) = entry {
                    places.push(Some((i, 0)));
                    leaves.push(Some(leaf.clone()));
                }
            }
        }
    }
    let mut seeds = Vec::new();
    for (y, g) in outputs {
        seeds.extend(trace.place(&y.edge).map(|place| (place, g.clone())));
    }
    let wanted: Vec<Place> = places.iter().flatten().copied().collect();
    let chain = || {
        let steps = trace.steps(keep.create);
        let mut recorder = Recorder::backward(loc, roots[0].node.device);
        let mut watch = Watch { trace: &trace };
        kiln_autodiff::backward(&mut recorder, &steps, seeds, &wanted, &mut watch)
    };
    let found = match keep.create {
        true => enable_grad(chain),
        false => no_grad(chain),
    };
    let found = found.map_err(|p| match &trace.entries[p.step] {
        Entry::Node(node, _) => {
            let note = format!("in the gradients that are asked for at {}", Loc::from(loc));
            Error::new(ErrorKind::Op, node.called, p.error.0, node.loc).with_note(note)
        }
        Entry::Leaf(_) | Entry::End => Error::new(ErrorKind::Op, "backward", p.error.0, loc),
    })?;
    if !keep.graph {
        for entry in &trace.entries {
            if let Entry::Node(node, _) = entry {
                node.release();
            }
        }
    }
    let mut found = found.into_iter();
    let gradient = |place: Option<Place>| place.and_then(|_| found.next().flatten());
    Ok(leaves
        .into_iter()
        .zip(places.into_iter().map(gradient).collect::<Vec<_>>())
        .collect())
}
