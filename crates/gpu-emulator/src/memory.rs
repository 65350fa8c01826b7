//! Global memory. Allocations have unique addresses with gaps between them, and addresses are never reused, so that
//! an access out of bounds or after freeing is found. Written bytes are tracked.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Free addresses around each allocation.
const GAP: u64 = 4096;

/// Addresses are multiples of this, as `cuMemAlloc` promises.
const ALIGN: u64 = 512;

/// The first address. Host memory lies elsewhere, so using a device address on the host faults.
const FIRST: u64 = 0x10_0000_0000;

/// One allocation.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub base: u64,
    pub len: u64,
    host: *mut u8,
    /// One byte for each byte: 1 when it was written. `None`: not tracked.
    written: Option<*mut u8>,
    /// Keeps the storage alive. Host memory that was registered is the caller's.
    _storage: Vec<Box<[u128]>>,
}

// SAFETY: the bytes are only accessed through raw pointers, as a GPU's memory is: a kernel that races reads
// unspecified values.
unsafe impl Send for Allocation {}
// SAFETY: as above.
unsafe impl Sync for Allocation {}

impl Allocation {
    /// True if the `len` bytes at `address` lie inside.
    #[inline(always)]
    pub fn holds(&self, address: u64, len: u64) -> bool {
        let offset = address.wrapping_sub(self.base);
        offset <= self.len && len <= self.len - offset
    }

    /// The host's pointer to `address`, which lies inside.
    #[inline(always)]
    pub fn pointer(&self, address: u64) -> *mut u8 {
        debug_assert!(self.holds(address, 0));
        // SAFETY: inside the storage.
        unsafe { self.host.add((address - self.base) as usize) }
    }

    /// The first byte from `address` on, of `len`, that was never written.
    #[inline(always)]
    pub fn first_unwritten(&self, address: u64, len: usize) -> Option<u64> {
        let written = self.written?;
        // SAFETY: inside the shadow, which is as long as the storage.
        let marks =
            unsafe { std::slice::from_raw_parts(written.add((address - self.base) as usize), len) };
        if marks.iter().fold(1, |bits, &mark| bits & mark) == 1 {
            return None;
        }
        marks
            .iter()
            .position(|&mark| mark == 0)
            .map(|i| address + i as u64)
    }

    /// Marks `len` bytes from `address` on as written.
    #[inline(always)]
    pub fn mark_written(&self, address: u64, len: usize) {
        if let Some(written) = self.written {
            // SAFETY: as in `first_unwritten`.
            unsafe { std::ptr::write_bytes(written.add((address - self.base) as usize), 1, len) }
        }
    }
}

/// Live allocations, sorted by address.
pub(crate) type View = Arc<[Arc<Allocation>]>;

/// An access from the host that no allocation holds.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{what} of {len} bytes at {address:#x} is outside every allocation{near}")]
pub struct NotAllocated {
    what: &'static str,
    address: u64,
    len: usize,
    near: String,
}

#[derive(Debug)]
struct Inner {
    allocations: BTreeMap<u64, Arc<Allocation>>,
    next: u64,
    /// The allocations as kernels see them, built on demand.
    view: Option<View>,
}

/// The global memory of the emulated devices, shared by all of a process.
#[derive(Debug)]
pub struct Memory {
    inner: RwLock<Inner>,
    track_writes: bool,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(true)
    }
}

fn zeros(len: usize) -> Box<[u128]> {
    vec![0; len.div_ceil(16) + 1].into_boxed_slice()
}

impl Memory {
    /// An empty memory. `track_writes`: reads of bytes that were never written are found.
    pub fn new(track_writes: bool) -> Memory {
        Memory {
            inner: RwLock::new(Inner {
                allocations: BTreeMap::new(),
                next: FIRST,
                view: None,
            }),
            track_writes,
        }
    }

    fn insert(&self, allocation: Allocation) {
        let mut inner = self.writer();
        inner
            .allocations
            .insert(allocation.base, Arc::new(allocation));
        inner.view = None;
    }

    /// Allocates `len` bytes with unspecified contents and returns their address.
    pub fn allocate(&self, len: usize) -> u64 {
        let mut storage = vec![zeros(len)];
        let host = storage[0].as_mut_ptr() as *mut u8;
        // NaN in every float type, so that what reads it stands out even when it isn't tracked.
        // SAFETY: inside the storage.
        unsafe { std::ptr::write_bytes(host, 0xff, len) };
        let written = self.track_writes.then(|| {
            storage.push(zeros(len));
            storage[1].as_mut_ptr() as *mut u8
        });
        let base = {
            let mut inner = self.writer();
            let base = inner.next;
            inner.next = (base + len as u64 + GAP).next_multiple_of(ALIGN);
            base
        };
        self.insert(Allocation {
            base,
            len: len as u64,
            host,
            written,
            _storage: storage,
        });
        base
    }

