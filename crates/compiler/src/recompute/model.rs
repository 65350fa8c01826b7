//! A model of the memory that a plan's temporaries need, and the choice of values to compute again.
//!
//! Time is counted in steps of the plan. A value lives from the step that writes it to the last step that reads it. A
//! recomputed value lives twice: up to the last reader before its longest pause, and from the first
//! reader after that. Its operands must be there at that step, too: those that are kept live longer for it, and
//! those that are themselves computed again are needed at that step.
//!
//! The choice is greedy. Each change computes one more value again, or one less. The change is taken that removes
//! most of the bytes above the target, summed over steps, per operation that it costs. So pointwise work goes before
//! products, and large values with long pauses before others.

use crate::lines::{describe_op, resolved};
use crate::lowered::Lowered;
use crate::uses::{ix, read, written};
use hashbrown::HashMap;
use kiln_base::{Role, numel};
use kiln_codegen::{Launch, Origin};
use kiln_ir::{Graph, Loc, NodeId, Op, Pw, Value};
use kiln_plan::memory::Temporaries;
use kiln_plan::{Allocation, Plan};
use std::cmp::Reverse;
use std::fmt;

/// A value that is recomputed instead of being kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Recomputed {
    /// The op, its result, and the user's line.
    pub value: String,
    /// The bytes that it would hold.
    pub bytes: usize,
    /// The number of steps for which it does not hold them.
    pub steps: usize,
    /// The number of arithmetic operations to recompute it.
    pub flops: u64,
}

impl fmt::Display for Recomputed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is computed again: frees {} bytes for {} steps, costs {} operations",
            self.value, self.bytes, self.steps, self.flops
        )
    }
}

/// The values that are computed again, in the order in which they are first written.
pub(super) type Choice = Vec<Pick>;

/// A value that is recomputed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pick {
    /// Its position among the model's items.
    pub item: usize,
    /// The step that needs it again.
    pub need: usize,
}

/// The maximum number of values that are weighed against each other.
const MAX_CANDIDATES: usize = 384;
/// The maximum number of nodes that compute a value again.
const MAX_NODES: usize = 48;
/// The minimum pause, in steps, that is worth a recomputation.
const MIN_PAUSE: usize = 3;

/// A temporary.
pub(super) struct Item {
    pub size: usize,
    /// The step that writes it.
    pub first: usize,
    /// The steps that read it, ascending.
    pub uses: Vec<usize>,
    /// The step that writes another temporary over it.
    handed_over: Option<usize>,
    /// The nodes and operands to recompute it, if possible.
    pub recomputation: Option<Recomputation>,
}

/// The nodes and operands that recompute a value.
pub(super) struct Recomputation {
    pub value: Value,
    /// Readers up to this step read the value itself.
    pub split: usize,
    /// The nodes that compute it from values in memory.
    pub nodes: Vec<NodeId>,
    /// The values that these nodes read from memory.
    pub leaves: Vec<Value>,
    /// The temporaries among the leaves.
    items: Vec<usize>,
    flops: u64,
    /// Operations, plus an equivalent in operations for the bytes of operands moved.
    cost: f64,
}

/// A value in memory during a run.
pub(super) struct LiveValue {
    /// The step that writes it; `None` for an input.
    pub written: Option<usize>,
    pub item: Option<usize>,
    /// True if its readers may follow a barrier: it depends on data and is not a random key.
    pub can_wait: bool,
}

pub(super) struct Model {
    pub items: Vec<Item>,
    steps: usize,
    pub live: HashMap<Value, LiveValue>,
    /// For each node, true if pointwise work and views derive floats from it that are compared for equality.
    compared: Vec<bool>,
    /// For each step, the values in memory that it reads.
    pub reads: Vec<Vec<Value>>,
    /// The items that can be recomputed, last written first: users before operands.
    order: Vec<usize>,
}

/// The steps at which items are alive.
struct Lives {
    /// The end of the first life.
    early: Vec<usize>,
    /// The second life, where there is one.
    late: Vec<Option<(usize, usize)>>,
}

