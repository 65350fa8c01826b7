//! In which order groups run.

use crate::affine::estimate;
use crate::flow::{Flow, Nid, Op};
use crate::fuse::Group;
use hashbrown::HashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An order in which groups can run. Among those that can, one that frees more temporary memory than it
/// takes comes first (a weight's gradient as soon as the activation that it needs has no other reader);
/// then the one that comes first in the program.
pub(super) fn order(flow: &Flow, groups: &[Group]) -> Vec<usize> {
    let key = |g: usize| groups[g].roots.iter().map(|r| r.0).max().unwrap_or(0);
    let mut s = Scheduler::new(flow, groups);
    let mut waiting: Vec<usize> = groups.iter().map(|g| g.deps.len()).collect();
    let mut users: Vec<Vec<usize>> = vec![Vec::new(); groups.len()];
    for (g, group) in groups.iter().enumerate() {
        for d in &group.deps {
            users[*d].push(g);
        }
    }
    let mut done = vec![false; groups.len()];
    let mut ready: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    let mut freeing: BinaryHeap<Reverse<(Nid, usize)>> = BinaryHeap::new();
    ready.extend(
        (0..groups.len())
            .filter(|g| waiting[*g] == 0)
            .map(|g| Reverse((key(g), g))),
    );
    let mut out = Vec::with_capacity(groups.len());
    while let Some(Reverse((_, g))) = freeing.pop().or_else(|| ready.pop()) {
        if std::mem::replace(&mut done[g], true) {
            continue;
        }
        out.push(g);
        let mut look = s.run(g);
        for &u in &users[g] {
            waiting[u] -= 1;
            if waiting[u] == 0 {
                ready.push(Reverse((key(u), u)));
                look.push(u);
            }
        }
        let frees = |g: &usize| waiting[*g] == 0 && !done[*g] && s.frees(*g);
        freeing.extend(look.into_iter().filter(frees).map(|g| Reverse((key(g), g))));
    }
    debug_assert_eq!(out.len(), groups.len(), "groups depend on each other");
    out
}

struct Scheduler<'a> {
    flow: &'a Flow,
    groups: &'a [Group],
    /// The groups that read each temporary and have not run.
    readers: HashMap<Nid, Vec<usize>>,
    /// The temporaries that each group reads.
    reads: Vec<Vec<Nid>>,
    is_output: Vec<bool>,
}

impl Scheduler<'_> {
    fn new<'a>(flow: &'a Flow, groups: &'a [Group]) -> Scheduler<'a> {
        let mut is_output = vec![false; flow.nodes.len()];
        flow.outputs.iter().for_each(|o| is_output[o.node] = true);
        let mut readers: HashMap<Nid, Vec<usize>> = HashMap::new();
        for (n, _) in groups
            .iter()
            .flat_map(|g| &g.roots)
            .filter(|(n, _)| !is_output[*n])
        {
            readers.insert(*n, Vec::new());
        }
        let mut reads = vec![Vec::new(); groups.len()];
        for (g, group) in groups.iter().enumerate() {
            for n in &group.loaded {
                let mut n = *n;
                while !readers.contains_key(&n)
                    && matches!(flow.nodes[n].op, Op::After | Op::Reshape)
                {
                    n = flow.nodes[n].inputs[0];
                }
                if let Some(list) = readers.get_mut(&n)
                    && !reads[g].contains(&n)
                {
                    list.push(g);
                    reads[g].push(n);
                }
            }
        }
        Scheduler {
            flow,
            groups,
            readers,
            reads,
            is_output,
        }
    }

    /// Notes that a group has run; gives those that became the last readers of something.
    fn run(&mut self, g: usize) -> Vec<usize> {
        let mut last = Vec::new();
        for n in &self.reads[g] {
            let Some(list) = self.readers.get_mut(n) else {
                continue;
            };
            list.retain(|r| *r != g);
            if let [one] = list[..] {
                last.push(one);
            }
        }
        last
    }

    /// Whether running a group frees more temporary memory than it takes.
    fn frees(&self, g: usize) -> bool {
        let bytes = |n: Nid| {
            let size = self.flow.nodes[n].dtype.size() as i64;
            estimate(&self.flow.numel(n)).saturating_mul(size)
        };
        let freed = self.reads[g].iter().filter(|n| self.readers[*n] == [g]);
        let freed: i64 = freed.map(|n| bytes(*n)).sum();
        let roots = self.groups[g]
            .roots
            .iter()
            .filter(|(n, _)| !self.is_output[*n]);
        let taken: i64 = roots.map(|(n, _)| bytes(*n)).sum();
        freed > taken
    }
}
