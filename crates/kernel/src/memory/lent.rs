//! Read-only memory of another owner, such as a mapped file.

use super::{ALIGN, Backing, Storage};
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An owner of bytes that storages may refer to.
pub trait Lender: Send + Sync + 'static {
    /// Returns the bytes, which never change or move.
    fn bytes(&self) -> &[u8];

    /// Notifies the owner that a range is not read for now, so its pages may be released and restored later.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }
}

/// A range of the bytes of an owner.
pub(super) struct Lent {
    range: Range<usize>,
    lender: Arc<dyn Lender>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lent bytes {:?}", self.range)
    }
}

impl Lent {
    pub(super) fn ptr(&self) -> *mut u8 {
        let bytes = &self.lender.bytes()[self.range.clone()];
        assert!(bytes.as_ptr().addr().is_multiple_of(ALIGN));
        bytes.as_ptr().cast_mut()
    }
}

impl Storage {
    /// Returns a range of the bytes of another owner, without a copy. [`stats`](super::stats) does not count them. They
    /// are never written and can't be donated; a run that would reuse their memory writes a copy.
    ///
    /// # Errors
    /// If the bytes do not exist, or do not start at a multiple of [`ALIGN`].
    pub fn lent<L: Lender>(lender: &Arc<L>, range: Range<usize>) -> Result<Storage> {
        let bytes = lender.bytes().get(range.clone());
        if !bytes.is_some_and(|b| b.as_ptr().addr().is_multiple_of(ALIGN)) {
            let text = format!("bytes {range:?} of lent memory are not there, or not aligned");
            return Err(Error::Buffer(text));
        }
        let (len, lender) = (range.len(), lender.clone());
        Ok(Storage::wrap(Backing::Lent(Lent { range, lender }), len))
    }

    /// True if a result may reuse the memory.
    pub fn is_own(&self) -> bool {
        !matches!(self.backing, Backing::Lent(_) | Backing::Part(..))
    }

    /// Notifies the lender that the bytes are not read for now.
    pub fn release(&self) {
        if let Backing::Lent(lent) = &self.backing {
            lent.lender.release(lent.range.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Bytes([u8; 256]);

    impl Lender for Bytes {
        fn bytes(&self) -> &[u8] {
            &self.0
        }
    }

    #[test]
    fn lent_bytes_are_read_in_place_and_kept_alive() {
        let holder = Arc::new(Bytes(std::array::from_fn(|i| i as u8)));
        let mut storage = Storage::lent(&holder, 64..192).unwrap();
        assert_eq!(storage.bytes().as_ptr(), holder.0[64..].as_ptr());
        assert!(storage.bytes_mut().is_empty() && !storage.is_own());
        for wrong in [1..64, 64..300, 300..400] {
            assert!(Storage::lent(&holder, wrong).is_err());
        }
        drop(holder);
        assert_eq!(storage.bytes()[127], 191);
    }
}
