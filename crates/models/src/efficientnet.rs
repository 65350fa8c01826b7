//! Networks that are scaled in depth and width together.

use crate::ops::{SqueezeExcitation, StochasticDepth, conv_norm, make_divisible, same_size};
use kiln::nn::{
    AdaptiveAvgPool2d, BatchNorm, Dropout, Forward, Hooks, Kernel, Linear, Module, Sequential,
    SiLU, Sigmoid, sequential,
};
use kiln::{Result, Tensor};

/// Expansion, kernel, stride, channels of the input and of the result, and blocks, as in the smallest network.
type Stage = (usize, usize, usize, usize, usize, usize);

const STAGES: [Stage; 7] = [
    (1, 3, 1, 32, 16, 1),
    (6, 3, 2, 16, 24, 2),
    (6, 5, 2, 24, 40, 2),
    (6, 3, 2, 40, 80, 3),
    (6, 5, 1, 80, 112, 3),
    (6, 5, 2, 112, 192, 4),
    (6, 3, 1, 192, 320, 1),
];

/// The settings in which a network differs from the smallest one.
struct Scale {
    width: f64,
    depth: f64,
    norm: BatchNorm,
}

impl Scale {
    fn channels(&self, channels: usize) -> usize {
        make_divisible(channels as f64 * self.width)
    }

    fn blocks(&self, blocks: usize) -> usize {
        (blocks as f64 * self.depth).ceil() as usize
    }

    fn conv(&self, from: usize, to: usize, kernel: Kernel) -> Result<Sequential> {
        conv_norm(from, to, kernel, self.norm.clone())
    }
}

/// Expansion, depthwise convolution, squeeze-and-excitation and projection, with a shortcut where the shape stays the
/// same.
#[derive(Module)]
struct MBConv {
    block: Sequential,
    stochastic_depth: StochasticDepth,
    shortcut: bool,
    hooks: Hooks,
}

impl MBConv {
    fn new(stage: Stage, p: f64, scale: &Scale) -> Result<MBConv> {
        let (expansion, kernel, stride, from, to, _) = stage;
        let hidden = make_divisible((from * expansion) as f64);
        let mut block = Sequential::new();
        if hidden != from {
            let expand = scale.conv(from, hidden, Kernel::new(1))?;
            block.push(expand.add(SiLU::new()));
        }
        let depthwise = same_size(kernel).stride(stride).groups(hidden);
        block.push(scale.conv(hidden, hidden, depthwise)?.add(SiLU::new()));
        let squeezed = (from / 4).max(1);
        let (activation, weights) = (SiLU::new(), Sigmoid::new());
        block.push(SqueezeExcitation::new(
            hidden, squeezed, activation, weights,
        )?);
        block.push(scale.conv(hidden, to, Kernel::new(1))?);
        Ok(MBConv {
            block,
            stochastic_depth: StochasticDepth::new(p)?,
            shortcut: stride == 1 && from == to,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for MBConv {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.block.call(&x);
        Ok(match self.shortcut {
            true => self.stochastic_depth.call(&y) + x,
            false => y,
        })
    }
}

/// "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks" (Tan and Le, 2019): images `[n, 3, h, w]`
/// to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::EfficientNet;
///
/// let model = EfficientNet::efficientnet_b0(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct EfficientNet {
    features: Sequential,
    avgpool: AdaptiveAvgPool2d,
    classifier: Sequential,
    hooks: Hooks,
}

/// Returns the norms of the larger networks.
fn slow() -> BatchNorm {
    BatchNorm::new().eps(1e-3).momentum(0.01)
}

impl EfficientNet {
    sizes! { EfficientNet, classes:
        /// EfficientNet-B0.
        efficientnet_b0 = EfficientNet::new([1.0, 1.0, 0.2], BatchNorm::new(), classes);
        /// EfficientNet-B1.
        efficientnet_b1 = EfficientNet::new([1.0, 1.1, 0.2], BatchNorm::new(), classes);
        /// EfficientNet-B2.
        efficientnet_b2 = EfficientNet::new([1.1, 1.2, 0.3], BatchNorm::new(), classes);
        /// EfficientNet-B3.
        efficientnet_b3 = EfficientNet::new([1.2, 1.4, 0.3], BatchNorm::new(), classes);
        /// EfficientNet-B4.
        efficientnet_b4 = EfficientNet::new([1.4, 1.8, 0.4], BatchNorm::new(), classes);
        /// EfficientNet-B5.
        efficientnet_b5 = EfficientNet::new([1.6, 2.2, 0.4], slow(), classes);
        /// EfficientNet-B6.
        efficientnet_b6 = EfficientNet::new([1.8, 2.6, 0.5], slow(), classes);
        /// EfficientNet-B7.
        efficientnet_b7 = EfficientNet::new([2.0, 3.1, 0.5], slow(), classes);
    }

    /// Makes the network of a width, a depth and a probability of dropout.
    fn new(scale: [f64; 3], norm: BatchNorm, classes: usize) -> Result<EfficientNet> {
        /// Block `i` of `n` is dropped with this probability times `i / n`.
        const STOCHASTIC_DEPTH: f64 = 0.2;
        let [width, depth, dropout] = scale;
        let scale = &Scale { width, depth, norm };
        let mut from = scale.channels(32);
        let stem = scale.conv(3, from, same_size(3).stride(2))?;
        let mut features = sequential![stem.add(SiLU::new())]?;
        let total_blocks: usize = STAGES.iter().map(|s| scale.blocks(s.5)).sum();
        let mut before = 0;
        for (expansion, kernel, stride, _, to, blocks) in STAGES {
            let mut stage = Sequential::new();
            let to = scale.channels(to);
            for block in 0..scale.blocks(blocks) {
                let stride = if block == 0 { stride } else { 1 };
                let p = STOCHASTIC_DEPTH * before as f64 / total_blocks as f64;
                let row = (expansion, kernel, stride, from, to, 1);
                stage.push(MBConv::new(row, p, scale)?);
                (from, before) = (to, before + 1);
            }
            features.push(stage);
        }
        let head = scale.conv(from, 4 * from, Kernel::new(1))?;
        features.push(head.add(SiLU::new()));
        Ok(EfficientNet {
            features,
            avgpool: AdaptiveAvgPool2d::new(1)?,
            classifier: sequential![Dropout::new(dropout), Linear::new(4 * from, classes),]?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for EfficientNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.avgpool.call(self.features.call(images));
        Ok(self.classifier.call(x.flatten(1)))
    }
}
