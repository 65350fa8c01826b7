//! The constraints of a program on the values of its symbols, each of which is at least 2.
//!
//! Inference refuses programs that are wrong for all values of symbols. Programs that are wrong for some values, such
//! as those with a window larger than its axis, are found when symbols have values: each number here must then not be
//! negative.

use crate::{Fact, Graph, Node, NodeId};
use hashbrown::HashSet;
use kiln_base::Dim;
use smallvec::SmallVec;

/// A number that must not be negative.
#[derive(Clone, Debug)]
pub struct Need<'g> {
    /// The number.
    pub size: Dim,
    /// The node that needs it, in the graph or in a body.
    pub node: &'g Node,
    /// Its id there.
    pub id: NodeId,
}

impl Graph {
    /// Returns the numbers that must not be negative but are for some values of symbols, each once.
    pub fn needs(&self) -> Vec<Need<'_>> {
        let mut needs = Vec::new();
        if !self.symbols.is_empty() {
            collect(self, &mut HashSet::new(), &mut needs);
        }
        needs
    }
}

fn collect<'g>(graph: &'g Graph, visited: &mut HashSet<Dim>, needs: &mut Vec<Need<'g>>) {
    for (id, node) in graph.iter() {
        let operands = node.inputs.iter().map(|v| graph.fact(*v));
        let operands: SmallVec<[&Fact; 4]> = operands.collect();
        let sizes = node.facts.iter().flat_map(|f| f.shape.iter().cloned());
        for size in node.op.needs(&operands).into_iter().chain(sizes) {
            let is_new = size.as_const().is_none() && visited.insert(size.clone());
            if is_new && size.lower_bound().is_none_or(|bound| bound < 0) {
                needs.push(Need { size, node, id });
            }
        }
        for body in node.op.bodies() {
            collect(body, visited, needs);
        }
    }
}
