//! The steps that each step of a part waits for.
//!
//! A step waits for earlier steps that touch the same memory: for the writers of the ranges it reads, and for the
//! readers and writers of the ranges it writes. That follows from the ranges of memory that steps touch; nothing else
//! in a plan is trusted but the order of its steps. An output and its donor count as one, since a run may alias them.
//! The error record is a range too. Steps that can report a data error write it, one after the other, so that the
//! first error in the plan's order is reported; those from `commit` on read it.

use super::binder::Binder;
use super::loc::Loc;
use super::step::{After, BoundStep};
use hashbrown::HashSet;
use kiln_kernel::error::{Result, damaged};
use kiln_plan::{BufferId, Step};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// The memory that a range lies in.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Space {
    Errors,
    Arena,
    /// Identified by a number that buffers share if they may alias.
    Buffer(usize),
}

/// A range that a step touches.
#[derive(Debug)]
struct Touch {
    space: Space,
    bytes: Range<usize>,
    writes: bool,
}

/// Every range that a step touches, and whether it is concurrent with the step before it.
#[derive(Debug)]
struct Touches {
    all: SmallVec<[Touch; 6]>,
    concurrent: bool,
}

/// The maximum number of readers of a range at a time. A later reader waits for them, so that the next writer waits for
/// few steps. More would hardly run concurrently.
const READERS: usize = 16;

