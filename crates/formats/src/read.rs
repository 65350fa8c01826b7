//! Reading files that may be damaged.

use crate::fault::Fault;
use std::io::Read;

pub(crate) fn read_exact(
    file: &mut (impl Read + ?Sized),
    bytes: &mut [u8],
    what: &str,
) -> Result<(), Fault> {
    let found = take(file, bytes.len() as u64, what)?;
    bytes.copy_from_slice(&found);
    Ok(())
}

/// Reads `len` bytes. Memory grows with the bytes that exist, not with the length that a damaged header promises.
pub(crate) fn take(
    file: &mut (impl Read + ?Sized),
    len: u64,
    what: &str,
) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    Read::take(file, len).read_to_end(&mut bytes)?;
    let found = bytes.len();
    match found as u64 == len {
        true => Ok(bytes),
        false => Err(Fault::from(format!(
            "{what} takes {len} bytes, but the file ends after {found} of them"
        ))),
    }
}