impl Model {
    pub fn new(base: &Lowered, temporaries: &Temporaries) -> Model {
        let steps = temporaries.times.last().map_or(0, |t| t + 1);
        let mut model = Model {
            items: Vec::new(),
            steps,
            live: HashMap::new(),
            compared: compared(&base.graph),
            reads: vec![Vec::new(); steps],
            order: Vec::new(),
        };
        let of = model.buffers(base, temporaries);
        for (block, time) in temporaries.scratch.iter().zip(&temporaries.times) {
            if let Some(block) = block {
                model.item(temporaries.blocks[*block].size, *time);
            }
        }
        model.add_live_values(base, &of);
        let launches = base.placed.run.iter().map(|l| &base.sequence.launches[*l]);
        let fallible: Vec<&Launch> = launches.filter(|l| !l.sites.is_empty()).collect();
        for (buffer, item) in of.iter().enumerate() {
            let Some(item) = *item else { continue };
            let writes_it = |l: &&Launch| written(l).any(|b| ix(b) == buffer);
            if let Origin::Value(v) = base.sequence.buffers[buffer].origin
                && !fallible.iter().any(writes_it)
            {
                model.items[item].recomputation = model.recomputation(&base.graph, v, item);
            }
        }
        let mut order: Vec<usize> = (0..model.items.len())
            .filter(|i| model.items[*i].recomputation.is_some())
            .collect();
        let benefit = |i: usize| {
            let item = &model.items[i];
            let split = item.recomputation.as_ref().map_or(0, |a| a.split);
            let next = item.uses.iter().find(|u| **u > split);
            item.size.saturating_mul(next.map_or(0, |n| n - split))
        };
        order.sort_by_key(|i| (Reverse(benefit(*i)), *i));
        order.truncate(MAX_CANDIDATES);
        // Of two values written at one step, the later node may be computed from the earlier one.
        let node = |i: usize| model.items[i].recomputation.as_ref().map(|a| a.value);
        order.sort_by_key(|i| Reverse((model.items[*i].first, node(*i))));
        model.order = order;
        model
    }

    fn item(&mut self, size: usize, first: usize) -> usize {
        self.items.push(Item {
            size: size.next_multiple_of(kiln_plan::memory::ALIGN),
            first,
            uses: Vec::new(),
            handed_over: None,
            recomputation: None,
        });
        self.items.len() - 1
    }

    /// Adds an item for each temporary of the run; returns the item of each buffer.
    fn buffers(&mut self, base: &Lowered, temporaries: &Temporaries) -> Vec<Option<usize>> {
        let plan = &base.placed.plan;
        let bytes = |b: usize| bytes(plan, b);
        let temporary = |b: usize| {
            let allocation = plan.buffers[b].allocation;
            matches!(allocation, Allocation::Temporary | Allocation::InPlace(_))
        };
        let mut items: Vec<Option<usize>> = vec![None; plan.buffers.len()];
        for (&l, &time) in base.placed.run.iter().zip(&temporaries.times) {
            let launch = &base.sequence.launches[l];
            for b in read(launch).map(ix) {
                if let Some(item) = items[b] {
                    self.items[item].uses.push(time);
                }
            }
            for b in written(launch).map(ix).filter(|b| temporary(*b)) {
                items[b].get_or_insert_with(|| self.item(bytes(b), time));
                if let Allocation::InPlace(source) = plan.buffers[b].allocation
                    && let Some(source) = items[source.0 as usize]
                {
                    self.items[source].handed_over = Some(time);
                }
            }
        }
        items
    }