/// For each of these steps, the steps that it waits for.
fn after(steps: &[Touches]) -> Vec<After> {
    let all = || steps.iter().flat_map(|s| &s.all);
    let written: HashSet<Space> = all().filter(|t| t.writes).map(|t| t.space).collect();
    let mut memory = TouchedRanges::default();
    let mut waits: Vec<After> = Vec::with_capacity(steps.len());
    // For each step a bit set of the 128 steps before it: those that it waits for, the nearest in the lowest bit.
    let mut before: Vec<u128> = Vec::with_capacity(steps.len());
    let shifted = |bits: u128, by: u32| bits.checked_shl(by).unwrap_or(0);
    let mut group = 0;
    for (i, step) in steps.iter().enumerate() {
        let i = i as u32;
        group = if step.concurrent { group } else { i };
        let mut found = After::new();
        // Reads are recorded first: a step reads its operands before it writes.
        for writes in [false, true] {
            let touched = step.all.iter().filter(|t| t.writes == writes);
            for t in touched.filter(|t| written.contains(&t.space)) {
                memory.touch(t, i, group, &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|s| *s != i);
        let theirs = found.iter().map(|s| shifted(before[*s as usize], i - s));
        let implied = theirs.fold(0, |all, bits| all | bits);
        found.retain(|s| shifted(1, i - *s - 1) & implied == 0);
        let own = found.iter().map(|s| shifted(1, i - s - 1));
        before.push(own.fold(implied, |all, bit| all | bit));
        waits.push(found);
    }
    waits
}

/// The last steps that touched a range.
#[derive(Clone, Default)]
struct Last {
    end: usize,
    writer: Option<u32>,
    /// The readers since that write.
    readers: SmallVec<[u32; 4]>,
}

/// Touched ranges, which don't overlap, by their start.
#[derive(Default)]
struct TouchedRanges(BTreeMap<(Space, usize), Last>);

impl TouchedRanges {
    /// Records a touch, and adds the steps that it must come after.
    fn touch(&mut self, touch: &Touch, step: u32, group: u32, after: &mut After) {
        let Range { start, end } = touch.bytes;
        if start >= end {
            return;
        }
        self.cover(touch.space, start, end);
        let ranges = self.0.range_mut((touch.space, start)..(touch.space, end));
        if !touch.writes {
            for (_, last) in ranges {
                after.extend(last.writer);
                if last.readers.len() >= READERS {
                    let earlier = last.readers.iter().filter(|r| **r < group);
                    after.extend(earlier.copied());
                    last.readers.retain(|r| *r >= group);
                }
                if last.readers.last() != Some(&step) {
                    last.readers.push(step);
                }
            }
            return;
        }
        let ranges: SmallVec<[usize; 4]> = ranges.map(|((_, start), _)| *start).collect();
        for start in ranges {
            let last = self.0.remove(&(touch.space, start));
            let touched = last.iter().flat_map(|l| l.writer.iter().chain(&l.readers));
            after.extend(touched.copied());
        }
        let last = Last {
            end,
            writer: Some(step),
            readers: SmallVec::new(),
        };
        self.0.insert((touch.space, start), last);
    }

    /// Splits ranges so that some begin and end here, and adds ranges for the gaps between.
    fn cover(&mut self, space: Space, start: usize, end: usize) {
        for at in [start, end] {
            let before = self.0.range_mut((space, 0)..(space, at)).next_back();
            let cut = before.and_then(|(_, last)| {
                let behind = last.clone();
                (last.end > at).then(|| last.end = at)?;
                Some(behind)
            });
            cut.and_then(|behind| self.0.insert((space, at), behind));
        }
        let mut at = start;
        let mut gaps: SmallVec<[Range<usize>; 2]> = SmallVec::new();
        for ((_, from), last) in self.0.range((space, start)..(space, end)) {
            gaps.push(at..*from);
            at = last.end;
        }
        gaps.push(at..end);
        for gap in gaps.into_iter().filter(|g| !g.is_empty()) {
            let last = Last {
                end: gap.end,
                ..Last::default()
            };
            self.0.insert((space, gap.start), last);
        }
    }
}

/// The largest product of the numbers of first and last steps of a body.
const WIDE: usize = 64;

/// Makes a chain of the steps of a body if many of them are first and many last. A loop runs one iteration after the
/// other, so every first step waits for every last step of the iteration before.
pub(super) fn narrow(steps: &mut [BoundStep]) {
    let mut ends = vec![true; steps.len()];
    for after in steps.iter().flat_map(|s| &s.after) {
        ends[*after as usize] = false;
    }
    let first = steps.iter().filter(|s| s.after.is_empty()).count();
    if first * ends.iter().filter(|e| **e).count() > WIDE {
        for (i, step) in steps.iter_mut().enumerate() {
            step.after = i
                .checked_sub(1)
                .map(|before| before as u32)
                .into_iter()
                .collect();
        }
    }
}

impl Binder<'_> {
    /// Finds the steps that each step of a part waits for. Steps from `commit` on do nothing after a data error.
    /// `sizes` are the bytes of all buffers.
    pub fn order(
        &self,
        steps: &[Step],
        bound: &mut [BoundStep],
        sizes: &[usize],
        commit: usize,
    ) -> Result<()> {
        let touched = |(i, s): (usize, &BoundStep)| self.touches(&steps[i], s, sizes, i >= commit);
        let touches: Vec<Touches> = bound.iter().enumerate().map(touched).collect();
        for (step, after) in bound.iter_mut().zip(after(&touches)) {
            step.after = after;
        }
        let groups = bound.chunk_by(|_, next| next.concurrent);
        groups
            .filter(|g| g.len() > 1)
            .try_for_each(|group| self.apart(steps, group))
    }

    /// The ranges that a step touches.
    fn touches(&self, step: &Step, bound: &BoundStep, sizes: &[usize], guarded: bool) -> Touches {
        let touch = |id: BufferId, loc: Loc, writes: bool| {
            let at = id.0 as usize;
            let (space, start) = match loc {
                Loc::Arena(offset) => (Space::Arena, offset),
                _ => (Space::Buffer(self.memory[at]), 0),
            };
            let bytes = start..start + sizes[at];
            Touch {
                space,
                bytes,
                writes,
            }
        };
        let args = step.args.iter().zip(&bound.args).zip(&bound.writes);
        let args = args.map(|((id, loc), writes)| touch(*id, *loc, *writes));
        let guard = step.guard.zip(bound.guard.as_ref());
        let guard = guard.map(|(id, guard)| touch(id, guard.loc, false));
        let scratch = Touch {
            space: Space::Arena,
            bytes: bound.scratch..bound.scratch + bound.scratch_bytes(),
            writes: true,
        };
        let fallible = !step.sites.is_empty();
        let errors = (fallible || guarded).then_some(Touch {
            space: Space::Errors,
            bytes: 0..1,
            writes: fallible,
        });
        Touches {
            all: args.chain(guard).chain([scratch]).chain(errors).collect(),
            concurrent: step.concurrent,
        }
    }

    /// Checks that concurrent steps may be concurrent, and that none waits for another.
    fn apart(&self, steps: &[Step], group: &[BoundStep]) -> Result<()> {
        for step in group {
            let kernel = &self.plan.kernels[steps[step.step].kernel as usize];
            if !kernel.in_parts() || self.contract(&steps[step.step]).sites > 0 {
                let name = kernel.name();
                return Err(damaged!(
                    "{name} is joined with others but can only run alone"
                ));
            }
            if step
                .after
                .last()
                .is_some_and(|s| *s as usize >= group[0].step)
            {
                return Err(damaged!("joined steps write what the others touch"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
