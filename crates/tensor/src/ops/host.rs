//! Values on the host, for operations whose result shape depends on values.

use crate::{Device, Error, ErrorKind, Result, Tensor};
use kiln_ir::eval::Array;
use kiln_lazy::run::read;
use std::panic::Location;

/// Returns the elements of a tensor, computing them if necessary. Inside `compile` no value is known yet, so reading
/// is an error.
#[track_caller]
pub(crate) fn values(t: &Tensor) -> Result<Array> {
    let loc = Location::caller();
    let buffer = read::read(&t.handle, loc)?;
    let shape: Vec<usize> = buffer.shape().iter().map(|d| *d as usize).collect();
    let wrong = |e: String| Error::new(ErrorKind::Value, "read", e, loc);
    let bytes = buffer.bytes().map_err(|e| wrong(e.to_string()))?;
    Array::from_bytes(buffer.dtype(), &shape, bytes).map_err(|e| wrong(e.to_string()))
}

/// Returns the positions of the nonzero elements, in row-major order.
#[track_caller]
pub(crate) fn nonzero_positions(t: &Tensor) -> Result<Vec<i64>> {
    let loc = Location::caller();
    let buffer = read::read(&t.handle, loc)?;
    let bytes = buffer.bytes();
    let bytes = bytes.map_err(|e| Error::new(ErrorKind::Value, "read", e.to_string(), loc))?;
    // A float is also zero if its sign, the highest bit of the last byte, is set.
    let signs = if t.dtype().is_float() { 0x7f } else { 0xff };
    let is_nonzero = |element: &&[u8]| {
        let (last, outer) = element.split_last().unwrap_or((&0, &[]));
        last & signs != 0 || outer.iter().any(|b| *b != 0)
    };
    let elements = || bytes.chunks_exact(t.element_size());
    let mut positions = reserve(elements().filter(is_nonzero).count())?;
    let numbered = (0..).zip(elements());
    positions.extend(numbered.filter(|(_, e)| is_nonzero(e)).map(|(n, _)| n));
    Ok(positions)
}

/// Returns an empty vector with capacity for `count` numbers, or an error if memory is short.
#[track_caller]
pub(crate) fn reserve(count: usize) -> Result<Vec<i64>> {
    let mut numbers = Vec::new();
    match numbers.try_reserve_exact(count) {
        Ok(()) => Ok(numbers),
        Err(_) => {
            let message = format!("there is no memory for {count} indices");
            let loc = Location::caller();
            Err(Error::new(ErrorKind::Memory, "read", message, loc))
        }
    }
}

/// An i64 vector on a device.
#[track_caller]
pub(crate) fn vector(numbers: &[i64], device: Device) -> Tensor {
    let (shape, loc) = ([numbers.len() as i64], Location::caller());
    Tensor::data_on(device, numbers, &shape, loc, "from_slice")
}

/// Returns the tensor, or a poisoned tensor that carries the error.
#[track_caller]
pub(crate) fn or_poisoned(result: Result<Tensor>) -> Tensor {
    let loc = Location::caller();
    result.unwrap_or_else(|e| Tensor::poisoned(e, loc))
}
