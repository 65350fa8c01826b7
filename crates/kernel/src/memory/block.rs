//! Blocks of memory from the system, and their contents.

use super::{Backing, Storage};
use crate::error::Result;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;

/// The alignment of every storage in bytes.
pub const ALIGN: usize = 64;

/// The minimum bytes of a block that is mapped, with huge pages if the system has them; also the size of a huge page.
const MIN_MAPPED: usize = 2 << 20;

/// A zero-initialised, aligned block that is freed on drop.
#[derive(Debug)]
pub(super) struct AlignedBlock {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: a block is plain memory that it alone owns; access is governed by its `Storage`.
unsafe impl Send for AlignedBlock {}
// SAFETY: as above; a shared block gives out only its address.
unsafe impl Sync for AlignedBlock {}

/// The alignment of the address of an empty block.
#[repr(align(64))]
struct Line;

impl AlignedBlock {
    /// The empty block, at an aligned address.
    pub(super) const EMPTY: AlignedBlock = AlignedBlock {
        ptr: NonNull::<Line>::dangling().cast(),
        len: 0,
    };

    /// Allocates a block of `len` bytes; `None` if the system has no memory.
    pub(super) fn new(len: usize) -> Option<AlignedBlock> {
        if len == 0 {
            return Some(AlignedBlock::EMPTY);
        }
        let ptr = if cfg!(target_os = "linux") && len >= MIN_MAPPED {
            map(len)?
        } else {
            let layout = Layout::from_size_align(len, ALIGN).ok()?;
            // SAFETY: the layout's size is not zero.
            NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })?
        };
        Some(AlignedBlock { ptr, len })
    }

    #[inline]
    pub(super) fn ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for AlignedBlock {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if cfg!(target_os = "linux") && self.len >= MIN_MAPPED {
            unmap(self.ptr, self.len);
        } else {
            let layout = Layout::from_size_align(self.len, ALIGN)
                .expect("the same layout was valid when the block was made");
            // SAFETY: `new` allocated the block with this layout.
            unsafe { std::alloc::dealloc(self.ptr.as_ptr(), layout) }
        }
    }
}

/// Maps `len` bytes, aligned for huge pages.
#[cfg(target_os = "linux")]
fn map(len: usize) -> Option<NonNull<u8>> {
    let span = len.checked_add(MIN_MAPPED)?;
    let (read_write, private) = (
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: an anonymous mapping at an address of the system's choice touches no other memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), span, read_write, private, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let padding = base.cast::<u8>().align_offset(MIN_MAPPED);
    let start = base.cast::<u8>().wrapping_add(padding);
    let page = 4096;
    let mapped_len = len.next_multiple_of(page);
    // SAFETY: both trimmed parts are within the mapping just made and are used by nobody; the rest
    // keeps the `len` bytes from `start`.
    unsafe {
        if padding > 0 {
            libc::munmap(base, padding);
        }
        if span.next_multiple_of(page) > padding + mapped_len {
            libc::munmap(
                start.add(mapped_len).cast(),
                span.next_multiple_of(page) - padding - mapped_len,
            );
        }
        libc::madvise(start.cast(), mapped_len, libc::MADV_HUGEPAGE);
    }
    NonNull::new(start)
}

#[cfg(target_os = "linux")]
fn unmap(ptr: NonNull<u8>, len: usize) {
    // SAFETY: `map` made this mapping, and its owner is being dropped.
    unsafe { libc::munmap(ptr.as_ptr().cast(), len.next_multiple_of(4096)) };
}

#[cfg(not(target_os = "linux"))]
fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(target_os = "linux"))]
fn unmap(_: NonNull<u8>, _: usize) {}

impl Storage {
    /// Returns the contents; empty for memory that is not on the host.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        if matches!(self.backing, Backing::Gpu(..)) {
            return &[];
        }
        // SAFETY: the block, or the owner of lent bytes, has at least `len` initialised bytes. Nothing writes them
        // while the storage is borrowed, except other processes with shared memory, of which every bit pattern is a
        // value.
        unsafe { std::slice::from_raw_parts(self.ptr(), self.len) }
    }

    /// Returns the contents for writing, and gives them a new identity. Empty for memory that the host does not own.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.renew();
        let is_own = match &self.backing {
            Backing::Host(_) | Backing::Shared(_) => true,
            Backing::Part(whole, _) => whole.is_own(),
            Backing::Gpu(..) | Backing::Lent(_) => false,
        };
        if !is_own {
            return &mut [];
        }
        // SAFETY: the block holds at least `len` initialised bytes and `self` is borrowed mutably. Whoever makes
        // overlapping parts of a block uses only one of them at a time.
        unsafe { std::slice::from_raw_parts_mut(self.ptr(), self.len) }
    }
}

/// Anonymous memory that forked children share, until the last such process ends.
#[derive(Debug)]
pub struct SharedMemory {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is plain memory. Any process may change it at any time, and every bit pattern of it is a value.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Maps a copy of `bytes`, which [`stats`](super::stats) does not count.
    ///
    /// # Errors
    /// If the system has none, or can't share memory.
    #[cfg(unix)]
    pub fn new(bytes: &[u8]) -> Result<Arc<SharedMemory>> {
        // Empty mappings are errors.
        let len = bytes.len().max(1);
        let (read_write, shared) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        );
        // SAFETY: an anonymous mapping at an address of the system's choice touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, read_write, shared, -1, 0) };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED);
        let start = start.ok_or_else(|| super::out_of_memory(len))?;
        let memory = SharedMemory { start, len };
        memory.write(bytes);
        Ok(Arc::new(memory))
    }

    /// Maps a copy of `bytes`.
    ///
    /// # Errors
    /// Always: this system can't share memory.
    #[cfg(not(unix))]
    pub fn new(_: &[u8]) -> Result<Arc<SharedMemory>> {
        let text = "memory can't be shared between processes on this system";
        Err(crate::error::Error::Buffer(text.into()))
    }

    /// Copies bytes to its beginning.
    pub fn write(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the mapping has this number of bytes, and `bytes` are others or the same.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.start.as_ptr(), bytes.len()) }
    }

    pub(super) fn ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(unix)]
impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping, and its last owner is being dropped.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
