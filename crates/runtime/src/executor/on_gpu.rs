//! The properties of a part of a plan that a GPU needs.

use super::loc::Loc;
use super::step::BoundStep;
use hashbrown::HashSet;
use kiln_cuda::Graphs;
use kiln_kernel::memory::Storage;
use std::sync::Arc;

/// A part of a plan on a GPU, apart from its calls.
#[derive(Default)]
pub(super) struct OnGpu {
    pub graphs: Graphs,
    /// Memory that it reads and writes; the arena is listed once.
    pub read: Vec<Loc>,
    pub written: Vec<Loc>,
    /// Memory of loops and branches that it reads.
    pub gpu_memory: Vec<Arc<Storage>>,
    /// The number of calls that it makes.
    pub calls: usize,
    /// True if one of them may report a data error.
    pub fallible: bool,
    /// True if one of them communicates with other ranks.
    pub communicates: bool,
}

impl OnGpu {
    pub(super) fn new(steps: &[BoundStep]) -> OnGpu {
        let mut part = OnGpu::default();
        let mut listed = HashSet::new();
        for step in steps {
            let scratch = step.work.has_bodies() || step.guard.is_some();
            let scratch = scratch.then_some((Loc::Arena(step.scratch), true));
            let guard = step.guard.iter().map(|g| (g.loc, false));
            let args = step.args.iter().copied().zip(step.writes.iter().copied());
            for (loc, writes) in args.chain(scratch).chain(guard) {
                part.touches(loc, writes, &mut listed);
            }
            part.gpu_memory
                .extend(step.work.gpu_memory().into_iter().cloned());
            part.calls += step.work.calls() + usize::from(step.guard.is_some());
            part.fallible |= step.work.can_fail();
            part.communicates |= step.work.communicates();
        }
        part
    }

    /// Lists a location as read or written, once.
    fn touches(&mut self, loc: Loc, writes: bool, listed: &mut HashSet<(Loc, bool)>) {
        let loc = match loc {
            Loc::Arena(_) => Loc::Arena(0),
            loc => loc,
        };
        if listed.insert((loc, writes)) {
            match writes {
                true => self.written.push(loc),
                false => self.read.push(loc),
            }
        }
    }
}
