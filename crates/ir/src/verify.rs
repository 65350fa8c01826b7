//! The verifier.
//!
//! Rules for every graph, and for every body in it unless the rule says otherwise:
//!
//! 1.  *Operands*: an operand is an existing output of an earlier node.
//! 2.  *Inference*: a node's facts are those that [`crate::Op::infer`] gives for its operands.
//! 3.  *Outputs of nodes*: a node has at least one.
//! 4.  *Sizes*: a size in a fact or an attribute is not a negative number.
//! 5.  *Symbols*: a size uses only symbols that the program declares. A body declares none, or the
//!     program's first ones as the program does.
//! 6.  *Smallest values*: a symbol is at least 2.
//! 7.  *Origins*: each symbol of the program is by itself a size of one of its inputs.
//! 8.  *Inputs*: input indices are 0, 1, 2, … with none missing and none twice.
//! 9.  *Keys*: an input of role `RandomKey` is `i64[2]`.
//! 10. *Results*: an output of the graph is an existing output of a node.
//! 11. *Assignments*: an assigned cell is an existing input with the fact of the value assigned to it, and
//!     is assigned once.
//! 12. *Outputs of bodies*: they are results, neither assigned nor kept.
//! 13. *Constants*: bytes of a bool constant are 0 or 1. (Inference compares their number with the
//!     shape.)
//! 14. *Numbers*: a number among the attributes is a value of the dtype it is used in.
//!
//! Source locations are free.

use crate::fact::list;
use crate::graph::write_path;
use crate::{Fact, Graph, Node, NodeId, Op, Role, SymbolInfo, Target, Value};
use kiln_base::{DType, Dim, Scalar};
use smallvec::SmallVec;
use std::fmt;

/// A rule that a graph breaks, numbered as in the list of the [module](self).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Rule {
    Operands = 1,
    Inference,
    NodeOutputs,
    Sizes,
    Symbols,
    SmallestValues,
    Origins,
    Inputs,
    Keys,
    Results,
    Assignments,
    BodyOutputs,
    Constants,
    Numbers,
}

/// The location at which a graph breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The node, after the nodes whose bodies it is in; empty or ending at a body's owner where a graph
    /// as a whole is wrong.
    pub path: Vec<NodeId>,
    /// The problem.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_path(f, &self.path)?;
        let gap = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{gap}{} (rule {})", self.text, self.rule as u8)
    }
}

/// Checks every rule of the [module](self).
///
/// # Errors
/// All violations, in the order of the nodes.
pub fn verify(graph: &Graph) -> Result<(), Vec<Violation>> {
    let mut v = Verifier {
        symbols: &graph.symbols,
        path: vec![],
        violations: vec![],
    };
    v.graph(graph);
    v.origins(graph);
    if v.violations.is_empty() {
        Ok(())
    } else {
        Err(v.violations)
    }
}

struct Verifier<'g> {
    /// The symbols of the program.
    symbols: &'g [SymbolInfo],
    path: Vec<NodeId>,
    violations: Vec<Violation>,
}

impl<'g> Verifier<'g> {
    fn graph(&mut self, graph: &'g Graph) {
        self.symbols(graph);
        self.inputs(graph);
        for (id, node) in graph.iter() {
            self.path.push(id);
            self.node(graph, id, node);
            self.path.pop();
        }
        self.outputs(graph);
    }

    fn symbols(&mut self, graph: &Graph) {
        for (i, s) in graph.symbols.iter().enumerate() {
            let name = &s.name;
            if s.min < 2 {
                let text = format!("s{i} ({name}) may be {}, which is less than 2", s.min);
                self.report(Rule::SmallestValues, text);
            }
            if self.symbols.get(i) != Some(s) {
                let text = format!("s{i} ({name}) is not the program's s{i}");
                self.report(Rule::Symbols, text);
            }
        }
    }

    fn origins(&mut self, graph: &Graph) {
        for (i, s) in graph.symbols.iter().enumerate() {
            let symbol = Dim::symbol(kiln_base::Sym(i as u32));
            let is_input_size = graph.iter().any(|(_, n)| {
                matches!(n.op, Op::Input(_)) && n.facts.iter().any(|f| f.shape.contains(&symbol))
            });
            if !is_input_size {
                let text = format!("s{i} ({}) is not a size of an input", s.name);
                self.report(Rule::Origins, text);
            }
        }
    }

    fn inputs(&mut self, graph: &Graph) {
        let mut indices: Vec<u32> = graph
            .iter()
            .filter_map(|(_, n)| match &n.op {
                Op::Input(op) => Some(op.index),
                _ => None,
            })
            .collect();
        indices.sort();
        let dense = indices.iter().enumerate().all(|(i, x)| *x == i as u32);
        if !dense {
            let text = format!("input indices are {indices:?}, not 0, 1, 2, …");
            self.report(Rule::Inputs, text);
        }
    }

