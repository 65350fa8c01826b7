//! Training steps of a small transformer on the device, beside the CPU in f32 and in f64.

use crate::{Failed, Report, Settings};
use kiln_models::TransformerConfig;
use kiln_nn::optim::{AdamW, Optimizer};
use kiln_nn::{
    Embedding, Forward, Linear, Module, Sequential, StateDict, TransformerEncoder, sequential,
};
use kiln_tensor::{DType, Device, Result, Tensor, with_default_dtype};

const TOKENS: usize = 23;
const WIDTH: usize = 20;
const LENGTH: i64 = 13;
const BATCH: usize = 3;
const STEPS: usize = 8;

fn network() -> Result<Sequential> {
    let block = TransformerConfig {
        width: WIDTH,
        heads: 4,
        hidden: 40,
        dropout: 0.0,
        norm_first: false,
    };
    sequential![
        Embedding::new(TOKENS, WIDTH),
        TransformerEncoder::new(&block.encoder_block()?, 2),
        Linear::new(WIDTH, TOKENS)
    ]
}

/// The loss of each step and the parameters after the last, as f64.
fn train(device: Device, dtype: DType, start: &StateDict) -> Result<Vec<(String, Vec<f64>)>> {
    let network = with_default_dtype(dtype, network)?;
    let mut state = StateDict::new();
    for (name, value) in start.iter() {
        state.insert(name, value.to_dtype(dtype));
    }
    network.load_state_dict(&state, true)?;
    network.to(device)?;
    let rule = AdamW::new().lr(3e-3);
    let mut optimizer = Optimizer::new(network.parameters(), rule)?;
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let token = |i: usize| ((i * 31 + i * i * 7 + step * 11) % TOKENS) as i64;
        let text: Vec<i64> = (0..BATCH * (LENGTH as usize + 1)).map(token).collect();
        let text = Tensor::from_slice(&text, [BATCH, LENGTH as usize + 1]).to(device);
        let next = text.narrow(1, 1, LENGTH).flatten((0, 1));
        optimizer.zero_grad();
        let scores = network.call(text.narrow(1, 0, LENGTH)).flatten((0, 1));
        let loss = scores.cross_entropy(&next);
        loss.backward()?;
        optimizer.step()?;
        losses.push(loss.to_dtype(DType::F64).item::<f64>()?);
    }
    let mut results = vec![("losses".to_string(), losses)];
    for (name, value) in network.state_dict().iter() {
        let values = value.to_dtype(DType::F64).to_vec::<f64>()?;
        results.push((name.to_string(), values));
    }
    Ok(results)
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    kiln_tensor::manual_seed(5);
    let start = network()?.state_dict();
    let exact = train(Device::Cpu, DType::F64, &start)?;
    let on_cpu = train(Device::Cpu, DType::F32, &start)?;
    let on_device = train(settings.device, DType::F32, &start)?;
    let device_f64 = train(settings.device, DType::F64, &start)?;
    let distance = |a: &[f64], b: &[f64]| {
        let pairs = a.iter().zip(b);
        pairs.fold(0.0, |worst: f64, (a, b)| match (a - b).abs() {
            d if d.is_nan() => f64::INFINITY,
            d => worst.max(d),
        })
    };
    for (i, (name, exact)) in exact.iter().enumerate() {
        let largest = exact.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
        // The CPU's own distance from f64 says what rounding does to a step.
        let bound = 8.0 * distance(&on_cpu[i].1, exact) + 64.0 * f64::from(f32::EPSILON) * largest;
        let off = distance(&on_device[i].1, exact);
        let result = match off <= bound {
            true => Ok(()),
            false => Err(format!("is {off:e} off, of at most {bound:e}")),
        };
        report.check(name, result);
        let off = distance(&device_f64[i].1, exact);
        let result = match off <= 1e-9 * largest {
            true => Ok(()),
            false => Err(format!("is {off:e} off")),
        };
        report.check(&format!("{name} in f64"), result);
    }
    Ok(())
}
