//! The interpreter's loop.

use super::block::{ThreadBlock, Turn};
use super::races::WARPGROUP;
use super::warp::{Group, GroupState, Warp};
use super::{elements, matrix};
use crate::code::{Inst, Op};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::LANES;

/// The number of consecutive failed waits after which a wait counts as a deadlock.
const PATIENCE: u32 = 20_000;

/// The control flow after an instruction.
enum After {
    Next,
    Jump(u32),
    /// The groups of the warp have changed.
    Regroup,
    /// The warp lets others run before it goes on there.
    Yield(u32),
}

impl<'a> ThreadBlock<'a> {
    /// Runs a warp for up to `fuel` instructions.
    pub(super) fn run_warp(&mut self, warp: usize, mut fuel: u64) -> Outcome<Turn> {
        let code: &'a [Inst] = &self.core.kernel.code;
        self.core.enter(warp / self.block_warps);
        loop {
            self.warps[warp].merge();
            let Some(group) = self.warps[warp].next() else {
                return match self.warps[warp].groups.is_empty() {
                    true => Ok(Turn::Done),
                    false => self.report_blocked(warp),
                };
            };
            let w = &self.warps[warp];
            let Group { mut pc, mask, .. } = w.groups[group];
            let reconvergence = w.next_reconvergence(group);
            let others_wait =
                w.groups.len() > 1 && w.groups.iter().any(|g| g.state != GroupState::Running);
            loop {
                if pc >= reconvergence || others_wait && self.warps[warp].is_awaited(group, pc) {
                    self.warps[warp].groups[group].pc = pc;
                    break;
                }
                if fuel == 0 {
                    self.warps[warp].groups[group].pc = pc;
                    return Ok(Turn::Yielded);
                }
                fuel -= 1;
                let inst = &code[pc as usize];
                let w = &mut self.warps[warp];
                let guard = w.registers.predicates[inst.guard as usize];
                let active = mask & if inst.negated { !guard } else { guard };
                self.statistics.instructions += 1;
                if active == 0 {
                    pc += 1;
                    continue;
                }
                if let Op::Lanes { run, operands } = &inst.op {
                    // SAFETY: the loop was compiled for this machine.
                    unsafe { run(&mut w.registers, operands, active) };
                    pc += 1;
                    continue;
                }
                self.pc = pc;
                match self.execute(warp, group, pc, mask, active, &inst.op)? {
                    After::Next => pc += 1,
                    After::Jump(to) => pc = to,
                    After::Regroup => break,
                    After::Yield(to) => {
                        self.warps[warp].groups[group].pc = to;
                        return Ok(Turn::Yielded);
                    }
                }
            }
            if self.warps[warp].alive == 0 {
                return Ok(Turn::Done);
            }
        }
    }

