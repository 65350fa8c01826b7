//! Maps values of a recording to values of the graph that is built from it.

use kiln_base::Loc;
use kiln_ir::{Graph, Node, NodeId, Op, OpError, Value};
use smallvec::{SmallVec, smallvec};

/// For each node of a recording, in order, its node or values in the graph.
#[derive(Default)]
pub(crate) struct NodeMap(Vec<Mapped>);

enum Mapped {
    Node(NodeId),
    /// The results of a body.
    Values(SmallVec<[Value; 3]>),
}

impl NodeMap {
    /// Records that the next node of the recording is this one.
    pub(crate) fn add(&mut self, id: NodeId) {
        self.0.push(Mapped::Node(id));
    }

    /// The value of the graph for a value of the recording.
    pub(crate) fn value(&self, v: &Value) -> Value {
        match &self.0[v.node.index()] {
            Mapped::Node(node) => Value {
                node: *node,
                output: v.output,
            },
            Mapped::Values(values) => values[v.output as usize],
        }
    }

    /// Adds the nodes of a body on these operands as the next node of the recording. `loc` maps their numbers to
    /// locations. No op of the body has bodies itself.
    ///
    /// # Errors
    /// If an op does not apply to its operands.
    pub(crate) fn add_body(
        &mut self,
        graph: &mut Graph,
        body: &Graph,
        operands: &[Value],
        loc: impl Fn(usize) -> Loc,
    ) -> Result<(), OpError> {
        let mut inner = NodeMap::default();
        for (id, Node { op, inputs, .. }) in body.iter() {
            let inputs: SmallVec<[Value; 3]> = inputs.iter().map(|v| inner.value(v)).collect();
            match op {
                Op::Input(input) => {
                    let operand = operands[input.index as usize];
                    inner.0.push(Mapped::Values(smallvec![operand]));
                }
                op => inner.add(graph.add(op.clone(), &inputs, loc(id.index()))?),
            }
        }
        let results = body.outputs.iter().map(|o| inner.value(&o.value));
        self.0.push(Mapped::Values(results.collect()));
        Ok(())
    }
}
