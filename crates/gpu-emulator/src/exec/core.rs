//! The state that the warps of a block share: memory and its checks.

use super::footprint::Touched;
use super::races::Races;
use super::traffic::Traffic;
use super::{AccessKind, BLOCK_SHIFT, LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW};
use crate::code::{Inst, Op};
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::Slot;
use crate::memory::{Allocation, View, describe};
use crate::program::{Kernel, SHARED_START};
use crate::ptx::Space;
use std::sync::Arc;

/// Memory as one block sees it.
pub(crate) struct Core<'a> {
    pub kernel: &'a Kernel,
    pub parameters: &'a [u8],
    view: &'a View,
    /// The allocation of the last access.
    last: usize,
    /// The shared memory of each block of the cluster, from its address 0 on.
    pub shared: Vec<u128>,
    /// The bytes of a block's.
    pub shared_len: usize,
    /// The bytes from one block's to the next one's.
    stride: usize,
    /// The block that runs, and the start of its shared memory.
    pub rank: usize,
    window: usize,
    /// The blocks of the cluster that have ended.
    pub ended: Vec<bool>,
    pub races: Option<Races>,
    /// The mbarriers that bulk copies can't see yet, and the warps that initialised them.
    pub unfenced: Vec<(usize, usize)>,
    /// The registers that products read and write.
    pub product_registers: Vec<Slot>,
    /// Each block's accesses to global memory, if blocks are checked against each other.
    pub touched: Vec<Touched>,
    /// Counts of accesses, if they are wanted.
    pub traffic: Option<Traffic>,
}

/// The registers that the products of a kernel read and write.
fn product_registers(kernel: &Kernel) -> Vec<Slot> {
    let registers_of = |inst: &Inst| match &inst.op {
        Op::WarpgroupMma(m) => m.d.iter().chain(&m.a).copied().collect(),
        _ => Vec::new(),
    };
    let mut registers: Vec<Slot> = kernel.code.iter().flat_map(registers_of).collect();
    registers.sort_unstable();
    registers.dedup();
    registers
}

