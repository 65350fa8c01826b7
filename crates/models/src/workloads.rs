//! Networks and training steps as compiled programs, by name.
//!
//! ```no_run
//! use kiln_models::workloads;
//!
//! let unet = workloads::make("unet", (&kiln::CompileOptions::default()).into())?;
//! assert_eq!(unet.program.run(&unet.inputs)?[0].shape()?, [1, 2, 128, 128]);
//! # Ok::<(), kiln::Error>(())
//! ```

use crate::{CachedBlock, LstmCell, MobileNetV3, ResNet, TransformerConfig, UNet, UNetConfig};
use kiln::nn::amp::{GradScaler, Scaling};
use kiln::nn::optim::{AdamW, Optimizer, SGD};
use kiln::nn::{AttentionMasks, Forward, LSTM, Module};
use kiln::{
    Autocast, Calibration, CompileOptions, Compiled, DType, Device, Error, Result, Tensor,
    compile_with, no_grad, quantize_dynamic, reduce_range, set_autocast,
};

/// A compiled program.
pub struct Workload {
    /// The model, which holds the weights.
    pub model: Box<dyn Module>,
    /// The inputs of the program.
    pub inputs: Vec<Tensor>,
    /// The program.
    pub program: Compiled,
}

impl Workload {
    /// Returns the bytes of the temporaries that exist while the first result is computed and are read afterwards. A
    /// training step keeps these from forward to backward.
    pub fn kept(&self) -> usize {
        let plan = self.program.plan();
        let results = &self.program.signature().results;
        let first = results.first();
        let Some(loss) = first.and_then(|r| plan.outputs.get(r.at as usize)) else {
            return 0;
        };
        let writer = plan.run.iter().rposition(|s| s.args.contains(&loss.buffer));
        // Concurrent steps count as one.
        let begun = plan.run.iter().take(writer.map_or(0, |step| step + 1));
        let index = begun.filter(|s| !s.concurrent).count().saturating_sub(1);
        let explain = self.program.explain();
        let blocks = explain.temporaries.iter();
        let kept = blocks.filter(|b| b.buffer.is_some() && b.first <= index && index < b.last);
        kept.map(|b| b.bytes).sum()
    }
}

/// The settings for compiling a workload.
#[derive(Copy, Clone)]
pub struct Setup<'a> {
    /// The compiler's options.
    pub options: &'a CompileOptions,
    /// The device.
    pub device: Device,
    /// The dtype of weights and inputs. Training steps in f16 or bf16 are steps of f32 inside
    /// [`autocast`](kiln::autocast()), with a scaler for f16; in f64 they are f64.
    pub dtype: DType,
}

impl Setup<'_> {
    /// Returns the casts of `autocast`, where a training step uses it.
    fn autocast(&self) -> Option<Autocast> {
        let narrow = self.dtype.is_half();
        narrow.then(|| Autocast::new(self.dtype))
    }

    /// Returns the model of a training step, with its weights on the device and in its dtype.
    fn prepare_training<M: Module>(&self, model: M) -> Result<M> {
        model.to(self.device)?;
        if self.autocast().is_none() {
            model.to_dtype(self.dtype)?;
        }
        Ok(model)
    }
}

impl<'a> From<&'a CompileOptions> for Setup<'a> {
    /// For the CPU, in f32.
    fn from(options: &'a CompileOptions) -> Setup<'a> {
        Setup {
            options,
            device: Device::Cpu,
            dtype: DType::F32,
        }
    }
}

/// A function that makes and compiles a workload, with random weights.
type Make = fn(Setup) -> Result<Workload>;

/// A workload's name, its description, and the function that makes it.
pub type Entry = (&'static str, &'static str, Make);

