//! MATLAB's files of version 5, as far as data sets need them: full arrays of numbers, little-endian.
//!
//! A header of 128 bytes, then elements: a tag of type and size, the contents, padded to 8 bytes. An array is an
//! element of elements (flags, sizes, name, numbers); most files have each array packed by zlib as an element.

use crate::fault::{damaged, io};
use flate2::read::ZlibDecoder;
use kiln_tensor::Result;
use kiln_tensor::memory::Budget;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const HEADER: usize = 128;

/// Types of elements.
const I8: u32 = 1;
const U8: u32 = 2;
const I32: u32 = 5;
const U32: u32 = 6;
const F64: u32 = 9;
const MATRIX: u32 = 14;
const PACKED: u32 = 15;

/// The maximum number of arrays of a file; a set has a few.
const MAX_ARRAYS: usize = 64;

/// An array, in column-major order.
pub(super) struct Array {
    pub shape: Vec<usize>,
    pub numbers: Numbers,
}

/// The numbers of an array, as the file has them.
pub(super) enum Numbers {
    Bytes(Vec<u8>),
    Floats(Vec<f64>),
}

/// The arrays of a file by name. What they take is spent before it is allocated.
#[track_caller]
pub(super) fn read(op: &str, path: &Path, budget: &mut Budget) -> Result<BTreeMap<String, Array>> {
    let file = File::open(path);
    let contents = file.and_then(|file| read_arrays(&mut BufReader::new(file), budget));
    contents.map_err(|e| io(op, path, e))
}

fn read_arrays(file: &mut dyn Read, budget: &mut Budget) -> io::Result<BTreeMap<String, Array>> {
    let header = budget.read_exact(file, HEADER as u64, "the header")?;
    match header[124..] {
        [0, 1, b'I', b'M'] => {}
        [1, 0, b'M', b'I'] => {
            return Err(damaged("a big-endian MATLAB file, which is not read"));
        }
        _ if header.starts_with(b"\x89HDF") || header[124..126] == [0, 2] => {
            let message = "a MATLAB file of version 7.3, which is not read; save it with '-v7'";
            return Err(damaged(message));
        }
        _ => return Err(damaged("this is no MATLAB file of version 5")),
    }
    let mut by_name = BTreeMap::new();
    while let Some((kind, size)) = read_tag(file)? {
        if by_name.len() == MAX_ARRAYS {
            return Err(damaged(format!("there are more than {MAX_ARRAYS} arrays")));
        }
        let mut element = Read::take(&mut *file, size);
        let contents = match kind {
            MATRIX => read_array(&mut element, size, budget)?,
            PACKED => {
                let mut unpacked = ZlibDecoder::new(&mut element);
                match read_tag(&mut unpacked)? {
                    Some((MATRIX, size)) => {
                        read_array(&mut Read::take(&mut unpacked, size), size, budget)?
                    }
                    _ => return Err(damaged("what is packed is not an array")),
                }
            }
            _ => {
                let message = format!("an element of type {kind} instead of an array");
                return Err(damaged(message));
            }
        };
        io::copy(&mut element, &mut io::sink())?;
        if let Some((name, array)) = contents {
            by_name.insert(name, array);
        }
    }
    Ok(by_name)
}

/// The type and the size of the next element, if there is one.
fn read_tag(file: &mut dyn Read) -> io::Result<Option<(u32, u64)>> {
    let mut tag = Vec::new();
    Read::take(file, 8).read_to_end(&mut tag)?;
    match tag[..] {
        [] => Ok(None),
        [a, b, c, d, e, f, g, h] => Ok(Some((
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]).into(),
        ))),
        _ => Err(damaged("the file ends within a tag")),
    }
}

/// The type and the contents of an element within an array, of at most `max_size` bytes; small ones are stored in their tag.
fn read_part(
    file: &mut dyn Read,
    max_size: u64,
    what: &str,
    budget: &mut Budget,
) -> io::Result<(u32, Vec<u8>)> {
    let Some((kind, size)) = read_tag(file)? else {
        return Err(damaged(format!("{what}: it is missing")));
    };
    if let small @ 1..=4 = kind >> 16 {
        let contents = (size as u32).to_le_bytes()[..small as usize].to_vec();
        return Ok((kind & 0xffff, contents));
    }
    if size > max_size {
        let message = format!("{what} takes {size} bytes, and there is space for {max_size}");
        return Err(damaged(message));
    }
    let contents = budget.read_exact(file, size, what)?;
    budget.read_exact(file, size.next_multiple_of(8) - size, "padding")?;
    Ok((kind, contents))
}

/// The name and the numbers of an element of `size` bytes; `None` if it is not a numeric array.
fn read_array(
    file: &mut dyn Read,
    size: u64,
    budget: &mut Budget,
) -> io::Result<Option<(String, Array)>> {
    /// The maximum number of bytes of flags, sizes and name.
    const SMALL: u64 = 1024;
    let (kind, flags) = read_part(file, SMALL, "the flags", budget)?;
    let [class, flags, ..] = flags[..] else {
        return Err(damaged("the flags of an array are missing"));
    };
    if kind != U32 {
        return Err(damaged(format!("the flags of an array are of type {kind}")));
    }
    const COMPLEX: u8 = 8;
    // Classes from `double` to `uint64`.
    if !(6..=15).contains(&class) || flags & COMPLEX != 0 {
        return Ok(None);
    }
    let (kind, sizes) = read_part(file, SMALL, "the sizes", budget)?;
    let (sizes, remainder) = sizes.as_chunks::<4>();
    if kind != I32 || !remainder.is_empty() {
        return Err(damaged(format!("the sizes of an array are of type {kind}")));
    }
    let sizes = sizes.iter().map(|n| i32::from_le_bytes(*n));
    let shape = sizes.map(|n| usize::try_from(n).map_err(|_| damaged(format!("a size of {n}"))));
    let shape: Vec<usize> = shape.collect::<io::Result<_>>()?;
    let (kind, name) = read_part(file, SMALL, "the name", budget)?;
    if kind != I8 {
        return Err(damaged(format!("the name of an array is of type {kind}")));
    }
    let name = String::from_utf8_lossy(&name).into_owned();
    let count = shape
        .iter()
        .try_fold(1u64, |n, size| n.checked_mul(*size as u64));
    // Numbers of other types than these two take at most as many bytes as the widest.
    let max_bytes = count.and_then(|n| n.checked_mul(8)).unwrap_or(u64::MAX);
    let (kind, numbers) = read_part(file, max_bytes.min(size), "the numbers", budget)?;
    let (numbers, len) = match kind {
        U8 => {
            let len = numbers.len();
            (Numbers::Bytes(numbers), len)
        }
        F64 => {
            let (numbers, remainder) = numbers.as_chunks::<8>();
            if !remainder.is_empty() {
                return Err(damaged("a part of a number"));
            }
            let mut floats = budget.reserve(numbers.len(), "the numbers")?;
            floats.extend(numbers.iter().map(|n| f64::from_le_bytes(*n)));
            (Numbers::Floats(floats), numbers.len())
        }
        _ => return Ok(None),
    };
    match count == Some(len as u64) {
        true => Ok(Some((name, Array { shape, numbers }))),
        false => Err(damaged(format!(
            "{name} has the sizes {shape:?} and {len} numbers"
        ))),
    }
}
