//! In which order groups run.

use crate::affine::estimate;
use crate::flow::{Flow, Nid, Op};
use crate::fuse::Group;
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An order in which groups can run. Among those that can, one that frees more temporary memory than it
/// takes comes first (a weight's gradient as soon as the activation that it needs has no other reader);
/// then the one that comes first in the program. If an order that always goes on with what takes least
/// needs clearly less memory, it is that one.
pub(super) fn order(flow: &Flow, groups: &[Group]) -> Vec<usize> {
    let program = freeing_first(Scheduler::new(flow, groups));
    let least = least_first(Scheduler::new(flow, groups));
    let [needed, less] = [&program, &least].map(|o| Scheduler::new(flow, groups).peak(o));
    match less < needed - needed / 64 {
        true => least,
        false => program,
    }
}

/// The most bytes of temporaries that are alive in a run of the groups, if every operand that dies is
/// written over by a result of its size.
pub(crate) fn peak(flow: &Flow, groups: &[Group]) -> i64 {
    Scheduler::new(flow, groups).peak(&order(flow, groups))
}

fn freeing_first(mut s: Scheduler) -> Vec<usize> {
    let n = s.groups.len();
    let mut ready: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    let mut freeing: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    ready.extend(s.ready().map(|g| Reverse((s.key(g), g))));
    let mut out = Vec::with_capacity(n);
    while let Some(Reverse((_, g))) = freeing.pop().or_else(|| ready.pop()) {
        if s.has_run[g] {
            continue;
        }
        out.push(g);
        let (mut look, next) = s.run(g);
        ready.extend(next.iter().map(|u| Reverse((s.key(*u), *u))));
        look.extend(next);
        let frees = |g: &usize| s.waiting[*g] == 0 && !s.has_run[*g] && s.takes(*g) < 0;
        freeing.extend(
            look.into_iter()
                .filter(frees)
                .map(|g| Reverse((s.key(g), g))),
        );
    }
    debug_assert_eq!(out.len(), n, "groups depend on each other");
    out
}

fn least_first(mut s: Scheduler) -> Vec<usize> {
    // A group is there once more whenever it takes less than before, so what is found first is right.
    let mut ready: BinaryHeap<Reverse<(i64, Nid, usize)>> = BinaryHeap::new();
    let entry = |s: &Scheduler, g: usize| Reverse((s.takes(g), s.key(g), g));
    ready.extend(s.ready().map(|g| entry(&s, g)));
    let mut out = Vec::with_capacity(s.groups.len());
    while let Some(Reverse((_, _, g))) = ready.pop() {
        if s.has_run[g] {
            continue;
        }
        out.push(g);
        let (last, next) = s.run(g);
        let less = last.into_iter().filter(|u| s.waiting[*u] == 0);
        ready.extend(less.chain(next).map(|u| entry(&s, u)));
    }
    out
}

/// The groups that read a temporary.
#[derive(Default)]
struct Readers {
    all: Vec<usize>,
    /// How many of them have not run.
    left: usize,
}

struct Scheduler<'a> {
    flow: &'a Flow,
    groups: &'a [Group],
    has_run: Vec<bool>,
    /// The groups that read each temporary of the run.
    readers: HashMap<Nid, Readers>,
    /// The temporaries that each group reads.
    reads: Vec<Vec<Nid>>,
    /// How many groups each group waits for, and which wait for it.
    waiting: Vec<usize>,
    users: Vec<Vec<usize>>,
}

