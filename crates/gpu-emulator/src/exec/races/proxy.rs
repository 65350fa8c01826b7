//! Bulk copies from shared memory. They read it through another proxy, so that a `fence.proxy.async` must lie between a
//! write and the copy; what they read must stay until they are waited for.

use super::{AccessKind, Origin, Races};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::LANES;
use std::collections::HashMap;

/// The fences that each warp has seen. Nothing is kept until there is one.
#[derive(Default)]
pub(crate) struct Proxies {
    /// For each warp, the time up to which it knows the writes of each other to be visible.
    visible: Vec<[u32; LANES]>,
    /// The same of the warps that arrived at each mbarrier.
    mbarriers: HashMap<usize, [u32; LANES]>,
}

/// Raises times to those of another.
pub(super) fn join(times: &mut [u32; LANES], other: &[u32; LANES]) {
    for (time, other) in times.iter_mut().zip(other) {
        *time = (*time).max(*other);
    }
}

impl Proxies {
    /// Forgets everything, for a new block.
    pub fn clear(&mut self) {
        self.visible.clear();
        self.mbarriers.clear();
    }

    /// True if what `writer` wrote at a time is visible to copies of `warp`.
    pub fn sees(&self, warp: usize, writer: usize, time: u32) -> bool {
        let times = self.visible.get(warp);
        times.is_some_and(|times| time <= times[writer])
    }

    /// Records a fence of a warp that has seen the writes up to these times.
    pub fn fence(&mut self, warp: usize, seen: &[u32; LANES]) {
        self.visible.resize(LANES, [0; LANES]);
        join(&mut self.visible[warp], seen);
    }

    /// Records that warps have met.
    pub fn met(&mut self, warps: impl Iterator<Item = usize> + Clone) {
        if self.visible.is_empty() {
            return;
        }
        let mut joint = [0; LANES];
        { warps.clone() }.for_each(|w| join(&mut joint, &self.visible[w]));
        warps.for_each(|w| self.visible[w] = joint);
    }

    /// Records that a warp arrives at an mbarrier.
    pub fn release(&mut self, warp: usize, mbarrier: usize) {
        if let Some(times) = self.visible.get(warp) {
            join(self.mbarriers.entry(mbarrier).or_insert([0; LANES]), times);
        }
    }

    /// Records that a warp saw a phase of an mbarrier end.
    pub fn acquire(&mut self, warp: usize, mbarrier: usize) {
        if let Some(times) = self.mbarriers.get(&mbarrier) {
            join(&mut self.visible[warp], times);
        }
    }
}

impl Races {
    /// Records the start of a bulk copy of `warp` from `len` bytes at `at`.
    pub fn outgoing_begins(&mut self, warp: usize, at: usize, len: usize) -> Outcome<()> {
        self.access(warp, at, len, AccessKind::Read)?;
        for x in self.range(at, len) {
            let g = self.granules[x];
            let is_visible = g.origin == Origin::BulkCopy
                || self.proxies.sees(warp, g.writer.into(), g.write_time);
            if !is_visible {
                let why = format!(
                    "a bulk copy from shared memory at {} that warp {} writes, with no fence.proxy.async between",
                    self.describe_granule(x),
                    g.writer
                );
                return Err(Raised::new(FaultKind::MissingFence, why));
            }
            let count = g.outgoing.checked_add(1).ok_or_else(|| {
                let why = "too many bulk copies read the same memory at once";
                Raised::new(FaultKind::Misuse, why)
            })?;
            self.granules[x].outgoing = count;
        }
        Ok(())
    }

    /// Records that `warp` has waited until such a copy had read its source.
    pub fn outgoing_ends(&mut self, warp: usize, at: usize, len: usize) -> Outcome<()> {
        for x in self.range(at, len) {
            self.granules[x].outgoing -= 1;
        }
        self.access(warp, at, len, AccessKind::Read)
    }

    /// Records a fence of `warp` that makes the writes it has seen visible to bulk copies.
    pub fn proxy_fence(&mut self, warp: usize) {
        let mut seen = self.seen[warp];
        join(&mut seen, &[self.floor; LANES]);
        seen[warp] = self.now[warp];
        self.proxies.fence(warp, &seen);
        self.clock += 1;
        self.now[warp] = self.clock;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fault of a copy by warp 1 of what warp 0 writes, after these steps of a warp: a fence, or an arrival of 0
    /// that 1 waits for.
    fn copied(steps: &[(usize, bool)]) -> Option<FaultKind> {
        let mut races = Races::new((1, 2), 64, 4);
        races.access(0, 0, 16, AccessKind::Write).unwrap();
        for (warp, is_fence) in steps {
            match is_fence {
                true => races.proxy_fence(*warp),
                false => {
                    races.release(0, 32);
                    races.acquire(1, 32);
                }
            }
        }
        let begun = races.outgoing_begins(1, 0, 16);
        begun.err().map(|raised| raised.kind)
    }

    #[test]
    fn a_fence_lies_between_a_write_and_a_copy() {
        let (arrival, fence) = ((0, false), true);
        assert_eq!(copied(&[(0, fence), arrival]), None);
        assert_eq!(copied(&[arrival, (1, fence)]), None);
        for steps in [
            &[arrival][..],
            &[arrival, (0, fence)],
            &[(1, fence), arrival],
        ] {
            assert_eq!(copied(steps), Some(FaultKind::MissingFence), "{steps:?}");
        }
        assert_eq!(copied(&[(0, fence)]), Some(FaultKind::SharedRace));
    }

    #[test]
    fn what_a_copy_reads_must_stay() {
        let kind = |result: Outcome<()>| result.err().map(|raised| raised.kind);
        let mut races = Races::new((1, 2), 64, 4);
        races.access(0, 0, 16, AccessKind::Write).unwrap();
        races.proxy_fence(0);
        races.outgoing_begins(0, 0, 16).unwrap();
        races.outgoing_begins(0, 8, 8).unwrap();
        races.outgoing_ends(0, 0, 16).unwrap();
        races.access(0, 4, 4, AccessKind::Write).unwrap();
        let wrong = kind(races.access(0, 8, 4, AccessKind::Write));
        assert_eq!(wrong, Some(FaultKind::MissingWait));
        races.outgoing_ends(0, 8, 8).unwrap();
        let wrong = kind(races.access(1, 8, 4, AccessKind::Write));
        assert_eq!(wrong, Some(FaultKind::SharedRace));
        races.everyone_met();
        races.access(1, 8, 4, AccessKind::Write).unwrap();
    }
}
