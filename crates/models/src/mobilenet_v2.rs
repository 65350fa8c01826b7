//! Networks of inverted residuals.

use crate::ops::{conv_norm, same_size};
use kiln::nn::{
    BatchNorm, BatchNorm2d, Conv2d, Dropout, Forward, Hooks, Kernel, Linear, Module, ReLU6,
    Sequential, sequential,
};
use kiln::{Result, Tensor};

/// Expansion, depthwise convolution and projection, with a shortcut where the shape stays the same.
#[derive(Module)]
struct InvertedResidual {
    conv: Sequential,
    shortcut: bool,
    hooks: Hooks,
}

impl InvertedResidual {
    fn new(from: usize, to: usize, stride: usize, expansion: usize) -> Result<InvertedResidual> {
        let hidden = from * expansion;
        let mut conv = Sequential::new();
        if expansion != 1 {
            conv.push(conv_norm_relu6(from, hidden, Kernel::new(1))?);
        }
        let depthwise = same_size(3).stride(stride).groups(hidden);
        conv.push(conv_norm_relu6(hidden, hidden, depthwise)?);
        conv.push(Conv2d::new(hidden, to, Kernel::new(1).bias(false))?);
        conv.push(BatchNorm2d::new(to)?);
        Ok(InvertedResidual {
            conv,
            shortcut: stride == 1 && from == to,
            hooks: Hooks::new(),
        })
    }
}

fn conv_norm_relu6(from: usize, to: usize, kernel: Kernel) -> Result<Sequential> {
    Ok(conv_norm(from, to, kernel, BatchNorm::new())?.add(ReLU6::new()))
}

impl Forward for InvertedResidual {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.conv.call(&x);
        Ok(if self.shortcut { x + y } else { y })
    }
}

/// Expansion, channels of the result, blocks and stride of the first block.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// "MobileNetV2: Inverted Residuals and Linear Bottlenecks" (Sandler et al., 2018): images `[n, 3, h, w]` to scores
/// `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::MobileNetV2;
///
/// let model = MobileNetV2::new(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct MobileNetV2 {
    features: Sequential,
    classifier: Sequential,
    hooks: Hooks,
}

impl MobileNetV2 {
    /// Makes the network with random weights.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn new(classes: usize) -> Result<MobileNetV2> {
        let mut features = sequential![conv_norm_relu6(3, 32, same_size(3).stride(2))]?;
        let mut from = 32;
        for (expansion, to, blocks, stride) in STAGES {
            for block in 0..blocks {
                let stride = if block == 0 { stride } else { 1 };
                features.push(InvertedResidual::new(from, to, stride, expansion)?);
                from = to;
            }
        }
        features.push(conv_norm_relu6(from, 1280, Kernel::new(1))?);
        Ok(MobileNetV2 {
            features,
            classifier: sequential![Dropout::new(0.2), Linear::new(1280, classes)]?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for MobileNetV2 {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.features.call(images);
        Ok(self.classifier.call(x.adaptive_avg_pool2d(1).flatten(1)))
    }
}
