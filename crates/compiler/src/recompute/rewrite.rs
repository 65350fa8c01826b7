//! Rewrites a graph to recompute chosen values.
//!
//! Values are processed users first. Each gets a copy of the nodes that compute it. A barrier precedes the operands of
//! the copy. It also waits for an *anchor*: a value that is computed late, but before the first late reader, so
//! that the copy is computed after it. Then late readers read the copy. A node between a value and its readers that
//! is not stored in memory is computed where it is read. If both kinds of readers need it, the late ones get a copy
//! of it as well.

use super::model::{Model, Pick, Recomputation};
use hashbrown::HashMap;
use kiln_ir::{Graph, Node, NodeId, Value, ops};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Returns the graph that computes `choice` again; `None` if it would have a cycle, which is a bug.
pub(super) fn rewrite(graph: &Graph, model: &Model, choice: &[Pick]) -> Option<Graph> {
    let mut rewriter = Rewriter {
        nodes: graph.iter().map(|(_, n)| n.clone()).collect(),
        steps: node_steps(graph, model),
        original: graph,
    };
    let picked: Vec<Value> = (choice.iter())
        .filter_map(|p| Some(model.items[p.item].recomputation.as_ref()?.value))
        .collect();
    for pick in choice.iter().rev() {
        let Some(recomputation) = &model.items[pick.item].recomputation else {
            continue;
        };
        if let Some(anchor) = anchor(model, recomputation, pick.need, &picked) {
            let copy = rewriter.copy(model, recomputation, pick.need, anchor);
            rewriter.redirect(recomputation.value, copy, pick.need);
        }
    }
    rewriter.finish()
}

/// Returns a value that is computed after the early readers and before the step that needs the value again: the latest
/// that this step reads, else the latest of all.
fn anchor(
    model: &Model,
    recomputation: &Recomputation,
    need: usize,
    picked: &[Value],
) -> Option<Value> {
    let late = |v: &Value| {
        let live = model.live.get(v)?;
        let written = live
            .written
            .filter(|w| recomputation.split < *w && *w < need)?;
        (!picked.contains(v)).then_some((written, *v))
    };
    let read = model.reads[need].iter().filter_map(late).max();
    read.or_else(|| model.live.keys().filter_map(late).max())
        .map(|(_, v)| v)
}

/// Returns the first and last step that computes each node: the step that writes it, or those that compute its
/// readers.
fn node_steps(graph: &Graph, model: &Model) -> Vec<(usize, usize)> {
    let mut ranges: Vec<Option<(usize, usize)>> = vec![None; graph.len()];
    for (id, node) in graph.iter().rev() {
        let outputs = 0..node.facts.len() as u32;
        let mut steps = outputs.filter_map(|output| {
            model
                .live
                .get(&Value { node: id, output })
                .map(|h| h.written.unwrap_or(0))
        });
        if let Some(step) = steps.next() {
            ranges[id.index()] = Some((step, step));
        }
        let Some((first, last)) = ranges[id.index()] else {
            continue;
        };
        for v in &node.inputs {
            // A value in memory is computed once, whatever reads it.
            let range = &mut ranges[v.node.index()];
            let (a, b) = range.unwrap_or((first, last));
            *range = Some((a.min(first), b.max(last)));
        }
    }
    ranges.into_iter().map(|w| w.unwrap_or((0, 0))).collect()
}

struct Rewriter<'a> {
    /// The nodes of the graph, then new ones, in no particular order.
    nodes: Vec<Node>,
    /// For each node, the first and last step that computes it.
    steps: Vec<(usize, usize)>,
    original: &'a Graph,
}

