//! `cp.async`: copies are executed only when they are waited for, so that a missing wait is found.

use super::core::Core;
use super::traffic::sectors;
use super::warp::Warp;
use super::{AccessKind, addresses, lanes_of};
use crate::code::AsyncCopy;
use crate::fault::Outcome;
use crate::lanes::LANES;

/// A pending copy.
struct Copy {
    lane: usize,
    /// The group of the lane that the copy belongs to.
    group: u32,
    to: usize,
    from: u64,
    size: usize,
    /// The number of bytes that are read; the rest is filled with zeros.
    read: usize,
}

/// The pending copies of a warp.
#[derive(Default)]
pub(crate) struct Copies {
    pending: Vec<Copy>,
    /// The open group of each lane.
    groups: [u32; LANES],
}

impl Copies {
    /// A lane with copies that were never waited for.
    pub fn unfinished(&self) -> Option<usize> {
        self.pending.first().map(|c| c.lane)
    }

    /// Closes the open group of each lane.
    pub fn commit(&mut self, mask: u32) {
        for l in lanes_of(mask) {
            self.groups[l] += 1;
        }
    }
}

impl Core<'_> {
    /// Begins a copy on each lane.
    pub fn begin_copies(&mut self, warp: &mut Warp, copy: &AsyncCopy, mask: u32) -> Outcome<()> {
        let to = addresses(&warp.registers, copy.to);
        let from = addresses(&warp.registers, copy.from);
        let size = copy.size as usize;
        if let Some(traffic) = &mut self.traffic {
            let reads = |l: &usize| {
                copy.read
                    .is_none_or(|slot| warp.registers.word(slot)[*l] > 0)
            };
            let read = lanes_of(mask)
                .filter(reads)
                .fold(0, |read, l| read | 1 << l);
            traffic.shared(&to, mask, size);
            traffic.copy_sectors += sectors(&from, read, size);
        }
        for l in lanes_of(mask) {
            let read = match copy.read {
                Some(slot) => (warp.registers.word(slot)[l] as usize).min(size),
                None => size,
            };
            let to = self
                .begin_copy(warp.id, Self::to_shared(to[l]), from[l], size, read)
                .map_err(|e| e.of_lane(l))?;
            let group = warp.copies.groups[l];
            warp.copies.pending.push(Copy {
                lane: l,
                group,
                to,
                from: from[l],
                size,
                read,
            });
        }
        Ok(())
    }

    fn begin_copy(
        &mut self,
        warp: usize,
        to: u64,
        from: u64,
        size: usize,
        read: usize,
    ) -> Outcome<usize> {
        Self::aligned(to, size, "the target of cp.async")?;
        Self::aligned(from, size, "the source of cp.async")?;
        let to = self.shared_bounds(to, size, "cp.async")?;
        if read > 0 {
            self.global_access(from, read, "cp.async", AccessKind::Read)?;
        }
        if let Some(races) = &mut self.races {
            races.copy_begins(warp, to, size)?;
        }
        Ok(to)
    }

    /// Carries out the copies of the lanes in `mask`, except those of the `keep` newest committed groups. `None`: all
    /// copies.
    pub fn end_copies(&mut self, warp: &mut Warp, keep: Option<u32>, mask: u32) -> Outcome<()> {
        let pending = std::mem::take(&mut warp.copies.pending);
        for copy in pending {
            let open = warp.copies.groups[copy.lane];
            let is_waited_for = keep.is_none_or(|keep| copy.group + keep < open);
            if mask >> copy.lane & 1 == 0 || !is_waited_for {
                warp.copies.pending.push(copy);
                continue;
            }
            if let Some(races) = &mut self.races {
                races
                    .copy_ends(warp.id, copy.to, copy.size)
                    .map_err(|e| e.of_lane(copy.lane))?;
            }
            let to = self.shared_pointer(copy.to);
            // SAFETY: both ranges were checked when the copy began, and the view keeps its allocations.
            unsafe {
                std::ptr::write_bytes(to, 0, copy.size);
                if copy.read > 0 {
                    let kind = AccessKind::Read;
                    let from = self.global_access(copy.from, copy.read, "cp.async", kind)?;
                    std::ptr::copy_nonoverlapping(from, to, copy.read);
                }
            }
        }
        Ok(())
    }
}
