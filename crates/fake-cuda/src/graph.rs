//! Graphs, whose nodes run in any order that their dependencies allow.

use crate::driver::Driver;
use crate::nccl::RankCall;
use crate::status::LAUNCH_FAILED;
use crate::work::{Broken, Node};
use kiln_gpu_emulator::Trail;
use std::sync::{Arc, Mutex, PoisonError};

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
    nodes: Vec<GraphNode>,
    /// The nodes that each is a dependency of.
    next: Vec<Vec<usize>>,
    /// The dependencies of each node, also indirect ones, unless each node depends on the one before it.
    before: Option<Vec<Set>>,
    state: Mutex<RunState>,
}

#[derive(Debug)]
struct RunState {
    seed: u64,
    /// The number of dependencies of each node that have not ended.
    open: Vec<usize>,
    ready: Vec<usize>,
    /// The nodes that wait for other ranks.
    waiting: Vec<usize>,
    trails: Vec<(usize, Trail)>,
    /// The times at which nodes are ready: the latest end of the dependencies so far.
    times: Vec<f64>,
    /// The end of the last kernel, and the latest end of a node.
    free: f64,
    end: f64,
}

impl RunState {
    /// A random place among the ready nodes.
    fn draw(&mut self) -> usize {
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

    /// Executes what can be executed on a device from a time on. Returns the time of the end; `None` if the rest waits
    /// for other ranks. The caller holds the engine's lock.
    pub fn advance(
        &self,
        driver: &Driver,
        device: usize,
        from: f64,
    ) -> Result<Option<f64>, Broken> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        state.ready.append(&mut state.waiting);
        while !state.ready.is_empty() {
            let drawn = match driver.config.costs {
                Some(_) => self.earliest(state),
                None => state.draw(),
            };
            let index = state.ready.swap_remove(drawn);
            let (node, ready) = (&self.nodes[index].node, from.max(state.times[index]));
            let (end, trail) = match (node, &self.before) {
                (Node::Nccl(part), before) => {
                    if let (Some(before), false) = (before, part.has_begun()) {
                        self.check_order(index, part, before)?;
                    }
                    let Some(end_time) = driver.meet(part, ready)? else {
                        state.waiting.push(index);
                        // Its end says which node comes next.
                        if driver.config.costs.is_some() {
                            return Ok(None);
                        }
                        continue;
                    };
                    let trail = before.as_ref().map(|_| part.trail(&driver.memory));
                    (end_time, trail.unwrap_or_default())
                }
                (node, before) => {
                    let start = ready.max(state.free);
                    let (end, trail) = match (node, before) {
                        (Node::Kernel(kernel), Some(_)) => {
                            let trail = kernel.execute(driver, true)?;
                            (driver.spend(device, start, kernel.kernel.name()), trail)
                        }
                        _ => {
                            let end = node.execute(driver, device, start)?;
                            let trail = match (node, before) {
                                (Node::Product(product), Some(_)) => product.trail(&driver.memory),
                                _ => Trail::default(),
                            };
                            (end.unwrap_or(start), trail)
                        }
                    };
                    state.free = end;
                    (end, trail)
                }
            };
            if let Some(before) = &self.before {
                let trails = state.trails.iter();
                for (other, their) in trails.filter(|(other, _)| !before[index].contains(*other)) {
                    let met = trail.meets(their);
                    met.map_or(Ok(()), |met| {
                        Err(race(&self.nodes[index], &self.nodes[*other], &met))
                    })?;
                }
                state.trails.push((index, trail));
            }
            state.end = state.end.max(end);
            for &successor in &self.next[index] {
                state.times[successor] = state.times[successor].max(end);
                state.open[successor] -= 1;
                if state.open[successor] == 0 {
                    state.ready.push(successor);
                }
            }
        }
        Ok(state.waiting.is_empty().then_some(state.end.max(from)))
    }