    fn node(&mut self, graph: &'g Graph, id: NodeId, node: &'g Node) {
        let violations_before = self.violations.len();
        for v in &node.inputs {
            if v.node >= id {
                let text = format!("operand {v} does not come before {id}");
                self.report(Rule::Operands, text);
            } else if fact(graph, *v).is_none() {
                let text = format!("operand {v} does not exist");
                self.report(Rule::Operands, text);
            }
        }
        if node.facts.is_empty() {
            self.report(Rule::NodeOutputs, "the node has no outputs".into());
        }
        for body in node.op.bodies() {
            self.graph(body);
        }
        let is_sound = self.violations.len() == violations_before;
        self.sizes(node);
        self.attributes(&node.op);
        if is_sound {
            self.inference(graph, node);
        }
    }

    fn inference(&mut self, graph: &Graph, node: &Node) {
        let operands: SmallVec<[&Fact; 4]> = node.inputs.iter().map(|v| graph.fact(*v)).collect();
        let name = node.op.name();
        match node.op.infer(&operands) {
            Err(e) => self.report(Rule::Inference, format!("{name}: {e}")),
            Ok(facts) if facts != node.facts => {
                let text = format!("{name} gives {}, not {}", list(&facts), list(&node.facts));
                self.report(Rule::Inference, text);
            }
            Ok(_) => {}
        }
        if let (Op::Pad(op), Some(x)) = (&node.op, operands.first()) {
            self.number(op.value, x.dtype);
        }
    }

    fn sizes(&mut self, node: &Node) {
        let mut sizes = vec![];
        node.facts.iter().for_each(|f| sizes.extend(&f.shape));
        let attributes = node.op.dims();
        sizes.extend(&attributes);
        let mut reported: Vec<&Dim> = vec![];
        for d in sizes {
            if reported.contains(&d) {
                continue;
            }
            let declared = self.symbols.len();
            if d.as_const().is_some_and(|n| n < 0) {
                self.report(Rule::Sizes, format!("the size {d} is negative"));
                reported.push(d);
            } else if d.max_symbol().is_some_and(|s| s.0 as usize >= declared) {
                let text = format!("the size {d} uses a symbol that is not declared");
                self.report(Rule::Symbols, text);
                reported.push(d);
            }
        }
    }

    fn attributes(&mut self, op: &Op) {
        match op {
            Op::Input(op) if op.role == Role::RandomKey => {
                let key = Fact::new(DType::I64, [2]);
                if op.fact != key {
                    self.report(
                        Rule::Keys,
                        format!("a random key is {key}, not {}", op.fact),
                    );
                }
            }
            Op::Constant(op) if op.dtype == DType::Bool => {
                if let Some(b) = op.bytes.iter().find(|b| **b > 1) {
                    self.report(Rule::Constants, format!("the byte {b} is not a bool"));
                }
            }
            Op::Full(op) => self.number(op.value, op.dtype),
            Op::BatchNorm(op) if !matches!(op.eps, Scalar::Float(_)) => {
                self.report(Rule::Numbers, format!("eps {} is not a float", op.eps));
            }
            _ => {}
        }
    }

    fn number(&mut self, value: Scalar, dtype: DType) {
        let nan = |s: Scalar| matches!(s, Scalar::Float(x) if x.is_nan());
        if value.cast(dtype) != value && !(nan(value) && dtype.is_float()) {
            let text = format!("{value} is not a value of {dtype}");
            self.report(Rule::Numbers, text);
        }
    }

    fn outputs(&mut self, graph: &Graph) {
        let mut assigned = vec![];
        for (i, o) in graph.outputs.iter().enumerate() {
            let Some(given) = fact(graph, o.value) else {
                let text = format!("output {i} is {}, which does not exist", o.value);
                self.report(Rule::Results, text);
                continue;
            };
            if o.target != Target::Result && !self.path.is_empty() {
                let text = format!("output {i} of a body is {:?}, not a result", o.target);
                self.report(Rule::BodyOutputs, text);
            }
            let Target::Assign(input) = o.target else {
                continue;
            };
            if assigned.contains(&input) {
                let text = format!("input {input} is assigned twice");
                self.report(Rule::Assignments, text);
            }
            assigned.push(input);
            let cell = graph.iter().find_map(|(_, n)| match &n.op {
                Op::Input(op) if op.index == input => Some(&op.fact),
                _ => None,
            });
            if cell != Some(given) {
                let cell = cell.map_or("does not exist".into(), |f| format!("is {f}"));
                let text = format!("{given} is assigned to input {input}, which {cell}");
                self.report(Rule::Assignments, text);
            }
        }
    }

    fn report(&mut self, rule: Rule, text: String) {
        let path = self.path.clone();
        self.violations.push(Violation { rule, path, text });
    }
}

fn fact(graph: &Graph, v: Value) -> Option<&Fact> {
    let exists = v.node.index() < graph.len();
    exists.then(|| graph.node(v.node).facts.get(v.output as usize))?
}
