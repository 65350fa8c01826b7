//! Residual networks (He et al., 2015), with torchvision's names.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Linear, Module, Sequential};
use kiln::{Result, Tensor};

fn conv(from: usize, to: usize, kernel: i64, stride: i64) -> Result<Conv2d> {
    let conv = Conv2d::new(from, to, kernel)?.padding(kernel / 2);
    Ok(conv.stride(stride).bias(false))
}

/// The shortcut of a block whose result has another shape than its input.
fn shortcut(from: usize, to: usize, stride: i64) -> Result<Option<Sequential>> {
    if (from, stride) == (to, 1) {
        return Ok(None);
    }
    let conv = conv(from, to, 1, stride)?;
    Ok(Some(Sequential::new().add(conv).add(BatchNorm2d::new(to)?)))
}

fn residual(y: Tensor, x: &Tensor, downsample: &Option<Sequential>) -> Tensor {
    match downsample {
        Some(shortcut) => (y + shortcut.forward(x)).relu(),
        None => (y + x).relu(),
    }
}

/// Two 3x3 convolutions beside a shortcut.
#[derive(Module)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl BasicBlock {
    fn new(from: usize, to: usize, stride: i64) -> Result<BasicBlock> {
        Ok(BasicBlock {
            conv1: conv(from, to, 3, stride)?,
            bn1: BatchNorm2d::new(to)?,
            conv2: conv(to, to, 3, 1)?,
            bn2: BatchNorm2d::new(to)?,
            downsample: shortcut(from, to, stride)?,
        })
    }
}

impl Forward for BasicBlock {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y));
        residual(y, x, &self.downsample)
    }
}

/// A 3x3 convolution between two 1x1 ones, which narrow and widen the channels by four.
#[derive(Module)]
struct Bottleneck {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    conv3: Conv2d,
    bn3: BatchNorm2d,
    downsample: Option<Sequential>,
}

impl Bottleneck {
    fn new(from: usize, width: usize, stride: i64) -> Result<Bottleneck> {
        Ok(Bottleneck {
            conv1: conv(from, width, 1, 1)?,
            bn1: BatchNorm2d::new(width)?,
            conv2: conv(width, width, 3, stride)?,
            bn2: BatchNorm2d::new(width)?,
            conv3: conv(width, 4 * width, 1, 1)?,
            bn3: BatchNorm2d::new(4 * width)?,
            downsample: shortcut(from, 4 * width, stride)?,
        })
    }
}

impl Forward for Bottleneck {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.bn1.forward(&self.conv1.forward(x)).relu();
        let y = self.bn2.forward(&self.conv2.forward(&y)).relu();
        let y = self.bn3.forward(&self.conv3.forward(&y));
        residual(y, x, &self.downsample)
    }
}

/// Images `[n, 3, h, w]` to scores `[n, classes]`.
#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Sequential,
    layer3: Sequential,
    layer4: Sequential,
    fc: Linear,
}

impl ResNet {
    /// ResNet-18.
    ///
    /// # Errors
    /// If there are no classes.
    pub fn resnet18(classes: usize) -> Result<ResNet> {
        let layer = |from: usize, to: usize, stride: i64| -> Result<Sequential> {
            let first = BasicBlock::new(from, to, stride)?;
            let second = BasicBlock::new(to, to, 1)?;
            Ok(Sequential::new().add(first).add(second))
        };
        let layers = [
            layer(64, 64, 1)?,
            layer(64, 128, 2)?,
            layer(128, 256, 2)?,
            layer(256, 512, 2)?,
        ];
        ResNet::new(layers, 512, classes)
    }

    /// ResNet-50.
    ///
    /// # Errors
    /// If there are no classes.
    pub fn resnet50(classes: usize) -> Result<ResNet> {
        let layer = |from: usize, width: usize, blocks: usize, stride: i64| -> Result<Sequential> {
            let mut layer = Sequential::new().add(Bottleneck::new(from, width, stride)?);
            for _ in 1..blocks {
                layer = layer.add(Bottleneck::new(4 * width, width, 1)?);
            }
            Ok(layer)
        };
        let layers = [
            layer(64, 64, 3, 1)?,
            layer(256, 128, 4, 2)?,
            layer(512, 256, 6, 2)?,
            layer(1024, 512, 3, 2)?,
        ];
        ResNet::new(layers, 2048, classes)
    }

    fn new(layers: [Sequential; 4], features: usize, classes: usize) -> Result<ResNet> {
        let [layer1, layer2, layer3, layer4] = layers;
        Ok(ResNet {
            conv1: conv(3, 64, 7, 2)?,
            bn1: BatchNorm2d::new(64)?,
            layer1,
            layer2,
            layer3,
            layer4,
            fc: Linear::new(features, classes)?,
        })
    }
}

impl Forward for ResNet {
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(images)).relu();
        let x = x.max_pool2d(3, 2, 1, 1, false);
        let x = self.layer2.forward(&self.layer1.forward(&x));
        let x = self.layer4.forward(&self.layer3.forward(&x));
        self.fc.forward(&x.adaptive_avg_pool2d(1).flatten(1, -1))
    }
}
