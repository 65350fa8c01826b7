//! Checks of a model when it is loaded.

use crate::fault::invalid;
use crate::nodes::{MAX_NESTED, bodies, node_name, plain_domain};
use crate::proto::{FunctionProto, GraphProto, NodeProto};
use kiln_tensor::Result;
use std::collections::{HashMap, HashSet};

/// The maximum number of nodes of a model whose functions are inlined.
const MAX_INLINED: u64 = 1 << 20;

/// Checks that each name is given once, and before it is used, and that functions are not parts of themselves.
pub(crate) fn check_graph(graph: &GraphProto, functions: &[FunctionProto]) -> Result<()> {
    check_names(graph, &mut Vec::new())?;
    let mut defined = HashSet::new();
    for f in functions {
        if !defined.insert((plain_domain(f.domain()), f.name(), f.overload())) {
            return Err(invalid(format!("there are two functions {:?}", f.name())));
        }
        let known: HashSet<&str> = f.input.iter().map(String::as_str).collect();
        check_nodes(&f.node, known, &mut Vec::new())
            .and_then(|known| check_outputs(f.output.iter().map(String::as_str), &known, &[]))
            .map_err(|e| {
                e.clone()
                    .with_message(&format!("the function {:?}: {}", f.name(), e.message()))
            })?;
    }
    let functions = functions.iter().map(|f| {
        let key = (plain_domain(f.domain()), f.name(), f.overload());
        (key, (f, None))
    });
    let mut inlined = Inlined {
        functions: functions.collect(),
        depth: 0,
    };
    inlined.count(&graph.node)?;
    Ok(())
}

/// Functions by domain, name and overload, with their numbers of nodes once they are counted.
struct Inlined<'a> {
    functions: HashMap<(&'a str, &'a str, &'a str), (&'a FunctionProto, Option<u64>)>,
    depth: usize,
}

impl<'a> Inlined<'a> {
    /// Returns the number of nodes when functions are inlined.
    fn count(&mut self, nodes: &'a [NodeProto]) -> Result<u64> {
        let mut sum = 0;
        for node in nodes {
            sum += 1 + self.count_function(node)?;
            for graph in bodies(node) {
                sum += self.count(&graph.node)?;
            }
            if sum > MAX_INLINED {
                let text = "the functions that are called have too many nodes";
                return Err(invalid(format!("{}: {text}", node_name(node))));
            }
        }
        Ok(sum)
    }

    /// Returns the number of nodes of the function that a node calls.
    fn count_function(&mut self, node: &'a NodeProto) -> Result<u64> {
        let key = (plain_domain(node.domain()), node.op_type(), node.overload());
        let function = match self.functions.get(&key) {
            None => return Ok(0),
            Some((_, Some(count))) => return Ok(*count),
            Some((function, None)) => *function,
        };
        if self.depth >= MAX_NESTED {
            let text = format!("functions call each other deeper than {MAX_NESTED}");
            return Err(invalid(format!("{}: {text}", node_name(node))));
        }
        self.depth += 1;
        let count = self.count(&function.node)?;
        self.depth -= 1;
        self.functions.insert(key, (function, Some(count)));
        Ok(count)
    }
}

/// Checks a graph inside of graphs that give the `outer` names.
fn check_names<'a>(graph: &'a GraphProto, outer: &mut Vec<HashSet<&'a str>>) -> Result<()> {
    if outer.len() > MAX_NESTED {
        return Err(invalid(format!(
            "graphs are nested deeper than {MAX_NESTED}"
        )));
    }
    let mut known = HashSet::new();
    for input in &graph.input {
        if !known.insert(input.name()) {
            return Err(invalid(format!("two inputs are named {:?}", input.name())));
        }
    }
    let mut initial = HashSet::new();
    let sparse = graph.sparse_initializer.iter();
    let sparse = sparse.filter_map(|t| t.values.as_ref()).map(|t| t.name());
    for name in graph.initializer.iter().map(|t| t.name()).chain(sparse) {
        if !initial.insert(name) {
            return Err(invalid(format!("two initial values are named {name:?}")));
        }
    }
    known.extend(initial);
    let known = check_nodes(&graph.node, known, outer)?;
    check_outputs(graph.output.iter().map(|o| o.name()), &known, outer)
}

fn check_nodes<'a>(
    nodes: &'a [NodeProto],
    mut known: HashSet<&'a str>,
    outer: &mut Vec<HashSet<&'a str>>,
) -> Result<HashSet<&'a str>> {
    for node in nodes {
        for input in node.input.iter().filter(|name| !name.is_empty()) {
            if !is_given(input, &known, outer) {
                return Err(invalid(format!(
                    "{} takes {input:?}, which nothing before it gives",
                    node_name(node)
                )));
            }
        }
        for graph in bodies(node) {
            outer.push(std::mem::take(&mut known));
            let checked = check_names(graph, outer);
            known = outer.pop().unwrap_or_default();
            checked?;
        }
        for output in node.output.iter().filter(|name| !name.is_empty()) {
            if !known.insert(output) {
                return Err(invalid(format!(
                    "{} gives {output:?}, which is given already",
                    node_name(node)
                )));
            }
        }
    }
    Ok(known)
}

fn is_given(name: &str, given: &HashSet<&str>, outer: &[HashSet<&str>]) -> bool {
    given.contains(name) || outer.iter().any(|names| names.contains(name))
}

fn check_outputs<'a>(
    mut names: impl Iterator<Item = &'a str>,
    known: &HashSet<&str>,
    outer: &[HashSet<&str>],
) -> Result<()> {
    match names.find(|name| !is_given(name, known, outer)) {
        Some(name) => Err(invalid(format!("nothing gives the output {name:?}"))),
        None => Ok(()),
    }
}