    /// Executes an instruction that is not a loop over lanes.
    #[inline(always)]
    fn execute(
        &mut self,
        warp: usize,
        group: usize,
        pc: u32,
        mask: u32,
        active: u32,
        op: &'a Op,
    ) -> Outcome<After> {
        let core = &mut self.core;
        let w = &mut self.warps[warp];
        match op {
            Op::Lanes { .. } => unreachable!("the loop runs these itself"),
            Op::Load(access) => core.load(w, access, active)?,
            Op::Store(access) => core.store(w, access, active)?,
            Op::Branch(to) => return Ok(w.branch(group, pc, mask, active, |_| *to)),
            Op::BranchTable { index, targets } => {
                let index = *w.registers.word(*index);
                let to = |lane: usize| {
                    targets
                        .get(index[lane] as usize)
                        .copied()
                        .unwrap_or(u32::MAX)
                };
                if super::lanes_of(active).any(|l| to(l) == u32::MAX) {
                    return Err(Raised::new(FaultKind::Misuse, "a jump beyond its table"));
                }
                return Ok(w.branch(group, pc, mask, active, to));
            }
            Op::Exit => {
                self.exit(warp, group, pc, mask, active)?;
                return Ok(After::Regroup);
            }
            Op::Trap => {
                let lane = active.trailing_zeros() as usize;
                return Err(
                    Raised::new(FaultKind::Trap, "the kernel executed `trap`").of_lane(lane)
                );
            }
            Op::Atomic(atomic) => core.atomic(w, atomic, active)?,
            Op::Clock { d, wide } => {
                let count = self.statistics.instructions;
                match wide {
                    true => w.registers.wide_mut(*d).fill(count),
                    false => w.registers.word_mut(*d).fill(count as u32),
                }
            }
            Op::Barrier(barrier) => {
                if active != mask {
                    let skip = mask & !active;
                    let why = format!("the lanes {skip:#010x} skip a barrier that others reach");
                    return Err(Raised::new(FaultKind::Divergence, why));
                }
                w.groups[group].pc = pc;
                if mask == w.alive {
                    self.arrive(warp, group, pc, barrier)?;
                } else {
                    w.groups[group].state = GroupState::AtBarrier;
                }
                return Ok(After::Regroup);
            }
            Op::ClusterArrive => self.arrive_at_cluster(warp, active)?,
            Op::ClusterWait => {
                if !self.cluster_has_met(warp)? {
                    let why = "waiting for a barrier of the cluster at which not all warps arrive";
                    self.warps[warp].count_failed_wait(why)?;
                    return Ok(After::Yield(pc));
                }
                self.warps[warp].failed_waits = 0;
            }
            Op::AsyncCopy(copy) => core.begin_copies(w, copy, active)?,
            Op::AsyncCommit => w.copies.commit(active),
            Op::AsyncWait { pending } => {
                let lane = active.trailing_zeros() as usize;
                let keep = pending.map(|slot| w.registers.word(slot)[lane]);
                core.end_copies(w, keep, active)?;
            }
            Op::LoadMatrix(access) => core.load_matrix(w, access, active)?,
            Op::StoreMatrix(access) => core.store_matrix(w, access, active)?,
            Op::Mma(mma) => {
                elements::whole_warp(active, "mma")?;
                matrix::mma(&mut w.registers, mma);
            }
            Op::Mbarrier(op) => {
                if !core.mbarrier(w, op, active)? {
                    w.count_failed_wait("waiting for an mbarrier whose phase does not end")?;
                    return Ok(After::Yield(pc + 1));
                }
                w.failed_waits = 0;
            }
            Op::Bulk(op) => core.bulk(w, op, active)?,
            Op::AsyncFence { is_proxy } => {
                core.unfenced.retain(|(_, owner)| *owner != warp);
                if let Some(races) = core.races.as_mut().filter(|_| *is_proxy) {
                    races.proxy_fence(warp);
                }
            }
            Op::WarpgroupMma(mma) => core.begin_product(w, mma, pc, active)?,
            Op::WarpgroupFence => w.products.fence(&w.registers, &core.product_registers),
            Op::WarpgroupCommit => w.products.commit(),
            Op::WarpgroupWait { pending } => {
                if !self.complete_products(warp, *pending)? {
                    return Ok(After::Yield(pc));
                }
            }
            collective => return w.collective(group, pc, active, collective),
        }
        Ok(After::Next)
    }

    /// Completes all but the `keep` newest committed groups of products of a warp. Returns false if other warps of its
    /// warpgroup have not issued these yet.
    fn complete_products(&mut self, warp: usize, keep: u32) -> Outcome<bool> {
        let end = self.warps[warp].products.committed().saturating_sub(keep);
        let first_warp = warp / WARPGROUP * WARPGROUP;
        let group = first_warp..(first_warp + WARPGROUP).min(self.warps.len());
        let is_behind = |w: &&Warp| w.products.committed() < end;
        if let Some(other) = self.warps[group.clone()].iter().find(is_behind) {
            return match other.alive {
                0 => {
                    let why = format!("warp {} ends without a wgmma of its warpgroup", other.id);
                    Err(Raised::new(FaultKind::Divergence, why))
                }
                _ => Ok(false),
            };
        }
        let issued = self.warps[warp].products.issued(end);
        let mut others = self.warps[group.clone()].iter();
        if let Some(other) = others.find(|w| w.products.issued(end) != issued) {
            let why = format!(
                "warps {warp} and {} issue different numbers of wgmma",
                other.id
            );
            return Err(Raised::new(FaultKind::Divergence, why));
        }
        for other in &mut self.warps[group] {
            self.core.execute_products(other, end)?;
        }
        self.core.store_products(&mut self.warps[warp], end);
        if let Some(races) = &mut self.core.races {
            races.product_ends(warp);
        }
        Ok(true)
    }

