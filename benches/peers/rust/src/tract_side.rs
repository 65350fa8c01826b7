//! tract: networks and operations from their ONNX files.

use crate::{Done, Failure, Run, Start};
use tract_linalg::multithread::{Executor, set_default_executor};
use tract_onnx::prelude::*;

/// The workload, if it was written as ONNX.
pub fn workload(
    path: &str,
    start: Start,
    threads: usize,
) -> Result<Option<(String, usize, Run)>, Failure> {
    let file = format!("{path}.onnx");
    if !std::fs::exists(&file)? {
        return Ok(None);
    }
    set_default_executor(Executor::multithread(threads));
    let model = tract_onnx::onnx().model_for_path(&file)?.into_optimized()?.into_runnable()?;
    let inputs = start.inputs.iter().map(|a| Tensor::from_shape(&a.shape, &a.values));
    let inputs: Vec<TValue> = inputs.map(|t| t.map(Into::into)).collect::<TractResult<_>>()?;
    let run = move || -> Result<Done, Failure> {
        let y = model.run(inputs.iter().cloned().collect())?.remove(0);
        Ok(Box::new(move || Ok(y.try_as_plain_ram()?.as_slice::<f32>()?.to_vec())))
    };
    Ok(Some((env!("TRACT_VERSION").into(), threads, Box::new(run))))
}
