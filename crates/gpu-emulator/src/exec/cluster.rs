//! The barrier of a cluster.

use super::block::ThreadBlock;
use crate::fault::{FaultKind, Outcome, Raised};

/// The barrier that all warps of a cluster arrive at.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct ClusterBarrier {
    /// The number of times that all have arrived.
    phase: u64,
    /// The warps that have arrived since.
    arrived: u32,
}

impl ThreadBlock<'_> {
    /// The key of a phase among the mbarriers that order warps.
    fn key(phase: u64) -> usize {
        usize::MAX - (phase % 2) as usize
    }

    /// Lets a warp arrive at the cluster's barrier, of which `mask` are the lanes that do.
    pub(super) fn arrive_at_cluster(&mut self, warp: usize, mask: u32) -> Outcome<()> {
        let w = &mut self.warps[warp];
        if mask != w.alive {
            let skip = w.alive & !mask;
            let why = format!("the lanes {skip:#010x} skip a barrier of the cluster");
            return Err(Raised::new(FaultKind::Divergence, why));
        }
        let phase = self.cluster.phase;
        if w.cluster_phase.replace(phase).is_some() {
            let why = "a warp arrives at the cluster's barrier twice, with no wait between";
            return Err(Raised::new(FaultKind::Misuse, why));
        }
        self.cluster.arrived |= 1 << warp;
        if let Some(races) = &mut self.core.races {
            races.release(warp, Self::key(phase));
        }
        self.release_cluster();
        Ok(())
    }

    /// Ends the phase if all warps that live have arrived.
    pub(super) fn release_cluster(&mut self) {
        let arrived = self.cluster.arrived;
        let alive = self.warps.iter().filter(|w| w.alive != 0);
        if arrived != 0 && { alive }.all(|w| arrived >> w.id & 1 != 0) {
            self.cluster = ClusterBarrier {
                phase: self.cluster.phase + 1,
                arrived: 0,
            };
        }
    }

    /// True if all warps have arrived at the barrier since this one did.
    pub(super) fn cluster_has_met(&mut self, warp: usize) -> Outcome<bool> {
        let w = &mut self.warps[warp];
        let Some(phase) = w.cluster_phase else {
            let why = "a warp waits for the cluster's barrier at which it did not arrive";
            return Err(Raised::new(FaultKind::Misuse, why));
        };
        if self.cluster.phase == phase {
            return Ok(false);
        }
        w.cluster_phase = None;
        if let Some(races) = &mut self.core.races {
            races.acquire(warp, Self::key(phase));
        }
        Ok(true)
    }
}