/// All workloads.
#[rustfmt::skip]
pub const WORKLOADS: &[Entry] = &[
    ("resnet50", "ResNet-50, inference, 224x224",
        |setup| images(ResNet::resnet50(1000)?, [1, 224], setup)),
    ("resnet50-8", "ResNet-50, inference, 8 images of 224x224",
        |setup| images(ResNet::resnet50(1000)?, [8, 224], setup)),
    ("resnet50-int8", "ResNet-50 of bytes, calibrated before, inference, 224x224",
        |setup| of_bytes(ResNet::resnet50(1000)?, 1, setup)),
    ("resnet50-8-int8", "ResNet-50 of bytes, calibrated before, inference, 8 images of 224x224",
        |setup| of_bytes(ResNet::resnet50(1000)?, 8, setup)),
    ("mobilenet-int8", "MobileNetV3-Small of bytes, calibrated before, inference, 224x224",
        |setup| of_bytes(MobileNetV3::small(1000)?, 1, setup)),
    ("encoder-int8", "encoder block of bytes, scaled as it runs, inference, d 768, 12 heads, 256 tokens",
        encoder_of_bytes),
    ("resnet50-int7", "ResNet-50 of bytes of a reduced range, calibrated before, inference, 224x224",
        |setup| reduce_range(|| of_bytes(ResNet::resnet50(1000)?, 1, setup))),
    ("resnet50-8-int7", "ResNet-50 of bytes of a reduced range, calibrated before, inference, 8 images of 224x224",
        |setup| reduce_range(|| of_bytes(ResNet::resnet50(1000)?, 8, setup))),
    ("encoder-int7", "encoder block of bytes of a reduced range, scaled as it runs, inference, d 768, 12 heads, 256 tokens",
        |setup| reduce_range(|| encoder_of_bytes(setup))),
    ("mobilenet", "MobileNetV3-Small, inference, 224x224",
        |setup| images(MobileNetV3::small(1000)?, [1, 224], setup)),
    ("unet", "U-Net, inference, 128x128, 4 levels", unet),
    ("encoder", "encoder block, inference, d 768, 12 heads, 256 tokens", encoder),
    ("decoder", "decoder block, inference, d 768, 12 heads, 64 of 256 tokens", decoder),
    ("decoder-cached", "decoder block, inference, d 768, 12 heads, one token behind 255 of a cache",
        decoder_cached),
    ("lstm", "LSTM cell, inference, 4 of 128 features, 256 hidden", lstm),
    ("resnet18-step", "ResNet-18, training step, 16 images of 64x64, 1000 classes, SGD with momentum",
        resnet18_step),
    ("encoder-step", "encoder block, training step, d 768, 12 heads, 256 tokens, batch 4, AdamW",
        encoder_step),
    ("lstm-step", "LSTM, training step, 32 steps of 16 of 128 features, 256 hidden, AdamW",
        lstm_step),
];

/// Returns the names and descriptions of all workloads.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    WORKLOADS.iter().map(|(name, about, _)| (*name, *about))
}

/// Makes and compiles the workload of a name, with random weights.
///
/// # Errors
/// If there is no workload of that name, the dtype is not a float, or the device fails.
pub fn make(name: &str, setup: Setup) -> Result<Workload> {
    match WORKLOADS.iter().find(|w| w.0 == name) {
        Some(_) if !setup.dtype.is_float() => Err(Error::invalid(
            "workloads::make",
            format!("{name} computes in floats, not in {}", setup.dtype),
        )),
        Some((.., make)) => make(setup),
        None => Err(Error::invalid(
            "workloads::make",
            format!("there is no workload {name}"),
        )),
    }
}

/// Compiles a function of `inputs` that does not change the weights.
fn inference<M: Module + 'static>(
    model: M,
    inputs: Vec<Tensor>,
    setup: Setup,
    f: impl FnOnce(&M, &[Tensor]) -> Vec<Tensor>,
) -> Result<Workload> {
    model.eval();
    model.to(setup.device)?;
    model.to_dtype(setup.dtype)?;
    let inputs = inputs
        .iter()
        .map(|t| t.to_dtype(setup.dtype).to(setup.device));
    let inputs: Vec<Tensor> = inputs.collect();
    let program = compile_with(&inputs, setup.options, |x| no_grad(|| f(&model, &x)))?;
    Ok(Workload {
        model: Box::new(model),
        inputs,
        program,
    })
}

/// Compiles a step that returns the loss. The loss is computed inside `autocast` if the dtype is f16 or bf16, and
/// scaled for f16.
fn training<M: Module + 'static>(
    model: M,
    mut optimizer: Optimizer,
    inputs: Vec<Tensor>,
    setup: Setup,
    loss: impl FnOnce(&M, &[Tensor]) -> Tensor,
) -> Result<Workload> {
    let casts = setup.autocast();
    let inputs = inputs
        .iter()
        .map(|t| match casts.is_none() && t.dtype().is_float() {
            true => t.to_dtype(setup.dtype).to(setup.device),
            false => t.to(setup.device),
        });
    let inputs: Vec<Tensor> = inputs.collect();
    let mut scaler = GradScaler::with(Scaling::new().enabled(setup.dtype == DType::F16))?;
    scaler.to(setup.device)?;
    let program = compile_with(&inputs, setup.options, |x| {
        optimizer.zero_grad();
        let loss = {
            let _casts = set_autocast(casts);
            loss(&model, &x)
        };
        scaler.scale(&loss).backward()?;
        scaler.step(&mut optimizer)?;
        scaler.update()?;
        Result::Ok(vec![loss])
    })?;
    Ok(Workload {
        model: Box::new(model),
        inputs,
        program,
    })
}

