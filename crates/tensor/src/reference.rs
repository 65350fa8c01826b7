//! The reference evaluation of tensors, to check engines against.

use crate::run::gather::Gather;
use crate::verify::array;
use crate::{Device, Error, ErrorKind, Result, Tensor};
use kiln_ir::eval::{Mode, evaluate};
use kiln_ir::{Output, Role, Target};
use kiln_runtime::Buffer;
use std::panic::Location;

/// The values of tensors by the reference evaluation: slow, simple, in f64 and rounded to each dtype.
/// Nothing is realised or committed.
///
/// # Errors
/// The first invalid operation, or what went wrong in the evaluation.
#[track_caller]
pub fn evaluate_reference(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let loc = Location::caller();
    let wrong = |m: String| Error::new(ErrorKind::Internal, "evaluate_reference", m, loc);
    let mut gather = Gather::default();
    let mut outputs = Vec::new();
    for t in tensors {
        outputs.push(Output {
            value: gather.add(t.check()?)?,
            target: Target::Result,
        });
    }
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
        inputs.push(array(buffer).map_err(|e| wrong(e.to_string()))?);
    }
    let values = evaluate(&graph, &inputs, &[], Mode::Rounded)
        .map_err(|e| Error::new(ErrorKind::Data, "evaluate_reference", e.to_string(), loc))?;
    values
        .iter()
        .map(|array| {
            let shape: Vec<i64> = array.shape().iter().map(|d| *d as i64).collect();
            let buffer = Buffer::from_bytes(array.dtype(), &shape, &array.to_bytes());
            let buffer = buffer.map_err(|e| wrong(e.to_string()))?;
            Ok(Tensor::leaf(
                buffer,
                Role::Data,
                Some(Device::Cpu),
                loc,
                "evaluate_reference",
            ))
        })
        .collect()
}
