//! Extracts the PTX from machine code; the PTX is emulated in its place.

use crate::status::{Failure, INVALID_IMAGE, NO_BINARY, failure};
use std::ffi::CStr;

/// `EM_CUDA`.
const MACHINE: u64 = 190;
/// The type of the section with the PTX, from the range for users; Kiln's engine adds this section.
const PTX: u64 = 0x8000_0000 | u32::from_le_bytes(*b"PTX\0") as u64;
const SECTION: usize = 64;

/// The PTX of machine code for devices of exactly this compute capability. `read(at, len)` returns bytes of the file;
/// a file of unknown length is read as far as its own headers declare.
pub(crate) fn ptx<'a>(
    read: impl Fn(usize, usize) -> Option<&'a [u8]>,
    capability: u64,
) -> Result<String, Failure> {
    let other = || failure(NO_BINARY, "this is not machine code of a GPU");
    // 64 bits, little-endian. A file of another kind may be shorter than a whole header.
    let identity = read(0, 16).filter(|i| i.starts_with(b"\x7fELF\x02\x01"));
    let version = identity.ok_or_else(other)?[8];
    let header = read(0, 64).ok_or(INVALID_IMAGE)?;
    if number(header, 18, 2) != MACHINE {
        return Err(other());
    }
    // The place of the architecture depends on the version of the format.
    let architecture = match version {
        8 => number(header, 48, 4) >> 8 & 0xff,
        _ => number(header, 48, 4) & 0xff,
    };
    if architecture != capability {
        let why = format!("machine code for sm_{architecture} on a device that is sm_{capability}");
        return Err(failure(NO_BINARY, why));
    }
    let (size, count) = (number(header, 58, 2), number(header, 60, 2));
    let read = |at: u64, len: u64| read(usize::try_from(at).ok()?, usize::try_from(len).ok()?);
    if size != SECTION as u64 {
        return Err(INVALID_IMAGE.into());
    }
    let sections = read(number(header, 40, 8), size * count).ok_or(INVALID_IMAGE)?;
    let (sections, _) = sections.as_chunks::<SECTION>();
    let section = sections.iter().find(|s| number(&s[..], 4, 4) == PTX);
    let section = section.ok_or_else(|| {
        let why = "machine code can't be emulated without its PTX: load PTX, or have Kiln compile it with \
                   KILN_CUDA_PTX=1";
        failure(NO_BINARY, why)
    })?;
    let text = read(number(section, 24, 8), number(section, 32, 8));
    let text = text.and_then(|text| CStr::from_bytes_with_nul(text).ok()?.to_str().ok());
    Ok(text.ok_or(INVALID_IMAGE)?.to_string())
}

/// The number in `size` bytes of a header.
fn number(header: &[u8], offset: usize, size: usize) -> u64 {
    let bytes = header[offset..offset + size].iter().rev();
    bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
}