impl Rewriter<'_> {
    fn push(&mut self, node: Node, steps: (usize, usize)) -> NodeId {
        self.nodes.push(node);
        self.steps.push(steps);
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// Adds a copy of the nodes that compute a value, at the step that needs it. Returns the copied value.
    fn copy(
        &mut self,
        model: &Model,
        recomputation: &Recomputation,
        need: usize,
        anchor: Value,
    ) -> Value {
        let can_wait = |v: &&Value| model.live.get(*v).is_some_and(|h| h.can_wait);
        let mut barrier_operands: Vec<Value> = recomputation
            .leaves
            .iter()
            .filter(can_wait)
            .copied()
            .collect();
        let mut copies: HashMap<Value, Value> = HashMap::new();
        if !barrier_operands.is_empty() {
            barrier_operands.push(anchor);
            let fact = |v: &Value| self.nodes[v.node.index()].facts[v.output as usize].clone();
            let barrier = Node {
                op: ops::Barrier { detach: false }.into(),
                facts: barrier_operands.iter().map(fact).collect(),
                loc: self.nodes[recomputation.value.node.index()].loc.clone(),
                inputs: barrier_operands.iter().copied().collect(),
            };
            let node = self.push(barrier, (need, need));
            let outputs = (0..).map(|output| Value { node, output });
            copies.extend(barrier_operands.into_iter().zip(outputs));
        }
        for id in &recomputation.nodes {
            let mut node = self.nodes[id.index()].clone();
            for v in &mut node.inputs {
                *v = copies.get(v).copied().unwrap_or(*v);
            }
            let copy = self.push(node, (need, need));
            copies.insert(id.value(), copy.value());
        }
        copies[&recomputation.value]
    }

    /// Redirects nodes that are computed from step `need` on to read `to` instead of `from`. A node that is computed
    /// both before and after that step is copied, and its late readers read the copy.
    fn redirect(&mut self, from: Value, to: Value, need: usize) {
        let mut list = vec![(from, to)];
        while let Some((from, to)) = list.pop() {
            for u in 0..self.nodes.len() {
                let (first, last) = self.steps[u];
                if last < need || !self.nodes[u].inputs.contains(&from) {
                    continue;
                }
                let mut node = u;
                if first < need {
                    let copy = self.nodes[u].clone();
                    node = self.push(copy, (need, last)).index();
                    self.steps[u].1 = need - 1;
                    for output in 0..self.nodes[u].facts.len() as u32 {
                        let output_of = |n: usize| Value {
                            node: NodeId(n as u32),
                            output,
                        };
                        list.push((output_of(u), output_of(node)));
                    }
                }
                for v in self.nodes[node].inputs.iter_mut().filter(|v| **v == from) {
                    *v = to;
                }
            }
        }
    }

    /// Returns the graph, with nodes in an order in which operands come first: the old ones in their order, each new
    /// one right before its first reader.
    fn finish(self) -> Option<Graph> {
        let old = self.original.len();
        let keys: Vec<usize> = (0..self.nodes.len()).collect();
        let mut keys: Vec<usize> = keys.into_iter().map(|k| k.min(old)).collect();
        for node in self.order(&keys)?.into_iter().rev() {
            let key = keys[node];
            for v in &self.nodes[node].inputs {
                let operand = v.node.index();
                if operand >= old {
                    keys[operand] = keys[operand].min(key);
                }
            }
        }
        let order = self.order(&keys)?;
        let mut moved_to = vec![NodeId(0); self.nodes.len()];
        let mut graph = Graph::default();
        graph.symbols.clone_from(&self.original.symbols);
        let remap = |moved_to: &[NodeId], v: Value| Value {
            node: moved_to[v.node.index()],
            ..v
        };
        for old in order {
            let mut node = self.nodes[old].clone();
            for v in &mut node.inputs {
                *v = remap(&moved_to, *v);
            }
            moved_to[old] = graph.push(node);
        }
        graph.outputs.clone_from(&self.original.outputs);
        for o in &mut graph.outputs {
            o.value = remap(&moved_to, o.value);
        }
        Some(graph)
    }

    /// The topological order that takes the least (key, whether it is of the old graph, number) first; `None` for a
    /// cycle.
    fn order(&self, keys: &[usize]) -> Option<Vec<usize>> {
        let key = |n: usize| Reverse((keys[n], n < self.original.len(), n));
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut waiting = vec![0usize; self.nodes.len()];
        for (n, node) in self.nodes.iter().enumerate() {
            waiting[n] = node.inputs.len();
            node.inputs
                .iter()
                .for_each(|v| users[v.node.index()].push(n));
        }
        let ready = (0..self.nodes.len()).filter(|n| waiting[*n] == 0);
        let mut ready: BinaryHeap<_> = ready.map(key).collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(Reverse((_, _, n))) = ready.pop() {
            order.push(n);
            for &u in &users[n] {
                waiting[u] -= 1;
                if waiting[u] == 0 {
                    ready.push(key(u));
                }
            }
        }
        (order.len() == self.nodes.len()).then_some(order)
    }
}
