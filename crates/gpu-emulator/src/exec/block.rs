//! One block, or the blocks of one cluster: their warps, barriers and memory.

use super::barrier::{BARRIERS, BarrierState};
use super::cluster::ClusterBarrier;
use super::core::Core;
use super::footprint::{Footprint, Touched};
use super::index_in;
use super::races::Races;
use super::traffic::Traffic;
use super::warp::{GroupState, Warp};
use crate::code::{Constant, Special};
use crate::fault::{Fault, FaultKind, Outcome, Raised};
use crate::lanes::{LANES, Registers};
use crate::launch::{Launch, Statistics};
use crate::memory::View;
use crate::program::SHARED_START;

/// The outcome of a warp's turn.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It waits for others.
    Blocked,
    /// It can continue.
    Yielded,
    /// Its lanes have exited.
    Done,
}

/// The blocks of a cluster, which usually is one block; used for one index after the other.
pub(crate) struct ThreadBlock<'a> {
    pub(super) launch: &'a Launch<'a>,
    pub(super) core: Core<'a>,
    /// The warps of one block after the other.
    pub(super) warps: Vec<Warp>,
    /// The warps of a block.
    pub(super) block_warps: usize,
    /// The barriers of each block.
    pub(super) barriers: Vec<BarrierState>,
    pub(super) cluster: ClusterBarrier,
    /// The index of the first block.
    index: [u32; 3],
    random: Random,
    /// The accesses of other blocks, if the launch has several blocks and checks them.
    others: Option<(&'a Footprint, &'a View)>,
    pub(super) statistics: Statistics,
    /// The current instruction and warp, for faults.
    pub(super) pc: u32,
    pub(super) warp: usize,
}

/// xorshift64; seed 0 asks for the natural order.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Random(pub u64);

impl Random {
    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % n.max(1)
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

impl<'a> ThreadBlock<'a> {
    pub fn new(
        launch: &'a Launch<'a>,
        parameters: &'a [u8],
        view: &'a View,
        others: Option<&'a Footprint>,
    ) -> ThreadBlock<'a> {
        let kernel = launch.kernel;
        let threads: u32 = launch.block.iter().product();
        let block_warps = threads.div_ceil(LANES as u32) as usize;
        let blocks = kernel.cluster.iter().product::<u32>() as usize;
        let dynamic = kernel.shared_end.next_multiple_of(kernel.dynamic_align);
        let shared_len = match launch.dynamic_shared {
            0 => kernel.shared_end,
            bytes => dynamic + bytes as usize,
        };
        let check = launch.options.shared_races;
        let sizes = (blocks, block_warps);
        let mut core = Core::new(kernel, parameters, view, shared_len, sizes, check);
        core.traffic = launch.options.traffic.then(Traffic::default);
        if others.is_some() {
            core.touched.resize_with(blocks, Touched::default);
        }
        let warp = |id| {
            let registers = Registers::new(kernel.words, kernel.predicates);
            Warp::new(id, registers, kernel.local_bytes)
        };
        let mut block = ThreadBlock {
            launch,
            core,
            warps: (0..blocks * block_warps).map(warp).collect(),
            block_warps,
            barriers: vec![BarrierState::default(); blocks * BARRIERS],
            cluster: ClusterBarrier::default(),
            index: [0; 3],
            random: Random(launch.options.seed),
            others: others.map(|o| (o, view)),
            statistics: Statistics::default(),
            pc: 0,
            warp: 0,
        };
        for warp in 0..block.warps.len() {
            block.fill_constants(
                warp,
                |c| !matches!(c, Constant::Special(s) if !s.is_of_launch()),
            );
        }
        block
    }

