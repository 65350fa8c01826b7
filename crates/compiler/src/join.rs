//! Groups of launches that start together. No launch of a group touches what another one writes.
//!
//! A training step updates every parameter by a launch of its own, and most of these have some hundred elements.
//! Started together, they share all threads, and waking the threads is paid once. Products and convolutions start
//! with others that are ready at nearly the same time, such as the two gradients of a layer, or the two branches of a
//! residual block. Where the last parts of one leave threads idle, parts of the other run there.
//!
//! On a GPU, launches that start together become one ([`kiln_codegen::merge_launches`]), which shares out its blocks
//! among them. There, their kernels must also fit in one launch, and all of them must have the same guard.

use crate::guard::Guards;
use crate::uses::{ix, read, written};
use kiln_codegen::{BufId, Launch, Sequence, fit_in_a_launch};
use kiln_ir::{Graph, Target};
use kiln_plan::Kernel;

/// The maximum number of launches that start together.
const MAX_LAUNCHES: usize = 64;
/// The maximum number of bytes that a small launch touches.
const SMALL: i64 = 1 << 18;
/// The number of groups that a small launch or an update may be moved over.
const MAX_MOVED_OVER: usize = 64;

/// True if a launch on the CPU may start together with others at all.
pub(crate) fn can_join(_: &Sequence, launch: &Launch) -> bool {
    launch.kernel.in_parts() && launch.sites.is_empty()
}

/// Finds launches that can run at the same time, and the conflicts that prevent it.
pub(crate) struct Joiner<'a> {
    sequence: &'a Sequence,
    /// The places in memory that each launch touches: buffers, and those whose memory they may take over.
    touches: Vec<Vec<usize>>,
    /// The places among these that each launch writes.
    writes: Vec<Vec<usize>>,
    /// For each place the launches that touch it, and those that write it.
    touching: Vec<Vec<usize>>,
    writing: Vec<Vec<usize>>,
    /// The buffers that cells are assigned from.
    assigned: Vec<bool>,
    /// The number of groups that other products and convolutions may be moved over; their results take memory until
    /// they are read. With 0, none of them starts with others.
    near: usize,
    /// The flag that leaves each launch out.
    guards: Vec<Option<BufId>>,
    /// True if a launch may start together with others at all.
    can: fn(&Sequence, &Launch) -> bool,
}

/// Groups under construction, in order.
struct Groups {
    members: Vec<Vec<usize>>,
    /// The group of each launch.
    of: Vec<Option<usize>>,
    /// For each group, the nearest groups before and after it that are not empty.
    before: Vec<Option<usize>>,
    after: Vec<Option<usize>>,
    last: Option<usize>,
}

/// The groups that a launch may join, the nearest first.
#[derive(Copy, Clone)]
enum JoinOrder {
    /// The groups before a group, or before the end.
    Before(Option<usize>),
    /// The groups after a group.
    After(usize),
}

