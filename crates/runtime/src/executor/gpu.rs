//! What a plan gives to a GPU: its steps as a list of calls, in which loops are unrolled and branches
//! have both their sides.
//!
//! Nothing waits for a condition. A kernel at the branch writes an error record for each side, of which one says
//! that there was an error, and all kernels of a side are guarded by its record; so those of the side
//! that is not taken do nothing. Data errors of the other are passed on outwards behind the branch.

use super::bound::{BoundStep, Loc};
use super::control::{Body, If, Loop, Places};
use super::work::Expand;
use crate::buffer::Buffer;
use crate::cuda::{Call, Graphs, Launch};
use crate::error::{Error, Result};
use hashbrown::HashSet;
use kiln_plan::cuda::ErrorRecord;
use smallvec::{SmallVec, smallvec};

/// What a part of a plan does on a GPU, apart from the calls.
#[derive(Default)]
pub(super) struct OnGpu {
    pub graphs: Graphs,
    /// Memory that it reads and writes; the arena once.
    pub read: Vec<Loc>,
    pub written: Vec<Loc>,
    /// Memory of loops and branches that it reads.
    pub held: Vec<Buffer>,
    /// How many calls it makes.
    pub calls: usize,
    /// Whether one of them may report a data error.
    pub fallible: bool,
}

impl OnGpu {
    pub(super) fn new(steps: &[BoundStep]) -> OnGpu {
        let mut part = OnGpu::default();
        let mut known = HashSet::new();
        for step in steps {
            let scratch = step.work.has_bodies();
            let scratch = scratch.then_some((Loc::Arena(step.scratch), true));
            let args = step.args.iter().copied().zip(step.writes.iter().copied());
            for (loc, writes) in args.chain(scratch) {
                part.touches(loc, writes, &mut known);
            }
            part.held.extend(step.work.held().into_iter().cloned());
            part.calls += step.work.calls();
            part.fallible |= step.work.can_fail();
        }
        part
    }

    /// `known` is what is listed.
    fn touches(&mut self, loc: Loc, writes: bool, known: &mut HashSet<(Loc, bool)>) {
        let loc = match loc {
            Loc::Arena(_) => Loc::Arena(0),
            loc => loc,
        };
        if known.insert((loc, writes)) {
            match writes {
                true => self.written.push(loc),
                false => self.read.push(loc),
            }
        }
    }
}

/// Where calls go, in order.
pub(super) type Sink<'a> = dyn FnMut(Call) -> Result<()> + 'a;

/// What steps have around them.
#[derive(Copy, Clone)]
pub(super) struct Around<'a> {
    /// The error record.
    pub record: *mut u8,
    /// The step from which on an error before leaves out the effect.
    pub guarded_from: usize,
    /// In a body, the numbers of its sites in the plan around all, and the step there.
    pub sites: Option<&'a [u32]>,
    pub step: Option<usize>,
}

/// Gives the calls of these steps to the sink.
pub(super) fn expand(
    steps: &[BoundStep],
    place: &dyn Fn(Loc) -> *mut u8,
    around: Around,
    sink: &mut Sink,
) -> Result<()> {
    for step in steps {
        let site = |s: &u32| around.sites.map_or(*s, |outer| outer[*s as usize]);
        let sites: SmallVec<[u32; 2]> = step.sites.iter().map(site).collect();
        let guarded = step.step >= around.guarded_from;
        let args: SmallVec<[*mut u8; 12]> = step.args.iter().map(|a| place(*a)).collect();
        let within = Around {
            record: around.record,
            guarded_from: if guarded { 0 } else { usize::MAX },
            sites: Some(&sites),
            step: around.step.or(Some(step.step)),
        };
        let scratch = place(Loc::Arena(step.scratch));
        let with = Expand {
            args,
            scratch,
            within,
        };
        step.work.expand(with, sink)?;
    }
    Ok(())
}

impl Around<'_> {
    /// A plan by itself.
    pub(super) fn plan(record: u64, guarded_from: usize) -> Around<'static> {
        Around {
            record: record as *mut u8,
            guarded_from,
            sites: None,
            step: None,
        }
    }

    fn guarded(&self) -> bool {
        self.guarded_from == 0
    }

    /// A launch with what is around it; the engine's own have no site.
    pub(super) fn call<'l>(&self, launch: &'l Launch, args: SmallVec<[*mut u8; 12]>) -> Call<'l> {
        let sites = self.sites.unwrap_or_default();
        Call {
            launch,
            args,
            sites: sites.iter().copied().take(launch.sites()).collect(),
            record: self.record as u64,
            guarded: self.guarded(),
            step: self.step.unwrap_or(0),
        }
    }
}

impl Body {
    fn expand(&self, at: &Places, around: Around, sink: &mut Sink) -> Result<()> {
        expand(&self.bound.run, &self.places(at), around, sink)
    }

    fn held(&self) -> impl Iterator<Item = &Buffer> {
        self.constants.iter().chain(&self.bound.run_on_gpu.held)
    }
}

impl Loop {
    /// What it holds on a GPU.
    pub(super) fn held(&self) -> Vec<&Buffer> {
        self.numbers.iter().chain(self.body.held()).collect()
    }

    /// The calls of all its steps.
    pub(super) fn unrolled(&self, with: &Expand, sink: &mut Sink) -> Result<()> {
        let (args, scratch, around) = (&with.args, with.scratch, with.within);
        for ((from, to, _), copy) in self.unchanged(args).zip(&self.copies) {
            sink(around.call(copy, smallvec![from, to]))?;
        }
        let numbers = self.numbers.as_ref().map(|n| n.storage().ptr());
        let numbers = numbers.ok_or_else(|| Error::Internal("a loop for the CPU".into()))?;
        let done: Option<()> = self.steps(args, scratch, |number, at| {
            at.inputs[0] = numbers.wrapping_add(number as usize * size_of::<i64>());
            self.body.expand(at, around, sink).map(|()| None)
        })?;
        debug_assert!(done.is_none());
        Ok(())
    }
}

impl If {
    /// What it holds on a GPU.
    pub(super) fn held(&self) -> Vec<&Buffer> {
        self.branches.iter().flat_map(Body::held).collect()
    }

    /// The calls of both sides.
    pub(super) fn sides(&self, with: &Expand, sink: &mut Sink) -> Result<()> {
        let (args, scratch, around) = (&with.args, with.scratch, with.within);
        let branch = self.branch.as_ref();
        let branch = branch.ok_or_else(|| Error::Internal("a branch for the CPU".into()))?;
        sink(around.call(branch, smallvec![args[self.condition], scratch]))?;
        let at = self.places(args, scratch);
        let sites = around.sites.unwrap_or_default();
        let (of_then, of_other) = sites.split_at(self.branches[0].sites().min(sites.len()));
        for (i, (body, sites)) in self.branches.iter().zip([of_then, of_other]).enumerate() {
            let side = Around {
                record: scratch.wrapping_add(i * size_of::<ErrorRecord>()),
                guarded_from: 0,
                sites: Some(sites),
                step: around.step,
            };
            body.expand(&at, side, sink)?;
        }
        match &self.joined {
            Some(joined) => sink(around.call(joined, smallvec![scratch])),
            None => Ok(()),
        }
    }
}
