//! Graphs, whose nodes run in any order that their dependencies allow.

use crate::driver::Driver;
use crate::status::LAUNCH_FAILED;
use crate::work::{Broken, Node};
use kiln_gpu_emulator::Trail;
use std::sync::Arc;

/// A node of a graph.
#[derive(Clone, Debug)]
pub(crate) struct GraphNode {
    pub handle: usize,
    pub node: Node,
    /// The positions of its dependencies.
    pub after: Vec<usize>,
}

/// The nodes of a graph, each after its dependencies.
pub(crate) type Nodes = Arc<Vec<GraphNode>>;

/// Executes the nodes of a graph in an order drawn from a seed. Two kernels without a dependency between them must
/// not touch the same memory if one of them writes: that is a fault, and is found in every order.
pub(crate) fn execute(nodes: &[GraphNode], mut seed: u64, driver: &Driver) -> Result<(), Broken> {
    let chain = |(i, node): (usize, &GraphNode)| i == 0 || node.after.contains(&(i - 1));
    let traced = !nodes.iter().enumerate().all(chain);
    let before = if traced { ancestors(nodes) } else { Vec::new() };
    let mut open: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
    let mut next = vec![Vec::new(); nodes.len()];
    for (i, node) in nodes.iter().enumerate() {
        node.after.iter().for_each(|a| next[*a].push(i));
    }
    let mut ready: Vec<usize> = (0..nodes.len()).filter(|i| open[*i] == 0).collect();
    let mut trails: Vec<(usize, Trail)> = Vec::new();
    while !ready.is_empty() {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let at = ready.swap_remove((seed >> 33) as usize % ready.len());
        match &nodes[at].node {
            Node::Kernel(kernel) if traced => {
                let trail = kernel.execute(driver, true)?;
                let beside = trails
                    .iter()
                    .filter(|(other, _)| !before[at].contains(*other));
                for (other, their) in beside {
                    let met = trail.meets(their);
                    met.map_or(Ok(()), |met| Err(race(&nodes[at], &nodes[*other], &met)))?;
                }
                trails.push((at, trail));
            }
            node => node.execute(driver)?,
        }
        for &behind in &next[at] {
            open[behind] -= 1;
            if open[behind] == 0 {
                ready.push(behind);
            }
        }
    }
    Ok(())
}

fn race(a: &GraphNode, b: &GraphNode, met: &str) -> Broken {
    let name = |p: &GraphNode| match &p.node {
        Node::Kernel(k) => k.kernel.name().to_string(),
        _ => String::new(),
    };
    let (a, b) = (name(a), name(b));
    Broken {
        status: LAUNCH_FAILED,
        text: format!(
            "of the kernels {a} and {b} of a graph neither depends on the other; {a} {met}"
        ),
    }
}

/// A set of positions.
#[derive(Clone)]
struct Set(Vec<u64>);

impl Set {
    fn contains(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 != 0
    }
}

/// The direct and indirect dependencies of each node.
fn ancestors(nodes: &[GraphNode]) -> Vec<Set> {
    let mut all: Vec<Set> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut set = Set(vec![0; nodes.len().div_ceil(64)]);
        for &before in &node.after {
            let theirs = all[before].0.iter();
            set.0
                .iter_mut()
                .zip(theirs)
                .for_each(|(word, their)| *word |= their);
            set.0[before / 64] |= 1 << (before % 64);
        }
        all.push(set);
    }
    all
}