    /// Makes `len` bytes of host memory at `host` visible to kernels at the same address.
    ///
    /// # Safety
    /// The memory stays valid until [`free`](Memory::free) of its address.
    pub unsafe fn register_host(&self, host: *mut u8, len: usize) {
        self.insert(Allocation {
            base: host as u64,
            len: len as u64,
            host,
            written: None,
            _storage: Vec::new(),
        });
    }

    /// Frees the allocation at `address`; `false` if there is none. A running kernel keeps what it started with.
    pub fn free(&self, address: u64) -> bool {
        let mut inner = self.writer();
        let existed = inner.allocations.remove(&address).is_some();
        inner.view = None;
        existed
    }

    fn reader(&self) -> RwLockReadGuard<'_, Inner> {
        self.inner.read().expect("no holder of the lock panics")
    }

    fn writer(&self) -> RwLockWriteGuard<'_, Inner> {
        self.inner.write().expect("no holder of the lock panics")
    }

    /// The live allocations.
    pub(crate) fn view(&self) -> View {
        if let Some(view) = &self.reader().view {
            return view.clone();
        }
        let mut inner = self.writer();
        let view: View = inner.allocations.values().cloned().collect();
        inner.view = Some(view.clone());
        view
    }

    fn find(
        &self,
        what: &'static str,
        address: u64,
        len: usize,
    ) -> Result<Arc<Allocation>, NotAllocated> {
        let inner = self.reader();
        let below = inner
            .allocations
            .range(..=address)
            .next_back()
            .map(|(_, a)| a);
        match below {
            Some(a) if a.holds(address, len as u64) => Ok(a.clone()),
            _ => {
                let position = below.map_or(String::new(), |a| describe(a, address));
                Err(NotAllocated {
                    what,
                    address,
                    len,
                    near: position,
                })
            }
        }
    }

    /// Fails unless the `len` bytes at `address` lie in one allocation.
    pub fn check(&self, address: u64, len: usize) -> Result<(), NotAllocated> {
        self.find("access", address, len).map(drop)
    }

    /// Copies `bytes` to `address`.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<(), NotAllocated> {
        if bytes.is_empty() {
            return Ok(());
        }
        let allocation = self.find("write", address, bytes.len())?;
        let to = allocation.pointer(address);
        // SAFETY: `find` checked the bounds.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        allocation.mark_written(address, bytes.len());
        Ok(())
    }

    /// Copies from `address` into `bytes`.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), NotAllocated> {
        if bytes.is_empty() {
            return Ok(());
        }
        let allocation = self.find("read", address, bytes.len())?;
        let from = allocation.pointer(address);
        // SAFETY: `find` checked the bounds.
        unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Repeats `pattern` over `len` bytes from `address` on; `len` is a multiple of its length.
    pub fn fill(&self, address: u64, pattern: &[u8], len: usize) -> Result<(), NotAllocated> {
        let bytes: Vec<u8> = pattern.iter().copied().cycle().take(len).collect();
        self.write(address, &bytes)
    }

    /// Copies `len` bytes between addresses, along with their marks of written bytes.
    pub fn copy(&self, to: u64, from: u64, len: usize) -> Result<(), NotAllocated> {
        if len == 0 {
            return Ok(());
        }
        let (source, target) = (self.find("read", from, len)?, self.find("write", to, len)?);
        // SAFETY: `find` checked the bounds.
        unsafe { std::ptr::copy(source.pointer(from), target.pointer(to), len) };
        match (source.written, target.written) {
            (Some(marks), Some(to_marks)) => {
                let (from, to) = ((from - source.base) as usize, (to - target.base) as usize);
                // SAFETY: shadows are as long as their storage.
                unsafe { std::ptr::copy(marks.add(from), to_marks.add(to), len) };
            }
            _ => target.mark_written(to, len),
        }
        Ok(())
    }

    /// The first of the `len` bytes from `address` on that was never written.
    pub fn first_unwritten(&self, address: u64, len: usize) -> Option<u64> {
        self.find("read", address, len)
            .ok()?
            .first_unwritten(address, len)
    }
}

/// Describes the position of `address` relative to `allocation`, the nearest one below.
pub(crate) fn describe(allocation: &Allocation, address: u64) -> String {
    let (base, len) = (allocation.base, allocation.len);
    format!(
        "; the allocation below is {base:#x} with {len} bytes, {} bytes before",
        address - base
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_outside_and_after_freeing_are_found() {
        let memory = Memory::default();
        let (a, b) = (memory.allocate(100), memory.allocate(100));
        memory.write(a, &[1; 100]).unwrap();
        assert!(memory.write(a + 1, &[1; 100]).is_err());
        assert_eq!(memory.first_unwritten(b, 100), Some(b));
        memory.copy(b, a, 50).unwrap();
        assert_eq!(memory.first_unwritten(b, 100), Some(b + 50));
        assert!(memory.free(a) && !memory.free(a));
        assert!(memory.read(a, &mut [0]).is_err());
        assert_ne!(memory.allocate(100), a);
    }
}
