//! A warp: registers, and its lanes in groups by program counter.

use super::bulk_stores::Stores;
use super::copy::Copies;
use super::warpgroup::Products;
use crate::lanes::Registers;

/// The state of a group of lanes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum GroupState {
    Running,
    /// Waiting for the other lanes that a warp-wide instruction names.
    AtCollective,
    /// At a barrier of the block that only some lanes of the warp have reached.
    AtBarrier,
    /// The whole warp has arrived at this barrier.
    Arrived(u32),
}

/// Lanes at the same instruction.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Group {
    pub pc: u32,
    pub mask: u32,
    pub state: GroupState,
}

/// One warp.
pub(crate) struct Warp {
    pub id: usize,
    pub registers: Registers,
    pub groups: Vec<Group>,
    /// Lanes that have not exited.
    pub alive: u32,
    /// Local memory, lane after lane.
    pub local: Vec<u8>,
    pub copies: Copies,
    pub stores: Stores,
    pub products: Products,
    /// The phase of the cluster's barrier at which it arrived, until it has waited for its end.
    pub cluster_phase: Option<u64>,
    /// The number of failed waits for an mbarrier or a cluster since the last that succeeded.
    pub failed_waits: u32,
}

impl Warp {
    pub fn new(id: usize, registers: Registers, local: usize) -> Warp {
        Warp {
            id,
            registers,
            groups: Vec::new(),
            alive: 0,
            local: vec![0; local * 32],
            copies: Copies::default(),
            stores: Stores::default(),
            products: Products::default(),
            cluster_phase: None,
            failed_waits: 0,
        }
    }

    /// Starts at the first instruction with `threads` lanes.
    pub fn start(&mut self, threads: u32) {
        self.alive = if threads >= 32 {
            !0
        } else {
            (1 << threads) - 1
        };
        self.groups.clear();
        self.groups.push(Group {
            pc: 0,
            mask: self.alive,
            state: GroupState::Running,
        });
        self.copies = Copies::default();
        self.stores = Stores::default();
        self.products = Products::default();
        self.cluster_phase = None;
        self.failed_waits = 0;
    }

    /// Joins groups at the same instruction.
    pub fn merge(&mut self) {
        let groups = &mut self.groups;
        let mut i = 0;
        while i < groups.len() {
            let mut j = i + 1;
            while j < groups.len() {
                let together = groups[i].pc == groups[j].pc
                    && !matches!(groups[i].state, GroupState::Arrived(_))
                    && !matches!(groups[j].state, GroupState::Arrived(_));
                if together {
                    groups[i].mask |= groups[j].mask;
                    groups[i].state = GroupState::Running;
                    groups.swap_remove(j);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// The group that runs next: the one with the lowest program counter.
    pub fn next(&self) -> Option<usize> {
        (0..self.groups.len())
            .filter(|&i| self.groups[i].state == GroupState::Running)
            .min_by_key(|&i| self.groups[i].pc)
    }

    /// The lowest program counter of the other running groups, at which `group` may reconverge with one.
    pub fn next_reconvergence(&self, group: usize) -> u32 {
        self.groups
            .iter()
            .enumerate()
            .filter(|(i, g)| *i != group && g.state == GroupState::Running)
            .map(|(_, g)| g.pc)
            .min()
            .unwrap_or(u32::MAX)
    }

    /// True if lanes outside `group` wait at `pc` for other lanes.
    pub fn is_awaited(&self, group: usize, pc: u32) -> bool {
        self.groups.iter().enumerate().any(|(i, g)| {
            i != group
                && g.pc == pc
                && matches!(g.state, GroupState::AtCollective | GroupState::AtBarrier)
        })
    }

    /// Lets the groups that wait for others try again: some lanes exited.
    pub fn retry(&mut self) {
        for group in &mut self.groups {
            if matches!(
                group.state,
                GroupState::AtCollective | GroupState::AtBarrier
            ) {
                group.state = GroupState::Running;
            }
        }
    }
}
