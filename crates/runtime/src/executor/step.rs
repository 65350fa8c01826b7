//! Steps with known sizes.

use super::guard::Guard;
use super::loc::Loc;
use kiln_kernel::memory::ALIGN;
use kiln_kernel::work::Work;
use smallvec::SmallVec;
use std::sync::Arc;

/// Steps that another waits for, by position, in order; of those near by, none that others of them come after.
pub(super) type After = SmallVec<[u32; 4]>;

/// A step with known sizes.
#[derive(Clone)]
pub(super) struct BoundStep {
    pub work: Arc<dyn Work>,
    /// The arguments, and behind them the weights that were packed in *prepare*, if `packed` says so.
    pub args: SmallVec<[Loc; 6]>,
    pub packed: bool,
    /// Which of these it writes.
    pub writes: SmallVec<[bool; 6]>,
    /// Bytes of the arguments.
    #[cfg(feature = "testing")]
    pub sizes: SmallVec<[usize; 6]>,
    /// What may leave it out.
    pub guard: Option<Guard>,
    /// The byte offset of its scratch memory in the arena.
    pub scratch: usize,
    /// Index into the plan's steps.
    pub step: usize,
    /// The plan's site for each of the kernel's.
    pub sites: SmallVec<[u32; 2]>,
    /// Whether its parts may run at the same time.
    pub parallel: bool,
    /// Whether it runs at the same time as the step before it.
    pub joined: bool,
    /// The steps of its part that it waits for.
    pub after: After,
}

impl BoundStep {
    /// Where everything is that it touches, but for its scratch memory.
    pub fn locs(&self) -> impl Iterator<Item = Loc> + '_ {
        let guard = self.guard.iter().map(|guard| guard.loc);
        self.args.iter().copied().chain(guard)
    }

    /// Bytes of its scratch memory.
    pub fn scratch_bytes(&self) -> usize {
        let record = self.guard.as_ref().and_then(|g| g.launch.as_ref());
        record.map_or_else(|| self.work.scratch(), |(_, record)| record + ALIGN)
    }
}
