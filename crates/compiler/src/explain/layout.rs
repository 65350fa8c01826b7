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
    /// The left edge of everything.
    pub(super) left: f64,
    /// The width of everything.
    pub(super) width: f64,
    /// The height of everything.
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
            let wanted = layer.iter().map(|&n| {
                let node = graph.node(kiln_ir::NodeId(n as u32));
                let above = node.inputs.iter().map(|v| v.node.index());
                let above = above.filter(|m| varies[*m]);
                let below = users[n].iter().map(|u| u.index());
                let known = |down: bool| match down {
                    true => mean(above.clone().map(|m| x[m])),
                    false => mean(below.clone().map(|m| x[m])),
                };
                (n, known(down).or(known(!down)).unwrap_or(0.0))
            });
            for (n, at) in spread(wanted.collect(), widths, &varies) {
                x[n] = at;
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
        let above = node.inputs.iter().map(|v| depth[v.node.index()] + 1);
        depth[id.index()] = above.max().unwrap_or(0);
        varies[id.index()] = node.inputs.iter().any(|v| varies[v.node.index()])
            || matches!(&node.op, Op::Input(i) if i.role == Role::Data);
    }
    // Nodes that depend on no data are placed where they are needed: whole columns of prepared parameters would make the
    // first layers wide.
    let users = graph.users();
    for (id, _) in graph.iter().rev().filter(|(id, _)| !varies[id.index()]) {
        let first = users[id.index()].iter().map(|u| depth[u.index()]).min();
        depth[id.index()] = first.map_or(depth[id.index()], |d| d - 1);
    }
    let top = depth.iter().copied().min().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = Vec::new();
    for (n, d) in depth.iter().enumerate() {
        let at = (d - top) as usize;
        if layers.len() <= at {
            layers.resize(at + 1, Vec::new());
        }
        layers[at].push(n);
    }
    (layers, varies)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = values.fold((0.0, 0.0), |(s, n), x| (s + x, n + 1.0));
    (n > 0.0).then_some(sum / n)
}

/// Neighbours in the order of their preferred positions, apart from each other. The nodes that depend on data stay in
/// place as a whole, so that a chain is a straight line whatever parameters are next to it.
fn spread(mut wanted: Vec<(usize, f64)>, widths: &[f64], varies: &[bool]) -> Vec<(usize, f64)> {
    wanted.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let mut right = f64::NEG_INFINITY;
    let placed: Vec<(usize, f64)> = wanted
        .iter()
        .map(|&(n, at)| {
            let x = at.max(right + widths[n] / 2.0);
            right = x + widths[n] / 2.0 + GAP;
            (n, x)
        })
        .collect();
    let moved = |all: bool| {
        let pairs = placed.iter().zip(&wanted);
        let counted = pairs.filter(|(p, _)| all || varies[p.0]);
        mean(counted.map(|(p, w)| p.1 - w.1))
    };
    let moved = moved(false).or(moved(true)).unwrap_or(0.0);
    placed.into_iter().map(|(n, x)| (n, x - moved)).collect()
}
