//! What a plan gives to a GPU: its steps as a list of calls, in which loops are unrolled and branches
//! have both their sides.
//!
//! Nothing waits for a condition. A kernel at the branch writes an error record for each side, of which one says
//! that there was an error, and all kernels of a side are guarded by its record; so those of the side
//! that is not taken do nothing. Data errors of the other are passed on outwards behind the branch.

use super::bound::{BoundStep, Loc, Work};
use super::control::{Body, If, Loop, Places};
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
            let scratch = matches!(&*step.work, Work::Loop(_) | Work::If(_));
            let scratch = scratch.then_some((Loc::Arena(step.scratch), true));
            let args = step.args.iter().copied().zip(step.writes.iter().copied());
            for (loc, writes) in args.chain(scratch) {
                part.touches(loc, writes, &mut known);
            }
            part.held.extend(step.work.held().into_iter().cloned());
            part.calls += calls(&step.work);
            part.fallible |= can_fail(&step.work);
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

fn can_fail(work: &Work) -> bool {
    match work {
        Work::Cuda(launch) => launch.can_fail(),
        Work::Loop(l) => l.body.can_fail(),
        Work::If(i) => i.joined.is_some(),
        _ => false,
    }
}

/// How many calls a step makes at most.
fn calls(work: &Work) -> usize {
    let of = |body: &Body| body.bound.run_on_gpu.calls;
    match work {
        Work::Loop(l) => of(&l.body)
            .saturating_mul(l.trips as usize)
            .saturating_add(l.copies.len()),
        Work::If(i) => i.branches.iter().map(of).fold(2, usize::saturating_add),
        _ => 1,
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
        let scratch = || place(Loc::Arena(step.scratch));
        match &*step.work {
            Work::Cuda(launch) => sink(Call {
                launch,
                args,
                sites,
                record: around.record as u64,
                guarded,
                step: around.step.unwrap_or(step.step),
            })?,
            Work::Loop(l) => l.expand(&args, scratch(), within, sink)?,
            Work::If(i) => i.expand(&args, scratch(), within, sink)?,
            _ => return Err(Error::Internal("a CPU kernel for a GPU".into())),
        }
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

    /// A launch of the engine's own, which has no site.
    fn call<'l>(&self, launch: &'l Launch, args: SmallVec<[*mut u8; 12]>) -> Call<'l> {
        Call {
            launch,
            args,
            sites: SmallVec::new(),
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

    fn expand(
        &self,
        args: &[*mut u8],
        scratch: *mut u8,
        around: Around,
        sink: &mut Sink,
    ) -> Result<()> {
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

    fn expand(
        &self,
        args: &[*mut u8],
        scratch: *mut u8,
        around: Around,
        sink: &mut Sink,
    ) -> Result<()> {
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
