//! Reading files that may be damaged.

use crate::fault::Fault;
use std::io::{ErrorKind, Read};

/// Fills `bytes` part by part, for a checksum to be computed from cached data.
pub(crate) fn fill(file: &mut (impl Read + ?Sized), bytes: &mut [u8]) -> Result<(), Fault> {
    const PART: usize = 1 << 18;
    for part in bytes.chunks_mut(PART) {
        let end = |e: std::io::Error| match e.kind() {
            ErrorKind::UnexpectedEof => "the file ends within it".into(),
            _ => Fault::from(e),
        };
        file.read_exact(part).map_err(end)?;
    }
    Ok(())
}

/// Returns the maximum number of bytes in memory for a file of `file_bytes`, at least `min`. Compressed and repeated
/// parts could otherwise take any amount.
#[cfg(feature = "pytorch")]
pub(crate) fn max_bytes(file_bytes: u64, min: u64) -> u64 {
    const TIMES: u64 = 8;
    file_bytes.saturating_mul(TIMES).saturating_add(min)
}
