//! Whole models: ResNet-50 and a block of a transformer, forward.

use super::super::{Failed, Report, Settings};
use super::{Case, randn, table};
use kiln_nn::{
    BatchNorm2d, Conv2d, Forward, Identity, Linear, MaxPool2d, Module, ReLU, Sequential,
    TransformerEncoderLayer, with_dtype,
};
use kiln_tensor::{DType, Result, Tensor, no_grad};
use std::time::Instant;

fn conv_norm(from: usize, to: usize, kernel: usize, stride: usize) -> Result<Sequential> {
    let conv = Conv2d::new(from, to, kernel)?
        .stride(stride as i64)
        .padding((kernel / 2) as i64)
        .bias(false);
    Ok(Sequential::new().add(conv).add(BatchNorm2d::new(to)?))
}

/// Three convolutions beside a shortcut (He et al., 2015; the stride is that of the middle one, as torchvision
/// has it).
struct Bottleneck {
    body: Sequential,
    shortcut: Sequential,
}

impl Bottleneck {
    fn new(from: usize, width: usize, stride: usize) -> Result<Bottleneck> {
        let body = Sequential::new()
            .add(conv_norm(from, width, 1, 1)?)
            .add(ReLU::new())
            .add(conv_norm(width, width, 3, stride)?)
            .add(ReLU::new())
            .add(conv_norm(width, 4 * width, 1, 1)?);
        let shortcut = match (from, stride) == (4 * width, 1) {
            true => Sequential::new().add(Identity::new()),
            false => conv_norm(from, 4 * width, 1, stride)?,
        };
        Ok(Bottleneck { body, shortcut })
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        (self.body.forward(x) + self.shortcut.forward(x)).relu()
    }
}

struct ResNet50 {
    stem: Sequential,
    blocks: Vec<Bottleneck>,
    head: Linear,
}

impl ResNet50 {
    fn new(blocks: [usize; 4]) -> Result<ResNet50> {
        let stem = conv_norm(3, 64, 7, 2)?
            .add(ReLU::new())
            .add(MaxPool2d::new(3).stride(2).padding(1));
        let (mut layers, mut from) = (Vec::new(), 64);
        for (i, count) in blocks.into_iter().enumerate() {
            let width = 64 << i;
            for block in 0..count {
                let stride = if i > 0 && block == 0 { 2 } else { 1 };
                layers.push(Bottleneck::new(from, width, stride)?);
                from = 4 * width;
            }
        }
        Ok(ResNet50 {
            stem,
            blocks: layers,
            head: Linear::new(from, 1000)?,
        })
    }

    /// Moves it to a device, for inference.
    fn prepare(&self, device: kiln_tensor::Device) -> Result<()> {
        let parts = self.blocks.iter().flat_map(|b| [&b.body, &b.shortcut]);
        for part in parts.chain([&self.stem]) {
            part.eval();
            part.to(device)?;
        }
        self.head.to(device)
    }

    /// Images `[n, 3, h, w]` to scores `[n, 1000]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.stem.forward(images);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(&x));
        self.head.forward(&x.mean([2, 3]))
    }
}

fn resnet(settings: &Settings, dtype: DType, name: &str) -> std::result::Result<Case, Failed> {
    let small = settings.emulated();
    let blocks = if small { [1, 1, 0, 0] } else { [3, 4, 6, 3] };
    let network = with_dtype(dtype, || ResNet50::new(blocks))?;
    network.prepare(settings.device)?;
    let shape = if small {
        [1, 3, 32, 32]
    } else {
        [32, 3, 224, 224]
    };
    let images = randn(shape, dtype, settings.device)?;
    Ok(Case::new(
        format!("ResNet-50, 32 images of 224x224, {name}"),
        vec![images],
        |x| Ok(vec![no_grad(|| network.forward(&x[0]))]),
    )?)
}

fn encoder(settings: &Settings, dtype: DType, name: &str) -> std::result::Result<Case, Failed> {
    let small = settings.emulated();
    let (width, heads, inner) = if small { (16, 2, 24) } else { (1024, 16, 4096) };
    let layer = with_dtype(dtype, || -> Result<_> {
        Ok(TransformerEncoderLayer::new(width, heads)?
            .dim_feedforward(inner)?
            .dropout(0.0)?
            .batch_first(true)?
            .gelu())
    })?;
    layer.eval();
    layer.to(settings.device)?;
    let shape = if small {
        [1, 5, width]
    } else {
        [8, 512, width]
    };
    let tokens = randn(shape, dtype, settings.device)?;
    Ok(Case::new(
        format!("encoder block, d 1024, 16 heads, 8x512 tokens, {name}"),
        vec![tokens],
        |x| Ok(vec![no_grad(|| layer.forward(&x[0]))]),
    )?)
}

pub(in super::super) fn run(
    settings: &Settings,
    report: &mut Report,
) -> std::result::Result<(), Failed> {
    if !settings.emulated() {
        let start = Instant::now();
        let before = kiln_runtime::cuda::compilations();
        let case = resnet(settings, DType::F32, "f32")?;
        let compiled = kiln_runtime::cuda::compilations() - before;
        let what = format!("ResNet-50 until it is ready, {compiled} calls of NVRTC");
        report.figure(what, "s", start.elapsed().as_secs_f64(), None);
        report.figure(
            "ResNet-50, kernels of a run",
            "kernels",
            case.run.explain().kernels_run() as f64,
            None,
        );
    }
    let types = [(DType::F32, "f32"), (DType::BF16, "bf16")];
    let cases = types.into_iter().flat_map(|(dtype, name)| {
        [
            resnet(settings, dtype, name),
            encoder(settings, dtype, name),
        ]
    });
    let cases = cases.map(|case| Ok((case?, 1.0)));
    table(settings, report, "models", "ms", cases, |time, _| {
        time * 1e3
    })
}