    /// Records the values in memory and the steps that read them.
    fn add_live_values(&mut self, base: &Lowered, items: &[Option<usize>]) {
        let (sequence, plan) = (&base.sequence, &base.placed.plan);
        let inputs = base.graph.inputs();
        let value = |b: usize| match &sequence.buffers[b].origin {
            Origin::Value(v) => Some(*v),
            Origin::Input(i) => Some(inputs[*i as usize].value()),
            _ => None,
        };
        for (b, info) in sequence.buffers.iter().enumerate() {
            let Some(v) = value(b) else { continue };
            let is_key = match &info.origin {
                Origin::Input(i) => plan.inputs[*i as usize].role == Role::RandomKey,
                _ => false,
            };
            let live = LiveValue {
                written: None,
                item: items[b],
                can_wait: !info.parameter_only && !is_key,
            };
            self.live.insert(v, live);
        }
        let mut time = 0;
        for (i, &l) in base.placed.run.iter().enumerate() {
            time += (i > 0 && !plan.run[i].concurrent) as usize;
            let launch = &sequence.launches[l];
            self.reads[time].extend(read(launch).filter_map(|b| value(ix(b))));
            for v in written(launch).filter_map(|b| value(ix(b))) {
                if let Some(live) = self.live.get_mut(&v) {
                    live.written = Some(time);
                }
            }
        }
    }

    /// The recomputation of an item's value, if the value has a long enough pause.
    fn recomputation(&self, graph: &Graph, v: Value, index: usize) -> Option<Recomputation> {
        let item = &self.items[index];
        let live = self.live.get(&v)?;
        if live.item != Some(index) || graph.node(v.node).facts.len() != 1 {
            return None;
        }
        let accesses = std::iter::once(&item.first).chain(&item.uses);
        let pauses = accesses.zip(&item.uses).map(|(a, b)| (b - a, *a));
        let (pause, split) = pauses.max_by_key(|(pause, at)| (*pause, Reverse(*at)))?;
        if pause < MIN_PAUSE {
            return None;
        }
        let (nodes, leaves) = self.expression(graph, v)?;
        if self.compared[v.node.index()] && !nodes.iter().all(|n| is_pure(graph, *n)) {
            return None;
        }
        let flops: u64 = nodes
            .iter()
            .map(|n| flops(graph, *n))
            .sum::<Option<u64>>()?;
        let read_items = leaves.iter().filter_map(|l| self.live.get(l)?.item);
        let items: Vec<usize> = read_items.collect();
        let bytes: usize = items.iter().map(|i| self.items[*i].size).sum();
        Some(Recomputation {
            value: v,
            split,
            nodes,
            leaves,
            items,
            flops,
            cost: flops as f64 + (bytes + item.size) as f64 + 1.0,
        })
    }

    /// The nodes that compute a value from values in memory, operands first, and the values that they read there.
    fn expression(&self, graph: &Graph, v: Value) -> Option<(Vec<NodeId>, Vec<Value>)> {
        let (mut nodes, mut leaves) = (Vec::new(), Vec::new());
        let mut front = vec![v];
        while let Some(at) = front.pop() {
            if nodes.contains(&at.node) || leaves.contains(&at) {
                continue;
            }
            let node = graph.node(at.node);
            if at != v && (self.live.contains_key(&at) || is_leaf(&node.op)) {
                leaves.push(at);
                continue;
            }
            if !can_repeat(&node.op) || nodes.len() == MAX_NODES {
                return None;
            }
            nodes.push(at.node);
            front.extend(&node.inputs);
        }
        nodes.sort();
        leaves.sort();
        Some((nodes, leaves))
    }

    /// The lives of all items if some are computed again.
    fn lives(&self, chosen: &[bool]) -> Lives {
        let mut lives = Lives {
            early: self.items.iter().map(|i| i.first).collect(),
            late: vec![None; self.items.len()],
        };
        for (i, item) in self.items.iter().enumerate() {
            item.uses
                .iter()
                .for_each(|u| self.read(&mut lives, chosen, i, *u));
        }
        // Users come before operands.
        for &i in self.order.iter().filter(|i| chosen[**i]) {
            if let (Some((need, _)), Some(recomputation)) =
                (lives.late[i], &self.items[i].recomputation)
            {
                for &leaf in &recomputation.items {
                    self.read(&mut lives, chosen, leaf, need);
                }
            }
        }
        lives
    }

