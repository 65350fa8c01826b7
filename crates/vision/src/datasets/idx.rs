//! IDX, the format of MNIST's files: a magic number with the type and the number of dims, their sizes as big-endian
//! numbers of 32 bits, the elements.

use super::files::{take, unpacked};
use crate::fault::{invalid, io};
use kiln_tensor::Result;
use std::io::Read;
use std::path::Path;

/// The type of the elements of images and labels.
const UNSIGNED_BYTES: u8 = 8;

/// The sizes and the elements of a file of bytes with `dims` dims, packed by gzip or not.
#[track_caller]
pub(super) fn read(op: &str, path: &Path, dims: usize) -> Result<(Vec<usize>, Vec<u8>)> {
    let mut file = unpacked(path).map_err(|e| io(op, path, e))?;
    let found = parse(&mut file, dims);
    found.map_err(|message| invalid(op, format!("{}: {message}", path.display())))
}

fn parse(file: &mut dyn Read, dims: usize) -> Result<(Vec<usize>, Vec<u8>), String> {
    let magic = take(file, 4)?;
    let [0, 0, kind, rank] = magic[..] else {
        return Err(format!("the magic number {magic:02x?} is none of IDX"));
    };
    if kind != UNSIGNED_BYTES || usize::from(rank) != dims {
        return Err(format!(
            "the elements are of type {kind} and have {rank} dims, in place of type {UNSIGNED_BYTES} (bytes) and {dims}"
        ));
    }
    let sizes = take(file, 4 * dims as u64)?;
    let (sizes, _) = sizes.as_chunks::<4>();
    let shape: Vec<usize> = sizes
        .iter()
        .map(|size| u32::from_be_bytes(*size) as usize)
        .collect();
    let len = shape
        .iter()
        .try_fold(1u64, |n, size| n.checked_mul(*size as u64));
    let len = len.ok_or_else(|| format!("{shape:?} elements are more than can be counted"))?;
    let elements = take(file, len)?;
    let mut rest = [0];
    match file.read(&mut rest).map_err(|e| e.to_string())? {
        0 => Ok((shape, elements)),
        _ => Err(format!("there is more behind the {len} elements")),
    }
}
