//! Drawings of a compilation's graphs, as recorded and as lowered. The bodies of loops and branches follow each
//! graph.

use super::html::{colour, escaped, inner_name, label};
use super::layout::{HEIGHT, layout};
use crate::Stages;
use crate::stages::launches_of;
use kiln_codegen::Sequence;
use kiln_ir::{Graph, Node, Op};
use std::fmt::Write;

/// The kernels of a node: their names on the page, and the colour of the first.
#[derive(Clone, Default)]
struct Kernels {
    names: Vec<String>,
    colour: Option<String>,
}

impl Kernels {
    /// The kernels of all nodes, from launches that have names.
    fn of(launches: Vec<Vec<usize>>, name: &dyn Fn(usize) -> String) -> Vec<Kernels> {
        let kernels = |list: Vec<usize>| Kernels {
            names: list.iter().map(|l| name(*l)).collect(),
            colour: list.first().map(|l| colour(*l)),
        };
        launches.into_iter().map(kernels).collect()
    }
}

/// Both graphs.
pub(super) fn graphs(stages: &Stages) -> String {
    let lowered = stages.kernels();
    let mut recorded = vec![Vec::new(); stages.recorded.len()];
    for (from, kernels) in stages.came_from.iter().zip(&lowered) {
        if let Some(at) = from {
            recorded[*at].extend(kernels.iter().copied());
        }
    }
    for list in &mut recorded {
        list.sort_unstable();
        list.dedup();
    }
    let name = |l: usize| l.to_string();
    format!(
        "<p>Scroll to zoom, drag to move; a double click on a node opens its kernel, one beside the \
         nodes shows the beginning. Colours are kernels.</p>\n<div class=\"tabs\"><button class=\"on\" \
         data-of=\"lowered\">as lowered</button><button data-of=\"recorded\">as \
         recorded</button></div>\n<div class=\"stage\" id=\"lowered\">\n{}{}</div>\n<div \
         class=\"stage\" id=\"recorded\" hidden>\n{}{}</div>\n<div id=\"info\"></div>\n",
        drawing(&stages.optimized, &Kernels::of(lowered, &name)),
        bodies(&stages.optimized, Some((&stages.sequence, &name))),
        drawing(&stages.recorded, &Kernels::of(recorded, &name)),
        bodies(&stages.recorded, None),
    )
}

/// The bodies of a graph's loops and branches, with their kernels where its program is given.
fn bodies(graph: &Graph, lowered: Option<(&Sequence, &dyn Fn(usize) -> String)>) -> String {
    let mut out = String::new();
    for (id, node) in graph.iter() {
        for (i, body) in node.op.bodies().iter().enumerate() {
            let title = escaped(&title(node, i));
            let _ = writeln!(out, "<details class=\"body\"><summary>{title}</summary>");
            let launch = lowered.and_then(|(sequence, name)| {
                let index = sequence
                    .launches
                    .iter()
                    .position(|l| l.nodes.contains(&id))?;
                Some((sequence.launches[index].bodies.get(i)?, name(index)))
            });
            match launch {
                Some((sequence, outer_name)) => {
                    let name = |l: usize| inner_name(&outer_name, i, l);
                    out += &drawing(body, &Kernels::of(launches_of(body, sequence), &name));
                    out += &bodies(body, Some((sequence, &name)));
                }
                None => {
                    out += &drawing(body, &vec![Kernels::default(); body.len()]);
                    out += &bodies(body, None);
                }
            }
            out.push_str("</details>\n");
        }
    }
    out
}

/// The title of a body: its op, and its role in the op.
fn title(node: &Node, body: usize) -> String {
    let role = match (&node.op, body) {
        (Op::If(_), 0) => "branch where the condition holds",
        (Op::If(_), _) => "branch where it does not",
        _ => "step",
    };
    let label = label(node);
    match node.loc.is_known() {
        true => format!("{label} at {}: {role}", node.loc),
        false => format!("{label}: {role}"),
    }
}

/// A graph, with the kernels of each node.
fn drawing(graph: &Graph, kernels: &[Kernels]) -> String {
    let labels: Vec<String> = graph.iter().map(|(_, n)| label(n)).collect();
    let widths: Vec<f64> = (labels.iter())
        .map(|l| 12.0 + 6.2 * l.chars().count() as f64)
        .collect();
    let positions = layout(graph, &widths);
    let mut out = format!(
        "<div class=\"graph\">\n<svg viewBox=\"{:.0} 0 {:.0} {:.0}\" preserveAspectRatio=\"xMidYMin \
         meet\">\n",
        positions.left, positions.width, positions.height
    );
    for (id, node) in graph.iter() {
        let (x, y) = positions.centres[id.index()];
        for v in &node.inputs {
            let (fx, fy) = positions.centres[v.node.index()];
            let (fy, y) = (fy + HEIGHT / 2.0, y - HEIGHT / 2.0);
            let middle = (fy + y) / 2.0;
            let _ = writeln!(
                out,
                "<path d=\"M{fx:.0} {fy:.0}C{fx:.0} {middle:.0} {x:.0} {middle:.0} {x:.0} {y:.0}\"/>"
            );
        }
    }
    for (id, node) in graph.iter() {
        let ((x, y), kernels) = (positions.centres[id.index()], &kernels[id.index()]);
        let fill = kernels.colour.as_ref();
        let fill = fill.map_or_else(String::new, |c| format!(" style=\"fill:{c}\""));
        let line = match node.loc.is_known() {
            true => format!("\n{}", node.loc),
            false => String::new(),
        };
        let width = widths[id.index()];
        let _ = writeln!(
            out,
            "<g class=\"n\" data-k=\"{}\"><title>{}{}</title><rect x=\"{:.0}\" y=\"{:.0}\" \
             width=\"{width:.0}\" height=\"{HEIGHT}\" rx=\"3\"{fill}/><text x=\"{x:.0}\" \
             y=\"{:.0}\">{}</text></g>",
            kernels.names.join(" "),
            escaped(&graph.line(id)),
            escaped(&line),
            x - width / 2.0,
            y - HEIGHT / 2.0,
            y + 4.0,
            escaped(&labels[id.index()]),
        );
    }
    out.push_str("</svg>\n</div>\n");
    out
}
