//! Memory that a process shares with its forked children.

use super::{Backing, SharedMemory, Storage};
use crate::error::{Error, Result};
use std::sync::Arc;

impl SharedMemory {
    /// Returns a storage of the first `len` bytes, which a run may overwrite.
    ///
    /// # Errors
    /// If there are fewer bytes.
    pub fn storage(self: &Arc<SharedMemory>, len: usize) -> Result<Storage> {
        if len > self.len() {
            let text = format!("{len} bytes of shared memory of {}", self.len());
            return Err(Error::Buffer(text));
        }
        let storage = Storage::wrap(Backing::Shared(self.clone()), len);
        #[cfg(feature = "testing")]
        crate::interpreted::declare_memory(storage.ptr(), len, true);
        Ok(storage)
    }
}

impl Storage {
    /// Returns the shared memory of the storage, if it has such memory.
    pub fn shared(&self) -> Option<&Arc<SharedMemory>> {
        match &self.backing {
            Backing::Shared(memory) => Some(memory),
            _ => None,
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn storages_of_one_memory_show_the_same_bytes() {
        let memory = SharedMemory::new(&[1, 2, 3]).unwrap();
        let (mut a, b) = (memory.storage(3).unwrap(), memory.storage(3).unwrap());
        assert!(a.is_own() && a.id() != b.id() && memory.storage(4).is_err());
        a.bytes_mut()[1] = 9;
        assert_eq!(b.bytes(), [1, 9, 3]);
        memory.write(&[7]);
        drop((memory, b));
        assert_eq!(a.bytes(), [7, 9, 3]);
        assert!(
            SharedMemory::new(&[])
                .unwrap()
                .storage(0)
                .unwrap()
                .is_empty()
        );
    }
}
