//! Which launches start together, of which none touches what another writes.
//!
//! A step of training updates every parameter by a launch of its own, most of them of some hundred
//! elements. Run together, all share the threads, and waking these is paid once. Products and
//! convolutions start with others that are ready at nearly the same time, such as the two gradients of
//! a layer, or the two ways around a block: where the last parts of one leave threads idle, the other's
//! fill in.

use crate::place::{ix, read, written};
use kiln_base::plan::Kernel;
use kiln_codegen::{Launch, Program};
use kiln_ir::{Graph, Target};

/// Launches that start together.
const MOST: usize = 64;
/// Bytes that a small launch touches at most.
const SMALL: i64 = 1 << 18;
/// How many groups a small launch or an update may be moved over.
const REACH: usize = 64;

/// Whether a launch may start together with others at all.
pub(crate) fn can_join(launch: &Launch) -> bool {
    launch.kernel.can_join() && launch.sites.is_empty()
}

fn is_small(launch: &Launch) -> bool {
    launch.cost.bytes.as_const().is_some_and(|b| b <= SMALL)
}

/// What decides whether launches are in each other's way.
pub(crate) struct Joiner<'a> {
    program: &'a Program,
    /// For each buffer the input whose memory it may take over.
    donor: Vec<Option<usize>>,
    /// The buffers that cells are assigned from.
    assigned: Vec<bool>,
    /// How many groups other products and convolutions may be moved over, whose results take memory until
    /// they are read; 0: none starts with others.
    near: usize,
}

impl<'a> Joiner<'a> {
    /// `donors` are the inputs' buffers that the graph's outputs may be written over.
    pub(crate) fn new(
        graph: &Graph,
        program: &'a Program,
        donors: impl Iterator<Item = Option<usize>>,
        near: usize,
    ) -> Joiner<'a> {
        let mut joiner = Joiner {
            program,
            donor: vec![None; program.buffers.len()],
            assigned: vec![false; program.buffers.len()],
            near,
        };
        for ((out, donor), output) in program.outputs.iter().zip(donors).zip(&graph.outputs) {
            let Some(out) = out.map(ix) else { continue };
            joiner.donor[out] = donor;
            joiner.assigned[out] |= matches!(output.target, Target::Assign(_));
        }
        joiner
    }

    /// The launches in groups that start together, in an order that keeps every launch behind those it
    /// depends on.
    pub(crate) fn groups(&self, launches: &[usize]) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for &l in launches {
            match self.host(groups.iter().enumerate().rev(), l) {
                Some(g) => groups[g].push(l),
                None => groups.push(vec![l]),
            }
        }
        for g in 0..groups.len() {
            if let Some(hosts) = self.other_hosts(&groups, g) {
                for (l, host) in std::mem::take(&mut groups[g]).into_iter().zip(hosts) {
                    groups[host].push(l);
                }
            }
        }
        groups.retain(|g| !g.is_empty());
        groups
    }

    /// The nearest group behind which nothing is in the way of the launch and which it can join.
    fn host<'g>(
        &self,
        groups: impl Iterator<Item = (usize, &'g Vec<usize>)>,
        l: usize,
    ) -> Option<usize> {
        if !self.joins(l) {
            return None;
        }
        let reach = match self.is_update(l) || is_small(&self.program.launches[l]) {
            true => REACH,
            false => self.near,
        };
        for (g, group) in groups.filter(|(_, g)| !g.is_empty()).take(reach) {
            if group.iter().any(|other| self.conflict(l, *other)) {
                return None;
            }
            if group.len() < MOST && self.joins(group[0]) {
                return Some(g);
            }
        }
        None
    }

    /// For each launch of a group of small ones alone, the group before or behind that it starts with
    /// instead; nothing if one of them has none.
    fn other_hosts(&self, groups: &[Vec<usize>], g: usize) -> Option<Vec<usize>> {
        let small = |l: &usize| is_small(&self.program.launches[*l]);
        if !groups[g].iter().all(small) {
            return None;
        }
        let behind = |l: usize| self.host(groups.iter().enumerate().skip(g + 1), l);
        let before = |l: usize| self.host(groups.iter().enumerate().take(g).rev(), l);
        let hosts = groups[g].iter().map(|l| before(*l).or_else(|| behind(*l)));
        hosts.collect()
    }

    fn joins(&self, l: usize) -> bool {
        let launch = &self.program.launches[l];
        let product = !matches!(launch.kernel, Kernel::Tile(_));
        let wanted = match product {
            true => self.near > 0,
            false => self.is_update(l) || is_small(launch),
        };
        can_join(launch) && wanted
    }

    fn is_update(&self, l: usize) -> bool {
        written(&self.program.launches[l]).all(|b| self.assigned[ix(b)])
    }

    /// Whether one launch touches what the other writes.
    fn conflict(&self, a: usize, b: usize) -> bool {
        let [a, b] = [a, b].map(|l| &self.program.launches[l]);
        self.disturbs(a, b) || self.disturbs(b, a)
    }

    fn disturbs(&self, writer: &Launch, other: &Launch) -> bool {
        let places = |b| [Some(ix(b)), self.donor[ix(b)]];
        let mut touched = read(other).chain(written(other)).map(places);
        touched.any(|t| {
            let mut places = written(writer).flat_map(places).flatten();
            places.any(|w| t.contains(&Some(w)))
        })
    }
}
