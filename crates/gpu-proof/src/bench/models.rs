//! Whole models: ResNet-50 and a block of a transformer, forward.

use super::{Case, randn, table};
use crate::{Failed, Report, Settings};
use kiln_models::{ResNet, ResNetConfig, TransformerConfig};
use kiln_nn::{Forward, Module};
use kiln_tensor::{DType, no_grad, with_default_dtype};
use std::time::Instant;

fn resnet(settings: &Settings, dtype: DType, name: &str) -> Result<Case, Failed> {
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
    Ok(Case::new(
        format!("ResNet-50, 32 images of 224x224, {name}"),
        vec![images],
        |x| Ok(vec![no_grad(|| network.call(&x[0]))]),
    )?)
}

fn encoder(settings: &Settings, dtype: DType, name: &str) -> Result<Case, Failed> {
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
    Ok(Case::new(
        format!("encoder block, d 1024, 16 heads, 8x512 tokens, {name}"),
        vec![tokens],
        |x| Ok(vec![no_grad(|| layer.call(&x[0]))]),
    )?)
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
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
