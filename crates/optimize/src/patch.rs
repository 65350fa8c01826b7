//! Patches: the results of rules.

use crate::View;
use kiln_ir::{Builder, Fact, Loc, Node, NodeId, Op, OpError, Value};
use smallvec::SmallVec;

/// New nodes, and the values that they (or existing values) replace.
#[derive(Clone, Debug)]
pub struct Patch {
    /// Numbered from the arena's length on.
    pub(crate) nodes: Vec<Node>,
    pub(crate) first_new: usize,
    pub(crate) replacements: Vec<(Value, Value)>,
}

/// Records the new nodes of a [`Patch`]. It is a [`Builder`], so composites can be written into it.
pub struct PatchBuilder<'a> {
    view: View<'a>,
    loc: Loc,
    patch: Patch,
}

impl<'a> PatchBuilder<'a> {
    pub(crate) fn new(view: View<'a>, loc: Loc) -> PatchBuilder<'a> {
        PatchBuilder {
            view,
            loc,
            patch: Patch {
                nodes: Vec::new(),
                first_new: view.graph().len(),
                replacements: Vec::new(),
            },
        }
    }

    /// Replaces all earlier uses of `old` by `new`.
    pub fn replace(&mut self, old: Value, new: Value) {
        self.patch.replacements.push((old, new));
    }

    /// The patch.
    pub fn finish(self) -> Patch {
        self.patch
    }

    /// The patch, after one last replacement.
    pub fn replacing(mut self, old: Value, new: Value) -> Patch {
        self.replace(old, new);
        self.finish()
    }

    fn fact_of(&self, v: Value) -> &Fact {
        match v.node.index().checked_sub(self.patch.first_new) {
            Some(i) => &self.patch.nodes[i].facts[v.output as usize],
            None => self.view.fact(v),
        }
    }
}

impl Builder for PatchBuilder<'_> {
    type Value = Value;

    fn emit(&mut self, op: Op, inputs: &[Value]) -> Result<SmallVec<[Value; 1]>, OpError> {
        let facts = {
            let inputs: SmallVec<[&Fact; 4]> = inputs.iter().map(|v| self.fact_of(*v)).collect();
            op.infer(&inputs)?
        };
        let node = NodeId((self.patch.first_new + self.patch.nodes.len()) as u32);
        let count = facts.len() as u32;
        self.patch.nodes.push(Node {
            op,
            inputs: inputs.into(),
            facts,
            loc: self.loc.clone(),
        });
        Ok((0..count).map(|output| Value { node, output }).collect())
    }

    fn fact(&self, value: &Value) -> Fact {
        self.fact_of(*value).clone()
    }

    fn with_fact<R>(&self, value: &Value, f: impl FnOnce(&Fact) -> R) -> R {
        f(self.fact_of(*value))
    }
}
