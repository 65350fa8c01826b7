//! Memory that a process shares with its forked children.

use super::{Home, SharedMemory, Storage};
use crate::error::{Error, Result};
use std::sync::Arc;

impl SharedMemory {
    /// Returns a storage of its first `len` bytes, which a run may write over like its own.
    ///
    /// # Errors
    /// If it has fewer.
    pub fn storage(self: &Arc<SharedMemory>, len: usize) -> Result<Storage> {
        if len > self.len() {
            let text = format!("{len} bytes of shared memory of {}", self.len());
            return Err(Error::Buffer(text));
        }
        let storage = Storage::at(Home::Shared(self.clone()), len);
        #[cfg(feature = "testing")]
        crate::interpreted::declare_memory(storage.ptr(), len, true);
        Ok(storage)
    }
}

impl Storage {
    /// Returns the shared memory that it lies in.
    pub fn shared(&self) -> Option<&Arc<SharedMemory>> {
        match &self.home {
            Home::Shared(memory) => Some(memory),
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
