//! Races in shared memory, and reads of bytes that were never written or are still being copied.
//!
//! Time advances at synchronisation. Each granule of memory records its last writer, the time of that write, and the
//! readers since. Each warp knows up to which time it has seen every other. An access is a race unless the warp has
//! seen the accesses before it (FastTrack, Flanagan and Freund 2009, with warps for threads).

use super::AccessKind;
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::LANES;
use proxy::{Proxies, join};
use std::collections::HashMap;

mod proxy;

/// The mark of readers at different times, which [`Races::reads`] holds.
const SEVERAL: u32 = u32::MAX;

/// The warps of a warpgroup.
pub(crate) const WARPGROUP: usize = 4;

/// The origin of the last write of a granule.
#[derive(Copy, Clone, Default, PartialEq, Eq)]
enum Origin {
    #[default]
    Plain,
    Atomic,
    BulkCopy,
}

#[derive(Copy, Clone, Default)]
struct Granule {
    /// The time of the last write; 0: never.
    write_time: u32,
    read_time: u32,
    /// Warps that read since the last write.
    readers: u32,
    writer: u8,
    origin: Origin,
    /// Target of a copy that is not known to be finished.
    pending: bool,
    /// The number of bulk copies that are not known to have read it.
    outgoing: u8,
}

/// The state of the checks of one block.
pub(crate) struct Races {
    /// A granule is 2 to the power of this many bytes.
    shift: u32,
    granules: Vec<Granule>,
    /// The times of several reads of a granule, by warp.
    reads: HashMap<usize, [u32; LANES]>,
    /// The number of warps.
    warps: usize,
    /// The time of each warp, and then of each warpgroup's products, which read shared memory by themselves.
    now: Vec<u32>,
    /// The time up to which each of these has seen each other.
    seen: Vec<[u32; LANES]>,
    /// The time up to which every warp has seen everything.
    floor: u32,
    clock: u32,
    /// The times seen by the warps that arrived at each mbarrier.
    mbarriers: HashMap<usize, [u32; LANES]>,
    /// Copies that an mbarrier will report: its address and the range.
    in_flight: Vec<(usize, usize, usize)>,
    /// The time at which each warp last used the memory of each block of the cluster but its own.
    remote: Vec<[u32; LANES]>,
    proxies: Proxies,
}

impl Races {
    pub fn new((blocks, block_warps): (usize, usize), bytes: usize, granule: usize) -> Races {
        let warps = blocks * block_warps;
        let groups = warps / WARPGROUP;
        // Blocks of that many warps have no registers for products.
        let agents = if warps + groups > LANES {
            warps
        } else {
            warps + groups
        };
        Races {
            shift: granule.trailing_zeros(),
            granules: vec![Granule::default(); bytes.div_ceil(granule) + 1],
            reads: HashMap::new(),
            warps,
            now: vec![1; agents],
            seen: vec![[0; LANES]; agents],
            floor: 0,
            clock: 1,
            mbarriers: HashMap::new(),
            in_flight: Vec::new(),
            remote: vec![[0; LANES]; blocks],
            proxies: Proxies::default(),
        }
    }

    /// Forgets everything, for a new block.
    pub fn start(&mut self) {
        self.granules.fill(Granule::default());
        self.reads.clear();
        self.now.fill(1);
        self.seen.fill([0; LANES]);
        (self.floor, self.clock) = (0, 1);
        self.mbarriers.clear();
        self.in_flight.clear();
        self.remote.fill([0; LANES]);
        self.proxies.clear();
    }

    /// Records that a warp uses the memory of another block of the cluster.
    pub fn uses_remote(&mut self, warp: usize, block: usize) {
        self.remote[block][warp] = self.now[warp];
    }

    /// Checks that the last warp of a block, which ends, has seen all uses of its memory by other blocks.
    pub fn block_ends(&self, block: usize) -> Outcome<()> {
        let warps = self.warps / self.remote.len();
        let own = block * warps..(block + 1) * warps;
        let seen_time = |user: usize| {
            own.clone()
                .any(|w| self.seen[w][user] >= self.remote[block][user])
        };
        match (0..self.warps).find(|user| !seen_time(*user)) {
            None => Ok(()),
            Some(user) => {
                let why = format!(
                    "block {block} of the cluster ends while warp {user} may still use its shared memory"
                );
                Err(Raised::new(FaultKind::Misuse, why))
            }
        }
    }

    #[inline(always)]
    fn has_seen(&self, warp: usize, other: usize, time: u32) -> bool {
        time <= self.floor || warp == other || self.seen[warp][other] >= time
    }

