//! The graph of gradients that leads to some values, operands before users.

use super::edge::{CustomRule, Edge, GradNode, Leaf, Saved};
use crate::node::{Handle, Node};
use crate::postorder::{Key, postorder};
use crate::{Error, ErrorKind, Result};
use hashbrown::HashMap;
use kiln_autodiff::{BackwardStep, Custom, Rule, StepOutput};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// The part of the gradient graph that leads to some tensors, operands before users.
pub struct Walk {
    /// The leaves and operations that it reaches.
    pub entries: Vec<GradEntry>,
    known: HashMap<Key, usize>,
}

/// A leaf or operation that gradients reach.
pub enum GradEntry {
    /// A leaf.
    Leaf(Arc<Leaf>),
    /// An operation, and the data that its derivative needs.
    Node(Arc<GradNode>, Saved),
    /// An operation at which the walk stops.
    End,
}

impl Walk {
    /// The part that leads to these values.
    pub fn of(tensors: &[&Handle], loc: &'static Location<'static>) -> Result<Walk> {
        let mut walk = Walk {
            entries: Vec::new(),
            known: HashMap::new(),
        };
        for t in tensors {
            walk.add(&t.edge, loc, |_| false)?;
        }
        Ok(walk)
    }

    /// The part that leads to some tensors whose values are not computed yet. Operations that were differentiated already
    /// are left out.
    pub fn of_pending(tensors: &[&Handle], loc: &'static Location<'static>) -> Walk {
        let mut walk = Walk {
            entries: Vec::new(),
            known: HashMap::new(),
        };
        let computed = |saved: &Saved| {
            let node = saved.node.node();
            (0..node.facts.len() as u32).all(|output| node.ready(output).is_some())
        };
        for t in tensors {
            let _ = walk.add(&t.edge, loc, computed);
        }
        walk
    }

    fn add(
        &mut self,
        edge: &Edge,
        loc: &'static Location<'static>,
        ends: impl Fn(&Saved) -> bool,
    ) -> Result<()> {
        // The saved data of the nodes whose operands are being added.
        let mut open: Vec<Saved> = Vec::new();
        postorder(edge.clone(), |edge, is_last, first| {
            if !is_last && self.place(edge).is_some() {
                return Ok(false);
            }
            let (key, entry) = match edge {
                Edge::None => return Ok(false),
                Edge::Leaf(leaf) => (Key::whole(leaf), GradEntry::Leaf(leaf.clone())),
                Edge::Node(node, _) => {
                    let saved = match is_last {
                        true => open.pop(),
                        false => node.saved(),
                    };
                    let saved = saved.ok_or_else(|| released(node, loc))?;
                    let entry = match ends(&saved) {
                        true => GradEntry::End,
                        false if is_last => GradEntry::Node(node.clone(), saved),
                        false => {
                            let new = |edge: &&Edge| self.place(edge).is_none();
                            let inputs = saved.inputs.iter().map(|(_, edge)| edge).filter(new);
                            first.extend(inputs.cloned());
                            open.push(saved);
                            return Ok(true);
                        }
                    };
                    (Key::whole(node), entry)
                }
            };
            self.known.insert(key, self.entries.len());
            self.entries.push(entry);
            Ok(false)
        })
    }

    /// The place that an edge leads to.
    pub fn place(&self, edge: &Edge) -> Option<StepOutput> {
        match edge {
            Edge::None => None,
            Edge::Leaf(leaf) => Some((*self.known.get(&Key::whole(leaf))?, 0)),
            Edge::Node(node, output) => Some((*self.known.get(&Key::whole(node))?, *output)),
        }
    }

    /// The steps for [`kiln_autodiff::backward`]; with `live`, values keep their edges so that the
    /// derivatives can be differentiated again.
    pub fn steps(&self, live: bool) -> Vec<BackwardStep<'_, Handle>> {
        let with = |mut t: Handle, edge: &Edge| {
            if live {
                t.edge = edge.clone();
            }
            t
        };
        self.steps_of(
            |f| f,
            |node, output, edge| with(Handle::output_of(node, output), edge),
        )
    }

    /// The steps over other values: `custom` replaces a user's derivative, and `value` gives the value for an output
    /// of a node, whose gradient flows along the edge.
    pub fn steps_of<'a, V>(
        &'a self,
        custom: impl Fn(&'a CustomRule) -> &'a Custom<'a, V>,
        value: impl Fn(&Arc<Node>, u32, &Edge) -> V,
    ) -> Vec<BackwardStep<'a, V>> {
        let step = |entry: &'a GradEntry| match entry {
            GradEntry::Leaf(_) | GradEntry::End => BackwardStep {
                rule: Rule::Leaf,
                inputs: SmallVec::new(),
                outputs: SmallVec::new(),
            },
            GradEntry::Node(node, saved) => BackwardStep {
                rule: match &saved.custom {
                    None => Rule::Op(&saved.node.node().op),
                    Some(f) => Rule::Custom(custom(&**f)),
                },
                inputs: (saved.inputs.iter())
                    .map(|(o, edge)| (value(&o.node, o.output, edge), self.place(edge)))
                    .collect(),
                outputs: (0..node.facts.len() as u32)
                    .map(|o| value(saved.node.node(), o, &Edge::Node(node.clone(), o)))
                    .collect(),
            },
        };
        self.entries.iter().map(step).collect()
    }
}

/// The error of walking to an operation that was released.
fn released(node: &GradNode, loc: &'static Location<'static>) -> Error {
    let message = format!(
        "what the derivative of {} needs was released by an earlier backward; keep it with retain_graph",
        node.called
    );
    Error::new(ErrorKind::Value, "backward", message, loc)
}
