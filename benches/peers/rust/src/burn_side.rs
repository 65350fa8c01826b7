//! burn: the operations, on its CPU backend in Rust.

use crate::{Array, Done, Failure, Run, Start};
use burn::tensor::{Tensor, TensorData, activation};

fn tensor<const D: usize>(a: Array) -> Tensor<D> {
    Tensor::from_data(TensorData::new(a.values, a.shape), &Default::default())
}

/// The workload, if it is there.
pub fn workload(name: &str, mut start: Start) -> Result<Option<(String, usize, Run)>, Failure> {
    let x: Vec<Tensor<2>> = start.inputs.drain(..).filter(|a| a.shape.len() == 2).map(tensor).collect();
    let mut weight = |name: &str| start.weights.remove(name).ok_or("no such weight").map(tensor::<1>);
    let mut f: Box<dyn FnMut() -> Tensor<2>> = match name {
        "softmax" => Box::new(move || activation::softmax(x[0].clone(), 1)),
        "layer-norm" => {
            let (gamma, beta) = (weight("weight")?, weight("bias")?);
            Box::new(move || {
                let (var, mean) = x[0].clone().var_mean_bias(1);
                let y = (x[0].clone() - mean) / (var + 1e-5).sqrt();
                y * gamma.clone().unsqueeze() + beta.clone().unsqueeze()
            })
        }
        "gelu-chain" => Box::new(move || {
            let y = x[0].clone() * x[1].clone() + x[2].clone();
            activation::gelu(y) * x[3].clone()
        }),
        "matmul" => Box::new(move || x[0].clone().matmul(x[1].clone())),
        _ => return Ok(None),
    };
    let run = move || -> Result<Done, Failure> {
        let y = f();
        Ok(Box::new(move || {
            let data = y.into_data();
            data.try_to_vec::<f32>().map_err(|e| format!("{e:?}").into())
        }))
    };
    let threads = rayon::current_num_threads();
    Ok(Some((env!("BURN_VERSION").into(), threads, Box::new(run))))
}
