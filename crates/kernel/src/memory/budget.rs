//! Memory budgets of readers of untrusted files.

use super::{cache, machine_memory};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The memory that reading a file may take: the free memory within the limit, or of the machine if there is no limit.
///
/// Readers spend bytes before they allocate them. [`stats`](super::stats) does not count these, and each file has its
/// own budget. Errors have the kind [`ErrorKind::OutOfMemory`]; their messages state the bytes, their purpose, and the
/// remaining bytes.
///
/// ```
/// use kiln_kernel::memory::Budget;
/// use std::io::ErrorKind;
///
/// let mut file = &b"\x03abc"[..];
/// let mut budget = Budget::new();
/// let len = budget.read_exact(&mut file, 1, "the length")?[0];
/// assert_eq!(budget.read_exact(&mut file, len.into(), "the text")?, b"abc");
///
/// // A size that a damaged file claims takes no memory.
/// let short = budget.read_exact(&mut file, 1 << 20, "the text").unwrap_err();
/// assert_eq!(short.kind(), ErrorKind::UnexpectedEof);
/// let large = budget.read_exact(&mut file, 1 << 60, "the text").unwrap_err();
/// assert_eq!(large.kind(), ErrorKind::OutOfMemory);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Budget {
    remaining: u64,
    limit: Option<usize>,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget::new()
    }
}

impl Budget {
    /// Returns a budget of the memory that is free now.
    pub fn new() -> Budget {
        let stats = cache().ledger.stats;
        let limit_bytes = stats.limit.unwrap_or_else(machine_memory);
        Budget {
            remaining: limit_bytes.saturating_sub(stats.allocated) as u64,
            limit: stats.limit,
        }
    }

    /// Returns the bytes that are left.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Spends bytes on `what`.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn spend(&mut self, bytes: u64, what: &str) -> Result<()> {
        match self.remaining.checked_sub(bytes) {
            Some(remaining) => {
                self.remaining = remaining;
                Ok(())
            }
            None => Err(self.exceeded(bytes, what)),
        }
    }

    fn exceeded(&self, bytes: u64, what: &str) -> Error {
        let total = match self.limit {
            Some(limit) => format!("of the memory limit of {limit}"),
            None => "of the machine's memory".to_string(),
        };
        let message = format!(
            "{what} takes {bytes} bytes, and {} are left {total}",
            self.remaining
        );
        Error::new(ErrorKind::OutOfMemory, message)
    }

    /// Reads `len` bytes. The buffer grows with the bytes that are read, for any length that a header claims.
    ///
    /// # Errors
    /// If the budget or the reader has fewer bytes, there is no memory, or the reader fails.
    pub fn read_exact(
        &mut self,
        file: &mut (impl Read + ?Sized),
        len: u64,
        what: &str,
    ) -> Result<Vec<u8>> {
        self.spend(len, what)?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let count = self.read_chunk(file, len - bytes.len() as u64, &mut bytes, what)?;
            if count == 0 {
                let count = bytes.len();
                let message =
                    format!("{what} takes {len} bytes, but the file ends after {count} of them");
                return Err(Error::new(ErrorKind::UnexpectedEof, message));
            }
        }
        Ok(bytes)
    }

    /// Reads to the end.
    ///
    /// # Errors
    /// If the budget is exceeded, there is no memory, or the reader fails.
    pub fn read_to_end(&mut self, file: &mut (impl Read + ?Sized), what: &str) -> Result<Vec<u8>> {
        let (mut bytes, budget) = (Vec::new(), self.remaining);
        loop {
            let remaining = budget - bytes.len() as u64;
            // One byte beyond the budget shows that the end was not reached.
            let count = self.read_chunk(file, remaining.saturating_add(1), &mut bytes, what)?;
            if bytes.len() as u64 > budget {
                return Err(self.exceeded(
                    bytes.len() as u64,
                    &format!("{what}, as far as it was read,"),
                ));
            }
            if count == 0 {
                self.remaining = remaining;
                return Ok(bytes);
            }
        }
    }

    /// Returns an empty vector with a capacity of `len` elements.
    ///
    /// # Errors
    /// If fewer bytes are left, or there is no memory.
    pub fn reserve<T>(&mut self, len: usize, what: &str) -> Result<Vec<T>> {
        self.spend((len as u64).saturating_mul(size_of::<T>() as u64), what)?;
        let mut list = Vec::new();
        match list.try_reserve_exact(len) {
            Ok(()) => Ok(list),
            Err(_) => Err(no_memory(len as u64 * size_of::<T>() as u64, what)),
        }
    }

    /// Appends at most `max` bytes, in chunks that grow with the buffer.
    fn read_chunk(
        &self,
        file: &mut (impl Read + ?Sized),
        max: u64,
        bytes: &mut Vec<u8>,
        what: &str,
    ) -> Result<usize> {
        const MIN_PART: usize = 64 << 10;
        let chunk = max.min(bytes.len().max(MIN_PART) as u64);
        if bytes.try_reserve_exact(chunk as usize).is_err() {
            return Err(no_memory(bytes.len() as u64 + chunk, what));
        }
        Read::take(file, chunk).read_to_end(bytes)
    }
}

/// Returns the error of a failed allocation.
fn no_memory(bytes: u64, what: &str) -> Error {
    let message = format!("{what} takes {bytes} bytes, and the system has no memory for them");
    Error::new(ErrorKind::OutOfMemory, message)
}

/// Reads a whole file within a new budget.
///
/// # Errors
/// If the file can't be read, or has more bytes than the budget.
pub fn read_file(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let mut file = std::fs::File::open(path)?;
    let (len, mut budget) = (file.metadata()?.len(), Budget::new());
    let mut bytes = budget.read_exact(&mut file, len, "the file")?;
    // The size of a device or a pipe is not known, and that of a file may grow.
    bytes.append(&mut budget.read_to_end(&mut file, "the file")?);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_remaining(remaining: u64) -> Budget {
        Budget {
            remaining,
            limit: None,
        }
    }

    #[test]
    fn a_budget_is_spent_once() {
        let mut budget = with_remaining(10);
        assert_eq!(
            budget.read_exact(&mut &b"abcdef"[..], 6, "a").unwrap(),
            b"abcdef"
        );
        let error = budget
            .read_exact(&mut &b"abcdef"[..], 6, "the text")
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the text takes 6 bytes, and 4 are left of the machine's memory"
        );
        assert_eq!(budget.read_to_end(&mut &b"abcd"[..], "a").unwrap(), b"abcd");
        assert_eq!(budget.remaining(), 0);
        assert_eq!(budget.read_to_end(&mut &b""[..], "a").unwrap(), b"");
        assert!(budget.read_to_end(&mut &b"a"[..], "a").is_err());
    }

    #[test]
    fn endless_input_is_read_up_to_the_budget() {
        let mut budget = with_remaining(1 << 20);
        let error = budget
            .read_to_end(&mut std::io::repeat(0), "the text")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert!(
            error
                .to_string()
                .contains("1048577 bytes, and 1048576 are left"),
            "{error}"
        );
        let bytes = budget
            .read_exact(&mut std::io::repeat(7), 1 << 20, "it")
            .unwrap();
        assert_eq!((bytes.len(), bytes.capacity()), (1 << 20, 1 << 20));
    }

    #[test]
    fn a_claimed_size_takes_memory_only_for_bytes_that_exist() {
        let error = with_remaining(u64::MAX)
            .read_exact(&mut &[1; 100][..], 1 << 62, "it")
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "it takes {} bytes, but the file ends after 100 of them",
                1u64 << 62
            )
        );
    }
}
