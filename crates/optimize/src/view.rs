//! The view of the graph that rules get.

use crate::PatchBuilder;
use crate::arena::Arena;
use kiln_base::{DType, Instruction, Machine, Scalar, numel};
use kiln_ir::{Fact, Graph, Node, NodeId, Op, Output, Pw, SymbolInfo, Value, ops};

/// A read-only view of the graph while it is rewritten. Ids stay the same until the pass is over, but
/// are not ordered: new nodes come last.
#[derive(Copy, Clone)]
pub struct View<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) machine: &'a Machine,
}

impl<'a> View<'a> {
    /// A node.
    pub fn node(&self, id: NodeId) -> &'a Node {
        self.arena.graph.node(id)
    }

    /// The node that computes a value, if it has a single output.
    pub fn producer(&self, v: Value) -> &'a Node {
        self.node(v.node)
    }

    /// The fact of a value.
    pub fn fact(&self, v: Value) -> &'a Fact {
        self.arena.graph.fact(v)
    }

    /// The readers of a node, once for each operand slot, in a deterministic order.
    pub fn users(&self, id: NodeId) -> &'a [NodeId] {
        &self.arena.users[id.index()]
    }

    /// The number of operand slots and outputs of the graph that read a node.
    pub fn use_count(&self, id: NodeId) -> usize {
        self.users(id).len() + self.arena.output_uses(id)
    }

    /// True if an output of the graph is a value of this node.
    pub fn is_output(&self, id: NodeId) -> bool {
        self.arena.output_uses(id) > 0
    }

    /// The outputs of the graph.
    pub fn outputs(&self) -> &'a [Output] {
        &self.arena.graph.outputs
    }

    /// The symbols of the graph.
    pub fn symbols(&self) -> &'a [SymbolInfo] {
        &self.arena.graph.symbols
    }

    /// True if a value depends only on parameters and constants, so that it lands in *prepare*. Parameters that the
    /// graph itself assigns do not count, nor do inputs of a body.
    pub fn is_prepared(&self, v: Value) -> bool {
        self.arena.prepared[v.node.index()]
    }

    /// True if the graph is compiled for a GPU.
    pub fn is_for_gpu(&self) -> bool {
        self.machine.gpu().is_some()
    }

    /// True if the machine multiplies this dtype as f32: f16 or bf16, where no instruction multiplies them.
    pub fn multiplies_as_f32(&self, dtype: DType) -> bool {
        match self.machine {
            Machine::Cpu(cpu) => {
                let instruction = || Instruction::of([dtype; 2], false, cpu.level, true);
                dtype.is_half() && instruction().terms == [DType::F32; 2]
            }
            Machine::Gpu(_) => false,
        }
    }

    /// Returns the axis of the result of a permutation, reshape or cast that corresponds to an axis of its operand.
    pub fn result_axis(&self, id: NodeId, axis: usize) -> Option<usize> {
        let node = self.node(id);
        match &node.op {
            Op::Permute(p) => p.perm.iter().position(|a| *a == axis),
            Op::Reshape(_) => {
                let (from, to) = (&self.fact(node.inputs[0]).shape, &node.fact().shape);
                let before = numel(&from[..axis]);
                let same = |a: &usize| to[*a] == from[axis] && numel(&to[..*a]) == before;
                (0..to.len()).find(same)
            }
            Op::Cast(_) => Some(axis),
            _ => None,
        }
    }

    /// The number that a value holds everywhere, if it is a `full`.
    pub fn as_full(&self, v: Value) -> Option<&'a ops::Full> {
        match &self.producer(v).op {
            Op::Full(f) => Some(f),
            _ => None,
        }
    }

    /// The row of a pointwise node and its operands.
    pub fn row(&self, id: NodeId) -> Option<(Pw, &'a [Value])> {
        let node = self.node(id);
        match &node.op {
            Op::Pointwise(row) => Some((row.0, &node.inputs)),
            _ => None,
        }
    }

    /// True if a value is a `full` of this number; zeros must have the same sign.
    pub fn holds(&self, v: Value, number: f64) -> bool {
        self.as_full(v).is_some_and(|f| is_number(f.value, number))
    }

    /// A patch whose new nodes are those of `node`'s source line.
    pub fn patch(&self, node: NodeId) -> PatchBuilder<'a> {
        PatchBuilder::new(*self, self.node(node).loc.clone())
    }

    /// The patch that replaces the only output of `node` by an existing value.
    pub fn replace(&self, node: NodeId, value: Value) -> Option<crate::Patch> {
        Some(self.patch(node).replacing(node.value(), value))
    }

    /// The patch that replaces the only output of `node` by one op; nothing where the op does not
    /// apply to these operands.
    pub fn replace_with(
        &self,
        node: NodeId,
        op: impl Into<Op>,
        inputs: &[Value],
    ) -> Option<crate::Patch> {
        use kiln_ir::Builder;
        let mut patch = self.patch(node);
        let new = patch.op(op, inputs).ok()?;
        Some(patch.replacing(node.value(), new))
    }

    pub(crate) fn graph(&self) -> &'a Graph {
        &self.arena.graph
    }
}

/// True if a scalar is this number; zeros must have the same sign.
pub(crate) fn is_number(scalar: Scalar, number: f64) -> bool {
    match scalar {
        Scalar::Float(x) => x.to_bits() == number.to_bits(),
        other => other.as_f64() == number,
    }
}