    /// The counts of all blocks so far.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            traffic: self.core.traffic.unwrap_or_default(),
            ..self.statistics
        }
    }

    /// Runs the blocks from `index` on to their end.
    pub fn run(&mut self, index: [u32; 3]) -> Result<(), Box<Fault>> {
        self.index = index;
        self.core.start();
        self.barriers.fill(BarrierState::default());
        self.cluster = ClusterBarrier::default();
        let threads: u32 = self.launch.block.iter().product();
        for warp in 0..self.warps.len() {
            self.warps[warp].start(threads - (warp % self.block_warps * LANES) as u32);
            self.fill_constants(
                warp,
                |c| matches!(c, Constant::Special(s) if !s.is_of_launch()),
            );
        }
        self.statistics.blocks += self.core.ended.len() as u64;
        self.take_turns()
            .map_err(|raised| Box::new(self.locate(raised)))?;
        let Some((footprint, view)) = self.others else {
            return Ok(());
        };
        let mut footprints = self.core.touched.iter_mut().enumerate();
        footprints
            .try_for_each(|(rank, touched)| {
                footprint
                    .add(touched, view)
                    .map_err(|raised| (rank, raised))
            })
            .map_err(|(rank, raised)| Box::new(self.of_block(rank, raised)))
    }

    /// The index of a block of the cluster.
    fn index_of(&self, rank: usize) -> [u32; 3] {
        let index = index_in(self.core.kernel.cluster, rank as u32);
        std::array::from_fn(|axis| self.index[axis] + index[axis])
    }

    /// The fault of a block as a whole.
    fn of_block(&self, rank: usize, raised: Raised) -> Fault {
        Fault {
            block: Some(self.index_of(rank)),
            ..Fault::of_kernel(&self.core.kernel.name, raised)
        }
    }

    fn take_turns(&mut self) -> Outcome<()> {
        let mut order: Vec<usize> = (0..self.warps.len()).collect();
        let end = self.statistics.instructions + self.launch.options.instruction_limit;
        loop {
            if self.launch.options.seed != 0 {
                self.random.shuffle(&mut order);
            }
            let (mut living, mut stuck) = (false, true);
            for &warp in &order {
                if self.warps[warp].alive == 0 {
                    continue;
                }
                living = true;
                let before = self.statistics.instructions;
                let fuel = match self.launch.options.seed {
                    0 => 100_000,
                    _ => 1 + self.random.below(200) as u64,
                };
                self.warp = warp;
                let outcome = self.run_warp(warp, fuel)?;
                stuck &= outcome == Turn::Blocked && self.statistics.instructions == before;
            }
            if !living {
                return self.check_finished();
            }
            if stuck {
                return Err(self.deadlock());
            }
            if self.statistics.instructions > end {
                let limit = self.launch.options.instruction_limit;
                let why = format!("a block ran {limit} instructions without an end");
                return Err(Raised::new(FaultKind::Endless, why));
            }
        }
    }

    /// Checks that nothing is unfinished when a block ends.
    fn check_finished(&mut self) -> Outcome<()> {
        for warp in 0..self.warps.len() {
            self.warp = warp;
            if let Some(lane) = self.warps[warp].copies.unfinished() {
                let why = "the thread exits with a cp.async that was not waited for";
                return Err(Raised::new(FaultKind::MissingWait, why).of_lane(lane));
            }
            if let Some(lane) = self.warps[warp].stores.unfinished() {
                let why = "the thread exits with a bulk copy whose source may not have been read";
                return Err(Raised::new(FaultKind::MissingWait, why).of_lane(lane));
            }
            if self.warps[warp].products.are_unfinished() {
                let why = "the warp exits with a wgmma that was not waited for";
                return Err(Raised::new(FaultKind::MissingWait, why));
            }
        }
        self.core.races.as_ref().map_or(Ok(()), Races::all_copied)
    }

    /// The fault of a deadlock: lists where each warp waits.
    fn deadlock(&mut self) -> Raised {
        let kernel = self.core.kernel;
        let mut positions = Vec::new();
        for warp in self.warps.iter().filter(|w| w.alive != 0) {
            for group in &warp.groups {
                let line = kernel.origin(group.pc).line;
                let lanes = if group.mask == !0 {
                    String::new()
                } else {
                    format!(" lanes {:#010x}", group.mask)
                };
                positions.push(format!("warp {}{lanes} at PTX line {line}", warp.id));
            }
        }
        positions.truncate(8);
        if let Some(warp) = self.warps.iter().position(|w| w.alive != 0) {
            self.warp = warp;
            self.pc = self.warps[warp].groups[0].pc;
        }
        let why = format!("no warp can continue: {}", positions.join(", "));
        Raised::new(FaultKind::Deadlock, why)
    }

    /// Adds the location to a fault.
    fn locate(&self, raised: Raised) -> Fault {
        let kernel = self.core.kernel;
        let origin = kernel.origin(self.pc);
        let lane = raised
            .lane
            .unwrap_or(self.warps[self.warp].alive.trailing_zeros() as usize % 32);
        let (rank, warp) = (self.warp / self.block_warps, self.warp % self.block_warps);
        let thread = (warp * LANES + lane) as u32;
        Fault {
            thread: Some(index_in(self.launch.block, thread)),
            ptx: Some((origin.line, kernel.text.line(origin.line))),
            source: kernel.text.source(origin),
            ..self.of_block(rank, raised)
        }
    }

    /// Sets the registers of the constants that are `wanted`.
    fn fill_constants(&mut self, warp: usize, wanted: impl Fn(&Constant) -> bool) {
        let kernel = self.core.kernel;
        for (slot, wide, constant) in kernel.constants.iter().filter(|c| wanted(&c.2)) {
            let values: [u64; LANES] =
                std::array::from_fn(|lane| self.constant(*constant, warp as u32, lane as u32));
            let registers = &mut self.warps[warp].registers;
            if *wide {
                *registers.wide_mut(*slot) = values;
            } else {
                *registers.word_mut(*slot) = values.map(|v| v as u32);
            }
        }
    }

    fn constant(&self, constant: Constant, warp: u32, lane: u32) -> u64 {
        let kernel = self.core.kernel;
        match constant {
            Constant::Value(value) => value,
            Constant::Parameter {
                offset,
                size,
                signed,
            } => {
                let bytes = &self.core.parameters[offset as usize..][..size as usize];
                let fill = if signed && bytes[bytes.len() - 1] & 0x80 != 0 {
                    0xff
                } else {
                    0
                };
                let mut word = [fill; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_le_bytes(word)
            }
            Constant::ParameterAddress(offset) | Constant::Local(offset) => offset as u64,
            Constant::Shared(offset) => offset as u64,
            Constant::SharedDynamic => {
                kernel.shared_end.next_multiple_of(kernel.dynamic_align) as u64
            }
            Constant::Special(special) => self.special(special, warp, lane) as u64,
        }
    }

    fn special(&self, special: Special, warp: u32, lane: u32) -> u32 {
        let cluster = self.core.kernel.cluster;
        let (rank, warp) = (
            warp as usize / self.block_warps,
            warp % self.block_warps as u32,
        );
        let component = |sizes: [u32; 3], axis: u8| sizes[axis as usize];
        let thread = warp * LANES as u32 + lane;
        let bit = 1u32 << lane;
        match special {
            Special::Thread(axis) => component(index_in(self.launch.block, thread), axis),
            Special::Threads(axis) => component(self.launch.block, axis),
            Special::Block(axis) => component(self.index_of(rank), axis),
            Special::Blocks(axis) => component(self.launch.grid, axis),
            Special::Cluster(axis) => component(self.index, axis) / component(cluster, axis),
            Special::Clusters(axis) => component(self.launch.grid, axis) / component(cluster, axis),
            Special::BlockOfCluster(axis) => {
                component(self.index_of(rank), axis) - component(self.index, axis)
            }
            Special::BlocksOfCluster(axis) => component(cluster, axis),
            Special::Rank => rank as u32,
            Special::Ranks => self.core.ended.len() as u32,
            Special::Lane => lane,
            Special::Warp => warp,
            Special::Warps => self.block_warps as u32,
            Special::MaskEqual => bit,
            Special::MaskLess => bit - 1,
            Special::MaskLessEqual => bit | (bit - 1),
            Special::MaskGreater => !(bit | (bit - 1)),
            Special::MaskGreaterEqual => !(bit - 1),
            Special::DynamicShared => self.launch.dynamic_shared,
            Special::TotalShared => (self.core.shared_len - SHARED_START) as u32,
            Special::Zero => 0,
            Special::One => 1,
        }
    }

    /// Explains why no group of a warp can run: an error unless the warp waits for other warps.
    pub(super) fn report_blocked(&mut self, warp: usize) -> Outcome<Turn> {
        let w = &self.warps[warp];
        let kernel = self.core.kernel;
        let waits = |state| w.groups.iter().find(|g| g.state == state);
        let Some(group) = waits(GroupState::AtBarrier).or(waits(GroupState::AtCollective)) else {
            return Ok(Turn::Blocked);
        };
        self.pc = group.pc;
        let waiting: Vec<String> = w
            .groups
            .iter()
            .filter(|g| g.pc != group.pc)
            .map(|g| {
                let line = kernel.origin(g.pc).line;
                format!("lanes {:#010x} are at PTX line {line}", g.mask)
            })
            .collect();
        let why = format!(
            "only the lanes {:#010x} of the warp arrive here; {}",
            group.mask,
            if waiting.is_empty() {
                "the others never do".to_string()
            } else {
                waiting.join(", ")
            }
        );
        let lane = group.mask.trailing_zeros() as usize;
        Err(Raised::new(FaultKind::Divergence, why).of_lane(lane))
    }
}