    /// Checks and records an access of `warp` to `len` bytes at `at`.
    #[inline(always)]
    pub fn access(&mut self, warp: usize, at: usize, len: usize, kind: AccessKind) -> Outcome<()> {
        let (range, time, floor) = (self.range(at, len), self.now[warp], self.floor);
        for x in range {
            match kind {
                AccessKind::Read => {
                    // The common case: the write was seen by every warp, and the granule was read at this time
                    // before.
                    let g = &mut self.granules[x];
                    let settled = g.write_time.wrapping_sub(1) < floor && !g.pending;
                    if settled && g.read_time == time {
                        g.readers |= 1 << warp;
                    } else {
                        self.read(warp, x)?;
                    }
                }
                _ => self.write(warp, x, kind)?,
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn read(&mut self, warp: usize, x: usize) -> Outcome<()> {
        let g = self.granules[x];
        if g.pending || g.write_time == 0 || !self.has_seen(warp, g.writer as usize, g.write_time) {
            return Err(self.wrong_read(warp, x));
        }
        let (time, bit) = (self.now[warp], 1 << warp);
        let g = &mut self.granules[x];
        if g.read_time == time {
            g.readers |= bit;
        } else if g.readers & !bit == 0 || g.read_time <= self.floor {
            (g.read_time, g.readers) = (time, bit);
        } else {
            self.read_at_several_times(warp, x);
        }
        Ok(())
    }

    #[cold]
    fn read_at_several_times(&mut self, warp: usize, x: usize) {
        let g = &mut self.granules[x];
        let times = self.reads.entry(x).or_insert([0; LANES]);
        if g.read_time != SEVERAL {
            *times = std::array::from_fn(|u| {
                if g.readers >> u & 1 != 0 {
                    g.read_time
                } else {
                    0
                }
            });
            g.read_time = SEVERAL;
        }
        g.readers |= 1 << warp;
        times[warp] = self.now[warp];
    }

    #[inline(always)]
    fn write(&mut self, warp: usize, x: usize, kind: AccessKind) -> Outcome<()> {
        let g = self.granules[x];
        let both_atomic = g.origin == Origin::Atomic && kind == AccessKind::Atomic;
        let after_write = g.write_time == 0
            || both_atomic
            || self.has_seen(warp, g.writer as usize, g.write_time);
        let is_copied = g.pending || g.outgoing > 0;
        if is_copied || !after_write || kind == AccessKind::Atomic && g.write_time == 0 {
            return Err(self.wrong_write(warp, x, kind));
        }
        if g.readers & !(1 << warp) != 0 && g.read_time > self.floor {
            self.after_reads(warp, x)?;
        }
        let is_atomic = kind == AccessKind::Atomic;
        // Atomics of others race with a plain write of this warp, also if one of its own comes after it.
        let after_own =
            g.origin == Origin::Plain && g.writer as usize == warp && g.write_time > self.floor;
        let g = &mut self.granules[x];
        if !(is_atomic && after_own) {
            let origin = match kind {
                AccessKind::Atomic => Origin::Atomic,
                _ => Origin::Plain,
            };
            (g.write_time, g.writer, g.origin) = (self.now[warp], warp as u8, origin);
        }
        (g.read_time, g.readers) = (0, 0);
        Ok(())
    }

    fn after_reads(&mut self, warp: usize, x: usize) -> Outcome<()> {
        let g = self.granules[x];
        let times = if g.read_time == SEVERAL {
            self.reads.get(&x).copied()
        } else {
            None
        };
        for reader in super::lanes_of(g.readers) {
            let time = times.map_or(g.read_time, |t| t[reader]);
            if !self.has_seen(warp, reader, time) {
                let why = format!(
                    "warp {warp} writes shared memory at {} that warp {reader} reads, with no \
                     barrier between",
                    self.describe_granule(x)
                );
                return Err(Raised::new(FaultKind::SharedRace, why));
            }
        }
        Ok(())
    }

    fn describe_granule(&self, x: usize) -> String {
        format!(
            "offset {}",
            (x << self.shift) as i64 - crate::program::SHARED_START as i64
        )
    }

    #[cold]
    fn wrong_read(&self, warp: usize, x: usize) -> Raised {
        let (g, location) = (self.granules[x], self.describe_granule(x));
        if g.pending {
            let why = format!(
                "shared memory at {location} is the target of an asynchronous copy that was not waited for"
            );
            Raised::new(FaultKind::MissingWait, why)
        } else if g.write_time == 0 {
            let why = format!("nothing was written to shared memory at {location}");
            Raised::new(FaultKind::Uninitialised, why)
        } else {
            let why = format!(
                "warp {warp} reads shared memory at {location} that warp {} writes, with no barrier between",
                g.writer
            );
            Raised::new(FaultKind::SharedRace, why)
        }
    }

    #[cold]
    fn wrong_write(&self, warp: usize, x: usize, kind: AccessKind) -> Raised {
        let (g, location) = (self.granules[x], self.describe_granule(x));
        if g.pending || kind == AccessKind::Atomic && g.write_time == 0 {
            return self.wrong_read(warp, x);
        }
        if g.outgoing > 0 {
            let why = format!(
                "warp {warp} writes shared memory at {location}, the source of a bulk copy that was not waited for"
            );
            return Raised::new(FaultKind::MissingWait, why);
        }
        let why = format!(
            "warps {} and {warp} write shared memory at {location}, with no barrier between",
            g.writer
        );
        Raised::new(FaultKind::SharedRace, why)
    }

    /// The granules of `len` bytes at `at`; `len` is not 0.
    #[inline(always)]
    fn range(&self, at: usize, len: usize) -> std::ops::Range<usize> {
        at >> self.shift..((at + len - 1) >> self.shift) + 1
    }

    /// Records the start of an asynchronous copy of `warp` to `len` bytes at `at`.
    pub fn copy_begins(&mut self, warp: usize, at: usize, len: usize) -> Outcome<()> {
        self.access(warp, at, len, AccessKind::Write)?;
        for x in self.range(at, len) {
            self.granules[x].pending = true;
        }
        Ok(())
    }

    /// Records that an asynchronous copy of `warp` was waited for.
    pub fn copy_ends(&mut self, warp: usize, at: usize, len: usize) -> Outcome<()> {
        for x in self.range(at, len) {
            self.granules[x].pending = false;
        }
        self.access(warp, at, len, AccessKind::Write)
    }

    /// Records the start of a copy whose end the mbarrier at `mbarrier` will report.
    pub fn bulk_begins(
        &mut self,
        warp: usize,
        start: usize,
        len: usize,
        mbarrier: usize,
    ) -> Outcome<()> {
        self.copy_begins(warp, start, len)?;
        for x in self.range(start, len) {
            self.granules[x].origin = Origin::BulkCopy;
        }
        self.in_flight.push((mbarrier, start, len));
        self.release(warp, mbarrier);
        Ok(())
    }

    /// Records that all warps have met.
    pub fn everyone_met(&mut self) {
        self.proxies.met(0..self.warps);
        self.floor = self.clock;
        self.clock += 1;
        self.now.fill(self.clock);
    }

    /// Records that `warps` have met while others run on.
    pub fn met(&mut self, warps: &[usize]) {
        let mut joint = [0; LANES];
        for &w in warps {
            join(&mut joint, &self.seen[w]);
            joint[w] = joint[w].max(self.now[w]);
        }
        self.proxies.met(warps.iter().copied());
        self.clock += 1;
        for &w in warps {
            self.seen[w] = joint;
            self.now[w] = self.clock;
        }
    }

    /// Records a new mbarrier of `warp` at `at`.
    pub fn mbarrier_init(&mut self, warp: usize, at: usize) -> Outcome<()> {
        self.mbarriers.remove(&at);
        self.access(warp, at, 8, AccessKind::Write)
    }

    /// Checks that some warp waited for each copy that an mbarrier reports.
    pub fn all_copied(&self) -> Outcome<()> {
        let Some(&(_, at, _)) = self.in_flight.first() else {
            return Ok(());
        };
        let location = self.describe_granule(at >> self.shift);
        let why = format!("the block ends with a bulk copy to {location} that was not waited for");
        Err(Raised::new(FaultKind::MissingWait, why))
    }

    /// Checks that `warp` has seen the mbarrier's initialisation.
    pub fn mbarrier_use(&mut self, warp: usize, at: usize) -> Outcome<()> {
        let g = self.granules[at >> self.shift];
        match g.write_time != 0 && self.has_seen(warp, g.writer as usize, g.write_time) {
            true => Ok(()),
            false => Err(self.wrong_read(warp, at >> self.shift)),
        }
    }

    /// Returns the agent that reads the products of a warpgroup, which has seen what all its warps have seen. Of blocks
    /// with too many warps it is `warp`.
    pub fn product_begins(&mut self, warp: usize) -> usize {
        let (group, agent) = self.agent(warp);
        let Some(agent) = agent else { return warp };
        for u in 0..self.now.len() {
            let time_seen = |w: usize| if u == w { self.now[w] } else { self.seen[w][u] };
            let min_seen = group.clone().map(time_seen).min().unwrap_or(0);
            self.seen[agent][u] = self.seen[agent][u].max(min_seen);
        }
        agent
    }

    /// Records that `warp` has waited for products of its warpgroup that were executed.
    pub fn product_ends(&mut self, warp: usize) {
        if let (_, Some(agent)) = self.agent(warp) {
            self.seen[warp][agent] = self.now[agent];
            self.clock += 1;
            self.now[agent] = self.clock;
        }
    }

    fn agent(&self, warp: usize) -> (std::ops::Range<usize>, Option<usize>) {
        let group = warp / WARPGROUP;
        let agent = self.warps + group;
        (
            group * WARPGROUP..(group + 1) * WARPGROUP,
            Some(agent).filter(|agent| *agent < self.now.len()),
        )
    }

    /// Records that `warp` arrives at the mbarrier.
    pub fn release(&mut self, warp: usize, mbarrier: usize) {
        let times = self.mbarriers.entry(mbarrier).or_insert([0; LANES]);
        join(times, &self.seen[warp]);
        times[warp] = self.now[warp];
        self.proxies.release(warp, mbarrier);
        self.clock += 1;
        self.now[warp] = self.clock;
    }

    /// Records that `warp` saw a phase of the mbarrier end.
    pub fn acquire(&mut self, warp: usize, mbarrier: usize) {
        if let Some(times) = self.mbarriers.get(&mbarrier) {
            join(&mut self.seen[warp], times);
        }
        self.proxies.acquire(warp, mbarrier);
        let (shift, granules) = (self.shift, &mut self.granules);
        self.in_flight.retain(|&(reporter, at, len)| {
            if reporter == mbarrier {
                for g in &mut granules[at >> shift..((at + len - 1) >> shift) + 1] {
                    g.pending = false;
                }
            }
            reporter != mbarrier
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(result: Outcome<()>) -> Option<FaultKind> {
        result.err().map(|raised| raised.kind)
    }

    #[test]
    fn a_barrier_orders_and_nothing_else_does() {
        let mut races = Races::new((1, 2), 64, 4);
        races.access(0, 0, 4, AccessKind::Write).unwrap();
        races.access(0, 0, 4, AccessKind::Read).unwrap();
        assert_eq!(
            kind(races.access(1, 0, 4, AccessKind::Read)),
            Some(FaultKind::SharedRace)
        );
        races.everyone_met();
        races.access(1, 0, 4, AccessKind::Read).unwrap();
        races.access(0, 0, 4, AccessKind::Read).unwrap();
        assert_eq!(
            kind(races.access(0, 0, 4, AccessKind::Write)),
            Some(FaultKind::SharedRace)
        );
        assert_eq!(
            kind(races.access(0, 4, 4, AccessKind::Read)),
            Some(FaultKind::Uninitialised)
        );
    }

    #[test]
    fn an_mbarrier_orders_those_who_use_it() {
        let mut races = Races::new((1, 3), 64, 4);
        races.access(0, 0, 4, AccessKind::Write).unwrap();
        races.release(0, 32);
        races.acquire(1, 32);
        races.access(1, 0, 4, AccessKind::Read).unwrap();
        races.access(1, 4, 4, AccessKind::Write).unwrap();
        assert_eq!(
            kind(races.access(2, 0, 4, AccessKind::Read)),
            Some(FaultKind::SharedRace)
        );
        // Readers at different times: the writer must have seen each.
        races.release(1, 40);
        races.access(0, 0, 4, AccessKind::Read).unwrap();
        races.acquire(2, 40);
        assert_eq!(
            kind(races.access(2, 0, 4, AccessKind::Write)),
            Some(FaultKind::SharedRace)
        );
        races.release(0, 40);
        races.acquire(2, 40);
        races.access(2, 0, 4, AccessKind::Write).unwrap();
    }

    #[test]
    fn a_copy_must_be_waited_for() {
        let mut races = Races::new((1, 1), 64, 4);
        races.copy_begins(0, 0, 16).unwrap();
        assert_eq!(
            kind(races.access(0, 8, 4, AccessKind::Read)),
            Some(FaultKind::MissingWait)
        );
        races.copy_ends(0, 0, 16).unwrap();
        races.access(0, 8, 4, AccessKind::Read).unwrap();
        races.bulk_begins(0, 0, 16, 48).unwrap();
        assert_eq!(
            kind(races.access(0, 8, 4, AccessKind::Read)),
            Some(FaultKind::MissingWait)
        );
        races.acquire(0, 48);
        races.access(0, 8, 4, AccessKind::Read).unwrap();
    }
}
