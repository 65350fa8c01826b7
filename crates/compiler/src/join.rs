//! Which launches start together, of which none touches what another writes.
//!
//! A step of training updates every parameter by a launch of its own, most of them of some hundred
//! elements. Run together, all share the threads, and waking these is paid once. Products and
//! convolutions start with others that are ready at nearly the same time, such as the two gradients of
//! a layer, or the two ways around a block: where the last parts of one leave threads idle, the other's
//! fill in.
//!
//! On a GPU, launches that start together are one ([`kiln_codegen::side_by_side`]), whose blocks are shared
//! out; there it also decides whether their kernels fit in one.

use crate::place::{ix, read, written};
use kiln_base::plan::Kernel;
use kiln_codegen::{Launch, Program, fit_in_a_launch};
use kiln_ir::{Graph, Target};

/// Launches that start together.
const MOST: usize = 64;
/// Bytes that a small launch touches at most.
const SMALL: i64 = 1 << 18;
/// How many groups a small launch or an update may be moved over.
const REACH: usize = 64;

/// Whether a launch on the CPU may start together with others at all.
pub(crate) fn can_join(launch: &Launch) -> bool {
    launch.kernel.can_join() && launch.sites.is_empty()
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
    /// Whether a launch may start together with others at all.
    can: fn(&Launch) -> bool,
}

impl<'a> Joiner<'a> {
    /// `donors` are the inputs' buffers that the graph's outputs may be written over.
    pub(crate) fn new(
        graph: &Graph,
        program: &'a Program,
        donors: impl Iterator<Item = Option<usize>>,
        near: usize,
        can: fn(&Launch) -> bool,
    ) -> Joiner<'a> {
        let mut joiner = Joiner {
            program,
            donor: vec![None; program.buffers.len()],
            assigned: vec![false; program.buffers.len()],
            near,
            can,
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
        let reach = match self.is_update(l) || self.is_small(l) {
            true => REACH,
            false => self.near,
        };
        for (g, group) in groups.filter(|(_, g)| !g.is_empty()).take(reach) {
            if group.iter().any(|other| self.conflict(l, *other)) {
                return None;
            }
            let all: Vec<usize> = group.iter().copied().chain([l]).collect();
            if self.joins(group[0]) && self.fit(&all) {
                return Some(g);
            }
        }
        None
    }

    /// For each launch of a group of small ones alone, the group before or behind that it starts with
    /// instead; nothing if one of them has none.
    fn other_hosts(&self, groups: &[Vec<usize>], g: usize) -> Option<Vec<usize>> {
        let group = &groups[g];
        if !group.iter().all(|l| self.is_small(*l)) {
            return None;
        }
        let behind = |l: usize| self.host(groups.iter().enumerate().skip(g + 1), l);
        let before = |l: usize| self.host(groups.iter().enumerate().take(g).rev(), l);
        let hosts = group.iter().map(|l| before(*l).or_else(|| behind(*l)));
        let hosts: Vec<usize> = hosts.collect::<Option<_>>()?;
        let all_fit = hosts.iter().all(|host| {
            let joining = group.iter().zip(&hosts).filter(|(_, h)| *h == host);
            let all = groups[*host].iter().chain(joining.map(|(l, _)| l));
            self.fit(&all.copied().collect::<Vec<_>>())
        });
        all_fit.then_some(hosts)
    }

    /// Whether there is room for all these in a group.
    fn fit(&self, all: &[usize]) -> bool {
        let launches: Vec<&Launch> = all.iter().map(|l| &self.program.launches[*l]).collect();
        match launches[0].kernel {
            Kernel::Cuda(_) => fit_in_a_launch(&launches),
            _ => all.len() <= MOST,
        }
    }

    fn joins(&self, l: usize) -> bool {
        let launch = &self.program.launches[l];
        let wanted = match launch.kernel {
            Kernel::Tile(_) => self.is_update(l) || self.is_small(l),
            Kernel::Cuda(_) => self.near > 0 || self.is_update(l) || self.is_small(l),
            _ => self.near > 0,
        };
        wanted && (self.can)(launch)
    }

    fn is_small(&self, l: usize) -> bool {
        let bytes = self.program.launches[l].cost.bytes.as_const();
        bytes.is_some_and(|b| (1..=SMALL).contains(&b))
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
