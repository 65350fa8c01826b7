//! Values on the host, for operations whose result's shape depends on them.

use crate::{Device, Error, ErrorKind, Result, Tensor, realize};
use kiln_ir::eval::Array;
use std::panic::Location;

/// The elements of a tensor, computed if need be. Inside `compile` nothing is known yet, so that reading
/// is an error.
#[track_caller]
pub(crate) fn values(t: &Tensor) -> Result<Array> {
    let loc = Location::caller();
    let buffer = realize::read(t, loc)?;
    let shape: Vec<usize> = buffer.shape().iter().map(|d| *d as usize).collect();
    let wrong = |e: String| Error::new(ErrorKind::Value, "read", e, loc);
    let bytes = buffer.bytes().map_err(|e| wrong(e.to_string()))?;
    Array::from_bytes(buffer.dtype(), &shape, bytes).map_err(|e| wrong(e.to_string()))
}

/// Whether each element is not zero.
pub(crate) fn truths(array: &Array) -> Vec<bool> {
    match array.data() {
        kiln_ir::eval::Data::Float(v) => v.iter().map(|x| *x != 0.0).collect(),
        kiln_ir::eval::Data::Int(v) => v.iter().map(|x| *x != 0).collect(),
    }
}

/// An i64 vector of these numbers.
#[track_caller]
pub(crate) fn vector(numbers: &[i64], device: Device) -> Tensor {
    Tensor::from_slice(numbers, [numbers.len()]).to(device)
}

/// What `f` makes, or a poisoned tensor in its place.
#[track_caller]
pub(crate) fn or_poisoned(made: Result<Tensor>) -> Tensor {
    let loc = Location::caller();
    made.unwrap_or_else(|e| Tensor::poisoned(e, loc))
}
