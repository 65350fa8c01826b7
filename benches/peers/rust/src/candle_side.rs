//! candle: the operations.

use crate::{Array, Done, Failure, Run, Start};
use candle_core::{Device, Module, Tensor};
use candle_nn::LayerNorm;

fn tensor(a: Array) -> Result<Tensor, Failure> {
    Ok(Tensor::from_vec(a.values, a.shape, &Device::Cpu)?)
}

/// The workload, if it is there.
pub fn workload(name: &str, mut start: Start) -> Result<Option<(String, usize, Run)>, Failure> {
    let x: Vec<Tensor> = start.inputs.drain(..).map(tensor).collect::<Result<_, _>>()?;
    let mut weight = |name: &str| tensor(start.weights.remove(name).ok_or("no such weight")?);
    type F = Box<dyn FnMut() -> candle_core::Result<Tensor>>;
    let mut f: F = match name {
        "softmax" => Box::new(move || candle_nn::ops::softmax_last_dim(&x[0])),
        "layer-norm" => {
            let norm = LayerNorm::new(weight("weight")?, weight("bias")?, 1e-5);
            Box::new(move || norm.forward(&x[0]))
        }
        "gelu-chain" => Box::new(move || ((&x[0] * &x[1])? + &x[2])?.gelu_erf()? * &x[3]),
        "matmul" => Box::new(move || x[0].matmul(&x[1])),
        _ => return Ok(None),
    };
    let run = move || -> Result<Done, Failure> {
        let y = f()?;
        Ok(Box::new(move || Ok(y.flatten_all()?.to_vec1::<f32>()?)))
    };
    let threads = candle_core::utils::get_num_threads();
    Ok(Some((env!("CANDLE_VERSION").into(), threads, Box::new(run))))
}
