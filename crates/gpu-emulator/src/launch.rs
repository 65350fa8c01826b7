//! Launches.

use crate::exec::Traffic;
use crate::fault::{Fault, FaultKind, Raised};
use crate::lanes::LANES;
use crate::program::Kernel;

/// The options of execution.
#[derive(Copy, Clone, Debug)]
pub struct Options {
    /// Threads of the host to use. A kernel with atomics on global memory runs on one, so that results are the
    /// same every time.
    pub threads: usize,
    /// True if races, uninitialised reads and missing waits in shared memory are checked.
    pub shared_races: bool,
    /// True if races between blocks in global memory are checked.
    pub global_races: bool,
    /// 0: warps and blocks run in their natural order; otherwise in an order drawn from the seed.
    pub seed: u64,
    /// A block that executes more warp instructions than this is taken for endless.
    pub instruction_limit: u64,
    /// True if traffic is counted.
    pub traffic: bool,
}

impl Default for Options {
    fn default() -> Options {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        Options {
            threads,
            shared_races: true,
            global_races: true,
            seed: 0,
            instruction_limit: 1 << 31,
            traffic: false,
        }
    }
}

/// The counts of a launch.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Blocks that ran.
    pub blocks: u64,
    /// Instructions of warps.
    pub instructions: u64,
    /// The traffic, if it is counted.
    pub traffic: Traffic,
}

/// A kernel with a grid and parameters.
#[derive(Clone, Debug)]
pub struct Launch<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
    /// The bytes of all parameters, laid out as [`Kernel::parameters`] says.
    pub parameters: &'a [u8],
    /// The options of the execution.
    pub options: Options,
}

impl Launch<'_> {
    /// Fails for a launch that hardware refuses.
    pub(crate) fn check(&self) -> Result<(), Box<Fault>> {
        let wrong = |why: String| {
            let raised = Raised::new(FaultKind::Launch, why);
            Err(Box::new(Fault::of_kernel(&self.kernel.name, raised)))
        };
        let threads: u64 = self.block.iter().map(|&n| n as u64).product();
        let [bx, by, bz] = self.block;
        if threads == 0 || threads > 1024 || bx > 1024 || by > 1024 || bz > 64 {
            return wrong(format!("a block of {bx} × {by} × {bz} threads"));
        }
        let [gx, gy, gz] = self.grid;
        if gx == 0 || gy == 0 || gz == 0 || gx > i32::MAX as u32 || gy > 65535 || gz > 65535 {
            return wrong(format!("a grid of {gx} × {gy} × {gz} blocks"));
        }
        let cluster = self.kernel.cluster;
        let (blocks, warps) = (cluster.iter().product::<u32>(), threads.div_ceil(32));
        if (0..3).any(|axis| !self.grid[axis].is_multiple_of(cluster[axis])) || blocks > 8 {
            let (grid, [x, y, z]) = (self.grid, cluster);
            return wrong(format!(
                "a grid of {grid:?} blocks in clusters of {x} × {y} × {z}"
            ));
        }
        if blocks > 1 && u64::from(blocks) * warps > LANES as u64 {
            let why = format!("clusters of {blocks} blocks of {warps} warps are not emulated");
            return wrong(why);
        }
        if let Some(limit) = self.kernel.max_threads
            && threads > limit as u64
        {
            return wrong(format!(
                "a block of {threads} threads, but the kernel allows {limit}"
            ));
        }
        if self.parameters.len() != self.kernel.parameter_bytes {
            let (actual, expected) = (self.parameters.len(), self.kernel.parameter_bytes);
            return wrong(format!("{actual} bytes of parameters for {expected}"));
        }
        let shared = self.kernel.static_shared() as u64 + self.dynamic_shared as u64;
        if shared > MAX_SHARED {
            return wrong(format!("{shared} bytes of shared memory, of {MAX_SHARED}"));
        }
        Ok(())
    }
}

/// The maximum shared memory of a block, static and dynamic (sm_90).
pub const MAX_SHARED: u64 = 227 * 1024;

impl Statistics {
    /// Adds the counts of other blocks.
    pub fn add(&mut self, other: &Statistics) {
        self.blocks += other.blocks;
        self.instructions += other.instructions;
        self.traffic.add(&other.traffic);
    }
}