impl Scheduler<'_> {
    fn new<'a>(flow: &'a Flow, groups: &'a [Group]) -> Scheduler<'a> {
        let mut is_output = vec![false; flow.nodes.len()];
        flow.outputs.iter().for_each(|o| is_output[o.node] = true);
        let in_run = groups.iter().filter(|g| !g.parameter_only);
        let roots = in_run.flat_map(|g| &g.roots).map(|(n, _)| *n);
        let mut readers: HashMap<Nid, Readers> = HashMap::new();
        readers.extend(
            roots
                .filter(|n| !is_output[*n])
                .map(|n| (n, Readers::default())),
        );
        let mut reads = vec![Vec::new(); groups.len()];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
        for (g, group) in groups.iter().enumerate() {
            group.deps.iter().for_each(|d| users[*d].push(g));
            for n in &group.loaded {
                let mut n = *n;
                while !readers.contains_key(&n)
                    && matches!(flow.nodes[n].op, Op::After | Op::Reshape)
                {
                    n = flow.nodes[n].inputs[0];
                }
                if let Some(of) = readers.get_mut(&n)
                    && of.all.last() != Some(&g)
                {
                    of.all.push(g);
                    of.left += 1;
                    reads[g].push(n);
                }
            }
        }
        Scheduler {
            flow,
            groups,
            has_run: vec![false; groups.len()],
            readers,
            reads,
            waiting: groups.iter().map(|g| g.deps.len()).collect(),
            users,
        }
    }

    /// What comes first in the program.
    fn key(&self, g: usize) -> Nid {
        self.groups[g].roots.iter().map(|r| r.0).max().unwrap_or(0)
    }

    /// The groups that wait for no other.
    fn ready(&self) -> impl Iterator<Item = usize> {
        (0..self.groups.len()).filter(|g| self.waiting[*g] == 0)
    }

    /// Notes that a group has run; gives those that became the last readers of something, and those that
    /// can run now.
    fn run(&mut self, g: usize) -> (Vec<usize>, Vec<usize>) {
        self.has_run[g] = true;
        let mut last = Vec::new();
        for n in &self.reads[g] {
            let Some(of) = self.readers.get_mut(n) else {
                continue;
            };
            of.left -= 1;
            if of.left == 1 {
                last.extend(of.all.iter().find(|r| !self.has_run[**r]));
            }
        }
        let mut ready = Vec::new();
        for &u in &self.users[g] {
            self.waiting[u] -= 1;
            if self.waiting[u] == 0 {
                ready.push(u);
            }
        }
        (last, ready)
    }

    fn bytes(&self, n: Nid) -> i64 {
        let size = self.flow.nodes[n].dtype.size() as i64;
        estimate(&self.flow.numel(n)).saturating_mul(size)
    }

    /// The temporaries of which a group that has not run is the last reader.
    fn frees(&self, g: usize) -> impl Iterator<Item = i64> {
        let freed = self.reads[g].iter().filter(|n| self.readers[*n].left == 1);
        freed.map(|n| self.bytes(*n))
    }

    /// The temporaries that a group writes and another reads.
    fn writes(&self, g: usize) -> impl Iterator<Item = i64> {
        let roots = self.groups[g].roots.iter().map(|(n, _)| *n);
        let read = |n: &Nid| self.readers.get(n).is_some_and(|r| r.left > 0);
        roots.filter(read).map(|n| self.bytes(n))
    }

    /// The bytes of temporary memory that running a group takes more than it frees.
    fn takes(&self, g: usize) -> i64 {
        let freed = self.frees(g).fold(0, i64::saturating_add);
        let taken = self.writes(g).fold(0, i64::saturating_add);
        taken.saturating_sub(freed)
    }

    /// The most bytes of temporaries that are alive if groups run in this order.
    fn peak(mut self, order: &[usize]) -> i64 {
        let (mut alive, mut most) = (0i64, 0i64);
        for &g in order {
            let mut freed: Vec<i64> = self.frees(g).collect();
            let mut beside = 0i64;
            for bytes in self.writes(g) {
                match freed.iter().position(|f| *f == bytes) {
                    Some(at) => drop(freed.swap_remove(at)),
                    None => beside = beside.saturating_add(bytes),
                }
            }
            most = most.max(alive.saturating_add(beside));
            alive = alive.saturating_add(self.takes(g));
            self.run(g);
        }
        most
    }
}
