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

/// The subgraph of the gradient graph that some tensors depend on, operands before users.
pub struct Walk {
    /// The leaves and operations of the subgraph.
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
    /// Returns the subgraph that these tensors depend on.
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

    /// Returns the subgraph that these tensors depend on, up to computed values. Operations that were differentiated
    /// already are omitted.
    pub fn of_pending(tensors: &[&Handle], loc: &'static Location<'static>) -> Walk {
        let mut walk = Walk {
            entries: Vec::new(),
            known: HashMap::new(),
        };
        let is_computed = |saved: &Saved| {
            let node = saved.node.node();
            (0..node.facts.len() as u32).all(|output| node.ready(output).is_some())
        };
        for t in tensors {
            let _ = walk.add(&t.edge, loc, is_computed);
        }
        walk
    }

    fn add(
        &mut self,
        edge: &Edge,
        loc: &'static Location<'static>,
        is_end: impl Fn(&Saved) -> bool,
    ) -> Result<()> {
        // The saved data of the nodes whose operands are being added.
        let mut open: Vec<Saved> = Vec::new();
        postorder(edge.clone(), |edge, is_last, pending| {
            if !is_last && self.source(edge).is_some() {
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
                    let entry = match is_end(&saved) {
                        true => GradEntry::End,
                        false if is_last => GradEntry::Node(node.clone(), saved),
                        false => {
                            let is_new = |edge: &&Edge| self.source(edge).is_none();
                            let inputs = saved.inputs.iter().map(|(_, edge)| edge).filter(is_new);
                            pending.extend(inputs.cloned());
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

    /// Returns the output that an edge leads to.
    pub fn source(&self, edge: &Edge) -> Option<StepOutput> {
        match edge {
            Edge::None => None,
            Edge::Leaf(leaf) => Some((*self.known.get(&Key::whole(leaf))?, 0)),
            Edge::Node(node, output) => Some((*self.known.get(&Key::whole(node))?, *output)),
        }
    }

    /// Returns the steps for [`kiln_autodiff::backward`]; with `live`, values keep their edges, for higher derivatives.
    pub fn steps(&self, live: bool) -> Vec<BackwardStep<'_, Handle>> {
        let with_edge = |mut t: Handle, edge: &Edge| {
            if live {
                t.edge = edge.clone();
            }
            t
        };
        self.steps_of(
            |f| f,
            |node, output, edge| with_edge(Handle::output_of(node, output), edge),
        )
    }

    /// Returns the steps over other values: `custom` maps a user's derivative, and `value` an output of a node, whose
    /// gradient flows along the edge.
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
                    .map(|(o, edge)| (value(&o.node, o.output, edge), self.source(edge)))
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