    fn exit(&mut self, warp: usize, group: usize, pc: u32, mask: u32, active: u32) -> Outcome<()> {
        let w = &mut self.warps[warp];
        w.alive &= !active;
        if mask == active {
            w.groups.swap_remove(group);
        } else {
            w.groups[group] = Group {
                pc: pc + 1,
                mask: mask & !active,
                state: GroupState::Running,
            };
        }
        w.retry();
        if w.alive == 0 {
            let rank = warp / self.block_warps;
            let mut block = self.warps[rank * self.block_warps..][..self.block_warps].iter();
            self.core.ended[rank] = block.all(|w| w.alive == 0);
            if let Some(races) = self.core.races.as_ref().filter(|_| self.core.ended[rank]) {
                races.block_ends(rank)?;
            }
            self.release_barriers();
            self.release_cluster();
        }
        Ok(())
    }
}

impl Warp {
    /// Counts a failed wait; a fault if there were too many in a row.
    fn count_failed_wait(&mut self, why: &str) -> Outcome<()> {
        self.failed_waits += 1;
        match self.failed_waits > PATIENCE {
            true => Err(Raised::new(FaultKind::Deadlock, why)),
            false => Ok(()),
        }
    }

    /// Sends each lane of `active` to its `target`; the rest of `mask` goes to the next instruction.
    #[inline(always)]
    fn branch(
        &mut self,
        group: usize,
        pc: u32,
        mask: u32,
        active: u32,
        target: impl Fn(usize) -> u32,
    ) -> After {
        let first_target = target(active.trailing_zeros() as usize);
        if active == mask && super::lanes_of(active).all(|l| target(l) == first_target) {
            return After::Jump(first_target);
        }
        let mut targets: Vec<(u32, u32)> = Vec::new();
        if active != mask {
            targets.push((pc + 1, mask & !active));
        }
        for lane in super::lanes_of(active) {
            let to = target(lane);
            match targets.iter_mut().find(|(pc_of, _)| *pc_of == to) {
                Some((_, lanes)) => *lanes |= 1 << lane,
                None => targets.push((to, 1 << lane)),
            }
        }
        self.groups.swap_remove(group);
        let state = GroupState::Running;
        self.groups.extend(
            targets
                .into_iter()
                .map(|(pc, mask)| Group { pc, mask, state }),
        );
        After::Regroup
    }

    /// Executes a collective instruction once all lanes of its member mask have arrived.
    fn collective(&mut self, group: usize, pc: u32, active: u32, op: &Op) -> Outcome<After> {
        let members = match op {
            Op::WarpBarrier { members } | Op::Elect { members, .. } => *members,
            Op::Shuffle(s) => s.members,
            Op::Vote(v) => v.members,
            Op::Match(m) => m.members,
            Op::Redux(r) => r.members,
            Op::ActiveMask { d } => {
                self.set_words(*d, active, &[active; LANES]);
                return Ok(After::Next);
            }
            other => unreachable!("{other:?} is not a collective"),
        };
        let lane = active.trailing_zeros() as usize;
        let members = self.registers.word(members)[lane];
        if members >> lane & 1 == 0 {
            let why = format!("a lane that is not in its own member mask {members:#010x}");
            return Err(Raised::new(FaultKind::Divergence, why).of_lane(lane));
        }
        if members & self.alive & !active != 0 {
            self.groups[group].pc = pc;
            self.groups[group].state = GroupState::AtCollective;
            return Ok(After::Regroup);
        }
        match op {
            Op::Shuffle(s) => self.shuffle(s, active),
            Op::Vote(v) => self.vote(v, active),
            Op::Match(m) => self.matches(m, active),
            Op::Redux(r) => self.redux(r, active),
            Op::Elect { d, elected, .. } => self.elect(*d, *elected, active),
            _ => {}
        }
        Ok(After::Next)
    }
}
