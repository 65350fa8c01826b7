//! Networks whose layers take the results of all layers before them.

use crate::limits;
use kiln::nn::{
    AvgPool2d, BatchNorm2d, Conv2d, Forward, Hooks, Kernel, Linear, MaxPool2d, Module, ReLU,
    Sequential, module, sequential,
};
use kiln::{Pool, Result, Tensor, cat};

/// The ratio of a 1x1 convolution's channels to those of its layer's result.
const BOTTLENECK: usize = 4;

module!(
    /// A 1x1 and a 3x3 convolution after batch norms, whose result is appended to the channels of the input.
    struct DenseLayer(from: usize, growth: usize) {
        norm1: BatchNorm2d = BatchNorm2d::new(from),
        conv1: Conv2d = Conv2d::new(from, BOTTLENECK * growth, Kernel::new(1).bias(false)),
        norm2: BatchNorm2d = BatchNorm2d::new(BOTTLENECK * growth),
        conv2: Conv2d =
            Conv2d::new(BOTTLENECK * growth, growth, Kernel::new(3).padding(1).bias(false)),
    }
);

impl Forward for DenseLayer {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.conv1.call(self.norm1.call(&x).relu());
        let y = self.conv2.call(self.norm2.call(&y).relu());
        Ok(cat(&[x, y], 1))
    }
}

/// "Densely Connected Convolutional Networks" (Huang et al., 2016): images `[n, 3, h, w]` of at least 29 by 29 to
/// scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::DenseNet;
///
/// let model = DenseNet::densenet121(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 32, 32], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct DenseNet {
    features: Sequential,
    classifier: Linear,
    hooks: Hooks,
}

impl DenseNet {
    sizes! { DenseNet, classes:
        /// DenseNet-121.
        densenet121 = DenseNet::new(32, [6, 12, 24, 16], 64, classes);
        /// DenseNet-161.
        densenet161 = DenseNet::new(48, [6, 12, 36, 24], 96, classes);
        /// DenseNet-169.
        densenet169 = DenseNet::new(32, [6, 12, 32, 32], 64, classes);
        /// DenseNet-201.
        densenet201 = DenseNet::new(32, [6, 12, 48, 32], 64, classes);
    }

    /// Makes a network of four blocks with this many layers each. Each layer adds `growth` channels, beginning with
    /// those of the stem.
    ///
    /// # Errors
    /// If a size is above 2^24 or more than 4096 blocks in a row, or inside `compile`: make networks before.
    pub fn new(
        growth: usize,
        blocks: [usize; 4],
        channels: usize,
        classes: usize,
    ) -> Result<DenseNet> {
        limits::check("DenseNet", &blocks, &[growth, channels, classes])?;
        let stem = Kernel::new(7).stride(2).padding(3).bias(false);
        let mut features = sequential![
            "conv0": Conv2d::new(3, channels, stem),
            "norm0": BatchNorm2d::new(channels),
            "relu0": ReLU::new(),
            "pool0": MaxPool2d::new(Pool::new(3).stride(2).padding(1)),
        ]?;
        let mut from = channels;
        for (i, layers) in (1..).zip(blocks) {
            let mut block = Sequential::new();
            for layer in 1..=layers {
                block = block.named(format!("denselayer{layer}"), DenseLayer::new(from, growth)?);
                from += growth;
            }
            features = features.named(format!("denseblock{i}"), block);
            if i < blocks.len() {
                features = features.named(format!("transition{i}"), transition(from)?);
                from /= 2;
            }
        }
        Ok(DenseNet {
            features: features.named("norm5", BatchNorm2d::new(from)?),
            classifier: Linear::new(from, classes)?,
            hooks: Hooks::new(),
        })
    }
}

/// Makes layers that halve channels and sizes.
fn transition(from: usize) -> Result<Sequential> {
    sequential![
        "norm": BatchNorm2d::new(from),
        "relu": ReLU::new(),
        "conv": Conv2d::new(from, from / 2, Kernel::new(1).bias(false)),
        "pool": AvgPool2d::new(2),
    ]
}

impl Forward for DenseNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.features.call(images).relu();
        Ok(self.classifier.call(x.adaptive_avg_pool2d(1).flatten(1)))
    }
}
