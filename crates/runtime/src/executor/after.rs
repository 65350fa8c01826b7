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
    touches: SmallVec<[Touch; 6]>,
    concurrent: bool,
}

/// The maximum number of concurrent readers of a range. A later reader waits for them, which bounds the number of steps
/// that the next writer waits for.
const READERS: usize = 16;

/// Finds the steps that each step waits for.
fn find_dependencies(steps: &[Touches]) -> Vec<After> {
    let touches = || steps.iter().flat_map(|s| &s.touches);
    let written: HashSet<Space> = touches().filter(|t| t.writes).map(|t| t.space).collect();
    let mut memory = TouchedRanges::default();
    let mut list: Vec<After> = Vec::with_capacity(steps.len());
    // For each step a bit set of the 128 steps before it: those that it waits for, the nearest in the lowest bit.
    let mut reach: Vec<u128> = Vec::with_capacity(steps.len());
    let shift = |bits: u128, by: u32| bits.checked_shl(by).unwrap_or(0);
    let mut group = 0;
    for (i, step) in steps.iter().enumerate() {
        let i = i as u32;
        group = if step.concurrent { group } else { i };
        let mut deps = After::new();
        // Reads are recorded first: a step reads its operands before it writes.
        for writes in [false, true] {
            let touched = step.touches.iter().filter(|t| t.writes == writes);
            for t in touched.filter(|t| written.contains(&t.space)) {
                memory.touch(t, i, group, &mut deps);
            }
        }
        deps.sort_unstable();
        deps.dedup();
        deps.retain(|s| *s != i);
        let indirect = deps.iter().map(|s| shift(reach[*s as usize], i - s));
        let implied = indirect.fold(0, |set, bits| set | bits);
        deps.retain(|s| shift(1, i - *s - 1) & implied == 0);
        let direct = deps.iter().map(|s| shift(1, i - s - 1));
        reach.push(direct.fold(implied, |set, bit| set | bit));
        list.push(deps);
    }
    list
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
            for (_, entry) in ranges {
                after.extend(entry.writer);
                if entry.readers.len() >= READERS {
                    let finished_readers = entry.readers.iter().filter(|r| **r < group);
                    after.extend(finished_readers.copied());
                    entry.readers.retain(|r| *r >= group);
                }
                if entry.readers.last() != Some(&step) {
                    entry.readers.push(step);
                }
            }
            return;
        }
        let ranges: SmallVec<[usize; 4]> = ranges.map(|((_, start), _)| *start).collect();
        for start in ranges {
            let entry = self.0.remove(&(touch.space, start));
            let touched = entry.iter().flat_map(|l| l.writer.iter().chain(&l.readers));
            after.extend(touched.copied());
        }
        let entry = Last {
            end,
            writer: Some(step),
            readers: SmallVec::new(),
        };
        self.0.insert((touch.space, start), entry);
    }

    /// Splits ranges at `start` and `end`, and adds ranges for the gaps between.
    fn cover(&mut self, space: Space, start: usize, end: usize) {
        for boundary in [start, end] {
            let range = self.0.range_mut((space, 0)..(space, boundary)).next_back();
            let split_off = range.and_then(|(_, last)| {
                let upper = last.clone();
                (last.end > boundary).then(|| last.end = boundary)?;
                Some(upper)
            });
            split_off.and_then(|upper| self.0.insert((space, boundary), upper));
        }
        let mut boundary = start;
        let mut gaps: SmallVec<[Range<usize>; 2]> = SmallVec::new();
        for ((_, range_start), last) in self.0.range((space, start)..(space, end)) {
            gaps.push(boundary..*range_start);
            boundary = last.end;
        }
        gaps.push(boundary..end);
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

/// Chains the steps of a body if many of them are first and many last. In a loop, every first step would wait for every
/// last step of the previous iteration.
pub(super) fn chain_wide_body(steps: &mut [BoundStep]) {
    let mut ends = vec![true; steps.len()];
    for after in steps.iter().flat_map(|s| &s.after) {
        ends[*after as usize] = false;
    }
    let first = steps.iter().filter(|s| s.after.is_empty()).count();
    if first * ends.iter().filter(|e| **e).count() > WIDE {
        for (i, step) in steps.iter_mut().enumerate() {
            step.after = i
                .checked_sub(1)
                .map(|previous| previous as u32)
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
        let touch = |(i, s): (usize, &BoundStep)| self.touches(&steps[i], s, sizes, i >= commit);
        let touches: Vec<Touches> = bound.iter().enumerate().map(touch).collect();
        for (step, after) in bound.iter_mut().zip(find_dependencies(&touches)) {
            step.after = after;
        }
        let groups = bound.chunk_by(|_, next| next.concurrent);
        groups
            .filter(|g| g.len() > 1)
            .try_for_each(|group| self.check_concurrent(steps, group))
    }

    /// The ranges that a step touches.
    fn touches(&self, step: &Step, bound: &BoundStep, sizes: &[usize], guarded: bool) -> Touches {
        let touch = |id: BufferId, loc: Loc, writes: bool| {
            let buffer = id.0 as usize;
            let (space, start) = match loc {
                Loc::Arena(offset) => (Space::Arena, offset),
                _ => (Space::Buffer(self.memory[buffer]), 0),
            };
            let bytes = start..start + sizes[buffer];
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
            touches: args.chain(guard).chain([scratch]).chain(errors).collect(),
            concurrent: step.concurrent,
        }
    }

    /// Checks that concurrent steps may be concurrent, and that none waits for another.
    fn check_concurrent(&self, steps: &[Step], group: &[BoundStep]) -> Result<()> {
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
