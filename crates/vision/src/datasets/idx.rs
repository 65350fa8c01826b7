//! IDX, the format of MNIST's files: a magic number with the type and the number of dims, their sizes as big-endian
//! numbers of 32 bits, the elements.

use super::files::open_unpacked;
use crate::fault::{damaged, io};
use kiln_tensor::Result;
use kiln_tensor::memory::Budget;
use std::io::{self, Read};
use std::path::Path;

/// The type of the elements of images and labels.
const UNSIGNED_BYTES: u8 = 8;

/// The sizes and the elements of a file of bytes, compressed by gzip or not. `check` judges the sizes before they take
/// memory.
#[track_caller]
pub(super) fn read<const DIMS: usize>(
    op: &str,
    path: &Path,
    budget: &mut Budget,
    check: impl FnOnce([usize; DIMS]) -> std::result::Result<(), String>,
) -> Result<([usize; DIMS], Vec<u8>)> {
    let contents = open_unpacked(path).and_then(|mut file| parse(&mut *file, budget, check));
    contents.map_err(|e| io(op, path, e))
}

fn parse<const DIMS: usize>(
    file: &mut dyn Read,
    budget: &mut Budget,
    check: impl FnOnce([usize; DIMS]) -> std::result::Result<(), String>,
) -> io::Result<([usize; DIMS], Vec<u8>)> {
    let magic = budget.read_exact(file, 4, "the magic number")?;
    let [0, 0, kind, rank] = magic[..] else {
        return Err(damaged(format!(
            "the magic number {magic:02x?} is not one of IDX"
        )));
    };
    if kind != UNSIGNED_BYTES || usize::from(rank) != DIMS {
        return Err(damaged(format!(
            "the elements are of type {kind} and have {rank} dims instead of type {UNSIGNED_BYTES} (bytes) and {DIMS}"
        )));
    }
    let sizes = budget.read_exact(file, 4 * DIMS as u64, "the sizes")?;
    let (sizes, _) = sizes.as_chunks::<4>();
    let shape: [usize; DIMS] = std::array::from_fn(|d| u32::from_be_bytes(sizes[d]) as usize);
    check(shape).map_err(damaged)?;
    let len = shape
        .iter()
        .try_fold(1u64, |n, size| n.checked_mul(*size as u64));
    let len =
        len.ok_or_else(|| damaged(format!("{shape:?} elements are more than can be counted")))?;
    let elements = budget.read_exact(file, len, "the array")?;
    match file.read(&mut [0])? {
        0 => Ok((shape, elements)),
        _ => Err(damaged(format!("there are more than {len} elements"))),
    }
}
