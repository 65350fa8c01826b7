//! A part of a graph as a graph of its own.

use hashbrown::HashMap;
use kiln_base::Loc;
use kiln_ir::{Facts, Graph, Node, Op, Output, Role, Target, Value, ops};

/// A part of a graph that computes some values from others.
pub(crate) struct Subgraph {
    /// The graph of the part. Its outputs are the values, its inputs the values that they are computed from.
    pub graph: Graph,
    /// For each input, its value in the whole graph.
    pub inputs: Vec<Value>,
    /// Maps values of the whole graph to values of this one.
    pub of: HashMap<Value, Value>,
}

/// The part of a graph that computes `values` from the given values and from the graph's inputs.
pub(crate) fn part(from: &Graph, values: &[Value], given: impl Fn(Value) -> bool) -> Subgraph {
    let mut part = Subgraph {
        graph: Graph::default(),
        inputs: Vec::new(),
        of: HashMap::new(),
    };
    part.graph.symbols.clone_from(&from.symbols);
    let mut stack: Vec<Value> = values.iter().rev().copied().collect();
    while let Some(&v) = stack.last() {
        let node = from.node(v.node);
        if part.of.contains_key(&v) {
            stack.pop();
            continue;
        }
        let is_given = given(v) && !values.contains(&v);
        if is_given || matches!(node.op, Op::Input(_)) {
            part.input(from, v);
            continue;
        }
        let before = stack.len();
        let missing = operands(node, v).filter(|o| !part.of.contains_key(o));
        stack.extend(missing);
        if stack.len() == before {
            part.node(node, v);
        }
    }
    let outputs = values.iter().map(|v| Output {
        value: part.of[v],
        target: Target::Result,
    });
    part.graph.outputs = outputs.collect();
    part
}

/// The operands of a value. A barrier passes each operand on by itself.
fn operands(node: &Node, v: Value) -> impl Iterator<Item = Value> {
    let (from, to) = match node.op {
        Op::Barrier(_) => (v.output as usize, v.output as usize + 1),
        _ => (0, node.inputs.len()),
    };
    node.inputs[from..to].iter().copied()
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
        self.of.insert(v, id.value());
    }

    /// Adds the node of a value whose operands are there.
    fn node(&mut self, node: &Node, v: Value) {
        if let Op::Barrier(_) = node.op {
            let operand = self.of[&node.inputs[v.output as usize]];
            self.of.insert(v, operand);
            return;
        }
        let id = self.graph.push(Node {
            inputs: node.inputs.iter().map(|o| self.of[o]).collect(),
            ..node.clone()
        });
        for output in 0..node.facts.len() as u32 {
            let of = |node| Value { node, output };
            self.of.entry(of(v.node)).or_insert(of(id));
        }
    }
}
