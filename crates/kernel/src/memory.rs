//! Host memory: reference-counted [`Storage`] whose blocks are recycled through one bounded pool.
//!
//! All arenas, outputs and constants are allocated here, so [`stats`] and [`set_limit`] cover all memory of the
//! runtime.

mod block;
mod budget;
mod holder;
mod ledger;
mod lent;
mod shared;

use crate::error::{Error, Result};
use crate::lock::lock;
pub use crate::system::{can_evict, evict};
#[cfg(target_os = "linux")]
use crate::system::{container_memory, physical_memory};
use block::AlignedBlock;
pub use block::{ALIGN, SharedMemory};
pub use budget::{Budget, read_file};
pub use holder::{Category, Holder};
pub use ledger::{Ledger, MemoryEvent, MemoryHolders, MemoryStats};
pub use lent::Lender;
use lent::Lent;
use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

/// An aligned block of bytes, on the host or a GPU, with a globally unique identity.
///
/// The identity is that of the contents. It is never reused, and changes when donated memory is overwritten.
#[derive(Debug)]
pub struct Storage {
    id: Arc<u64>,
    len: usize,
    backing: Backing,
    /// The holder of host memory.
    holder: AtomicU32,
}

/// Memory of a device, implemented by its engine.
pub trait DeviceMemory: Any + Debug + Send + Sync {
    /// Returns its address on the device.
    fn ptr(&self) -> *mut u8;

    /// Returns the holder in the device's ledger.
    fn holder(&self) -> Holder;

    /// Changes the holder in the device's ledger.
    fn set_holder(&self, holder: Holder);
}

#[derive(Debug)]
enum Backing {
    Host(AlignedBlock),
    /// GPU memory, at an offset in bytes.
    Gpu(Arc<dyn DeviceMemory>, usize),
    /// A part of host or lent memory, at an offset in bytes.
    Part(Arc<Storage>, usize),
    /// Memory of another owner.
    Lent(Lent),
    /// Memory that other processes may share.
    Shared(Arc<SharedMemory>),
}

/// The maximum number of bytes that are kept for reuse.
const MAX_FREE: usize = 1 << 30;

struct Cache {
    /// Free blocks by size class.
    free: BTreeMap<usize, Vec<AlignedBlock>>,
    free_bytes: usize,
    ledger: Ledger,
}

static CACHE: Mutex<Cache> = Mutex::new(Cache {
    free: BTreeMap::new(),
    free_bytes: 0,
    ledger: Ledger::new(),
});

fn cache() -> MutexGuard<'static, Cache> {
    lock(&CACHE)
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the current figures.
pub fn stats() -> MemoryStats {
    cache().ledger.stats
}

/// Resets the peak to the bytes that are in use now.
pub fn reset_peak() {
    cache().ledger.reset_peak();
}

/// Returns the holders of the host's memory.
pub fn holders() -> MemoryHolders {
    cache().ledger.holders()
}

/// Starts or stops the history of the host's memory; returns the previous events.
pub fn keep_history(on: bool) -> Vec<MemoryEvent> {
    cache().ledger.keep_history(on)
}

/// Limits the bytes in use; allocations beyond it give [`Error::OutOfMemory`]. The default limit is the machine's
/// memory.
pub fn set_limit(limit: Option<usize>) {
    cache().ledger.stats.limit = limit;
}

/// Returns all unused blocks to the system.
pub fn empty_cache() {
    let mut c = cache();
    c.ledger.stats.reserved -= c.free_bytes;
    c.free_bytes = 0;
    let blocks = std::mem::take(&mut c.free);
    drop(c); // unmapping is slow and needs no lock
    drop(blocks);
}

/// Returns the size of the machine's or container's memory in bytes, or `usize::MAX` if it is unknown. Because the
/// system overcommits, larger allocations would succeed, and their use would kill the process.
pub fn machine_memory() -> usize {
    #[cfg(target_os = "linux")]
    {
        static BYTES: OnceLock<usize> = OnceLock::new();
        *BYTES.get_or_init(|| physical_memory().min(container_memory()))
    }
    #[cfg(not(target_os = "linux"))]
    usize::MAX
}

/// Returns the error of a failed request.
pub fn out_of_memory(bytes: usize) -> Error {
    cache().out_of_memory(bytes)
}

