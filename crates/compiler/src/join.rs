//! Groups of launches that start together. No launch of a group touches what another one writes.
//!
//! A training step updates each parameter by a separate launch, and most of these have some hundred elements.
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
    /// The buffers that each launch touches, and those whose memory they may reuse.
    touches: Vec<Vec<usize>>,
    /// The buffers among these that each launch writes.
    writes: Vec<Vec<usize>>,
    /// For each buffer, the launches that touch it, and those that write it.
    touching: Vec<Vec<usize>>,
    writing: Vec<Vec<usize>>,
    /// The buffers that cells are assigned from.
    assigned: Vec<bool>,
    /// The number of groups that other products and convolutions may be moved over; their results take memory until
    /// they are read. With 0, none of them starts with others.
    max_distance: usize,
    /// The flag that skips each launch, if any.
    guards: Vec<Option<BufId>>,
    /// True if a launch may be concurrent with others.
    is_joinable: fn(&Sequence, &Launch) -> bool,
}

/// Groups under construction, in order.
struct Groups {
    members: Vec<Vec<usize>>,
    /// The group of each launch.
    group_of: Vec<Option<usize>>,
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
        let bufs = |b| [Some(ix(b)), donor[ix(b)]].into_iter().flatten();
        let list = sequence.launches.iter();
        let writes = list.clone().map(|l| written(l).flat_map(bufs).collect());
        let touches = list.map(|l| read(l).chain(written(l)).flat_map(bufs).collect());
        let (writes, touches): (Vec<Vec<usize>>, Vec<Vec<usize>>) =
            (writes.collect(), touches.collect());
        Joiner {
            sequence,
            touching: invert(&touches, sequence.buffers.len()),
            writing: invert(&writes, sequence.buffers.len()),
            touches,
            writes,
            assigned,
            max_distance: near,
            guards: sequence.launches.iter().map(|l| guards.of(l)).collect(),
            is_joinable: can,
        }
    }

    /// Groups launches that start together. The order keeps every launch after those that it depends on.
    pub(crate) fn groups(&self, launches: &[usize]) -> Vec<Vec<usize>> {
        let mut groups = Groups::new(self.sequence.launches.len());
        for &l in launches {
            match self.host(&groups, l, JoinOrder::Before(None)) {
                Some(g) => groups.add_to(l, g),
                None => groups.add(l),
            }
        }
        for g in 0..groups.members.len() {
            if let Some(hosts) = self.other_hosts(&groups, g) {
                for (l, host) in groups.drain_group(g).into_iter().zip(hosts) {
                    groups.add_to(l, host);
                }
            }
        }
        groups.members.retain(|g| !g.is_empty());
        groups.members
    }

    /// Returns the nearest group that the launch can join without passing a launch that conflicts with it.
    fn host(&self, groups: &Groups, l: usize, order: JoinOrder) -> Option<usize> {
        if !self.joins(l) {
            return None;
        }
        let max_moved = match self.is_update(l) || self.is_small(l) {
            true => MAX_MOVED_OVER,
            false => self.max_distance,
        };
        let rivals = self.rivals(l).filter_map(|other| groups.group_of[other]);
        let nearest = match order {
            JoinOrder::Before(start) => rivals.filter(|c| start.is_none_or(|g| *c < g)).max(),
            JoinOrder::After(start) => rivals.filter(|c| *c > start).min(),
        };
        let mut hosts = groups.groups_towards(order).take(max_moved);
        let mut hosts = std::iter::from_fn(|| hosts.next().filter(|g| Some(*g) != nearest));
        hosts.find(|g| {
            let group = &groups.members[*g];
            self.joins(group[0]) && self.fit(group, &[l])
        })
    }

    /// Returns the launches that touch what this launch writes, or write what it touches.
    fn rivals(&self, l: usize) -> impl Iterator<Item = usize> {
        let touching = self.writes[l].iter().flat_map(|p| &self.touching[*p]);
        let writing = self.touches[l].iter().flat_map(|p| &self.writing[*p]);
        touching.chain(writing).copied().filter(move |o| *o != l)
    }

    /// Returns another group to join for each launch of a group of small launches; `None` if one of them has none.
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
                let launches = group.iter().chain(joining).map(launch);
                joining.iter().all(|l| self.guards[*l] == guard)
                    && fit_in_a_launch(self.sequence, &launches.collect::<Vec<_>>())
            }
            _ => group.len() + joining.len() <= MAX_LAUNCHES,
        }
    }

    fn joins(&self, l: usize) -> bool {
        let launch = &self.sequence.launches[l];
        let is_suitable = match *launch.kernel {
            Kernel::Tile(_) => self.is_update(l) || self.is_small(l),
            Kernel::Cuda(_) => self.max_distance > 0 || self.is_update(l) || self.is_small(l),
            _ => self.max_distance > 0,
        };
        is_suitable && (self.is_joinable)(self.sequence, launch)
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
            group_of: vec![None; launches],
            before: Vec::new(),
            after: Vec::new(),
            last: None,
        }
    }

    /// Appends a launch as a new group.
    fn add(&mut self, l: usize) {
        let g = self.members.len();
        if let Some(last) = self.last {
            self.after[last] = Some(g);
        }
        self.before.push(self.last);
        self.after.push(None);
        self.last = Some(g);
        self.members.push(vec![l]);
        self.group_of[l] = Some(g);
    }

    fn add_to(&mut self, l: usize, g: usize) {
        self.members[g].push(l);
        self.group_of[l] = Some(g);
    }

    /// Empties a group and returns its launches.
    fn drain_group(&mut self, g: usize) -> Vec<usize> {
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

    /// Returns the groups before or after, nearest first.
    fn groups_towards(&self, order: JoinOrder) -> impl Iterator<Item = usize> {
        let (first, next) = match order {
            JoinOrder::Before(None) => (self.last, &self.before),
            JoinOrder::Before(Some(g)) => (self.before[g], &self.before),
            JoinOrder::After(g) => (self.after[g], &self.after),
        };
        std::iter::successors(first, |g| next[*g])
    }
}

/// For each buffer, the launches that have it in their list.
fn invert(buffers: &[Vec<usize>], count: usize) -> Vec<Vec<usize>> {
    let mut inverted = vec![Vec::new(); count];
    for (l, buffers) in buffers.iter().enumerate() {
        buffers.iter().for_each(|p| inverted[*p].push(l));
    }
    inverted
}
