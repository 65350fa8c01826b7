//! The bytes of a package: a mapped file, or memory.

use crate::error::{Error, Result, failed};
use kiln_runtime::memory::{Lender, Storage};
use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

/// The bytes, which begin at a multiple of 64.
#[derive(Debug)]
pub(crate) enum Map {
    File(Mmap),
    Memory(Storage),
}

/// No other process may change the file; see `Package::open`.
impl Lender for Map {
    fn bytes(&self) -> &[u8] {
        match self {
            Map::File(map) => map,
            Map::Memory(storage) => storage.bytes(),
        }
    }

    fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        if let Map::File(map) = self {
            // SAFETY: pages of a file that is mapped for reading have the same contents when they are read again. It
            // does no harm if they stay in memory.
            let _ = unsafe {
                map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Map {
    /// Maps a file.
    pub fn file(path: &Path) -> Result<Map> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(Error::SomethingElse("it is not a regular file".into()));
        }
        if metadata.len() == 0 {
            return Err(Error::SomethingElse("it is empty".into()));
        }
        // SAFETY: the mapping is only read; see `Package::open` for what the user promises of the file.
        Ok(Map::File(unsafe { Mmap::map(&file)? }))
    }

    /// A copy of bytes.
    pub fn memory(bytes: &[u8]) -> Result<Map> {
        let storage = Storage::from_bytes(bytes).map_err(failed("the package"))?;
        Ok(Map::Memory(storage))
    }
}
