//! NumPy's `.npy` files.
//!
//! The format: <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>.

use crate::fault::Fault;
use crate::npy_header::{Header, MAGIC};
use crate::read::fill;
use kiln_tensor::memory::Budget;
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
    let tensor = file.and_then(|mut file| {
        let about = file.metadata()?;
        if !about.is_file() {
            // The size of a pipe is known at its end.
            let bytes = Budget::new().read_to_end(&mut file, "the file")?;
            return decode(&mut &bytes[..], bytes.len() as u64);
        }
        decode(&mut BufReader::new(file), about.len())
    });
    tensor.map_err(|fault| fault.in_file("read_npy", path, loc))
}

/// A tensor from the bytes of a `.npy` file; see [`read_npy`].
///
/// # Errors
/// If the bytes are damaged or hold another dtype.
#[track_caller]
pub fn npy_from_bytes(mut bytes: &[u8]) -> Result<Tensor> {
    let loc = Location::caller();
    let len = bytes.len() as u64;
    decode(&mut bytes, len).map_err(|fault| fault.at("npy_from_bytes", loc))
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

/// The maximum number of bytes of the text of a header. NumPy reads 10,000.
const MAX_HEADER: u64 = 1 << 20;

/// Reads the array that makes up a file of `bytes` bytes. Its size is compared with them before it takes memory.
pub(crate) fn decode(file: &mut impl Read, bytes: u64) -> Result<Tensor, Fault> {
    let mut budget = Budget::new();
    let start = budget.read_exact(file, 8, "the magic number and the version")?;
    let Some([major, minor]) = start.strip_prefix(MAGIC) else {
        return Err(Fault::from("this is not a .npy file"));
    };
    let size = match (major, minor) {
        (1, 0) => 2,
        (2 | 3, 0) => 4,
        _ => {
            let message = format!("format {major}.{minor} is not known; 1.0 to 3.0 are");
            return Err(Fault::unsupported(message));
        }
    };
    let len = budget.read_exact(file, size, "the header's length")?;
    let len = len
        .iter()
        .rev()
        .fold(0, |n, byte| n << 8 | u64::from(*byte));
    if len > MAX_HEADER {
        let message = format!("the header takes {len} bytes, and at most {MAX_HEADER} are read");
        return Err(message.into());
    }
    let text = budget.read_exact(file, len, "the header")?;
    let text = String::from_utf8(text).map_err(|e| format!("the header: {e}"))?;
    let header = Header::parse(&text).map_err(|fault| fault.within("the header"))?;
    let shape = &header.shape;
    let (needed, available) = (header.bytes()?, bytes.saturating_sub(8 + size + len));
    if needed > available {
        return Err(Fault::from(format!(
            "the array takes {needed} bytes, but the file ends after {available} of them"
        )));
    }
    if needed < available {
        let message = format!("there are bytes after the array of shape {shape:?}");
        return Err(Fault::from(message));
    }
    let mut shape = header.shape;
    if header.fortran_order {
        shape.reverse();
    }
    let tensor = Tensor::filled(header.dtype, &shape[..], |bytes| {
        fill(file, bytes)?;
        if header.big_endian {
            let size = header.dtype.size();
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        // A compressed file may be longer than its archive says. This read also compares the checksum.
        match file.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(Fault::from("there are bytes after the array")),
        }
    })?;
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
