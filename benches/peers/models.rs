//! The two workloads, written as any user of Kiln would.

use kiln::nn::optim::{AdamW, Optimizer, Sgd};
use kiln::nn::{BatchNorm2d, Conv2d, Forward, Linear, Module, Sequential, TransformerEncoderLayer};
use kiln::{Compiled, DType, Reduction, Result, Spec, Tensor, compile};

/// A model, its optimiser and the batch it trains on.
pub struct Workload {
    /// Made from the weights that both sides begin with.
    pub model: Box<dyn Module>,
    /// Input and target.
    pub batch: [Tensor; 2],
    /// One training step; gives the loss.
    pub step: Compiled,
}

/// The workloads' names, for the table.
pub const NAMES: [(&str, &str); 2] = [
    (
        "resnet18",
        "ResNet-18, 16 images of 64x64, 1000 classes, SGD with momentum",
    ),
    (
        "encoder",
        "encoder block, d 768, 12 heads, 256 tokens, batch 4, AdamW",
    ),
];

/// Makes a workload with random weights.
///
/// # Errors
/// If there is none of that name.
pub fn workload(name: &str) -> Result<Workload> {
    match name {
        "resnet18" => resnet18(),
        _ => encoder(),
    }
}

fn resnet18() -> Result<Workload> {
    let model = ResNet18::new(1000)?;
    let images = Tensor::randn([16, 3, 64, 64], DType::F32);
    let labels = Tensor::arange(0, 16, 1) * 61;
    let rule = Sgd {
        lr: 0.01,
        momentum: 0.9,
        ..Sgd::default()
    };
    let mut optimizer = Optimizer::new(&model.parameters(), rule)?;
    let specs = [
        Spec::fixed(DType::F32, [16, 3, 64, 64]),
        Spec::fixed(DType::I64, [16]),
    ];
    let step = compile(&specs, |x| {
        optimizer.zero_grad();
        let scores = model.forward(&x[0]);
        let loss = scores.cross_entropy(&x[1], None, -100, Reduction::Mean, 0.0);
        loss.backward()?;
        optimizer.step()?;
        Result::Ok(loss)
    })?;
    Ok(Workload {
        model: Box::new(model),
        batch: [images, labels],
        step,
    })
}

fn encoder() -> Result<Workload> {
    let model = TransformerEncoderLayer::new(768, 12)?
        .dim_feedforward(3072)?
        .dropout(0.0)?
        .batch_first(true)?
        .gelu();
    let tokens = Tensor::randn([4, 256, 768], DType::F32);
    let target = Tensor::randn([4, 256, 768], DType::F32);
    let mut optimizer = Optimizer::new(&model.parameters(), AdamW::default())?;
    let step = compile(
        &[
            Spec::fixed(DType::F32, [4, 256, 768]),
            Spec::fixed(DType::F32, [4, 256, 768]),
        ],
        |x| {
            optimizer.zero_grad();
            let loss = model.forward(&x[0]).mse_loss(&x[1], Reduction::Mean);
            loss.backward()?;
            optimizer.step()?;
            Result::Ok(loss)
        },
    )?;
    Ok(Workload {
        model: Box::new(model),
        batch: [tokens, target],
        step,
    })
}

/// Two 3x3 convolutions beside a shortcut (He et al., 2015).
#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: usize) -> Result<BasicBlock> {
        let conv = |from: usize, stride: usize| -> Result<Conv2d> {
            let conv = Conv2d::new(from, to, 3)?.padding(1).bias(false);
            Ok(conv.stride(stride as i64))
        };
        let downsample = match (from, stride) == (to, 1) {
            true => None,
            false => Some(
                Sequential::new()
                    .add(Conv2d::new(from, to, 1)?.stride(stride as i64).bias(false))
                    .add(BatchNorm2d::new(to)?),
            ),
        };
        Ok(BasicBlock {
            conv1: conv(from, stride)?,
            bn1: BatchNorm2d::new(to)?,
            conv2: conv(to, 1)?,
            bn2: BatchNorm2d::new(to)?,
            downsample,
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y));
        match &self.downsample {
            Some(shortcut) => (y + shortcut.forward(x)).relu(),
            None => (y + x).relu(),
        }
    }
}

/// Images `[n, 3, h, w]` to scores `[n, classes]`, with torchvision's names.
#[derive(Module)]
struct ResNet18 {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Sequential,
    layer3: Sequential,
    layer4: Sequential,
    fc: Linear,
}

impl ResNet18 {
    fn new(classes: usize) -> Result<ResNet18> {
        let layer = |from: usize, to: usize, stride: usize| -> Result<Sequential> {
            let first = BasicBlock::new(from, to, stride)?;
            Ok(Sequential::new()
                .add(first)
                .add(BasicBlock::new(to, to, 1)?))
        };
        Ok(ResNet18 {
            conv1: Conv2d::new(3, 64, 7)?.stride(2).padding(3).bias(false),
            bn1: BatchNorm2d::new(64)?,
            layer1: layer(64, 64, 1)?,
            layer2: layer(64, 128, 2)?,
            layer3: layer(128, 256, 2)?,
            layer4: layer(256, 512, 2)?,
            fc: Linear::new(512, classes)?,
        })
    }
}

impl Forward for ResNet18 {
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(images)).relu();
        let x = x.max_pool2d(3, 2, 1, 1, false);
        let x = self.layer2.forward(&self.layer1.forward(&x));
        let x = self.layer4.forward(&self.layer3.forward(&x));
        self.fc.forward(&x.adaptive_avg_pool2d(1).flatten(1, -1))
    }
}
