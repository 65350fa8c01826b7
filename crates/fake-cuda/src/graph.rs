//! Graphs, whose nodes run in any order that their dependencies allow.

use crate::nccl::RankCall;
use crate::work::Node;
use kiln_gpu_emulator::Trail;
use std::sync::{Arc, Mutex};

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

/// Replaces the graphs within a graph by their nodes.
pub(crate) fn expand(nodes: &[GraphNode]) -> Vec<GraphNode> {
    let mut expanded_nodes: Vec<GraphNode> = Vec::with_capacity(nodes.len());
    // The nodes at the end of each node.
    let mut ends: Vec<Vec<usize>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let after: Vec<usize> = node.after.iter().flat_map(|a| ends[*a].clone()).collect();
        let inner = match &node.node {
            Node::Graph(inner) if !inner.is_empty() => expand(inner),
            _ => {
                let node = node.node.clone();
                expanded_nodes.push(GraphNode {
                    handle: 0,
                    node,
                    after,
                });
                ends.push(vec![expanded_nodes.len() - 1]);
                continue;
            }
        };
        let first_index = expanded_nodes.len();
        let mut last = vec![true; inner.len()];
        for mut node in inner {
            node.after.iter().for_each(|a| last[*a] = false);
            node.after = match node.after.is_empty() {
                true => after.clone(),
                false => node.after.iter().map(|a| first_index + a).collect(),
            };
            expanded_nodes.push(node);
        }
        let last = last.iter().enumerate().filter(|(_, last)| **last);
        ends.push(last.map(|(i, _)| first_index + i).collect());
    }
    expanded_nodes
}

/// A launch of a graph. It executes the nodes in an order drawn from a seed. Two nodes without a dependency between
/// them must not touch the same memory if one of them writes: that is a fault, and is found in every order.
#[derive(Debug)]
pub(crate) struct GraphRun {
    pub nodes: Vec<GraphNode>,
    /// The nodes that each is a dependency of.
    pub next: Vec<Vec<usize>>,
    /// The dependencies of each node, also indirect ones, unless each node depends on the one before it.
    pub before: Option<Vec<Set>>,
    pub state: Mutex<RunState>,
}

#[derive(Debug)]
pub(crate) struct RunState {
    seed: u64,
    /// The number of dependencies of each node that have not ended.
    pub open: Vec<usize>,
    pub ready: Vec<usize>,
    /// The nodes that wait for other ranks.
    pub waiting: Vec<usize>,
    pub trails: Vec<(usize, Trail)>,
    /// The times at which nodes are ready: the latest end of the dependencies so far.
    pub times: Vec<f64>,
    /// The end of the last kernel, and the latest end of a node.
    pub free: f64,
    pub end: f64,
}

impl RunState {
    /// A random place among the ready nodes.
    pub fn draw(&mut self) -> usize {
        self.seed = self
            .seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.seed >> 33) as usize % self.ready.len()
    }
}

impl GraphRun {
    pub fn new(nodes: &[GraphNode], seed: u64) -> GraphRun {
        let nodes = expand(nodes);
        let chain = |(i, node): (usize, &GraphNode)| i == 0 || node.after.contains(&(i - 1));
        let is_chain = nodes.iter().enumerate().all(chain);
        let open: Vec<usize> = nodes.iter().map(|n| n.after.len()).collect();
        let mut next = vec![Vec::new(); nodes.len()];
        for (i, node) in nodes.iter().enumerate() {
            node.after.iter().for_each(|a| next[*a].push(i));
        }
        let state = RunState {
            seed,
            ready: (0..nodes.len()).filter(|i| open[*i] == 0).collect(),
            open,
            waiting: Vec::new(),
            trails: Vec::new(),
            times: vec![0.0; nodes.len()],
            free: 0.0,
            end: 0.0,
        };
        GraphRun {
            next,
            before: (!is_chain).then(|| ancestors(&nodes)),
            nodes,
            state: Mutex::new(state),
        }
    }

    /// The operations of NCCL in it.
    pub fn operations(&self) -> impl Iterator<Item = &RankCall> {
        self.nodes.iter().filter_map(|node| match &node.node {
            Node::Nccl(part) => Some(part),
            _ => None,
        })
    }
}

/// A set of positions.
#[derive(Clone, Debug)]
pub(crate) struct Set(Vec<u64>);

impl Set {
    pub fn contains(&self, index: usize) -> bool {
        self.0[index / 64] >> (index % 64) & 1 != 0
    }
}

/// The direct and indirect dependencies of each node.
fn ancestors(nodes: &[GraphNode]) -> Vec<Set> {
    let mut sets: Vec<Set> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let mut set = Set(vec![0; nodes.len().div_ceil(64)]);
        for &before in &node.after {
            let theirs = sets[before].0.iter();
            set.0
                .iter_mut()
                .zip(theirs)
                .for_each(|(word, their)| *word |= their);
            set.0[before / 64] |= 1 << (before % 64);
        }
        sets.push(set);
    }
    sets
}
