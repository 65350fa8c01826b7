//! What each step of a part waits for.
//!
//! A step waits for those before it that it meets in memory: for what wrote what it reads, and for what read or wrote
//! what it writes. That is derived from the ranges of memory that steps touch, whatever the order in the plan is
//! for. What any run may lay over each other counts as one: an output and its donor. The error record is such a
//! range too: who can report a data error writes it, one after the other, so that the first is the first in
//! the plan's order; who stands behind `commit` reads it.

use super::bound::{Binder, BoundStep, Loc};
use crate::error::{Result, damaged};
use hashbrown::HashSet;
use kiln_plan::{BufferId, Step};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Steps that another waits for, by position, in order; of those near by, none that others of them come after.
pub(super) type After = SmallVec<[u32; 4]>;

/// Whose bytes a range is of.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Space {
    Errors,
    Arena,
    /// By a number that buffers have in common that may be the same memory.
    Buffer(usize),
}

/// What a step touches.
#[derive(Clone, Debug)]
pub(super) struct Touch {
    pub space: Space,
    pub bytes: Range<usize>,
    pub writes: bool,
}

/// Everything that a step touches, and whether it starts together with the step before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Touches {
    pub all: SmallVec<[Touch; 6]>,
    pub joined: bool,
}

/// A range has at most so many readers at a time: a later one waits for these, so that whoever writes there then
/// waits for few. More would hardly run at once.
const READERS: usize = 16;

/// What each of these steps waits for.
pub(super) fn after(steps: &[Touches]) -> Vec<After> {
    let all = || steps.iter().flat_map(|s| &s.all);
    let written: HashSet<Space> = all().filter(|t| t.writes).map(|t| t.space).collect();
    let mut memory = Memory::default();
    let mut waits: Vec<After> = Vec::with_capacity(steps.len());
    // Of the 128 steps before each those that come before it, the nearest in the lowest bit.
    let mut before: Vec<u128> = Vec::with_capacity(steps.len());
    let shifted = |bits: u128, by: u32| bits.checked_shl(by).unwrap_or(0);
    let mut group = 0;
    for (i, step) in steps.iter().enumerate() {
        let i = i as u32;
        group = if step.joined { group } else { i };
        let mut found = After::new();
        // What it reads is there before it writes.
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

/// Who touched a range last.
#[derive(Clone, Default)]
struct Last {
    end: usize,
    writer: Option<u32>,
    /// Those since.
    readers: SmallVec<[u32; 4]>,
}

/// Ranges that were touched, which don't overlap, by where they begin.
#[derive(Default)]
struct Memory(BTreeMap<(Space, usize), Last>);

impl Memory {
    /// Notes a touch, and adds those that it must come after.
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

    /// Makes ranges begin and end here, and leaves none between out.
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

/// The most pairs of a step that a body begins with and one that it ends with.
const WIDE: usize = 64;

/// Makes a chain of the steps of a body that begins and ends with many: a loop lays one behind the other, and all
/// that it begins with waits for all that it ended with.
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
    /// Finds out what the steps of a part wait for, of which those from `commit` on do nothing after a data error.
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
        let groups = bound.chunk_by(|_, next| next.joined);
        groups
            .filter(|g| g.len() > 1)
            .try_for_each(|group| self.apart(steps, group))
    }

    /// What a step touches.
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
            joined: step.joined,
        }
    }

    /// Checks that steps which run together can, and that none waits for another.
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
mod tests {
    use super::*;

    struct Random(u64);

    impl Random {
        fn below(&mut self, n: usize) -> usize {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
            (self.0 >> 33) as usize % n
        }

        /// Steps that touch ranges of an arena, buffers, and the error record.
        fn steps(&mut self, n: usize) -> Vec<Touches> {
            let step = |_| {
                let touch = |_| {
                    let start = self.below(40);
                    let (space, bytes) = match self.below(6) {
                        0 => (Space::Errors, 0..1),
                        1 | 2 => (Space::Buffer(self.below(3)), 0..8),
                        _ => (Space::Arena, start..start + self.below(12)),
                    };
                    let writes = self.below(3) == 0;
                    Touch {
                        space,
                        bytes,
                        writes,
                    }
                };
                Touches {
                    all: (0..3).map(touch).collect(),
                    joined: false,
                }
            };
            (0..n).map(step).collect()
        }
    }

