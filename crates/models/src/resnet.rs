//! Residual networks.

use crate::limits;
use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Hooks, Kernel, Linear, Module, Sequential, module, sequential,
};
use kiln::{Pool, Result, Tensor};

fn conv(from: usize, to: usize, kernel: usize, stride: usize) -> Result<Conv2d> {
    grouped(from, to, kernel, stride, 1)
}

fn grouped(from: usize, to: usize, kernel: usize, stride: usize, groups: usize) -> Result<Conv2d> {
    let kernel = Kernel::new(kernel).padding(kernel / 2).groups(groups);
    Conv2d::new(from, to, kernel.stride(stride).bias(false))
}

/// Makes the shortcut of a block whose result differs in shape from its input.
fn shortcut(from: usize, to: usize, stride: usize) -> Result<Option<Sequential>> {
    if (from, stride) == (to, 1) {
        return Ok(None);
    }
    sequential![conv(from, to, 1, stride), BatchNorm2d::new(to)].map(Some)
}

fn residual(y: Tensor, x: Tensor, downsample: &Option<Sequential>) -> Tensor {
    match downsample {
        Some(shortcut) => (y + shortcut.call(x)).relu(),
        None => (y + x).relu(),
    }
}

module!(
    /// Two 3x3 convolutions, with a shortcut.
    struct BasicBlock(from: usize, to: usize, stride: usize) {
        conv1: Conv2d = conv(from, to, 3, stride),
        bn1: BatchNorm2d = BatchNorm2d::new(to),
        conv2: Conv2d = conv(to, to, 3, 1),
        bn2: BatchNorm2d = BatchNorm2d::new(to),
        downsample: Option<Sequential> = shortcut(from, to, stride),
    }
);

impl Forward for BasicBlock {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.bn1.call(self.conv1.call(&x)).relu();
        let y = self.bn2.call(self.conv2.call(&y));
        Ok(residual(y, x, &self.downsample))
    }
}

module!(
    /// A 3x3 convolution of `width` channels in groups between two 1x1 ones.
    struct Bottleneck(from: usize, width: usize, groups: usize, to: usize, stride: usize) {
        conv1: Conv2d = conv(from, width, 1, 1),
        bn1: BatchNorm2d = BatchNorm2d::new(width),
        conv2: Conv2d = grouped(width, width, 3, stride, groups),
        bn2: BatchNorm2d = BatchNorm2d::new(width),
        conv3: Conv2d = conv(width, to, 1, 1),
        bn3: BatchNorm2d = BatchNorm2d::new(to),
        downsample: Option<Sequential> = shortcut(from, to, stride),
    }
);

impl Forward for Bottleneck {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.bn1.call(self.conv1.call(&x)).relu();
        let y = self.bn2.call(self.conv2.call(&y)).relu();
        let y = self.bn3.call(self.conv3.call(&y));
        Ok(residual(y, x, &self.downsample))
    }
}

/// The kind of block of a [`ResNet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResNetBlock {
    /// Two 3x3 convolutions.
    Basic,
    /// A 3x3 convolution between two 1x1 ones; the result has four times the channels.
    Bottleneck,
}

impl ResNetBlock {
    /// Returns the ratio of the result's channels to those of the 3x3 convolutions.
    fn expansion(self) -> usize {
        match self {
            ResNetBlock::Basic => 1,
            ResNetBlock::Bottleneck => 4,
        }
    }
}

config! {
    /// The sizes of a [`ResNet`]. The default is ResNet-50's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ResNetConfig {
        /// The kind of block.
        pub block: ResNetBlock = ResNetBlock::Bottleneck,
        /// The number of blocks of 64, 128, 256 and 512 channels; may be 0.
        pub blocks: [usize; 4] = [3, 4, 6, 3],
        /// The channels of the images.
        pub channels: usize = 3,
        /// The number of scores of an image.
        pub classes: usize = 1000,
        /// The groups of the 3x3 convolutions of bottlenecks.
        pub groups: usize = 1,
        /// The channels of each group in the blocks of 64 channels; they grow in proportion to the blocks' channels.
        pub width_per_group: usize = 64,
    }
}

