//! Memory of another owner, such as a mapped file: read, never written, never given away.

use super::{ALIGN, Home, Storage};
use crate::error::{Error, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// An owner of bytes that storages may refer to.
pub trait Lender: Send + Sync + 'static {
    /// Returns the bytes: always the same ones.
    fn bytes(&self) -> &[u8];

    /// Notifies that some of them are not read for now: their memory may be returned to the system, if it can be
    /// restored.
    fn release(&self, range: Range<usize>) {
        let _ = range;
    }
}

/// A range of the bytes of an owner.
pub(super) struct Lent {
    range: Range<usize>,
    holder: Arc<dyn Lender>,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lent bytes {:?}", self.range)
    }
}

impl Lent {
    pub(super) fn ptr(&self) -> *mut u8 {
        let bytes = &self.holder.bytes()[self.range.clone()];
        assert!(bytes.as_ptr().addr().is_multiple_of(ALIGN));
        bytes.as_ptr().cast_mut()
    }
}

impl Storage {
    /// Returns some of the bytes of another owner, in place. They are not part of the figures of
    /// [`stats`](super::stats), are never written, and can't be donated: a run whose result would take their memory
    /// writes a copy.
    ///
    /// # Errors
    /// If the bytes do not exist, or do not start at a multiple of [`ALIGN`].
    pub fn lent<L: Lender>(holder: &Arc<L>, range: Range<usize>) -> Result<Storage> {
        let bytes = holder.bytes().get(range.clone());
        if !bytes.is_some_and(|b| b.as_ptr().addr().is_multiple_of(ALIGN)) {
            let text = format!("bytes {range:?} of lent memory are not there, or not aligned");
            return Err(Error::Buffer(text));
        }
        let (len, holder) = (range.len(), holder.clone());
        Ok(Storage::at(Home::Lent(Lent { range, holder }), len))
    }

    /// True if its memory may be given to a result.
    pub fn is_own(&self) -> bool {
        !matches!(self.home, Home::Lent(_) | Home::Part(..))
    }

    /// Notifies the lender that it is not read for now.
    pub fn release(&self) {
        if let Home::Lent(lent) = &self.home {
            lent.holder.release(lent.range.clone());
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
    fn lent_bytes_are_read_where_they_lie_and_outlive_other_handles() {
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
