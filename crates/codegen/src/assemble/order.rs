//! The order in which groups run.

use crate::affine::estimate;
use crate::flow::{Flow, Nid, Op};
use crate::fuse::Group;
use kiln_ir::Op as IrOp;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An order in which groups can run, and its peak of live temporaries in bytes, if every operand that dies is
/// overwritten by a result of its size.
pub(crate) struct Order {
    pub groups: Vec<usize>,
    pub peak: i64,
}

/// Returns an order in which groups can run. Of the ready groups, those that free more temporary memory than they
/// allocate come first (a weight's gradient as soon as nothing else needs its activation), others in program order. A
/// second order always continues with the group that allocates least; it is chosen if it needs clearly less memory.
/// Collective operations come as early as possible.
pub(crate) fn order(flow: &Flow, groups: &[Group]) -> Order {
    let dependences = Dependences::new(flow, groups);
    let program = freeing_first(Scheduler::new(&dependences));
    let smallest = smallest_first(Scheduler::new(&dependences));
    let [program, smallest] = [program, smallest].map(|groups| Order {
        peak: Scheduler::new(&dependences).peak(&groups),
        groups,
    });
    let order = match smallest.peak < program.peak - program.peak / 64 {
        true => smallest,
        false => program,
    };
    let collectives: Vec<usize> = (0..groups.len())
        .filter(|g| is_collective(flow, &groups[*g]))
        .collect();
    if collectives.is_empty() {
        return order;
    }
    let groups = collectives_first(&order.groups, groups, &collectives);
    Order {
        peak: Scheduler::new(&dependences).peak(&groups),
        groups,
    }
}

fn is_collective(flow: &Flow, group: &Group) -> bool {
    let anchor = group.anchor.as_ref().map(|a| &flow.nodes[a.node].op);
    matches!(anchor, Some(Op::Control(op)) if matches!(**op, IrOp::Collective(_)))
}

/// Returns the order with collective operations and their dependences first. Other groups then run concurrently.
fn collectives_first(order: &[usize], groups: &[Group], collectives: &[usize]) -> Vec<usize> {
    let mut position = vec![0; groups.len()];
    for (i, g) in order.iter().enumerate() {
        position[*g] = i;
    }
    let mut sorted = collectives.to_vec();
    sorted.sort_by_key(|g| position[*g]);
    let mut is_placed = vec![false; groups.len()];
    let mut reordered = Vec::with_capacity(order.len());
    for collective in sorted {
        let mut needed = Vec::new();
        let mut stack = vec![collective];
        while let Some(g) = stack.pop() {
            if !std::mem::replace(&mut is_placed[g], true) {
                needed.push(g);
                stack.extend(&groups[g].deps);
            }
        }
        needed.sort_by_key(|g| position[*g]);
        reordered.append(&mut needed);
    }
    reordered.extend(order.iter().filter(|g| !is_placed[**g]));
    reordered
}

/// Returns the order by groups that free memory, then by program order.
fn freeing_first(mut s: Scheduler) -> Vec<usize> {
    let n = s.waiting.len();
    let mut ready: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    let mut freeing: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    ready.extend(s.ready_groups().map(|g| Reverse((s.key(g), g))));
    let mut out = Vec::with_capacity(n);
    while let Some(Reverse((_, g))) = freeing.pop().or_else(|| ready.pop()) {
        if s.has_run[g] {
            continue;
        }
        out.push(g);
        let (mut candidates, next) = s.run(g);
        ready.extend(next.iter().map(|u| Reverse((s.key(*u), *u))));
        candidates.extend(next);
        let frees = |g: &usize| s.waiting[*g] == 0 && !s.has_run[*g] && s.net_bytes(*g) < 0;
        freeing.extend(
            candidates
                .into_iter()
                .filter(frees)
                .map(|g| Reverse((s.key(g), g))),
        );
    }
    debug_assert_eq!(out.len(), n, "groups depend on each other");
    out
}

/// Returns the order by the bytes that groups allocate.
fn smallest_first(mut s: Scheduler) -> Vec<usize> {
    // A group is pushed again whenever its net bytes decrease, so its first entry in the heap is up to date.
    let mut ready: BinaryHeap<Reverse<(i64, Nid, usize)>> = BinaryHeap::new();
    let entry = |s: &Scheduler, g: usize| Reverse((s.net_bytes(g), s.key(g), g));
    ready.extend(s.ready_groups().map(|g| entry(&s, g)));
    let mut out = Vec::with_capacity(s.waiting.len());
    while let Some(Reverse((_, _, g))) = ready.pop() {
        if s.has_run[g] {
            continue;
        }
        out.push(g);
        let (last_readers, next) = s.run(g);
        let cheaper = last_readers.into_iter().filter(|u| s.waiting[*u] == 0);
        ready.extend(cheaper.chain(next).map(|u| entry(&s, u)));
    }
    out
}

/// The dependences between groups.
struct Dependences {
    /// The bytes of each temporary of the run.
    bytes: Vec<i64>,
    /// For each temporary, the groups that read it.
    readers: Vec<Vec<usize>>,
    groups: Vec<GroupNode>,
}

/// A group, the groups that depend on it, and the temporaries that it reads and writes.
#[derive(Default)]
struct GroupNode {
    /// The group's position in the program.
    key: Nid,
    /// The temporaries that it reads.
    reads: Vec<usize>,
    /// The temporaries that it writes.
    writes: Vec<usize>,
    /// The number of groups that it waits for.
    waits: usize,
    /// The groups that wait for it.
    users: Vec<usize>,
}