    /// Extends an item's life to include a step.
    fn read(&self, lives: &mut Lives, chosen: &[bool], i: usize, step: usize) {
        match &self.items[i].recomputation {
            Some(recomputation) if chosen[i] && step > recomputation.split => {
                let (first, last) = lives.late[i].unwrap_or((step, step));
                lives.late[i] = Some((first.min(step), last.max(step)));
            }
            _ => lives.early[i] = lives.early[i].max(step),
        }
    }

    /// The bytes above the target, summed over steps.
    fn excess(&self, chosen: &[bool], target: usize) -> f64 {
        let lives = self.lives(chosen);
        let mut change = vec![0i64; self.steps + 1];
        for (i, item) in self.items.iter().enumerate() {
            let size = item.size as i64;
            let mut end = lives.early[i];
            if item.handed_over == Some(end) && end > item.first {
                end -= 1;
            }
            change[item.first] += size;
            change[end + 1] -= size;
            if let Some((first, last)) = lives.late[i] {
                change[first] += size;
                change[last + 1] -= size;
            }
        }
        let mut alive = 0i64;
        let excess = change.iter().map(|c| {
            alive += c;
            (alive - target as i64).max(0) as f64
        });
        excess.sum()
    }

    /// Returns the values to recompute for no step to need more than the target, or as close to it as possible.
    pub fn choose(&self, target: usize) -> Choice {
        let mut chosen = vec![false; self.items.len()];
        let mut excess = self.excess(&chosen, target);
        let cost = |i: usize| self.items[i].recomputation.as_ref().map_or(1.0, |a| a.cost);
        for _ in 0..2 * self.order.len() {
            if excess == 0.0 {
                break;
            }
            let mut best: Option<(f64, usize, f64)> = None; // worth, item, excess
            for &i in &self.order {
                chosen[i] = !chosen[i];
                let reduced = self.excess(&chosen, target);
                // To recompute one value less costs nothing.
                let cost_of_change = if chosen[i] { cost(i) } else { 1.0 };
                chosen[i] = !chosen[i];
                let gain = (excess - reduced) / cost_of_change;
                if gain > best.map_or(0.0, |b| b.0) {
                    best = Some((gain, i, reduced));
                }
            }
            let Some((_, i, reduced)) = best else { break };
            chosen[i] = !chosen[i];
            excess = reduced;
        }
        self.drop_unneeded(&mut chosen, target, excess);
        let lives = self.lives(&chosen);
        let picks = self.order.iter().rev().filter(|i| chosen[**i]);
        let pick = |i: &usize| {
            Some(Pick {
                item: *i,
                need: lives.late[*i]?.0,
            })
        };
        picks.filter_map(pick).collect()
    }

    /// Drops choices that later ones made unnecessary, the most expensive first.
    fn drop_unneeded(&self, chosen: &mut [bool], target: usize, excess: f64) {
        let cost = |i: usize| self.items[i].recomputation.as_ref().map_or(0.0, |a| a.cost);
        let mut by_cost: Vec<usize> = self.order.iter().copied().filter(|i| chosen[*i]).collect();
        by_cost.sort_by(|a, b| cost(*b).total_cmp(&cost(*a)).then(a.cmp(b)));
        for i in by_cost {
            chosen[i] = false;
            if self.excess(chosen, target) > excess {
                chosen[i] = true;
            }
        }
    }

    /// Describes a choice for the report.
    pub fn report(&self, pick: &Pick, graph: &Graph, locs: &[Loc]) -> Recomputed {
        let item = &self.items[pick.item];
        let recomputation = item
            .recomputation
            .as_ref()
            .expect("only such items are picked");
        let node = graph.node(recomputation.value.node);
        let loc = resolved(&node.loc, locs);
        Recomputed {
            value: describe_op(node.op.name(), node.fact(), &loc),
            bytes: item.size,
            steps: pick.need.saturating_sub(recomputation.split + 1),
            flops: recomputation.flops,
        }
    }
}