/// Returns the block size that serves a request: four classes per octave, at least [`ALIGN`].
fn size_class(bytes: usize) -> Option<usize> {
    let bytes = bytes.max(ALIGN);
    let step = (1usize << (usize::BITS - 1 - (bytes - 1).leading_zeros())) / 4;
    bytes.checked_next_multiple_of(step.max(ALIGN))
}

/// Returns the bytes that the ledger counts for a request.
fn ledger_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

fn allocate_block(bytes: usize, holder: Holder) -> Result<AlignedBlock> {
    crate::fork::count_thread();
    if bytes == 0 {
        return Ok(AlignedBlock::EMPTY);
    }
    let mut c = cache();
    let class = size_class(bytes).filter(|c| *c <= isize::MAX as usize / 2);
    let Some(class) = class else {
        return Err(c.out_of_memory(bytes));
    };
    let total = c.ledger.stats.allocated.saturating_add(ledger_bytes(bytes));
    if total > c.ledger.stats.limit.unwrap_or_else(machine_memory) {
        return Err(c.out_of_memory(bytes));
    }
    let block = match c.take(class) {
        Some(block) => block,
        None => {
            let mut fresh = AlignedBlock::new(class);
            if fresh.is_none() {
                drop(c);
                empty_cache();
                c = cache();
                fresh = AlignedBlock::new(class);
            }
            let Some(block) = fresh else {
                return Err(c.out_of_memory(bytes));
            };
            c.ledger.stats.reserved += class;
            c.outgrow(class);
            block
        }
    };
    (c.ledger).add(ledger_bytes(bytes), holder, block.ptr().addr());
    Ok(block)
}

/// The size below which free blocks of up to twice a request's class also serve it. Threads need buffers of many sizes
/// in succession; they then keep a few large blocks instead of a block per size. The statistics count the requested
/// bytes.
const SMALL: usize = 2 << 20;

impl Cache {
    fn out_of_memory(&self, requested: usize) -> Error {
        let MemoryStats {
            allocated, limit, ..
        } = self.ledger.stats;
        Error::OutOfMemory {
            requested,
            allocated,
            limit,
            holders: self.ledger.largest(),
        }
    }

    /// Takes a free block of this class, or a somewhat larger one.
    fn take(&mut self, class: usize) -> Option<AlignedBlock> {
        let max_class = if class < SMALL { 2 * class } else { class };
        let mut fitting = self.free.range_mut(class..=max_class);
        let block = fitting.find_map(|(_, blocks)| blocks.pop())?;
        self.free_bytes -= block.len();
        Some(block)
    }

    /// Returns a free block to the system that a new block of this class replaces.
    fn outgrow(&mut self, class: usize) {
        let min_class = if class < SMALL { class / 2 } else { class };
        let mut smaller = self.free.range_mut(min_class..class).rev();
        if let Some(block) = smaller.find_map(|(_, blocks)| blocks.pop()) {
            self.free_bytes -= block.len();
            self.ledger.stats.reserved -= block.len();
        }
    }
}