    fn meet(a: &Touch, b: &Touch) -> bool {
        let bytes = a.bytes.start.max(b.bytes.start) < a.bytes.end.min(b.bytes.end);
        a.space == b.space && bytes && (a.writes || b.writes)
    }

    /// The first pair of steps that meet, of which neither waits for the other.
    fn fault(steps: &[Touches], waits: &[After]) -> Option<(usize, usize)> {
        let mut reached: Vec<Vec<bool>> = Vec::new();
        for (i, after) in waits.iter().enumerate() {
            let mut all = vec![false; i];
            for before in after.iter().map(|s| *s as usize) {
                all[before] = true;
                let theirs = reached[before].iter().enumerate();
                theirs.for_each(|(s, reached)| all[s] |= reached);
            }
            let meets = |s: &Touches| {
                let mut pairs = steps[i]
                    .all
                    .iter()
                    .flat_map(|a| s.all.iter().map(move |b| (a, b)));
                pairs.any(|(a, b)| meet(a, b))
            };
            if let Some(s) = (0..i).find(|s| !all[*s] && meets(&steps[*s])) {
                return Some((s, i));
            }
            reached.push(all);
        }
        None
    }

    fn touches(all: &[(Space, Range<usize>, bool)], joined: bool) -> Touches {
        let touch = |(space, bytes, writes): &(Space, Range<usize>, bool)| Touch {
            space: *space,
            bytes: bytes.clone(),
            writes: *writes,
        };
        Touches {
            all: all.iter().map(touch).collect(),
            joined,
        }
    }

    #[test]
    fn steps_wait_for_those_they_meet_and_for_no_other() {
        let (arena, input) = (Space::Arena, Space::Buffer(0));
        let steps = [
            touches(&[(input, 0..8, false), (arena, 0..8, true)], false),
            touches(&[(arena, 0..8, false), (arena, 8..16, true)], false),
            touches(&[(arena, 0..8, false), (arena, 16..24, true)], false),
            touches(&[(arena, 8..16, false), (arena, 16..24, true)], false),
            // Over what is left of others, and nothing.
            touches(&[(arena, 4..12, true), (arena, 20..20, true)], false),
            touches(&[(arena, 24..32, true), (input, 0..8, false)], false),
        ];
        let waits: Vec<Vec<u32>> = after(&steps).iter().map(|w| w.to_vec()).collect();
        assert_eq!(
            waits,
            [vec![], vec![0], vec![0], vec![1, 2], vec![3], vec![]]
        );
    }

    #[test]
    fn steps_that_start_together_wait_for_none_of_each_other_whatever_they_read() {
        let mut steps = vec![touches(&[(Space::Arena, 0..8, true)], false)];
        for i in 0..3 * READERS {
            let own = Space::Buffer(i);
            steps.push(touches(
                &[(Space::Arena, 0..8, false), (own, 0..8, true)],
                i > 0,
            ));
        }
        steps.push(touches(&[(Space::Arena, 0..8, true)], false));
        let waits = after(&steps);
        assert!(waits[1..=3 * READERS].iter().all(|w| w[..] == [0]));
        assert_eq!(waits[3 * READERS + 1].len(), 3 * READERS);
        // One after the other, few wait for few.
        steps.iter_mut().for_each(|s| s.joined = false);
        let waits = after(&steps);
        assert!(waits.iter().all(|w| w.len() <= READERS + 1));
        assert_eq!(fault(&steps, &waits), None);
    }

    #[test]
    fn no_two_steps_that_meet_are_without_order_and_a_dropped_wait_is_found() {
        let mut random = Random(7);
        let mut waits_dropped = 0;
        for case in 0..200 {
            let n = 1 + random.below(40);
            let steps = random.steps(n);
            let mut waits = after(&steps);
            assert_eq!(fault(&steps, &waits), None, "case {case}");
            for i in 0..n {
                for at in 0..waits[i].len() {
                    let wait = waits[i].remove(at);
                    assert!(
                        fault(&steps, &waits).is_some(),
                        "case {case}: {i} and {wait}"
                    );
                    waits[i].insert(at, wait);
                    waits_dropped += 1;
                }
            }
        }
        assert!(waits_dropped > 1000);
    }
}
