//! NumPy's `.npy` files.
//!
//! The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use crate::fault::Fault;
use crate::npy_header::{Header, MAGIC};
use crate::read::{read_exact, take};
use kiln_tensor::{Result, Tensor};
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::panic::Location;
use std::path::Path;

/// Reads a `.npy` file: bools, integers and floats in either byte order, in C or Fortran order, of
/// format 1 to 3.
///
/// # Errors
/// If the file can't be read, is damaged, or holds another dtype.
#[track_caller]
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let file = File::open(path).map_err(Fault::from);
    let tensor = file.and_then(|file| decode(&mut BufReader::new(file)));
    tensor.map_err(|fault| fault.in_file("read_npy", path, loc))
}

/// A tensor from the bytes of a `.npy` file; see [`read_npy`].
///
/// # Errors
/// If the bytes are damaged or hold another dtype.
#[track_caller]
pub fn npy_from_bytes(mut bytes: &[u8]) -> Result<Tensor> {
    let loc = Location::caller();
    decode(&mut bytes).map_err(|fault| fault.at("npy_from_bytes", loc))
}

/// Writes a `.npy` file. A reader sees the old file or the whole new one, never a part.
///
/// # Errors
/// If the file can't be written, the values can't be computed, or they are bf16, which NumPy lacks.
#[track_caller]
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let tensor = tensor.check()?;
    let written = kiln_base::file::replace(path, |file| encode(tensor, file));
    written.map_err(|fault| fault.in_file("write_npy", path, loc))
}

/// The bytes of a `.npy` file; see [`write_npy`].
///
/// # Errors
/// If the values can't be computed, or are bf16, which NumPy lacks.
#[track_caller]
pub fn npy_to_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let loc = Location::caller();
    let (tensor, mut bytes) = (tensor.check()?, Vec::new());
    let written = encode(tensor, &mut bytes);
    written.map_err(|fault| fault.at("npy_to_bytes", loc))?;
    Ok(bytes)
}

/// Reads to the end, which must be that of the array.
pub(crate) fn decode(file: &mut impl Read) -> Result<Tensor, Fault> {
    let mut start = [0; 8];
    read_exact(file, &mut start, "the magic number and the version")?;
    let [magic @ .., major, minor] = start;
    if magic != *MAGIC {
        return Err(Fault::from("this is not a .npy file".to_string()));
    }
    let mut len = [0; 4];
    match (major, minor) {
        (1, 0) => read_exact(file, &mut len[..2], "the header's length")?,
        (2 | 3, 0) => read_exact(file, &mut len, "the header's length")?,
        _ => {
            let message = format!("format {major}.{minor} is not known; 1.0 to 3.0 are");
            return Err(Fault::unsupported(message));
        }
    }
    let text = take(file, u64::from(u32::from_le_bytes(len)), "the header")?;
    let text = String::from_utf8(text).map_err(|e| format!("the header: {e}"))?;
    let header = Header::parse(&text).map_err(|fault| fault.within("the header"))?;
    let mut bytes = take(file, header.bytes()?, "the array")?;
    if file.read(&mut [0])? > 0 {
        let shape = &header.shape;
        let message = format!("there are bytes behind the array of shape {shape:?}");
        return Err(Fault::from(message));
    }
    if header.big_endian {
        let size = header.dtype.size();
        bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    let mut shape = header.shape;
    if header.fortran_order {
        shape.reverse();
    }
    let tensor = Tensor::from_bytes(&bytes, header.dtype, &shape);
    let tensor = tensor.check()?.clone();
    Ok(match header.fortran_order && shape.len() > 1 {
        true => tensor.permute((0..shape.len() as i64).rev().collect::<Vec<i64>>()),
        false => tensor,
    })
}

/// Writes the tensor in C order, little-endian.
pub(crate) fn encode(tensor: &Tensor, file: &mut impl Write) -> Result<(), Fault> {
    let header = Header {
        dtype: tensor.dtype(),
        big_endian: false,
        fortran_order: false,
        shape: tensor.shape()?,
    };
    let bytes = tensor.to_bytes()?;
    file.write_all(&header.encode()?)?;
    file.write_all(&bytes)?;
    Ok(())
}