impl Storage {
    /// Allocates memory with arbitrary (but initialised) contents.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn new(len: usize) -> Result<Storage> {
        Storage::held_by(len, Holder::unknown(Category::Data))
    }

    /// As [`Storage::new`], for a holder.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn held_by(len: usize, holder: Holder) -> Result<Storage> {
        let backing = Backing::Host(allocate_block(len, holder)?);
        let storage = Storage::wrap(backing, len);
        storage.holder.store(holder.bits(), Ordering::Relaxed);
        #[cfg(feature = "testing")]
        crate::interpreted::declare_memory(storage.ptr(), len, true);
        Ok(storage)
    }

    fn wrap(backing: Backing, len: usize) -> Storage {
        Storage {
            id: Arc::new(next_id()),
            len,
            backing,
            holder: AtomicU32::new(Holder::unknown(Category::Data).bits()),
        }
    }

    /// Returns the holder in the ledger. Parts of blocks, and lent and shared memory, have none.
    pub fn holder(&self) -> Option<Holder> {
        match &self.backing {
            Backing::Host(_) => Some(Holder::from_bits(self.holder.load(Ordering::Relaxed))),
            Backing::Gpu(memory, _) => Some(memory.holder()),
            Backing::Part(..) | Backing::Lent(_) | Backing::Shared(_) => None,
        }
    }

    /// Changes the holder in the ledger. Has no effect on parts of blocks, and on lent and shared memory.
    pub fn set_holder(&self, holder: Holder) {
        match &self.backing {
            Backing::Host(block) if self.len > 0 => {
                let mut c = cache();
                let from = Holder::from_bits(self.holder.swap(holder.bits(), Ordering::Relaxed));
                let change = [from, holder];
                (c.ledger).hand_over(ledger_bytes(self.len), change, block.ptr().addr());
            }
            Backing::Gpu(memory, _) => memory.set_holder(holder),
            _ => {}
        }
    }

    /// Makes a line the holder, unless the holder is a line already. Keeps the category if `category` is `None`.
    pub fn claim(&self, category: Option<Category>, loc: &'static Location<'static>) {
        if let Some(holder) = self.holder().filter(|h| !h.is_line()) {
            self.set_holder(Holder::line(category.unwrap_or(holder.category()), loc));
        }
    }

    /// Wraps memory of a GPU.
    pub fn on_gpu(memory: Arc<dyn DeviceMemory>, len: usize) -> Storage {
        Storage::part_on_gpu(memory, 0, len)
    }

    /// Wraps a part of a GPU's memory.
    pub fn part_on_gpu(memory: Arc<dyn DeviceMemory>, offset: usize, len: usize) -> Storage {
        Storage::wrap(Backing::Gpu(memory, offset), len)
    }

    /// Returns the GPU's memory, if it is on one.
    pub fn device_memory(&self) -> Option<&dyn DeviceMemory> {
        match &self.backing {
            Backing::Host(_) | Backing::Part(..) | Backing::Lent(_) | Backing::Shared(_) => None,
            Backing::Gpu(memory, _) => Some(&**memory),
        }
    }

    /// Returns a part of host or lent memory, and keeps the memory alive. The caller uses only parts of a memory, and
    /// only one of several overlapping parts at a time.
    ///
    /// # Errors
    /// [`Error::Internal`] if the part does not exist or is not aligned.
    pub fn part(whole: &Arc<Storage>, offset: usize, len: usize) -> Result<Storage> {
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= whole.len);
        if !is_inside
            || !offset.is_multiple_of(ALIGN)
            || !matches!(whole.backing, Backing::Host(_) | Backing::Lent(_))
        {
            return Err(Error::Internal("a part that a block does not have".into()));
        }
        let storage = Storage::wrap(Backing::Part(whole.clone(), offset), len);
        #[cfg(feature = "testing")]
        crate::interpreted::declare_memory(storage.ptr(), len, true);
        Ok(storage)
    }

    /// Allocates a copy of `bytes`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Storage> {
        let mut s = Storage::new(bytes.len())?;
        s.bytes_mut().copy_from_slice(bytes);
        Ok(s)
    }

    /// Frees the memory to the system, without keeping it for reuse.
    pub fn give_back(mut self) {
        if let Backing::Host(block) = &mut self.backing {
            let block = std::mem::replace(block, AlignedBlock::EMPTY);
            if block.len() == 0 {
                return;
            }
            let mut c = cache();
            let holder = Holder::from_bits(*self.holder.get_mut());
            (c.ledger).remove(ledger_bytes(self.len), holder, block.ptr().addr());
            c.ledger.stats.reserved -= block.len();
            drop(c); // unmapping is slow and needs no lock
            drop(block);
        }
    }

    /// Returns the identity of the contents.
    #[inline]
    pub fn id(&self) -> u64 {
        *self.id
    }

    /// Returns a handle that lives as long as the contents.
    pub fn contents(&self) -> Weak<u64> {
        Arc::downgrade(&self.id)
    }

    /// True if the contents have this handle.
    pub fn holds(&self, contents: &Weak<u64>) -> bool {
        std::ptr::eq(contents.as_ptr(), &*self.id)
    }

    /// Returns the number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the contents a new identity, after a change.
    pub fn renew(&mut self) {
        self.id = Arc::new(next_id());
    }

    /// Returns its address, on its device.
    #[inline]
    pub fn ptr(&self) -> *mut u8 {
        match &self.backing {
            Backing::Host(block) => block.ptr(),
            Backing::Part(whole, offset) => whole.ptr().wrapping_add(*offset),
            Backing::Lent(lent) => lent.ptr(),
            Backing::Shared(memory) => memory.ptr(),
            Backing::Gpu(memory, offset) => memory.ptr().wrapping_add(*offset),
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let Backing::Host(block) = &mut self.backing else {
            return;
        };
        let block = std::mem::replace(block, AlignedBlock::EMPTY);
        let held = block.len();
        if held == 0 {
            return;
        }
        let mut c = cache();
        let holder = Holder::from_bits(*self.holder.get_mut());
        (c.ledger).remove(ledger_bytes(self.len), holder, block.ptr().addr());
        if c.free_bytes + held <= MAX_FREE {
            c.free_bytes += held;
            c.free.entry(held).or_default().push(block);
        } else {
            c.ledger.stats.reserved -= held;
            drop(c);
            drop(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_hold_their_requests_and_waste_at_most_a_quarter() {
        for bytes in (0..5000).chain([1 << 20, (1 << 20) + 1, (7 << 30) + 5]) {
            let class = size_class(bytes).unwrap();
            assert!(
                class >= bytes.max(1) && class.is_multiple_of(ALIGN),
                "{bytes}"
            );
            assert!(
                class - bytes <= (bytes / 4).max(ALIGN),
                "{bytes} -> {class}"
            );
            assert_eq!(size_class(class), Some(class));
        }
        assert_eq!(size_class(usize::MAX), None);
    }

    #[test]
    fn small_requests_take_free_blocks_of_up_to_twice_their_class() {
        let mut cache = Cache {
            free: BTreeMap::new(),
            free_bytes: 0,
            ledger: Ledger::new(),
        };
        let keep = |cache: &mut Cache, len: usize| {
            cache.free_bytes += len;
            let blocks = cache.free.entry(len).or_default();
            blocks.push(AlignedBlock::new(len).unwrap());
        };
        let take = |cache: &mut Cache, class| cache.take(class).map(|block| block.len());
        for len in [4096, 8192, SMALL, 2 * SMALL] {
            keep(&mut cache, len);
        }
        assert_eq!(take(&mut cache, 2048 - ALIGN), None);
        assert_eq!(take(&mut cache, 3072), Some(4096));
        assert_eq!(take(&mut cache, 4096), Some(8192));
        assert_eq!(take(&mut cache, 4096), None);
        assert_eq!(take(&mut cache, SMALL + SMALL / 4), None);
        assert_eq!(cache.free_bytes, 3 * SMALL);
        // A new larger block replaces one whose requests it can serve.
        for len in [1024, 4096] {
            keep(&mut cache, len);
        }
        cache.ledger.stats.reserved = 4096;
        cache.outgrow(6144);
        assert_eq!(
            (take(&mut cache, 4096), take(&mut cache, 1024)),
            (None, Some(1024))
        );
        cache.outgrow(2 * SMALL);
        assert_eq!(
            (cache.ledger.stats.reserved, cache.free_bytes),
            (0, 3 * SMALL)
        );
    }

    #[test]
    fn parts_keep_their_block_alive_and_are_in_bounds() {
        let whole = Arc::new(Storage::new(256).unwrap());
        let mut parts = [0, 128].map(|at| Storage::part(&whole, at, 128).unwrap());
        parts[0].bytes_mut().fill(1);
        parts[1].bytes_mut().fill(2);
        assert_eq!(parts[1].ptr(), whole.ptr().wrapping_add(128));
        for (offset, len) in [(1, 2), (128, 129), (usize::MAX - 63, 64), (320, 0)] {
            assert!(Storage::part(&whole, offset, len).is_err());
        }
        drop(whole);
        assert_eq!((parts[0].bytes()[127], parts[1].bytes()[0]), (1, 2));
        assert!(!parts[0].is_own());
    }

    #[test]
    fn ids_are_unique_and_change_with_contents() {
        let mut a = Storage::from_bytes(&[1, 2, 3]).unwrap();
        let b = Storage::new(3).unwrap();
        assert_ne!(a.id(), b.id());
        let before = a.id();
        a.bytes_mut()[0] = 9;
        assert_ne!(a.id(), before);
        assert_eq!(a.bytes(), [9, 2, 3]);
        assert_eq!(a.ptr() as usize % ALIGN, 0);
    }
}
