//! MobileNetV3-Small (Howard et al., 2019).

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Linear, Module, Sequential};
use kiln::{Result, Tensor};

/// What follows a batch norm.
#[derive(Clone, Copy, PartialEq)]
enum Activation {
    None,
    Relu,
    Hardswish,
}

/// Convolution, batch norm and activation.
#[derive(Module)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
    #[skip]
    activation: Activation,
}

impl ConvNorm {
    fn new(
        channels: [usize; 2],
        kernel: i64,
        stride: i64,
        groups: usize,
        activation: Activation,
    ) -> Result<ConvNorm> {
        let conv = Conv2d::new(channels[0], channels[1], kernel)?.padding(kernel / 2);
        Ok(ConvNorm {
            conv: conv.stride(stride).bias(false).groups(groups)?,
            norm: BatchNorm2d::new(channels[1])?.eps(1e-3),
            activation,
        })
    }
}

impl Forward for ConvNorm {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.norm.forward(&self.conv.forward(x));
        match self.activation {
            Activation::None => y,
            Activation::Relu => y.relu(),
            Activation::Hardswish => y.hardswish(),
        }
    }
}

/// Weighs channels by what their means say (Hu et al., 2017).
#[derive(Module)]
struct SqueezeExcitation {
    fc1: Conv2d,
    fc2: Conv2d,
}

impl SqueezeExcitation {
    fn new(channels: usize) -> Result<SqueezeExcitation> {
        // A quarter of the channels, as a multiple of 8.
        let squeezed = ((channels / 4 + 4) / 8 * 8).max(8);
        Ok(SqueezeExcitation {
            fc1: Conv2d::new(channels, squeezed, 1)?,
            fc2: Conv2d::new(squeezed, channels, 1)?,
        })
    }
}

impl Forward for SqueezeExcitation {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.fc1.forward(&x.adaptive_avg_pool2d(1)).relu();
        x * self.fc2.forward(&y).hardsigmoid()
    }
}

/// Expansion, depthwise convolution, weighing of channels and projection, beside a shortcut where the
/// shape stays.
#[derive(Module)]
struct InvertedResidual {
    block: Sequential,
    #[skip]
    shortcut: bool,
}

impl InvertedResidual {
    fn new(row: &Row) -> Result<InvertedResidual> {
        let &(from, kernel, expanded, to, weighs, activation, stride) = row;
        let mut block = Sequential::new();
        if expanded != from {
            block = block.add(ConvNorm::new([from, expanded], 1, 1, 1, activation)?);
        }
        let depthwise = ConvNorm::new([expanded; 2], kernel, stride, expanded, activation)?;
        block = block.add(depthwise);
        if weighs {
            block = block.add(SqueezeExcitation::new(expanded)?);
        }
        let projection = ConvNorm::new([expanded, to], 1, 1, 1, Activation::None)?;
        Ok(InvertedResidual {
            block: block.add(projection),
            shortcut: stride == 1 && from == to,
        })
    }
}

impl Forward for InvertedResidual {
    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.block.forward(x);
        if self.shortcut { y + x } else { y }
    }
}

/// Channels, kernel, expanded channels, result channels, whether channels are weighed, activation and
/// stride of a block.
type Row = (usize, i64, usize, usize, bool, Activation, i64);

const ROWS: [Row; 11] = [
    (16, 3, 16, 16, true, Activation::Relu, 2),
    (16, 3, 72, 24, false, Activation::Relu, 2),
    (24, 3, 88, 24, false, Activation::Relu, 1),
    (24, 5, 96, 40, true, Activation::Hardswish, 2),
    (40, 5, 240, 40, true, Activation::Hardswish, 1),
    (40, 5, 240, 40, true, Activation::Hardswish, 1),
    (40, 5, 120, 48, true, Activation::Hardswish, 1),
    (48, 5, 144, 48, true, Activation::Hardswish, 1),
    (48, 5, 288, 96, true, Activation::Hardswish, 2),
    (96, 5, 576, 96, true, Activation::Hardswish, 1),
    (96, 5, 576, 96, true, Activation::Hardswish, 1),
];

/// Images `[n, 3, h, w]` to scores `[n, classes]`.
#[derive(Module)]
pub struct MobileNetV3 {
    features: Sequential,
    fc1: Linear,
    fc2: Linear,
}

impl MobileNetV3 {
    /// The small network.
    ///
    /// # Errors
    /// If there are no classes.
    pub fn small(classes: usize) -> Result<MobileNetV3> {
        let first = ConvNorm::new([3, 16], 3, 2, 1, Activation::Hardswish)?;
        let mut features = Sequential::new().add(first);
        for row in &ROWS {
            features = features.add(InvertedResidual::new(row)?);
        }
        let last = ConvNorm::new([96, 576], 1, 1, 1, Activation::Hardswish)?;
        Ok(MobileNetV3 {
            features: features.add(last),
            fc1: Linear::new(576, 1024)?,
            fc2: Linear::new(1024, classes)?,
        })
    }
}

impl Forward for MobileNetV3 {
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.features.forward(images);
        let x = x.adaptive_avg_pool2d(1).flatten(1, -1);
        self.fc2.forward(&self.fc1.forward(&x).hardswish())
    }
}
