//! Steps with known sizes.

use super::guard::Guard;
use super::loc::Loc;
use kiln_kernel::memory::ALIGN;
use kiln_kernel::work::LinkedKernel;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// The steps that another waits for, by position, ascending. Nearby steps that others of the list wait for are left
/// out.
pub(super) type After = SmallVec<[u32; 4]>;

/// A step with known sizes.
#[derive(Clone)]
pub(super) struct BoundStep {
    pub work: Arc<dyn LinkedKernel>,
    /// The arguments, and after them the weights that were packed in *prepare*, if `packed`.
    pub args: SmallVec<[Loc; 6]>,
    pub packed: bool,
    /// For each of these, true if the step writes it.
    pub writes: SmallVec<[bool; 6]>,
    /// Bytes of the arguments.
    pub sizes: SmallVec<[usize; 6]>,
    /// The guard that may skip it.
    pub guard: Option<Guard>,
    /// The byte offset of its scratch memory in the arena.
    pub scratch: usize,
    /// Index into the plan's steps.
    pub step: usize,
    /// The plan's site for each of the kernel's sites.
    pub sites: SmallVec<[u32; 2]>,
    /// True if its parts may be concurrent.
    pub parallel: bool,
    /// True if it is concurrent with the step before it.
    pub concurrent: bool,
    /// The steps of its part that it waits for.
    pub after: After,
}

impl BoundStep {
    /// The locations of everything that it touches, except its scratch memory.
    pub fn locs(&self) -> impl Iterator<Item = Loc> + '_ {
        let guard = self.guard.iter().map(|guard| guard.loc);
        self.args.iter().copied().chain(guard)
    }

    /// Returns the address ranges of all memory that it touches.
    pub fn memory(&self, address: impl Fn(Loc) -> *mut u8) -> impl Iterator<Item = Range<usize>> {
        let guard = self.guard.iter().map(|guard| (guard.loc, guard.bytes));
        let args = self.args.iter().copied().zip(self.sizes.iter().copied());
        let scratch = (Loc::Arena(self.scratch), self.scratch_bytes());
        let ranges = args.chain(guard).chain([scratch]);
        ranges
            .filter(|(_, bytes)| *bytes > 0)
            .map(move |(loc, bytes)| {
                let start = address(loc).addr();
                start..start + bytes
            })
    }

    /// Bytes of its scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        let record = self.guard.as_ref().and_then(|g| g.launch.as_ref());
        record.map_or_else(|| self.work.scratch(), |(_, record)| record + ALIGN)
    }
}
