//! Memory of pixels, recycled within a thread.

use std::cell::RefCell;
use std::fmt;
use std::mem::take;
use std::ops::{Deref, DerefMut};

/// The maximum number of bytes that a thread keeps for its next images.
const KEPT: usize = 8 << 20;

/// The minimum number of bytes worth keeping: smaller allocations come from memory that the process already has.
const WORTH: usize = 16 << 10;

thread_local! {
    /// Free memory: vectors with the length that they had when they were in use.
    static FREE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Bytes whose memory goes to the thread's next image when they are dropped. The system maps new memory page by page,
/// which takes as long as a transform.
#[derive(PartialEq, Eq, Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// A buffer of `len` bytes with unspecified contents.
    pub(crate) fn new(len: usize) -> Buffer {
        let fits = |free: &Vec<u8>| free.capacity() >= len;
        let recycled = FREE.try_with(|free| {
            let mut free = free.try_borrow_mut().ok()?;
            let best = (0..free.len()).filter(|n| fits(&free[*n]));
            let best = best.min_by_key(|n| free[*n].capacity())?;
            Some(free.swap_remove(best))
        });
        let mut bytes = recycled.ok().flatten().unwrap_or_default();
        bytes.resize(len, 0);
        Buffer(bytes)
    }

    /// Takes the bytes out, so that they are not recycled.
    pub(crate) fn into_vec(mut self) -> Vec<u8> {
        take(&mut self.0)
    }

    /// Keeps the first `len` bytes.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Buffer {
        Buffer(bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let bytes = take(&mut self.0);
        if bytes.capacity() < WORTH {
            return;
        }
        // A thread that is ending keeps nothing.
        let _ = FREE.try_with(|free| {
            if let Ok(mut free) = free.try_borrow_mut() {
                let kept: usize = free.iter().map(Vec::capacity).sum();
                if kept + bytes.capacity() <= KEPT {
                    free.push(bytes);
                }
            }
        });
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Buffer {
        let mut copy = Buffer::new(self.len());
        copy.copy_from_slice(self);
        copy
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_has_the_length_that_is_asked_for() {
        let first = Buffer::new(100_000);
        let place = first.as_ptr();
        drop(first);
        let second = Buffer::new(70_000);
        assert_eq!((second.as_ptr(), second.len()), (place, 70_000));
        let third = Buffer::new(90_000);
        assert_ne!(third.as_ptr(), place);
        drop(second);
        assert_eq!(Buffer::new(100_000).len(), 100_000);
    }

    #[test]
    fn little_is_kept() {
        for _ in 0..3 {
            drop([(); 20].map(|()| Buffer::new(1 << 20)));
        }
        let kept = FREE.with(|free| free.borrow().iter().map(Vec::capacity).sum::<usize>());
        assert!(kept <= KEPT, "{kept}");
    }
}
