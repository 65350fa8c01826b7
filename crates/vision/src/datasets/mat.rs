//! MATLAB's files of version 5, as far as data sets need them: full arrays of numbers, little-endian.
//!
//! A header of 128 bytes, then elements: a tag of type and size, the contents, padded to 8 bytes. An array is an
//! element of elements (flags, sizes, name, numbers); most files have each array packed by zlib as an element.

use crate::fault::{invalid, io};
use flate2::read::ZlibDecoder;
use kiln_tensor::Result;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
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

/// The most arrays of a file; a set has a few.
const MOST_ARRAYS: usize = 64;

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

/// The arrays of a file by name.
#[track_caller]
pub(super) fn read(op: &str, path: &Path) -> Result<BTreeMap<String, Array>> {
    let file = File::open(path).map_err(|e| io(op, path, e))?;
    let found = arrays(&mut BufReader::new(file));
    found.map_err(|message| invalid(op, format!("{}: {message}", path.display())))
}

type Fault = String;

fn arrays(file: &mut dyn Read) -> Result<BTreeMap<String, Array>, Fault> {
    let header = exactly(file, HEADER as u64, "the header")?;
    match header[124..] {
        [0, 1, b'I', b'M'] => {}
        [1, 0, b'M', b'I'] => return Err("a big-endian MATLAB file, which is not read".into()),
        _ if header.starts_with(b"\x89HDF") || header[124..126] == [0, 2] => {
            return Err(
                "a MATLAB file of version 7.3, which is not read; save it with '-v7'".into(),
            );
        }
        _ => return Err("this is no MATLAB file of version 5".into()),
    }
    let mut all = BTreeMap::new();
    while let Some((kind, size)) = tag(file)? {
        if all.len() == MOST_ARRAYS {
            return Err(format!("there are more than {MOST_ARRAYS} arrays"));
        }
        let mut element = Read::take(&mut *file, size);
        let found = match kind {
            MATRIX => array(&mut element)?,
            PACKED => {
                let mut unpacked = ZlibDecoder::new(&mut element);
                match tag(&mut unpacked)? {
                    Some((MATRIX, size)) => array(&mut Read::take(&mut unpacked, size))?,
                    _ => return Err("what is packed is no array".into()),
                }
            }
            _ => return Err(format!("an element of type {kind} in place of an array")),
        };
        skip(&mut element)?;
        if let Some((name, array)) = found {
            all.insert(name, array);
        }
    }
    Ok(all)
}

fn skip(file: &mut dyn Read) -> Result<(), Fault> {
    let skipped = std::io::copy(file, &mut std::io::sink());
    skipped.map(drop).map_err(|e| e.to_string())
}

/// Reads `len` bytes. Memory grows with the bytes that exist.
fn exactly(file: &mut dyn Read, len: u64, what: &str) -> Result<Vec<u8>, Fault> {
    super::files::take(file, len).map_err(|e| format!("{what}: {e}"))
}

/// The type and the size of the next element, if there is one.
fn tag(file: &mut dyn Read) -> Result<Option<(u32, u64)>, Fault> {
    let mut tag = Vec::new();
    let read = Read::take(file, 8).read_to_end(&mut tag);
    read.map_err(|e| e.to_string())?;
    match tag[..] {
        [] => Ok(None),
        [a, b, c, d, e, f, g, h] => Ok(Some((
            u32::from_le_bytes([a, b, c, d]),
            u32::from_le_bytes([e, f, g, h]).into(),
        ))),
        _ => Err("the file ends within a tag".into()),
    }
}

/// The type and the contents of an element within an array; small ones stand in their tag.
fn part(file: &mut dyn Read, what: &str) -> Result<(u32, Vec<u8>), Fault> {
    let Some((kind, size)) = tag(file)? else {
        return Err(format!("{what} is missing"));
    };
    if let small @ 1..=4 = kind >> 16 {
        let contents = (size as u32).to_le_bytes()[..small as usize].to_vec();
        return Ok((kind & 0xffff, contents));
    }
    let contents = exactly(file, size, what)?;
    exactly(file, size.next_multiple_of(8) - size, "padding")?;
    Ok((kind, contents))
}

/// The array of numbers that an element holds; none where it is anything else.
fn array(file: &mut dyn Read) -> Result<Option<(String, Array)>, Fault> {
    let (kind, flags) = part(file, "the flags")?;
    let [class, flags, ..] = flags[..] else {
        return Err("the flags of an array are missing".into());
    };
    if kind != U32 {
        return Err(format!("the flags of an array are of type {kind}"));
    }
    const COMPLEX: u8 = 8;
    // Classes from `double` to `uint64`.
    if !(6..=15).contains(&class) || flags & COMPLEX != 0 {
        return Ok(None);
    }
    let (kind, sizes) = part(file, "the sizes")?;
    let (sizes, rest) = sizes.as_chunks::<4>();
    if kind != I32 || !rest.is_empty() {
        return Err(format!("the sizes of an array are of type {kind}"));
    }
    let sizes = sizes.iter().map(|n| i32::from_le_bytes(*n));
    let shape = sizes.map(|n| usize::try_from(n).map_err(|_| format!("a size of {n}")));
    let shape: Vec<usize> = shape.collect::<Result<_, _>>()?;
    let (kind, name) = part(file, "the name")?;
    if kind != I8 {
        return Err(format!("the name of an array is of type {kind}"));
    }
    let name = String::from_utf8_lossy(&name).into_owned();
    let (kind, numbers) = part(file, "the numbers")?;
    let numbers = match kind {
        U8 => Numbers::Bytes(numbers),
        F64 => {
            let (numbers, rest) = numbers.as_chunks::<8>();
            if !rest.is_empty() {
                return Err("a part of a number".into());
            }
            Numbers::Floats(numbers.iter().map(|n| f64::from_le_bytes(*n)).collect())
        }
        _ => return Ok(None),
    };
    let len = match &numbers {
        Numbers::Bytes(all) => all.len(),
        Numbers::Floats(all) => all.len(),
    };
    let wanted = shape
        .iter()
        .try_fold(1usize, |n, size| n.checked_mul(*size));
    match wanted == Some(len) {
        true => Ok(Some((name, Array { shape, numbers }))),
        false => Err(format!("{name} has the sizes {shape:?} and {len} numbers")),
    }
}