impl<'a> Joiner<'a> {
    /// `donors` are the buffers of the inputs that the graph's outputs may be written over.
    pub(crate) fn new(
        graph: &Graph,
        sequence: &'a Sequence,
        donors: impl Iterator<Item = Option<usize>>,
        guards: &Guards<'_>,
        near: usize,
        can: fn(&Sequence, &Launch) -> bool,
    ) -> Joiner<'a> {
        let mut donor = vec![None; sequence.buffers.len()];
        let mut assigned = vec![false; sequence.buffers.len()];
        for ((out, over), output) in sequence.outputs.iter().zip(donors).zip(&graph.outputs) {
            let Some(out) = out.map(ix) else { continue };
            donor[out] = over;
            assigned[out] |= matches!(output.target, Target::Assign(_));
        }
        let places = |b| [Some(ix(b)), donor[ix(b)]].into_iter().flatten();
        let all = sequence.launches.iter();
        let writes = all.clone().map(|l| written(l).flat_map(places).collect());
        let touches = all.map(|l| read(l).chain(written(l)).flat_map(places).collect());
        let (writes, touches): (Vec<Vec<usize>>, Vec<Vec<usize>>) =
            (writes.collect(), touches.collect());
        Joiner {
            sequence,
            touching: inverted(&touches, sequence.buffers.len()),
            writing: inverted(&writes, sequence.buffers.len()),
            touches,
            writes,
            assigned,
            near,
            guards: sequence.launches.iter().map(|l| guards.of(l)).collect(),
            can,
        }
    }

    /// Groups launches that start together. The order keeps every launch after those that it depends on.
    pub(crate) fn groups(&self, launches: &[usize]) -> Vec<Vec<usize>> {
        let mut groups = Groups::new(self.sequence.launches.len());
        for &l in launches {
            match self.host(&groups, l, JoinOrder::Before(None)) {
                Some(g) => groups.put(l, g),
                None => groups.add(l),
            }
        }
        for g in 0..groups.members.len() {
            if let Some(hosts) = self.other_hosts(&groups, g) {
                for (l, host) in groups.take(g).into_iter().zip(hosts) {
                    groups.put(l, host);
                }
            }
        }
        groups.members.retain(|g| !g.is_empty());
        groups.members
    }

    /// The nearest group that the launch can join and after which no launch conflicts with it.
    fn host(&self, groups: &Groups, l: usize, way: JoinOrder) -> Option<usize> {
        if !self.joins(l) {
            return None;
        }
        let reach = match self.is_update(l) || self.is_small(l) {
            true => MAX_MOVED_OVER,
            false => self.near,
        };
        let in_the_way = self.in_the_way(l).filter_map(|other| groups.of[other]);
        let nearest = match way {
            JoinOrder::Before(from) => in_the_way.filter(|c| from.is_none_or(|g| *c < g)).max(),
            JoinOrder::After(from) => in_the_way.filter(|c| *c > from).min(),
        };
        let mut free = groups.along(way).take(reach);
        let mut free = std::iter::from_fn(|| free.next().filter(|g| Some(*g) != nearest));
        free.find(|g| {
            let group = &groups.members[*g];
            self.joins(group[0]) && self.fit(group, &[l])
        })
    }

    /// The launches that touch what this one writes, or write what it touches.
    fn in_the_way(&self, l: usize) -> impl Iterator<Item = usize> {
        let touching = self.writes[l].iter().flat_map(|p| &self.touching[*p]);
        let writing = self.touches[l].iter().flat_map(|p| &self.writing[*p]);
        touching.chain(writing).copied().filter(move |o| *o != l)
    }

    /// For each launch of a group of small launches alone, the group before or after that it starts with instead;
    /// `None` if one of them has no such group.
    fn other_hosts(&self, groups: &Groups, g: usize) -> Option<Vec<usize>> {
        let group = &groups.members[g];
        if !group.iter().all(|l| self.is_small(*l)) {
            return None;
        }
        let after = |l: usize| self.host(groups, l, JoinOrder::After(g));
        let before = |l: usize| self.host(groups, l, JoinOrder::Before(Some(g)));
        let hosts = group.iter().map(|l| before(*l).or_else(|| after(*l)));
        let hosts: Vec<usize> = hosts.collect::<Option<_>>()?;
        let all_fit = hosts.iter().all(|host| {
            let joining = group.iter().zip(&hosts).filter(|(_, h)| *h == host);
            let joining: Vec<usize> = joining.map(|(l, _)| *l).collect();
            self.fit(&groups.members[*host], &joining)
        });
        all_fit.then_some(hosts)
    }

    /// True if all launches of `joining` fit in a group.
    fn fit(&self, group: &[usize], joining: &[usize]) -> bool {
        let launch = |l: &usize| &self.sequence.launches[*l];
        match *launch(&group[0]).kernel {
            Kernel::Cuda(_) => {
                let guard = self.guards[group[0]];
                let all = group.iter().chain(joining).map(launch);
                joining.iter().all(|l| self.guards[*l] == guard)
                    && fit_in_a_launch(self.sequence, &all.collect::<Vec<_>>())
            }
            _ => group.len() + joining.len() <= MAX_LAUNCHES,
        }
    }

    fn joins(&self, l: usize) -> bool {
        let launch = &self.sequence.launches[l];
        let wanted = match *launch.kernel {
            Kernel::Tile(_) => self.is_update(l) || self.is_small(l),
            Kernel::Cuda(_) => self.near > 0 || self.is_update(l) || self.is_small(l),
            _ => self.near > 0,
        };
        wanted && (self.can)(self.sequence, launch)
    }

    fn is_small(&self, l: usize) -> bool {
        let bytes = self.sequence.launches[l].cost.bytes.as_const();
        bytes.is_some_and(|b| (1..=SMALL).contains(&b))
    }

    fn is_update(&self, l: usize) -> bool {
        written(&self.sequence.launches[l]).all(|b| self.assigned[ix(b)])
    }
}

impl Groups {
    fn new(launches: usize) -> Groups {
        Groups {
            members: Vec::new(),
            of: vec![None; launches],
            before: Vec::new(),
            after: Vec::new(),
            last: None,
        }
    }

    /// Appends a launch as a group of its own.
    fn add(&mut self, l: usize) {
        let g = self.members.len();
        if let Some(last) = self.last {
            self.after[last] = Some(g);
        }
        self.before.push(self.last);
        self.after.push(None);
        self.last = Some(g);
        self.members.push(vec![l]);
        self.of[l] = Some(g);
    }

    fn put(&mut self, l: usize, g: usize) {
        self.members[g].push(l);
        self.of[l] = Some(g);
    }

    /// Empties a group and returns its launches.
    fn take(&mut self, g: usize) -> Vec<usize> {
        let (before, after) = (self.before[g], self.after[g]);
        if let Some(b) = before {
            self.after[b] = after;
        }
        match after {
            Some(b) => self.before[b] = before,
            None => self.last = before,
        }
        std::mem::take(&mut self.members[g])
    }

    /// The groups on one side, the nearest first.
    fn along(&self, way: JoinOrder) -> impl Iterator<Item = usize> {
        let (first, next) = match way {
            JoinOrder::Before(None) => (self.last, &self.before),
            JoinOrder::Before(Some(g)) => (self.before[g], &self.before),
            JoinOrder::After(g) => (self.after[g], &self.after),
        };
        std::iter::successors(first, |g| next[*g])
    }
}

/// For each place, the launches that have it in their list.
fn inverted(places: &[Vec<usize>], count: usize) -> Vec<Vec<usize>> {
    let mut inverted = vec![Vec::new(); count];
    for (l, places) in places.iter().enumerate() {
        places.iter().for_each(|p| inverted[*p].push(l));
    }
    inverted
}