fn images<M: Forward + 'static>(model: M, shape: [usize; 2], setup: Setup) -> Result<Workload> {
    let [count, size] = shape;
    let images = Tensor::randn([count, 3, size, size], DType::F32);
    inference(model, vec![images], setup, |m, x| vec![m.call(&x[0])])
}

fn of_bytes<M>(model: M, count: usize, setup: Setup) -> Result<Workload>
where
    M: Forward + Module + 'static,
{
    let images = Tensor::randn([count, 3, 224, 224], DType::F32);
    model.eval();
    let mut calibration = Calibration::new();
    no_grad(|| calibration.observe(|| model.call(&images)))?;
    inference(model, vec![images], setup, |m, x| {
        vec![calibration.quantized(|| m.call(&x[0]))]
    })
}

fn unet(setup: Setup) -> Result<Workload> {
    let config = UNetConfig {
        channels: 3,
        width: 16,
        ..UNetConfig::default()
    };
    images(UNet::new(config)?, [1, 128], setup)
}

fn block() -> TransformerConfig {
    TransformerConfig {
        dropout: 0.0,
        ..TransformerConfig::default()
    }
}

fn encoder(setup: Setup) -> Result<Workload> {
    let tokens = Tensor::randn([1, 256, 768], DType::F32);
    inference(block().encoder_block()?, vec![tokens], setup, |m, x| {
        vec![m.call(&x[0])]
    })
}

fn encoder_of_bytes(setup: Setup) -> Result<Workload> {
    let tokens = Tensor::randn([1, 256, 768], DType::F32);
    inference(block().encoder_block()?, vec![tokens], setup, |m, x| {
        vec![quantize_dynamic(|| m.call(&x[0]))]
    })
}

fn decoder(setup: Setup) -> Result<Workload> {
    let tokens = Tensor::randn([1, 64, 768], DType::F32);
    let memory = Tensor::randn([1, 256, 768], DType::F32);
    let causal = AttentionMasks::new().is_causal(true);
    inference(
        block().decoder_block()?,
        vec![tokens, memory],
        setup,
        |m, x| vec![m.call((&x[0], &x[1], &causal))],
    )
}

fn decoder_cached(setup: Setup) -> Result<Workload> {
    let sizes = [&[1, 1, 768][..], &[1, 12, 255, 64], &[1, 12, 255, 64]];
    let inputs = sizes.map(|s| Tensor::randn(s, DType::F32)).to_vec();
    inference(CachedBlock::new(768, 12, 3072)?, inputs, setup, |m, x| {
        m.call((&x[0], &x[1], &x[2])).to_vec()
    })
}

fn lstm(setup: Setup) -> Result<Workload> {
    let sizes = [[4, 128], [4, 256], [4, 256]];
    let inputs = sizes.map(|s| Tensor::randn(s, DType::F32)).to_vec();
    inference(LstmCell::new(128, 256)?, inputs, setup, |m, x| {
        m.call((&x[0], &x[1], &x[2])).to_vec()
    })
}

fn resnet18_step(setup: Setup) -> Result<Workload> {
    let model = setup.prepare_training(ResNet::resnet18(1000)?)?;
    let images = Tensor::randn([16, 3, 64, 64], DType::F32);
    let labels = Tensor::arange(0, 16, 1) * 61;
    let rule = SGD::new().lr(0.01).momentum(0.9);
    let optimizer = Optimizer::new(model.parameters(), rule)?;
    let batch = vec![images, labels];
    training(model, optimizer, batch, setup, |m, x| {
        m.call(&x[0]).cross_entropy(&x[1])
    })
}

fn encoder_step(setup: Setup) -> Result<Workload> {
    let model = setup.prepare_training(block().encoder_block()?)?;
    let batch = [0, 1].map(|_| Tensor::randn([4, 256, 768], DType::F32));
    let optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
    training(model, optimizer, batch.to_vec(), setup, |m, x| {
        m.call(&x[0]).mse_loss(&x[1])
    })
}

fn lstm_step(setup: Setup) -> Result<Workload> {
    let model = setup.prepare_training(LSTM::new(128, 256)?)?;
    let batch = [128, 256].map(|n| Tensor::randn([32, 16, n], DType::F32));
    let optimizer = Optimizer::new(model.parameters(), AdamW::new())?;
    training(model, optimizer, batch.to_vec(), setup, |m, x| {
        m.call(&x[0]).0.mse_loss(&x[1])
    })
}
