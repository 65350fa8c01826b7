//! Reference evaluation of tensors, to check engines against.

use super::gather::Gather;
use crate::{Device, Error, ErrorKind, Handle, Result};
use kiln_ir::Role;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_runtime::{Buffer, Error as RunError};
use std::panic::Location;

/// Computes values by the reference evaluation: slow, simple, in f64 and rounded to each dtype. Nothing is realised
/// or committed.
///
/// # Errors
/// The first invalid operation, or an error of the evaluation.
pub fn evaluate_reference<T: AsRef<Handle>>(
    values: &[T],
    loc: &'static Location<'static>,
) -> Result<Vec<Handle>> {
    let wrong = |m: String| Error::new(ErrorKind::Internal, "evaluate_reference", m, loc);
    let (gather, outputs) = Gather::of(values)?;
    let graph = gather
        .recording(outputs)
        .to_graph()
        .map_err(|e| wrong(e.to_string()))?;
    let mut inputs = Vec::new();
    for source in &gather.inputs {
        let buffer = source
            .buffer
            .as_ref()
            .ok_or_else(|| wrong("a placeholder has no value".into()))?;
        let value = array(buffer);
        let value = value
            .map_err(|e| Error::new(ErrorKind::Data, "evaluate_reference", e.to_string(), loc));
        inputs.push(value?);
    }
    let values = evaluate(&graph, &inputs, &[], Mode::Rounded)
        .map_err(|e| Error::new(ErrorKind::Data, "evaluate_reference", e.to_string(), loc))?;
    values
        .iter()
        .map(|array| {
            let shape: Vec<i64> = array.shape().iter().map(|d| *d as i64).collect();
            let buffer = Buffer::from_bytes(array.dtype(), &shape, &array.to_bytes());
            let buffer = buffer.map_err(|e| wrong(e.to_string()))?;
            Ok(Handle::leaf(
                buffer,
                Role::Data,
                Some(Device::Cpu),
                loc,
                "evaluate_reference",
            ))
        })
        .collect()
}

/// The values of a buffer for the reference.
///
/// # Errors
/// If the device fails.
pub fn array(buffer: &Buffer) -> Result<Array, RunError> {
    let host = buffer.to_host()?;
    let shape: Vec<usize> = host.shape().iter().map(|d| *d as usize).collect();
    let array = Array::from_bytes(host.dtype(), &shape, host.bytes()?);
    array.map_err(|e| RunError::Buffer(e.to_string()))
}
