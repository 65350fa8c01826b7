//! The positions of the nodes of a graph in a drawing: in layers by depth, operands above users.
//!
//! Within a layer, a node is placed near the mean of its neighbours. A few sweeps down and up determine the positions
//! (the barycentre method: Sugiyama, Tagawa and Toda, 1981).

use kiln_ir::{Graph, Op, Role};

/// The height of a node.
pub(super) const HEIGHT: f64 = 20.0;
/// The distance between layers.
const LAYER: f64 = 46.0;
/// The smallest distance between neighbours in a layer.
const GAP: f64 = 12.0;
const SWEEPS: usize = 6;

/// A drawing of a graph.
pub(super) struct Layout {
    /// For each node, the middle of its box.
    pub(super) centres: Vec<(f64, f64)>,
    /// The left edge.
    pub(super) left: f64,
    /// The width.
    pub(super) width: f64,
    /// The height.
    pub(super) height: f64,
}

/// Places nodes of these widths.
pub(super) fn layout(graph: &Graph, widths: &[f64]) -> Layout {
    let (layers, varies) = layers(graph);
    let users = graph.users();
    let mut x = vec![0.0; graph.len()];
    for sweep in 0..SWEEPS {
        let down = sweep % 2 == 0;
        let order: Vec<&Vec<usize>> = match down {
            true => layers.iter().collect(),
            false => layers.iter().rev().collect(),
        };
        for layer in order {
            let preferred = layer.iter().map(|&n| {
                let node = graph.node(kiln_ir::NodeId(n as u32));
                let operands = node.inputs.iter().map(|v| v.node.index());
                let operands = operands.filter(|m| varies[*m]);
                let readers = users[n].iter().map(|u| u.index());
                let mean_x = |down: bool| match down {
                    true => mean(operands.clone().map(|m| x[m])),
                    false => mean(readers.clone().map(|m| x[m])),
                };
                (n, mean_x(down).or(mean_x(!down)).unwrap_or(0.0))
            });
            for (n, placed_x) in spread(preferred.collect(), widths, &varies) {
                x[n] = placed_x;
            }
        }
    }
    let mut centres = vec![(0.0, 0.0); graph.len()];
    for (depth, layer) in layers.iter().enumerate() {
        for &n in layer {
            centres[n] = (x[n], depth as f64 * LAYER + HEIGHT);
        }
    }
    let edges = |side: f64| {
        let ends = centres.iter().zip(widths);
        ends.map(move |(p, w)| p.0 + side * w / 2.0)
    };
    let left = edges(-1.0).fold(0.0, f64::min) - GAP;
    let right = edges(1.0).fold(0.0, f64::max) + GAP;
    Layout {
        centres,
        left,
        width: right - left,
        height: layers.len() as f64 * LAYER + HEIGHT,
    }
}

/// The nodes of each depth; and for each node, true if it depends on data.
fn layers(graph: &Graph) -> (Vec<Vec<usize>>, Vec<bool>) {
    let mut depth = vec![0i64; graph.len()];
    let mut varies = vec![false; graph.len()];
    for (id, node) in graph.iter() {
        let operand_depths = node.inputs.iter().map(|v| depth[v.node.index()] + 1);
        depth[id.index()] = operand_depths.max().unwrap_or(0);
        varies[id.index()] = node.inputs.iter().any(|v| varies[v.node.index()])
            || matches!(&node.op, Op::Input(i) if i.role == Role::Data);
    }
    // Nodes that depend on no data are placed where they are needed: whole columns of prepared parameters would make
    // the first layers wide.
    let users = graph.users();
    for (id, _) in graph.iter().rev().filter(|(id, _)| !varies[id.index()]) {
        let first = users[id.index()].iter().map(|u| depth[u.index()]).min();
        depth[id.index()] = first.map_or(depth[id.index()], |d| d - 1);
    }
    let top = depth.iter().copied().min().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for (n, d) in depth.iter().enumerate() {
        let layer = (d - top) as usize;
        if layers.len() <= layer {
            layers.resize(layer + 1, Vec::new());
        }
        layers[layer].push(n);
    }
    (layers, varies)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0.0), |(s, n), x| (s + x, n + 1.0));
    (n > 0.0).then_some(sum / n)
}

/// Spreads nodes in the order of their preferred positions, without overlaps. The mean position of nodes that depend on
/// data is kept, which makes a chain a straight line next to any parameters.
fn spread(mut preferred: Vec<(usize, f64)>, widths: &[f64], varies: &[bool]) -> Vec<(usize, f64)> {
    preferred.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut right = f64::NEG_INFINITY;
    let placed: Vec<(usize, f64)> = preferred
        .iter()
        .map(|&(n, x_wanted)| {
            let x = x_wanted.max(right + widths[n] / 2.0);
            right = x + widths[n] / 2.0 + GAP;
            (n, x)
        })
        .collect();
    let offset = |use_all: bool| {
        let pairs = placed.iter().zip(&preferred);
        let used = pairs.filter(|(p, _)| use_all || varies[p.0]);
        mean(used.map(|(p, w)| p.1 - w.1))
    };
    let offset = offset(false).or(offset(true)).unwrap_or(0.0);
    placed.into_iter().map(|(n, x)| (n, x - offset)).collect()
}
