//! Subgraphs, as graphs of their own.

use hashbrown::HashMap;
use kiln_base::Loc;
use kiln_ir::{Facts, Graph, Node, Op, Output, Role, Target, Value, ops};

/// The nodes of a graph that compute some values from others.
pub(crate) struct Subgraph {
    /// The nodes as a graph. Its outputs are the computed values, its inputs those that they are computed from.
    pub graph: Graph,
    /// For each input, its value in the whole graph.
    pub inputs: Vec<Value>,
    /// Maps values of the whole graph to values of this one.
    pub map: HashMap<Value, Value>,
}

/// Extracts the nodes that compute `values` from the graph's inputs and from the values for which `is_input` is true.
pub(crate) fn subgraph(
    from: &Graph,
    values: &[Value],
    is_input: impl Fn(Value) -> bool,
) -> Subgraph {
    let mut subgraph = Subgraph {
        graph: Graph::default(),
        inputs: Vec::new(),
        map: HashMap::new(),
    };
    subgraph.graph.symbols.clone_from(&from.symbols);
    let mut stack: Vec<Value> = values.iter().rev().copied().collect();
    while let Some(&v) = stack.last() {
        let node = from.node(v.node);
        if subgraph.map.contains_key(&v) {
            stack.pop();
            continue;
        }
        let is_boundary = is_input(v) && !values.contains(&v);
        if is_boundary || matches!(node.op, Op::Input(_)) {
            subgraph.input(from, v);
            continue;
        }
        let len_before = stack.len();
        let missing = operands(node, v).filter(|o| !subgraph.map.contains_key(o));
        stack.extend(missing);
        if stack.len() == len_before {
            subgraph.node(node, v);
        }
    }
    let outputs = values.iter().map(|v| Output {
        value: subgraph.map[v],
        target: Target::Result,
    });
    subgraph.graph.outputs = outputs.collect();
    subgraph
}

/// Returns the operands of a value. An output of a barrier depends only on its operand.
fn operands(node: &Node, v: Value) -> impl Iterator<Item = Value> {
    let (start, end) = match node.op {
        Op::Barrier(_) => (v.output as usize, v.output as usize + 1),
        _ => (0, node.inputs.len()),
    };
    node.inputs[start..end].iter().copied()
}

impl Subgraph {
    /// Adds an input for a given value.
    fn input(&mut self, from: &Graph, v: Value) {
        let fact = from.fact(v).clone();
        let role = match &from.node(v.node).op {
            Op::Input(input) => input.role,
            _ => Role::Data,
        };
        let input = ops::Input {
            index: self.inputs.len() as u32,
            fact: fact.clone(),
            role,
        };
        let id = self.graph.push(Node {
            op: input.into(),
            inputs: Default::default(),
            facts: Facts::from_elem(fact, 1),
            loc: Loc::UNKNOWN,
        });
        self.inputs.push(v);
        self.map.insert(v, id.value());
    }

    /// Adds the node of a value whose operands are added.
    fn node(&mut self, node: &Node, v: Value) {
        if let Op::Barrier(_) = node.op {
            let operand = self.map[&node.inputs[v.output as usize]];
            self.map.insert(v, operand);
            return;
        }
        let id = self.graph.push(Node {
            inputs: node.inputs.iter().map(|o| self.map[o]).collect(),
            ..node.clone()
        });
        for output in 0..node.facts.len() as u32 {
            let output_of = |node| Value { node, output };
            self.map.entry(output_of(v.node)).or_insert(output_of(id));
        }
    }
}
