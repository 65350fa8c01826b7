//! The graph: an arena of nodes in topological order.
//!
//! A node's operands come before it, so an ascending walk is a valid schedule and ids are the same for
//! the same program.

use crate::{Fact, Facts, Op, OpError};
use kiln_base::{Dim, Loc};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A node of a graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

/// One output of a node.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Value {
    /// The node.
    pub node: NodeId,
    /// The index of the output.
    pub output: u32,
}

/// An operation with its operands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Operands, in order.
    pub inputs: SmallVec<[Value; 3]>,
    /// Facts of its outputs, as [`Op::infer`] gives them.
    pub facts: Facts,
    /// The user's call.
    pub loc: Loc,
}

/// The use of an output of the graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Target {
    /// The caller gets it.
    Result,
    /// It becomes the new value of the cell that input holds; it may take over the input's memory.
    Assign(u32),
    /// The caller gets it if the plan writes it to memory anyway.
    Kept,
}

/// An output of a graph.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Output {
    /// The value.
    pub value: Value,
    /// Its use.
    pub target: Target,
}

/// A symbol that sizes use.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SymbolInfo {
    /// A readable name, such as `batch`.
    pub name: String,
    /// The smallest legal value; at least 2.
    pub min: i64,
}

/// A program as a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    /// Operands before users.
    nodes: Vec<Node>,
    /// The results of the program, in order.
    pub outputs: Vec<Output>,
    /// The symbols that sizes use, indexed by [`kiln_base::Sym`].
    pub symbols: Vec<SymbolInfo>,
}

// An op that owns graphs hashes their ops, operands and outputs. Facts follow from these.
impl std::hash::Hash for Graph {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        for n in &self.nodes {
            n.op.hash(state);
            n.inputs.hash(state);
        }
        self.outputs.hash(state);
    }
}

impl NodeId {
    /// Position in the graph.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The first output.
    pub fn value(self) -> Value {
        Value {
            node: self,
            output: 0,
        }
    }
}

impl Node {
    /// The fact of the only output.
    pub fn fact(&self) -> &Fact {
        &self.facts[0]
    }
}

impl Graph {
    /// Appends a node; its operands must already be there.
    ///
    /// # Errors
    /// If the op does not apply to the operands.
    pub fn add(
        &mut self,
        op: impl Into<Op>,
        inputs: &[Value],
        loc: Loc,
    ) -> Result<NodeId, OpError> {
        let op = op.into();
        let facts = {
            let facts: SmallVec<[&Fact; 4]> = inputs.iter().map(|v| self.fact(*v)).collect();
            op.infer(&facts)?
        };
        Ok(self.push(Node {
            op,
            inputs: inputs.into(),
            facts,
            loc,
        }))
    }

    /// Appends a node without checks; the verifier finds its errors.
    pub fn push(&mut self, node: Node) -> NodeId {
        let id = NodeId(self.nodes.len() as u32);
        self.nodes.push(node);
        id
    }

    /// Makes a value a result of the program.
    pub fn add_output(&mut self, value: Value) {
        self.outputs.push(Output {
            value,
            target: Target::Result,
        });
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// A mutable node. Facts must remain those that [`Op::infer`] gives.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// The fact of a value.
    pub fn fact(&self, v: Value) -> &Fact {
        &self.nodes[v.node.index()].facts[v.output as usize]
    }

    /// Visits every size among the attributes of its ops, in a fixed order. Facts stay; see
    /// [`Graph::bind`].
    pub fn dims_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.nodes.iter_mut().for_each(|n| n.op.dims_mut(f));
    }

    /// Visits every offset among these sizes.
    pub fn offsets_mut(&mut self, f: &mut dyn FnMut(&mut Dim)) {
        self.nodes.iter_mut().for_each(|n| n.op.offsets_mut(f));
    }

    /// Binds sizes anew after they changed: infers all facts again and takes `symbols` for the graph's own. Does the
    /// same in bodies.
    ///
    /// # Errors
    /// If an op no longer applies to its operands.
    pub fn bind(&mut self, symbols: &[SymbolInfo]) -> Result<(), OpError> {
        self.symbols = symbols.to_vec();
        for i in 0..self.nodes.len() {
            for body in self.nodes[i].op.bodies_mut() {
                Arc::make_mut(body).bind(symbols)?;
            }
            let node = &self.nodes[i];
            let operands = node.inputs.iter().map(|v| self.fact(*v));
            let facts = node.op.infer(&operands.collect::<SmallVec<[&Fact; 4]>>())?;
            self.nodes[i].facts = facts;
        }
        Ok(())
    }

    /// True if two bodies mean the same. Source locations do not count, and facts follow from the rest.
    pub fn same_program(a: &Arc<Graph>, b: &Arc<Graph>) -> bool {
        let mut nodes = a.nodes.iter().zip(&b.nodes);
        Arc::ptr_eq(a, b)
            || a.len() == b.len()
                && a.outputs == b.outputs
                && nodes.all(|(x, y)| x.inputs == y.inputs && x.op == y.op)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Ids of all nodes, operands before users.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// All nodes with their ids, operands before users.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (NodeId(i as u32), n))
    }

    /// Returns the input nodes, by input index.
    pub fn inputs(&self) -> Vec<NodeId> {
        let mut inputs: Vec<(u32, NodeId)> = self
            .iter()
            .filter_map(|(id, n)| match &n.op {
                Op::Input(i) => Some((i.index, id)),
                _ => None,
            })
            .collect();
        inputs.sort();
        inputs.into_iter().map(|(_, id)| id).collect()
    }

    /// For each node, the nodes that read it, ascending, once for each operand slot.
    pub fn users(&self) -> Vec<SmallVec<[NodeId; 2]>> {
        let mut users = vec![SmallVec::new(); self.nodes.len()];
        for (id, node) in self.iter() {
            for v in &node.inputs {
                users[v.node.index()].push(id);
            }
        }
        users
    }

    /// The nodes that outputs depend on, and all inputs, in the same order; others are dropped.
    pub fn compact(&self) -> Graph {
        let mut live = vec![false; self.nodes.len()];
        for o in &self.outputs {
            live[o.value.node.index()] = true;
        }
        for (id, node) in self.iter().rev() {
            if matches!(node.op, Op::Input(_)) {
                live[id.index()] = true;
            }
            if live[id.index()] {
                for v in &node.inputs {
                    live[v.node.index()] = true;
                }
            }
        }
        let mut map = vec![NodeId(u32::MAX); self.nodes.len()];
        let mut out = Graph {
            symbols: self.symbols.clone(),
            ..Graph::default()
        };
        for (id, node) in self.iter().filter(|(id, _)| live[id.index()]) {
            let mut node = node.clone();
            for v in &mut node.inputs {
                v.node = map[v.node.index()];
            }
            map[id.index()] = out.push(node);
        }
        out.outputs = self.outputs.clone();
        for o in &mut out.outputs {
            o.value.node = map[o.value.node.index()];
        }
        out
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// Writes the nodes from the outermost one to the one meant.
pub(crate) fn write_path(f: &mut fmt::Formatter<'_>, path: &[NodeId]) -> fmt::Result {
    let nodes = path.iter().enumerate();
    { nodes }.try_for_each(|(i, node)| write!(f, "{}{node}", if i > 0 { "/" } else { "" }))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.output {
            0 => write!(f, "{}", self.node),
            n => write!(f, "{}.{n}", self.node),
        }
    }
}
