//! Printing.

use super::attributes;
use crate::fact::list;
use crate::{Graph, Node, NodeId, Target};
use std::fmt::{self, Formatter, Write};

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("graph ")?;
        print_block(self, f, 0)?;
        f.write_str("\n")
    }
}

fn print_block(graph: &Graph, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    f.write_str("{\n")?;
    for (i, s) in graph.symbols.iter().enumerate() {
        match i {
            0 => indent(f, depth + 1)?.write_str("symbols ")?,
            _ => f.write_str(", ")?,
        }
        let name = attributes::write(&s.name).map_err(|_| fmt::Error)?;
        write!(f, "s{i} >= {} {name}", s.min)?;
    }
    if !graph.symbols.is_empty() {
        f.write_str("\n")?;
    }
    for (id, node) in graph.iter() {
        print_node(id, node, f, depth + 1)?;
    }
    indent(f, depth + 1)?.write_str("return")?;
    for (i, o) in graph.outputs.iter().enumerate() {
        f.write_str(if i > 0 { ", " } else { " " })?;
        match o.target {
            Target::Result => {}
            Target::Assign(input) => write!(f, "assign {input} ")?,
            Target::Kept => f.write_str("kept ")?,
        }
        write!(f, "{}", o.value)?;
    }
    f.write_str("\n")?;
    indent(f, depth)?.write_str("}")
}

impl Graph {
    /// A node as one line of the text form, without bodies.
    pub fn line(&self, id: NodeId) -> String {
        let node = self.node(id);
        let name = || format!("{id}: {}", node.op.name());
        line(id, node).unwrap_or_else(|_| name())
    }
}

fn line(id: NodeId, node: &Node) -> Result<String, fmt::Error> {
    let attributes = attributes::print(&node.op).map_err(|_| fmt::Error)?;
    let facts = match &node.facts[..] {
        [one] => one.to_string(),
        many => format!("({})", list(many)),
    };
    let name = node.op.name();
    let mut line = format!("{id}: {facts} = {name}{attributes}");
    for (i, v) in node.inputs.iter().enumerate() {
        write!(line, "{}{v}", if i > 0 { ", " } else { " " })?;
    }
    Ok(line)
}

fn print_node(id: NodeId, node: &Node, f: &mut Formatter<'_>, depth: usize) -> fmt::Result {
    indent(f, depth)?;
    let line = line(id, node)?;
    f.write_str(&line)?;
    let mut end = line.chars().count() + depth * 2;
    for (i, body) in node.op.bodies().iter().enumerate() {
        f.write_str(if i > 0 { " else " } else { " " })?;
        print_block(body, f, depth)?;
        end = depth * 2 + 1;
    }
    if f.alternate() && node.loc.is_known() {
        let gap = 48usize.saturating_sub(end).max(2);
        write!(f, "{:gap$}# {}", "", node.loc)?;
    }
    f.write_str("\n")
}

fn indent<'f, 'b>(
    f: &'f mut Formatter<'b>,
    depth: usize,
) -> Result<&'f mut Formatter<'b>, fmt::Error> {
    for _ in 0..depth {
        f.write_str("  ")?;
    }
    Ok(f)
}
