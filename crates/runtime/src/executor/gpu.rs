//! What a plan gives to a GPU: its steps as a list of calls, each with those before it that it waits for. Loops are
//! unrolled, and branches have both their sides.
//!
//! Nothing waits for a condition. A kernel at the branch writes an error record for each side, of which one says
//! that there was an error, and all kernels of a side are guarded by its record; so those of the side
//! that is not taken do nothing. Data errors of the other are passed on outwards behind the branch. The sides have
//! scratch memory in common, so one comes after the other.

use super::bound::{BoundStep, Loc};
use super::control::{Body, If, Loop, Places};
use super::guard::Guard;
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
            let scratch = step.work.has_bodies() || step.guard.is_some();
            let scratch = scratch.then_some((Loc::Arena(step.scratch), true));
            let guard = step.guard.iter().map(|g| (g.loc, false));
            let args = step.args.iter().copied().zip(step.writes.iter().copied());
            for (loc, writes) in args.chain(scratch).chain(guard) {
                part.touches(loc, writes, &mut known);
            }
            part.held.extend(step.work.held().into_iter().cloned());
            part.calls += step.work.calls() + usize::from(step.guard.is_some());
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

/// Calls by position, those behind which something is done.
pub(super) type Ends = SmallVec<[u32; 4]>;

/// Where calls go, in order.
pub(super) struct Calls<'a> {
    sink: &'a mut dyn FnMut(Call) -> Result<()>,
    made: u32,
}

impl<'a> Calls<'a> {
    pub fn new(sink: &'a mut dyn FnMut(Call) -> Result<()>) -> Calls<'a> {
        Calls { sink, made: 0 }
    }

    /// Gives a call; in its place, if there is nothing to do, stands what it would wait for.
    pub fn add(&mut self, call: Call) -> Result<Ends> {
        if call.is_empty() {
            return Ok(call.after);
        }
        (self.sink)(call)?;
        self.made += 1;
        Ok(smallvec![self.made - 1])
    }
}

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
    /// The calls that all of it waits for.
    pub after: &'a [u32],
}

/// Gives the calls of these steps, which are a whole part; gives those behind which all are done.
pub(super) fn expand(
    steps: &[BoundStep],
    place: &dyn Fn(Loc) -> *mut u8,
    around: Around,
    calls: &mut Calls,
) -> Result<Ends> {
    let mut ends: Vec<Ends> = Vec::with_capacity(steps.len());
    let mut last = vec![true; steps.len()];
    for step in steps {
        let site = |s: &u32| around.sites.map_or(*s, |outer| outer[*s as usize]);
        let sites: SmallVec<[u32; 2]> = step.sites.iter().map(site).collect();
        let guarded = step.step >= around.guarded_from;
        let args: SmallVec<[*mut u8; 12]> = step.args.iter().map(|a| place(*a)).collect();
        let mut after = Ends::new();
        for before in step.after.iter().map(|s| *s as usize) {
            after.extend_from_slice(&ends[before]);
            last[before] = false;
        }
        if step.after.is_empty() {
            after.extend_from_slice(around.after);
        }
        let mut within = Around {
            record: around.record,
            guarded_from: if guarded { 0 } else { usize::MAX },
            sites: Some(&sites),
            step: around.step.or(Some(step.step)),
            after: &after,
        };
        let scratch = place(Loc::Arena(step.scratch));
        let looked: Ends;
        if let Some(Guard {
            loc,
            launch: Some((launch, record)),
            ..
        }) = &step.guard
        {
            let record = scratch.wrapping_add(*record);
            looked = calls.add(within.call(launch, smallvec![place(*loc), record]))?;
            within = Around {
                record,
                guarded_from: 0,
                after: &looked,
                ..within
            };
        }
        let with = Expand {
            args,
            scratch,
            within,
        };
        ends.push(step.work.expand(with, calls)?);
    }
    if steps.is_empty() {
        return Ok(around.after.into());
    }
    let last = ends.iter().zip(last).filter(|(_, last)| *last);
    Ok(last.flat_map(|(ends, _)| ends).copied().collect())
}

impl Around<'_> {
    /// A plan by itself.
    pub(super) fn plan(record: u64, guarded_from: usize) -> Around<'static> {
        Around {
            record: record as *mut u8,
            guarded_from,
            sites: None,
            step: None,
            after: &[],
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
            after: self.after.into(),
        }
    }
}

impl Body {
    fn expand(&self, at: &Places, around: Around, calls: &mut Calls) -> Result<Ends> {
        let mut after = Ends::from(around.after);
        for ((from, to, _), copy) in self.begun(at).zip(&self.copies) {
            after.extend(calls.add(around.call(copy, smallvec![from, to]))?);
        }
        let around = Around {
            after: &after,
            ..around
        };
        expand(&self.bound.run, &self.places(at), around, calls)
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

    /// The calls of all its steps, each behind the one before.
    pub(super) fn unrolled(&self, with: &Expand, calls: &mut Calls) -> Result<Ends> {
        let (args, scratch, around) = (&with.args, with.scratch, with.within);
        let mut ends = Ends::from(around.after);
        for ((from, to, _), copy) in self.unchanged(args).zip(&self.copies) {
            ends.extend(calls.add(around.call(copy, smallvec![from, to]))?);
        }
        let numbers = self.numbers.as_ref().map(|n| n.storage().ptr());
        let numbers = numbers.ok_or_else(|| Error::Internal("a loop for the CPU".into()))?;
        let done: Option<()> = self.steps(args, scratch, |number, at| {
            at.inputs[0] = numbers.wrapping_add(number as usize * size_of::<i64>());
            let around = Around {
                after: &ends,
                ..around
            };
            ends = self.body.expand(at, around, calls)?;
            Ok(None)
        })?;
        debug_assert!(done.is_none());
        Ok(ends)
    }
}

impl If {
    /// What it holds on a GPU.
    pub(super) fn held(&self) -> Vec<&Buffer> {
        self.branches.iter().flat_map(Body::held).collect()
    }

    /// The calls of both sides.
    pub(super) fn sides(&self, with: &Expand, calls: &mut Calls) -> Result<Ends> {
        let (args, scratch, around) = (&with.args, with.scratch, with.within);
        let branch = self.branch.as_ref();
        let branch = branch.ok_or_else(|| Error::Internal("a branch for the CPU".into()))?;
        let mut ends = calls.add(around.call(branch, smallvec![args[self.condition], scratch]))?;
        let at = self.places(args, scratch);
        let sites = around.sites.unwrap_or_default();
        let (of_then, of_other) = sites.split_at(self.branches[0].sites().min(sites.len()));
        for (i, (body, sites)) in self.branches.iter().zip([of_then, of_other]).enumerate() {
            let side = Around {
                record: scratch.wrapping_add(i * size_of::<ErrorRecord>()),
                guarded_from: 0,
                sites: Some(sites),
                step: around.step,
                after: &ends,
            };
            ends = body.expand(&at, side, calls)?;
        }
        match &self.joined {
            Some(joined) => {
                let around = Around {
                    after: &ends,
                    ..around
                };
                calls.add(around.call(joined, smallvec![scratch]))
            }
            None => Ok(ends),
        }
    }
}
