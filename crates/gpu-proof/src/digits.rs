//! The classifier of the README trained on the device and on the CPU, from the same weights on the same batches.

use crate::{Failed, Report, Settings};
use kiln_data::{DataLoader, TensorDataset, random_split};
use kiln_formats::{CsvOptions, CsvTable};
use kiln_nn::optim::{AdamW, OneCycleLR, Optimizer, Scheduler};
use kiln_nn::{
    BatchNorm2d, Conv2d, Flatten, Forward, Kernel, Linear, MaxPool2d, Module, ReLU, Sequential,
    StateDict, sequential,
};
use kiln_tensor::{CrossEntropy, DType, Device, Result, Spec, Tensor, compile};

const DIGITS: &str = include_str!("../../../data/digits.csv");
/// Images in a batch.
const BATCH: usize = 64;
/// Test images that one device may get right and the other wrong.
const APART: i64 = 3;

/// Images `[n, 1, 8, 8]` with pixels in 0..=1, and labels `[n]`.
fn digits() -> std::result::Result<(Tensor, Tensor), Failed> {
    let options = CsvOptions::new().has_headers(false);
    let table = CsvTable::from_reader(DIGITS.as_bytes(), &options)?;
    let pixels = table.tensor::<f32>(table.headers().to_vec())?;
    let images = pixels.narrow(1, 0, 64) / 16.0;
    let labels = pixels.narrow(1, 64, 1).to_dtype(DType::I64);
    Ok((images.reshape([-1, 1, 8, 8]), labels.flatten((0, 1))))
}

fn network() -> Result<Sequential> {
    sequential![
        Conv2d::new(1, 16, Kernel::new(3).padding(1)),
        BatchNorm2d::new(16),
        ReLU::new(),
        Conv2d::new(16, 32, Kernel::new(3).padding(1)),
        BatchNorm2d::new(32),
        ReLU::new(),
        MaxPool2d::new(2),
        Flatten::new(),
        Linear::new(32 * 4 * 4, 64),
        ReLU::new(),
        Linear::new(64, 10)
    ]
}

/// Trains from these weights for so many passes, and gives the losses and how many test digits are right.
fn train(
    weights: &StateDict,
    device: Device,
    epochs: usize,
) -> std::result::Result<(Vec<f32>, i64, usize), Failed> {
    let subsets = random_split(TensorDataset::new(digits()?)?, [0.8, 0.2], 0)?;
    let (images, labels) = digits()?;
    let subset = |i: usize| {
        let indices: Vec<i64> = subsets[i].indices().iter().map(|p| *p as i64).collect();
        let indices = Tensor::from_slice(&indices, [indices.len()]);
        (
            images.index_select(0, &indices),
            labels.index_select(0, &indices),
        )
    };
    let network = network()?;
    network.load_state_dict(weights, true)?;
    network.to(device)?;
    let mut optimizer = Optimizer::new(network.parameters(), AdamW::new())?;
    let batches = subsets[0].indices().len() / BATCH;
    let steps = (epochs * batches) as u64;
    let mut schedule = Scheduler::new(&mut optimizer, OneCycleLR::new(1e-2, steps + 1))?;
    let specs = (
        Spec::new(DType::F32, [BATCH, 1, 8, 8]).on(device),
        Spec::new(DType::I64, [BATCH]).on(device),
    );
    let step = compile(specs, |(x, y)| {
        optimizer.zero_grad();
        let scores = network.call(&x);
        let loss = scores.cross_entropy_with(&y, CrossEntropy::new().label_smoothing(0.05));
        loss.backward()?;
        optimizer.step()?;
        Result::Ok(loss)
    })?;
    let loader = DataLoader::new(TensorDataset::new(subset(0))?)
        .batch_size(BATCH)
        .shuffle(true)
        .drop_last(true)
        .seed(0)
        .build()?;
    let mut losses = Vec::new();
    for _ in 0..epochs {
        for batch in &loader {
            let (images, labels) = batch?;
            let loss = step.run((images.to(device), labels.to(device)))?;
            schedule.step(&mut optimizer)?;
            losses.push(loss.item::<f32>()?);
        }
    }
    network.eval();
    let (images, labels) = subset(1);
    let predictions = network.call(images.to(device)).argmax(1);
    let right = predictions.eq(labels.to(device)).sum(());
    Ok((losses, right.item::<i64>()?, subsets[1].indices().len()))
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    let epochs = if settings.short { 1 } else { 12 };
    kiln_tensor::manual_seed(0);
    let weights = network()?.state_dict();
    let (losses, gpu_correct, count) = train(&weights, settings.device, epochs)?;
    let (expected, cpu_correct, _) = train(&weights, Device::Cpu, epochs)?;
    report.note(format!(
        "after {} steps {gpu_correct} of {count} test digits are right, on the CPU {cpu_correct}",
        losses.len()
    ));
    // Later losses drift apart, since training amplifies rounding.
    for (i, (a, b)) in losses.iter().zip(&expected).enumerate().take(5) {
        let is_near = (a - b).abs() <= 1e-3 * b.abs();
        let text = format!("{a}, on the CPU {b}");
        report.check(
            &format!("loss {i}"),
            if is_near { Ok(()) } else { Err(text) },
        );
    }
    let is_near = (gpu_correct - cpu_correct).abs() <= APART;
    let text = format!("{gpu_correct} right, on the CPU {cpu_correct}");
    // One pass over the digits is too little for figures that agree.
    if !settings.short {
        report.check("accuracy", if is_near { Ok(()) } else { Err(text) });
    }
    Ok(())
}
