//! The graph in the language of Graphviz.

use super::html::{colour, label};
use crate::Stages;
use std::fmt::Write;

/// Returns the optimised graph, with nodes coloured by the kernel that computes them.
pub(super) fn dot(stages: &Stages) -> String {
    let graph = &stages.optimized;
    let kernels = stages.kernels();
    let mut text = String::from(
        "digraph kiln {\n  node [shape=box, style=filled, fontname=\"sans-serif\", fillcolor=white];\n",
    );
    for (id, node) in graph.iter() {
        let name = quoted(&label(node));
        let fill = kernels[id.index()].first().map(|k| colour(*k));
        let fill = fill.map_or_else(String::new, |c| format!(", fillcolor=\"{c}\""));
        let tip = quoted(&graph.line(id));
        let line = match node.loc.is_known() {
            true => quoted(&format!("\n{}", node.loc)),
            false => String::new(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  n{} [label=\"{name}\", tooltip=\"{tip}{line}\"{fill}];",
            id.0
        );
        for v in &node.inputs {
            let _ = writeln!(text, "  n{} -> n{};", v.node.0, id.0);
        }
    }
    for (i, o) in graph.outputs.iter().enumerate() {
        let _ = writeln!(text, "  out{i} [label=\"output {i}\", shape=oval];");
        let _ = writeln!(text, "  n{} -> out{i};", o.value.node.0);
    }
    text.push_str("}\n");
    text
}

/// Escapes text between double quotes.
fn quoted(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('"', "\\\"");
    text.replace('\n', "\\n")
}