    /// The place among the ready nodes of an operation of NCCL, or else of the node that is ready first.
    fn earliest(&self, state: &RunState) -> usize {
        let key = |index: &usize| match &self.nodes[*index].node {
            Node::Nccl(_) => (-1.0, *index),
            _ => (state.times[*index], *index),
        };
        let positions = 0..state.ready.len();
        let earliest = positions.min_by(|a, b| {
            let (a, b) = (key(&state.ready[*a]), key(&state.ready[*b]));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        });
        earliest.unwrap_or_default()
    }

    /// A fault if an operation of the same communicator is not ordered with this one: ranks could run them in different
    /// orders.
    fn check_order(&self, index: usize, part: &RankCall, before: &[Set]) -> Result<(), Broken> {
        let unordered = |(other, node): &(usize, &GraphNode)| match &node.node {
            Node::Nccl(theirs) => {
                *other != index
                    && theirs.comm.is(&part.comm)
                    && !before[index].contains(*other)
                    && !before[*other].contains(index)
            }
            _ => false,
        };
        match self.nodes.iter().enumerate().find(unordered) {
            Some((_, other)) => Err(Broken {
                status: LAUNCH_FAILED,
                text: format!(
                    "of the operations {} and {} of a graph neither depends on the other",
                    name(&self.nodes[index]),
                    name(other)
                ),
            }),
            None => Ok(()),
        }
    }
}

fn name(of: &GraphNode) -> String {
    match &of.node {
        Node::Kernel(k) => k.kernel.name().to_string(),
        Node::Nccl(part) => part.to_string(),
        Node::Product(_) => "cublaslt".into(),
        _ => String::new(),
    }
}

fn race(a: &GraphNode, b: &GraphNode, met: &str) -> Broken {
    let (a, b) = (name(a), name(b));
    Broken {
        status: LAUNCH_FAILED,
        text: format!("of {a} and {b} of a graph neither depends on the other; {a} {met}"),
    }
}

/// A set of positions.
#[derive(Clone, Debug)]
struct Set(Vec<u64>);

impl Set {
    fn contains(&self, index: usize) -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cublaslt::{Algorithm, Layout, Operation, Problem, Product};
    use crate::driver::driver;

    /// Two products in a graph, the second of which reads the matrix at `read`, of four numbers, two columns of which
    /// lie three apart. The first writes the matrix at an address.
    fn run(read: u64, written: u64, after: &[usize]) -> Result<Option<f64>, String> {
        let layout = Layout {
            kind: 0,
            rows: 2,
            columns: 2,
            leading: 3,
            count: 1,
            stride: 0,
        };
        let problem = Problem {
            operation: Operation {
                compute: 68,
                scale: 0,
                transposed: [false; 2],
            },
            layouts: [layout; 4],
        };
        let memory = &driver().memory;
        let own = memory.allocate(20);
        let product = |at: [u64; 2], after: &[usize]| GraphNode {
            handle: 0,
            node: Node::Product(Box::new(Product {
                problem,
                algorithm: Algorithm::default(),
                memory: [at[0], at[0], at[1], at[1]],
                workspace: 0,
            })),
            after: after.to_vec(),
        };
        let input = memory.allocate(20);
        memory.write(input, &[0; 20]).unwrap();
        let nodes = [product([input, written], &[]), product([read, own], after)];
        let ran = GraphRun::new(&nodes, 1).advance(driver(), 0, 0.0);
        ran.map_err(|broken| broken.text)
    }

    #[test]
    fn products_that_meet_are_a_fault_unless_one_depends_on_the_other() {
        let memory = &driver().memory;
        let shared = memory.allocate(64);
        memory.write(shared, &[0; 64]).unwrap();
        let error = run(shared, shared, &[]).unwrap_err();
        assert!(error.contains("cublaslt"), "{error}");
        assert!(error.contains("neither depends on the other"), "{error}");
        assert_eq!(run(shared, shared, &[0]), Ok(Some(0.0)));
        // The numbers of one lie behind those of the other, or its first column begins between the other's two.
        assert_eq!(run(shared + 20, shared, &[]), Ok(Some(0.0)));
        let between = run(shared + 8, shared, &[]).unwrap_err();
        assert!(
            between.contains("neither depends on the other"),
            "{between}"
        );
    }
}