/// Bytes of a buffer whose size is known.
fn bytes(plan: &Plan, b: usize) -> usize {
    let buffer = &plan.buffers[b];
    buffer.len.as_const().unwrap_or(0) as usize * buffer.dtype.size()
}

/// True if a value needs no computation.
fn is_leaf(op: &Op) -> bool {
    matches!(op, Op::Input(_) | Op::Constant(_))
}

/// True if a node gives the same bits wherever it is computed: pointwise work that rounds once per operation, and
/// views. The order of a sum, and the point at which f16 or bf16 is rounded, depend on the kernel.
fn is_pure(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let is_narrow = |f: &kiln_ir::Fact| f.dtype.is_float() && f.dtype.size() < 4;
    (row_or_view(&node.op) || is_leaf(&node.op)) && !node.facts.iter().any(is_narrow)
}

fn row_or_view(op: &Op) -> bool {
    op.is_view()
        || matches!(
            op,
            Op::Pointwise(_) | Op::Cast(_) | Op::Full(_) | Op::Iota(_)
        )
}

/// For each node, true if pointwise work and views derive floats from it that are compared for equality. Such floats
/// are compared with a value that was chosen from them; one that was summed in another order would not be found.
fn compared(graph: &Graph) -> Vec<bool> {
    let mut compared = vec![false; graph.len()];
    for (id, node) in graph.iter().rev() {
        let equal = matches!(&node.op, Op::Pointwise(row) if row.0 == Pw::Eq);
        let passes = compared[id.index()] && row_or_view(&node.op);
        for v in &node.inputs {
            let float = graph.fact(*v).dtype.is_float();
            compared[v.node.index()] |= float && (equal || passes);
        }
    }
    compared
}

/// True if computing an op again gives the same result, reports nothing and waits for nothing.
fn can_repeat(op: &Op) -> bool {
    !matches!(
        op,
        Op::Input(_)
            | Op::Barrier(_)
            | Op::Loop(_)
            | Op::If(_)
            | Op::Custom(_)
            | Op::Collective(_)
            | Op::Gather(_)
            | Op::Scatter(_)
            | Op::ArgSort(_)
    )
}

/// Arithmetic operations of a node, as an estimate.
fn flops(graph: &Graph, id: NodeId) -> Option<u64> {
    let node = graph.node(id);
    let size = |v: Value| numel(&graph.fact(v).shape).as_const().map(|n| n as u64);
    let out = size(id.value())?;
    let shape = |i: usize| &graph.fact(node.inputs[i]).shape;
    let last = |i: usize| shape(i).last().and_then(|d| d.as_const()).map(|d| d as u64);
    Some(match &node.op {
        Op::Broadcast(_) | Op::Reshape(_) | Op::Permute(_) | Op::Slice(_) | Op::Full(_) => 0,
        Op::MatMul(_) => 2 * out * last(0)?,
        Op::Conv(_) => {
            let channels = shape(1)[0].as_const()?.max(1) as u64;
            2 * out * (size(node.inputs[1])? / channels)
        }
        // Each element of the operand is multiplied by the whole kernel.
        Op::ConvTranspose(_) | Op::ConvWeight(_) => {
            2 * size(node.inputs[0])? * size(node.inputs[1])?.min(1 << 20)
        }
        Op::AttentionGrad(_) => {
            let keys = shape(1)[shape(1).len() - 2].as_const()?;
            10 * size(node.inputs[0])? * keys as u64
        }
        Op::Attention(_) => 4 * out * (numel(&shape(1)[..]).as_const()? as u64 / last(1)?.max(1)),
        Op::Reduce(_) | Op::ArgReduce(_) | Op::Scan(_) => size(node.inputs[0])?,
        Op::Random(_) => 16 * out,
        _ => out,
    })
}