/// Residual networks ("Deep Residual Learning for Image Recognition", He et al., 2015): images `[n, 3, h, w]` to scores
/// `[n, classes]`. With groups they are ResNeXt (Xie et al., 2016), and with more channels within the blocks wide ones
/// (Zagoruyko and Komodakis, 2016). In bottlenecks the 3x3 convolution has the stride, as in torchvision.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::ResNet;
///
/// let model = ResNet::resnet18(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
///
/// Fine-tuning: torchvision's weights for another number of classes. With the feature `pytorch` the file may be
/// torchvision's own, `resnet18-f37072fd.pth`.
///
/// ```no_run
/// use kiln::nn::optim::{Adam, Optimizer};
/// use kiln::nn::{Module, StateDict};
/// use kiln_models::ResNet;
///
/// let model = ResNet::resnet18(5)?;
/// let report = model.load_matching(&StateDict::load("resnet18.safetensors")?)?;
/// assert_eq!(report.mismatched, ["fc.weight", "fc.bias"]); // a new last layer
/// model.freeze_where(&|name| name.starts_with("layer1.") || name.starts_with("layer2."));
/// let (head, body): (Vec<_>, Vec<_>) = model
///     .named_parameters()
///     .into_iter()
///     .filter(|(_, p)| p.requires_grad())
///     .partition(|(name, _)| name.starts_with("fc."));
/// let only = |named: Vec<(String, _)>| named.into_iter().map(|(_, p)| p).collect::<Vec<_>>();
/// let mut optimizer = Optimizer::new(only(body), Adam::new().lr(1e-5))?;
/// optimizer.add_group(only(head), Adam::new().lr(1e-3))?;
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    layer1: Sequential,
    layer2: Sequential,
    layer3: Sequential,
    layer4: Sequential,
    fc: Linear,
    hooks: Hooks,
}

impl ResNet {
    sizes! { ResNet, classes:
        /// ResNet-18, for images with three channels.
        resnet18 = ResNet::from_config(ResNetBlock::Basic, [2, 2, 2, 2], [1, 64], classes);
        /// ResNet-34, for images with three channels.
        resnet34 = ResNet::from_config(ResNetBlock::Basic, [3, 4, 6, 3], [1, 64], classes);
        /// ResNet-50, for images with three channels.
        resnet50 = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 6, 3], [1, 64], classes);
        /// ResNet-101, for images with three channels.
        resnet101 = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 23, 3], [1, 64], classes);
        /// ResNet-152, for images with three channels.
        resnet152 = ResNet::from_config(ResNetBlock::Bottleneck, [3, 8, 36, 3], [1, 64], classes);
        /// ResNeXt-50 of 32 groups of 4 channels, for images with three channels.
        resnext50_32x4d = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 6, 3], [32, 4], classes);
        /// ResNeXt-101 of 32 groups of 8 channels, for images with three channels.
        resnext101_32x8d = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 23, 3], [32, 8], classes);
        /// ResNeXt-101 of 64 groups of 4 channels, for images with three channels.
        resnext101_64x4d = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 23, 3], [64, 4], classes);
        /// ResNet-50 with twice the channels within blocks, for images with three channels.
        wide_resnet50_2 = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 6, 3], [1, 128], classes);
        /// ResNet-101 with twice the channels within blocks, for images with three channels.
        wide_resnet101_2 = ResNet::from_config(ResNetBlock::Bottleneck, [3, 4, 23, 3], [1, 128], classes);
    }

    /// Makes the network of three-channel images with these groups, and channels of a group.
    fn from_config(
        block: ResNetBlock,
        blocks: [usize; 4],
        [groups, width_per_group]: [usize; 2],
        classes: usize,
    ) -> Result<ResNet> {
        ResNet::new(ResNetConfig {
            block,
            blocks,
            classes,
            groups,
            width_per_group,
            ..ResNetConfig::default()
        })
    }

    /// Makes the network with random weights.
    ///
    /// # Errors
    /// If a size is above 2^24 or more than 4096 blocks in a row, or inside `compile`: make networks before.
    pub fn new(config: ResNetConfig) -> Result<ResNet> {
        let sizes = [
            config.channels,
            config.classes,
            config.groups,
            config.width_per_group,
        ];
        limits::check("ResNet", &config.blocks, &sizes)?;
        let mut from = 64;
        let mut layer = |i: usize| -> Result<Sequential> {
            let mut layer = Sequential::new();
            for block in 0..config.blocks[i] {
                let (width, stride) = (64 << i, if i > 0 && block == 0 { 2 } else { 1 });
                let to = width * config.block.expansion();
                layer = match config.block {
                    ResNetBlock::Basic => layer.add(BasicBlock::new(from, to, stride)?),
                    ResNetBlock::Bottleneck => {
                        let width = (config.width_per_group << i) * config.groups;
                        layer.add(Bottleneck::new(from, width, config.groups, to, stride)?)
                    }
                };
                from = to;
            }
            Ok(layer)
        };
        Ok(ResNet {
            conv1: conv(config.channels, 64, 7, 2)?,
            bn1: BatchNorm2d::new(64)?,
            layer1: layer(0)?,
            layer2: layer(1)?,
            layer3: layer(2)?,
            layer4: layer(3)?,
            fc: Linear::new(from, config.classes)?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for ResNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.bn1.call(self.conv1.call(images)).relu();
        let x = x.max_pool2d(Pool::new(3).stride(2).padding(1));
        let x = self.layer2.call(self.layer1.call(&x));
        let x = self.layer4.call(self.layer3.call(&x));
        Ok(self.fc.call(x.adaptive_avg_pool2d(1).flatten(1)))
    }
}
