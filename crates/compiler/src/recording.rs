//! The plan cache's requests and answers.

use crate::{Explain, StructureHasher};
use kiln_base::{Loc, Scalar};
use kiln_ir::{Graph, Node, Op, Output, Value};
use kiln_runtime::Executable;
use std::ops::Range;
use std::sync::Arc;

/// A recorded program as the cache sees it: flat, operands before users.
#[derive(Clone, Debug, Default)]
pub struct Recording<'a> {
    /// The ops; inputs are those with an [`Op::Input`], numbered in this order.
    pub nodes: Vec<Recorded<'a>>,
    /// All operands, one node after the other.
    pub operands: Vec<Value>,
    /// The requested results.
    pub outputs: Vec<Output>,
}

/// A recorded op.
#[derive(Clone, Debug)]
pub struct Recorded<'a> {
    /// The op.
    pub op: &'a Op,
    /// The graph of many ops that were recorded as one; `op` is then unused. The graph's inputs are the operands, and
    /// its outputs the results. Its numbers and sizes are the same in every plan. None of its ops has bodies.
    pub body: Option<&'a Arc<Graph>>,
    /// A hash of [`Op::skeleton`], or of the body.
    pub hash: u64,
    /// Its operands in [`Recording::operands`].
    pub inputs: Range<usize>,
    /// The user's call.
    pub loc: Loc,
}

/// A plan that fits a program.
pub struct Found {
    /// The program, ready to run.
    pub executable: Executable,
    /// For each requested output, its position among the plan's outputs; `None` for kept values that the plan does
    /// not write to memory.
    pub outputs: Vec<Option<usize>>,
    /// Indices of the promotable numbers (in recording order) that follow the inputs.
    pub scalars: Vec<usize>,
    /// A report of the compiler's decisions and their reasons.
    pub explain: Explain,
}

/// A plan, and the arguments that a run of the program passes to it besides inputs and numbers.
pub struct Fit {
    /// The plan.
    pub plan: Arc<Found>,
    /// Sizes that no input has. Each is passed after the numbers as an input of dtype u8 and shape `[0, size]`.
    pub extents: Vec<i64>,
    /// The reason why the plan was compiled, if it was compiled now.
    pub compiled: Option<Reason>,
}

/// The reason why there is a plan.
#[derive(Clone, Debug)]
pub struct Reason {
    /// The number of plans of this structure that were compiled, this one included.
    pub count: u64,
    /// The difference from the programs before.
    pub text: String,
}

impl Recording<'_> {
    /// Number of inputs.
    pub fn input_count(&self) -> usize {
        let is_input = |n: &&Recorded| matches!(n.op, Op::Input(_));
        self.nodes.iter().filter(is_input).count()
    }

    /// The numbers that a plan may take as inputs, in recording order.
    pub fn scalars(&self) -> Vec<Scalar> {
        self.nodes.iter().filter_map(|n| n.op.scalar()).collect()
    }

    /// The user's lines: of the nodes, then of the nodes in their bodies, as [`Recorded::inner_nodes`]
    /// gives them.
    pub fn locs(&self) -> Vec<Loc> {
        let mut locs: Vec<Loc> = self.nodes.iter().map(|n| n.loc.clone()).collect();
        for n in &self.nodes {
            n.inner_nodes(&mut |n| locs.push(n.loc.clone()));
        }
        locs
    }

    pub(crate) fn hash(&self) -> u128 {
        let mut bytes = Vec::with_capacity(16 * self.nodes.len() + 8 * self.operands.len());
        for n in &self.nodes {
            bytes.extend_from_slice(&n.hash.to_le_bytes());
            bytes.extend_from_slice(&(n.inputs.len() as u64).to_le_bytes());
            for v in &self.operands[n.inputs.clone()] {
                bytes.extend_from_slice(&((v.node.0 as u64) << 32 | v.output as u64).to_le_bytes());
            }
        }
        let mut h = StructureHasher::default();
        h.update(&bytes);
        for o in &self.outputs {
            use std::hash::Hash;
            o.hash(&mut h);
        }
        h.digest128()
    }
}

impl<'a> Recorded<'a> {
    /// Calls `f` with every node of the body and of the op's bodies, in a fixed order.
    pub fn inner_nodes(&self, f: &mut dyn FnMut(&'a Node)) {
        match self.body {
            Some(body) => body.iter().for_each(|(_, n)| f(n)),
            None => self.op.inner_nodes(f),
        }
    }

    /// True if both differ at most in sizes and numbers that a plan may take as inputs.
    pub(crate) fn same_structure(&self, op: &Op, body: &Option<Arc<Graph>>) -> bool {
        match (self.body, body) {
            (Some(a), Some(b)) => Graph::same_program(a, b),
            (None, None) => self.op.same_structure(op),
            _ => false,
        }
    }
}
