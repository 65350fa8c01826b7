//! Barriers of a block.

use super::block::ThreadBlock;
use super::warp::GroupState;
use crate::code::{Barrier, BarrierReduction, Op};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::LANES;

/// The number of barriers of a block.
pub(super) const BARRIERS: usize = 16;

/// One of the barriers of a block.
#[derive(Clone, Debug, Default)]
pub(crate) struct BarrierState {
    /// Warps that have arrived, each with the index of the barrier instruction.
    arrived: Vec<(usize, u32)>,
    /// Threads to wait for; `None`: all.
    threads: Option<u32>,
    /// Threads whose predicate holds.
    count: u32,
    /// Threads that supplied a predicate.
    voters: u32,
}

/// Returns the key of a barrier among the mbarriers that order warps, where some arrive without waiting.
fn key(id: u32) -> usize {
    usize::MAX - 2 - id as usize
}

impl ThreadBlock<'_> {
    /// Lets the group `group` of `warp`, which is all of its living lanes, arrive at the barrier at `pc`.
    pub(super) fn arrive(
        &mut self,
        warp: usize,
        group: usize,
        pc: u32,
        b: &Barrier,
    ) -> Outcome<()> {
        let w = &mut self.warps[warp];
        let lane = w.alive.trailing_zeros() as usize;
        let id = w.registers.word(b.id)[lane];
        let threads = b.threads.map(|slot| w.registers.word(slot)[lane]);
        if id as usize >= BARRIERS {
            let why = format!("barrier {id}, of {BARRIERS}");
            return Err(Raised::new(FaultKind::Misuse, why));
        }
        let id = id + (warp / self.block_warps * BARRIERS) as u32;
        if threads.is_some_and(|n| n == 0 || n % 32 != 0) {
            let why = format!("a barrier of {threads:?} threads, which are not whole warps");
            return Err(Raised::new(FaultKind::Misuse, why));
        }
        let barrier = &mut self.barriers[id as usize];
        if !barrier.arrived.is_empty() && barrier.threads != threads {
            let why = format!(
                "a barrier of {threads:?} threads, at which others await {:?}",
                barrier.threads
            );
            return Err(Raised::new(FaultKind::Misuse, why));
        }
        let elsewhere = barrier.arrived.iter().find(|(_, other_pc)| *other_pc != pc);
        if let (None, Some(&(other, other_pc))) = (threads, elsewhere) {
            let line = self.core.kernel.origin(other_pc).line;
            let why = format!(
                "warp {warp} is at this barrier while warp {other} waits at the one of PTX line {line}"
            );
            return Err(Raised::new(FaultKind::Divergence, why));
        }
        if let Some((_, _, source, negated)) = b.reduction {
            let holds = w.registers.predicates[source as usize];
            let holds = if negated { !holds } else { holds } & w.alive;
            barrier.count += holds.count_ones();
            barrier.voters += w.alive.count_ones();
        }
        barrier.threads = threads;
        barrier.arrived.push((warp, pc));
        if b.waits {
            w.groups[group].state = GroupState::Arrived(id);
        } else {
            w.groups[group].pc = pc + 1;
            // Later accesses of the warp are after its arrival.
            if let Some(races) = &mut self.core.races {
                races.release(warp, key(id));
            }
        }
        self.release_barriers();
        Ok(())
    }

    /// Releases the warps whose barriers are complete.
    pub(super) fn release_barriers(&mut self) {
        for id in 0..self.barriers.len() {
            if self.barriers[id].arrived.is_empty() {
                continue;
            }
            let block = &self.warps[id / BARRIERS * self.block_warps..][..self.block_warps];
            let alive = block.iter().filter(|w| w.alive != 0).count();
            let barrier = &self.barriers[id];
            let needed = barrier.threads.map_or(alive, |n| n as usize / LANES);
            // With every thread waited for, a warp that exited after it arrived no longer counts.
            let arrived = match barrier.threads {
                None => barrier
                    .arrived
                    .iter()
                    .filter(|(w, _)| self.warps[*w].alive != 0)
                    .count(),
                Some(_) => barrier.arrived.len(),
            };
            if arrived >= needed {
                let barrier = std::mem::take(&mut self.barriers[id]);
                self.release(id as u32, &barrier);
            }
        }
    }

    fn release(&mut self, id: u32, barrier: &BarrierState) {
        if let Some(races) = &mut self.core.races {
            let waits = |pc: u32| {
                let op = &self.core.kernel.code[pc as usize].op;
                matches!(op, Op::Barrier(b) if b.waits)
            };
            let waiting = barrier.arrived.iter().filter(|(_, pc)| waits(*pc));
            let mut warps: Vec<_> = waiting.map(|(w, _)| *w).collect();
            warps.sort_unstable();
            warps.dedup();
            if barrier.threads.is_none() && self.block_warps == self.warps.len() {
                races.everyone_met();
            } else {
                races.met(&warps);
                for warp in warps {
                    races.acquire(warp, key(id));
                }
            }
        }
        let kernel = self.core.kernel;
        for &(warp, _) in &barrier.arrived {
            let w = &mut self.warps[warp];
            for group in &mut w.groups {
                if group.state != GroupState::Arrived(id) {
                    continue;
                }
                if let Op::Barrier(b) = &kernel.code[group.pc as usize].op
                    && let Some((kind, d, ..)) = b.reduction
                {
                    let holds = match kind {
                        BarrierReduction::Count => false,
                        BarrierReduction::And => barrier.count == barrier.voters,
                        BarrierReduction::Or => barrier.count > 0,
                    };
                    if kind == BarrierReduction::Count {
                        w.registers.word_mut(d).fill(barrier.count);
                    } else {
                        w.registers
                            .set_predicate(d, if holds { !0 } else { 0 }, group.mask);
                    }
                }
                group.state = GroupState::Running;
                group.pc += 1;
            }
        }
    }
}