impl Dependences {
    fn new(flow: &Flow, groups: &[Group]) -> Dependences {
        let mut is_output = vec![false; flow.nodes.len()];
        flow.outputs.iter().for_each(|o| is_output[o.node] = true);
        let mut temporary: Vec<Option<usize>> = vec![None; flow.nodes.len()];
        let mut dependences = Dependences {
            bytes: Vec::new(),
            readers: Vec::new(),
            groups: Vec::with_capacity(groups.len()),
        };
        for group in groups {
            let mut node = GroupNode {
                key: group.roots.iter().map(|r| r.0).max().unwrap_or(0),
                waits: group.deps.len(),
                ..GroupNode::default()
            };
            let in_run = group.roots.iter().filter(|_| !group.parameter_only);
            for n in in_run.map(|r| r.0).filter(|n| !is_output[*n]) {
                let size = flow.nodes[n].dtype.size() as i64;
                let bytes = estimate(&flow.numel(n)).saturating_mul(size);
                temporary[n] = Some(dependences.bytes.len());
                node.writes.push(dependences.bytes.len());
                dependences.bytes.push(bytes);
            }
            dependences.groups.push(node);
        }
        dependences.readers = vec![Vec::new(); dependences.bytes.len()];
        for (g, group) in groups.iter().enumerate() {
            for d in &group.deps {
                dependences.groups[*d].users.push(g);
            }
            for n in &group.loaded {
                let mut n = *n;
                while temporary[n].is_none() && matches!(flow.nodes[n].op, Op::After | Op::Reshape)
                {
                    n = flow.nodes[n].inputs[0];
                }
                if let Some(t) = temporary[n]
                    && dependences.readers[t].last() != Some(&g)
                {
                    dependences.readers[t].push(g);
                    dependences.groups[g].reads.push(t);
                }
            }
        }
        dependences
    }
}

struct Scheduler<'a> {
    dependences: &'a Dependences,
    has_run: Vec<bool>,
    /// The number of readers of each temporary that have not run.
    unread: Vec<usize>,
    /// The number of groups that each group still waits for.
    waiting: Vec<usize>,
}

impl Scheduler<'_> {
    fn new(dependences: &Dependences) -> Scheduler<'_> {
        Scheduler {
            dependences,
            has_run: vec![false; dependences.groups.len()],
            unread: dependences.readers.iter().map(Vec::len).collect(),
            waiting: dependences.groups.iter().map(|g| g.waits).collect(),
        }
    }

    fn key(&self, g: usize) -> Nid {
        self.dependences.groups[g].key
    }

    /// Returns the groups that wait for no other.
    fn ready_groups(&self) -> impl Iterator<Item = usize> {
        (0..self.waiting.len()).filter(|g| self.waiting[*g] == 0)
    }

    /// Marks a group as run. Returns the groups that became the last readers of a temporary, and those that can
    /// run now.
    fn run(&mut self, g: usize) -> (Vec<usize>, Vec<usize>) {
        self.has_run[g] = true;
        let node = &self.dependences.groups[g];
        let mut last_readers = Vec::new();
        for &t in &node.reads {
            self.unread[t] -= 1;
            if self.unread[t] == 1 {
                let mut readers = self.dependences.readers[t].iter();
                last_readers.extend(readers.find(|r| !self.has_run[**r]));
            }
        }
        let mut ready = Vec::new();
        for &u in &node.users {
            self.waiting[u] -= 1;
            if self.waiting[u] == 0 {
                ready.push(u);
            }
        }
        (last_readers, ready)
    }

    /// Returns the bytes of each temporary that a group frees when it runs.
    fn freed_bytes(&self, g: usize) -> impl Iterator<Item = i64> {
        let freed = self.dependences.groups[g].reads.iter();
        let freed = freed.filter(|t| self.unread[**t] == 1);
        freed.map(|t| self.dependences.bytes[*t])
    }

    /// Returns the bytes of each temporary that a group writes and another reads.
    fn written_bytes(&self, g: usize) -> impl Iterator<Item = i64> {
        let written = self.dependences.groups[g].writes.iter();
        let read = written.filter(|t| self.unread[**t] > 0);
        read.map(|t| self.dependences.bytes[*t])
    }

    /// Returns the bytes of temporaries that a group writes, less those that it frees.
    fn net_bytes(&self, g: usize) -> i64 {
        let freed = self.freed_bytes(g).fold(0, i64::saturating_add);
        let allocated = self.written_bytes(g).fold(0, i64::saturating_add);
        allocated.saturating_sub(freed)
    }

    /// Returns the peak of live temporaries in bytes, if groups run in this order.
    fn peak(mut self, order: &[usize]) -> i64 {
        let (mut alive, mut peak_bytes) = (0i64, 0i64);
        for &g in order {
            let mut freed: Vec<i64> = self.freed_bytes(g).collect();
            let mut allocated = 0i64;
            for bytes in self.written_bytes(g) {
                match freed.iter().position(|f| *f == bytes) {
                    Some(i) => drop(freed.swap_remove(i)),
                    None => allocated = allocated.saturating_add(bytes),
                }
            }
            peak_bytes = peak_bytes.max(alive.saturating_add(allocated));
            alive = alive.saturating_add(self.net_bytes(g));
            self.run(g);
        }
        peak_bytes
    }
}