impl<'a> Core<'a> {
    pub fn new(
        kernel: &'a Kernel,
        parameters: &'a [u8],
        view: &'a View,
        shared_len: usize,
        (blocks, warps): (usize, usize),
        check: bool,
    ) -> Core<'a> {
        let stride = shared_len.next_multiple_of(SHARED_START);
        let bytes = (blocks - 1) * stride + shared_len;
        Core {
            kernel,
            parameters,
            view,
            last: 0,
            shared: vec![0; bytes.div_ceil(16) + 1],
            shared_len,
            stride,
            rank: 0,
            window: 0,
            ended: vec![false; blocks],
            races: check.then(|| Races::new((blocks, warps), bytes, kernel.shared_granule)),
            unfenced: Vec::new(),
            product_registers: product_registers(kernel),
            touched: Vec::new(),
            traffic: None,
        }
    }

    /// Lets a block of the cluster run.
    pub fn enter(&mut self, rank: usize) {
        (self.rank, self.window) = (rank, rank * self.stride);
    }

    /// Prepares shared memory for new blocks, with garbage in it as on hardware.
    pub fn start(&mut self) {
        if self.shared_len > SHARED_START {
            self.shared.fill(0xffff_dead_ffff_dead_ffff_dead_ffff_dead);
        }
        self.unfenced.clear();
        self.ended.fill(false);
        if let Some(races) = &mut self.races {
            races.start();
        }
    }

    /// The allocation that holds `len` bytes at `address`.
    #[inline(always)]
    pub fn allocation(
        &mut self,
        address: u64,
        len: u64,
        what: &str,
    ) -> Outcome<&'a Arc<Allocation>> {
        let view: &'a View = self.view;
        if let Some(last) = view.get(self.last)
            && last.holds(address, len)
        {
            return Ok(last);
        }
        let above = view.partition_point(|a| a.base <= address);
        if above > 0 && view[above - 1].holds(address, len) {
            self.last = above - 1;
            return Ok(&view[above - 1]);
        }
        Err(self.outside(address, len, above, what))
    }

    #[cold]
    fn outside(&self, address: u64, len: u64, above: usize, what: &str) -> Raised {
        let relation = match above {
            0 => "; no allocation lies below".to_string(),
            _ => describe(&self.view[above - 1], address),
        };
        Raised::new(
            FaultKind::OutOfBounds,
            format!(
                "global {what} of {len} bytes at {address:#x} is outside every allocation{relation}"
            ),
        )
    }

    /// Records an access to the allocation that [`allocation`](Core::allocation) found last.
    #[inline(always)]
    pub fn touch(&mut self, address: u64, len: usize, access: AccessKind) {
        if let Some(touched) = self.touched.get_mut(self.rank) {
            let offset = (address - self.view[self.last].base) as usize;
            touched.touch(self.last, offset, len, access);
        }
    }

    /// Checks and records an access to global memory. What is read must have been written. Returns the host's pointer.
    pub fn global_access(
        &mut self,
        address: u64,
        len: usize,
        what: &str,
        kind: AccessKind,
    ) -> Outcome<*mut u8> {
        let allocation = self.allocation(address, len as u64, what)?;
        self.touch(address, len, kind);
        if kind == AccessKind::Write {
            allocation.mark_written(address, len);
        } else if let Some(at) = allocation.first_unwritten(address, len) {
            return Err(Raised::new(
                FaultKind::Uninitialised,
                format!(
                    "global {what} of {len} bytes at {address:#x}: nothing was written to {at:#x}, \
                     {} bytes into an allocation of {}",
                    at - allocation.base,
                    allocation.len
                ),
            ));
        }
        Ok(allocation.pointer(address))
    }

    /// The host's pointer to shared memory, which callers have checked.
    #[inline(always)]
    pub fn shared_pointer(&mut self, at: usize) -> *mut u8 {
        debug_assert!(at <= 16 * self.shared.len());
        // SAFETY: inside the storage.
        unsafe { (self.shared.as_mut_ptr() as *mut u8).add(at) }
    }

    /// Checks that `len` bytes at `at` are in shared memory. Returns their place.
    #[inline(always)]
    pub fn shared_bounds(&self, at: u64, len: usize, what: &str) -> Outcome<usize> {
        let start = at as usize;
        if at >= SHARED_START as u64 && at < u32::MAX as u64 && start + len <= self.shared_len {
            return Ok(self.window + start);
        }
        self.shared_elsewhere(at, len, what)
    }

    /// Checks and records a warp's access to shared memory. Returns the host's pointer.
    #[inline(always)]
    pub fn shared_access(
        &mut self,
        warp: usize,
        address: u64,
        len: usize,
        what: &str,
        kind: AccessKind,
    ) -> Outcome<*mut u8> {
        let start = self.shared_bounds(address, len, what)?;
        self.note_remote(warp, start);
        if let Some(races) = &mut self.races {
            races.access(warp, start, len, kind)?;
        }
        Ok(self.shared_pointer(start))
    }

    /// Notes that a warp uses a place in shared memory, in case it is another block's.
    #[inline(always)]
    pub fn note_remote(&mut self, warp: usize, place: usize) {
        if self.ended.len() > 1
            && place / self.stride != self.rank
            && let Some(races) = &mut self.races
        {
            races.uses_remote(warp, place / self.stride);
        }
    }

    /// The same of an address in another block of the cluster.
    #[cold]
    fn shared_elsewhere(&self, address: u64, len: usize, what: &str) -> Outcome<usize> {
        let (block, start) = (
            (address >> BLOCK_SHIFT) as usize,
            address as usize % (1 << BLOCK_SHIFT),
        );
        let ended = block.checked_sub(1).and_then(|rank| self.ended.get(rank));
        match ended {
            Some(true) => {
                let rank = block - 1;
                let why = format!("shared {what} in block {rank} of the cluster, which has ended");
                Err(Raised::new(FaultKind::Misuse, why))
            }
            Some(false) if start >= SHARED_START && start + len <= self.shared_len => {
                Ok((block - 1) * self.stride + start)
            }
            _ => Err(self.outside_shared(address, len, what)),
        }
    }

    #[cold]
    fn outside_shared(&self, address: u64, len: usize, what: &str) -> Raised {
        let offset = address as i64 - SHARED_START as i64;
        let size = self.shared_len - SHARED_START;
        let why = format!(
            "shared {what} of {len} bytes at offset {offset}, but the block has {size} bytes"
        );
        Raised::new(FaultKind::OutOfBounds, why)
    }

    /// Address and space of a generic address.
    #[inline(always)]
    pub fn narrow(address: u64) -> (Space, u64) {
        match address & (0xff << 56) {
            SHARED_WINDOW => (Space::Shared, address - SHARED_WINDOW),
            LOCAL_WINDOW => (Space::Local, address - LOCAL_WINDOW),
            PARAMETER_WINDOW => (Space::Param, address - PARAMETER_WINDOW),
            _ => (Space::Global, address),
        }
    }

    /// The address in shared memory, of a generic or a shared one.
    pub fn to_shared(address: u64) -> u64 {
        if address & (0xff << 56) == SHARED_WINDOW {
            address - SHARED_WINDOW
        } else {
            address
        }
    }

    /// Checks the alignment of an access.
    #[inline(always)]
    pub fn aligned(address: u64, len: usize, what: &str) -> Outcome<()> {
        if address & (len as u64 - 1) == 0 {
            return Ok(());
        }
        Err(Raised::new(
            FaultKind::Misaligned,
            format!("{what} of {len} bytes at {address:#x}, which is not a multiple of {len}"),
        ))
    }
}
