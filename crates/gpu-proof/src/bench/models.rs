//! Whole models: ResNet-50, an encoder's block and GPT-2, forward and as training steps.

use super::{median, randn, torch};
use crate::report::Figure;
use crate::{Failed, Report, Settings};
use kiln_models::{Gpt, GptConfig, ResNet, ResNetConfig, TransformerConfig};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Forward, Module};
use kiln_tensor::{Compiled, DType, Device, Result, Tensor, compile, no_grad, with_default_dtype};
use std::time::Instant;

/// Rounds of a measurement, of which the median counts.
const ROUNDS: usize = 7;
/// Seconds that a round takes at least.
const ROUND: f64 = 0.1;

/// A program that is called as a user calls it.
pub(super) struct Whole {
    name: String,
    inputs: Vec<Tensor>,
    pub(super) run: Compiled,
}

impl Whole {
    /// Compiles a function for arguments like these.
    pub(super) fn new(
        name: impl Into<String>,
        inputs: Vec<Tensor>,
        f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Whole> {
        Ok(Whole {
            name: name.into(),
            run: compile(&inputs, |x| f(&x))?,
            inputs,
        })
    }

    pub(super) fn run_once(&self) -> Result<Vec<Tensor>> {
        self.run.run(&self.inputs)
    }

    /// Runs once, to see that it does.
    pub(super) fn check(&self, report: &mut Report) -> Result<()> {
        for result in self.run_once()? {
            let result = match result.sum(()).isfinite().item::<bool>()? {
                true => Ok(()),
                false => Err("is not finite".into()),
            };
            report.check(&self.name, result);
        }
        Ok(())
    }

    /// The median over rounds of the seconds of one run, of many given to the device before it is waited for.
    pub(super) fn seconds(&self, device: Device) -> Result<f64> {
        let round = |count: usize| -> Result<f64> {
            let start = Instant::now();
            for _ in 0..count {
                self.run_once()?;
            }
            device.synchronize()?;
            Ok(start.elapsed().as_secs_f64())
        };
        // Compiles, captures graphs and fills the pool of memory.
        round(3)?;
        let mut count = 1;
        while round(count)? < ROUND && count < 1 << 20 {
            count *= 2;
        }
        let times = (0..ROUNDS).map(|_| Ok(round(count)? / count as f64));
        Ok(median(&times.collect::<Result<Vec<f64>>>()?))
    }
}

fn resnet(settings: &Settings, dtype: DType, name: &str) -> std::result::Result<Whole, Failed> {
    let small = settings.emulated();
    let blocks = if small { [1, 1, 0, 0] } else { [3, 4, 6, 3] };
    let config = ResNetConfig {
        blocks,
        ..ResNetConfig::default()
    };
    let network = with_default_dtype(dtype, || ResNet::new(config))?;
    network.eval();
    network.to(settings.device)?;
    let shape = if small {
        [1, 3, 32, 32]
    } else {
        [32, 3, 224, 224]
    };
    let images = randn(shape, dtype, settings.device)?;
    Ok(Whole::new(
        format!("ResNet-50, 32 images of 224x224, {name}"),
        vec![images],
        |x| Ok(vec![no_grad(|| network.call(&x[0]))]),
    )?)
}

fn encoder(settings: &Settings, dtype: DType, name: &str) -> std::result::Result<Whole, Failed> {
    let small = settings.emulated();
    let (width, heads, hidden) = if small { (16, 2, 24) } else { (1024, 16, 4096) };
    let config = TransformerConfig {
        width,
        heads,
        hidden,
        dropout: 0.0,
        norm_first: false,
    };
    let layer = with_default_dtype(dtype, || config.encoder_block())?;
    layer.eval();
    layer.to(settings.device)?;
    let shape = if small {
        [1, 5, width]
    } else {
        [8, 512, width]
    };
    let tokens = randn(shape, dtype, settings.device)?;
    Ok(Whole::new(
        format!("encoder block, d 1024, 16 heads, 8x512 tokens, {name}"),
        vec![tokens],
        |x| Ok(vec![no_grad(|| layer.call(&x[0]))]),
    )?)
}

/// A training step with plain SGD, of a network whose call and labels give the loss.
fn step<M: Forward>(
    name: &str,
    network: M,
    inputs: Vec<Tensor>,
) -> std::result::Result<Whole, Failed> {
    network.train();
    let mut rule = Optimizer::new(network.parameters(), SGD::new().lr(1e-4))?;
    Ok(Whole::new(name, inputs, |x| {
        let scores = network.call(&x[0]);
        let classes = scores.dims().last().cloned().unwrap_or(1.into());
        let loss = scores.reshape([(-1).into(), classes]).cross_entropy(&x[1]);
        rule.zero_grad();
        loss.backward()?;
        rule.step()?;
        Ok(vec![loss])
    })?)
}

/// Labels below a number, on the device.
fn labels(shape: &[usize], below: i64, device: Device) -> Result<Tensor> {
    let labels = Tensor::randint(0, below, shape).to(device);
    labels.realize()?;
    Ok(labels)
}

fn resnet_step(settings: &Settings) -> std::result::Result<Whole, Failed> {
    let small = settings.emulated();
    let config = ResNetConfig {
        blocks: if small { [1, 1, 0, 0] } else { [3, 4, 6, 3] },
        ..ResNetConfig::default()
    };
    let network = with_default_dtype(DType::BF16, || ResNet::new(config))?;
    network.to(settings.device)?;
    let (count, size) = if small { (2, 32) } else { (64, 224) };
    let images = randn([count, 3, size, size], DType::BF16, settings.device)?;
    let labels = labels(&[count], 10, settings.device)?;
    step(
        "training step of ResNet-50, 64 images of 224x224, bf16",
        network,
        vec![images, labels],
    )
}

fn gpt_step(settings: &Settings) -> std::result::Result<Whole, Failed> {
    let mut config = GptConfig::default();
    let (batch, length) = if settings.emulated() {
        (1, 9)
    } else {
        (8, 1024)
    };
    config.block.dropout = 0.0;
    if settings.emulated() {
        (config.vocabulary, config.context, config.layers) = (31, 16, 1);
        (config.block.width, config.block.heads, config.block.hidden) = (16, 2, 24);
    }
    let below = config.vocabulary as i64;
    let network = with_default_dtype(DType::BF16, || Gpt::new(config))?;
    network.to(settings.device)?;
    let tokens = labels(&[batch, length], below, settings.device)?;
    let next = labels(&[batch * length], below, settings.device)?;
    step(
        "training step of GPT-2 124M, 8x1024 tokens, bf16",
        network,
        vec![tokens, next],
    )
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    let torch_seconds = match settings.emulated() {
        true => Default::default(),
        false => torch::times(settings, "models", report),
    };
    type Make = fn(&Settings) -> std::result::Result<Whole, Failed>;
    let makers: [(&str, Make); 4] = [
        ("ResNet-50's step", resnet_step),
        ("GPT-2's step", gpt_step),
        ("ResNet-50", |s| resnet(s, DType::BF16, "bf16")),
        ("an encoder's block", |s| encoder(s, DType::BF16, "bf16")),
    ];
    for (title, make) in makers {
        if settings.is_over() {
            report.leave_out(format!("{title} and what comes after it"));
            break;
        }
        let (start, before) = (Instant::now(), kiln_runtime::cuda::compilations());
        let workload = make(settings)?;
        workload.check(report)?;
        if settings.emulated() {
            continue;
        }
        let compiled = kiln_runtime::cuda::compilations() - before;
        let ready = format!("{title} until its first result, {compiled} calls of NVRTC");
        report.number(ready, "s", start.elapsed().as_secs_f64());
        let kernels = workload.run.explain().kernels_run() as f64;
        report.number(format!("{title}, kernels of a run"), "kernels", kernels);
        let torch = torch_seconds
            .get(&workload.name)
            .map(|t| ("PyTorch".to_string(), 1e3 * t));
        report.figure(Figure {
            name: workload.name.clone(),
            unit: "ms".into(),
            kiln: Some(1e3 * workload.seconds(settings.device)?),
            beside: torch.into_iter().collect(),
            ..Figure::default()
        });
        settings.device.empty_cache()?;
    }
    Ok(())
}
