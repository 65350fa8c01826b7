//! Small networks of squeezed channels.

use kiln::nn::{
    AdaptiveAvgPool2d, Conv2d, Dropout, Forward, Hooks, Kernel, MaxPool2d, Module, ReLU,
    Sequential, module, sequential,
};
use kiln::{Pool, Result, Tensor, cat};

module!(
    /// A 1x1 convolution to few channels, then 1x1 and 3x3 convolutions to `to` channels each.
    struct Fire(from: usize, squeezed: usize, to: usize) {
        squeeze: Conv2d = Conv2d::new(from, squeezed, 1),
        expand1x1: Conv2d = Conv2d::new(squeezed, to, 1),
        expand3x3: Conv2d = Conv2d::new(squeezed, to, Kernel::new(3).padding(1)),
    }
);

impl Forward for Fire {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.squeeze.call(&x).relu();
        let expanded = [self.expand1x1.call(&x), self.expand3x3.call(&x)];
        Ok(cat(expanded.map(|y| y.relu()), 1))
    }
}

/// SqueezeNet ("SqueezeNet: AlexNet-level accuracy with 50x fewer parameters", Iandola et al., 2016): images
/// `[n, 3, h, w]` of at least 21 by 21 (17 by 17 for 1.1) to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::SqueezeNet;
///
/// let model = SqueezeNet::squeezenet1_1(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct SqueezeNet {
    features: Sequential,
    classifier: Sequential,
    hooks: Hooks,
}

fn pool() -> Result<MaxPool2d> {
    MaxPool2d::new(Pool::new(3).stride(2).ceil_mode(true))
}

impl SqueezeNet {
    /// Makes SqueezeNet 1.0.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn squeezenet1_0(classes: usize) -> Result<SqueezeNet> {
        let features = sequential![
            Conv2d::new(3, 96, Kernel::new(7).stride(2)),
            ReLU::new(),
            pool(),
            Fire::new(96, 16, 64),
            Fire::new(128, 16, 64),
            Fire::new(128, 32, 128),
            pool(),
            Fire::new(256, 32, 128),
            Fire::new(256, 48, 192),
            Fire::new(384, 48, 192),
            Fire::new(384, 64, 256),
            pool(),
            Fire::new(512, 64, 256),
        ]?;
        SqueezeNet::of(features, classes)
    }

    /// Makes SqueezeNet 1.1: as accurate, with fewer than half the operations.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn squeezenet1_1(classes: usize) -> Result<SqueezeNet> {
        let features = sequential![
            Conv2d::new(3, 64, Kernel::new(3).stride(2)),
            ReLU::new(),
            pool(),
            Fire::new(64, 16, 64),
            Fire::new(128, 16, 64),
            pool(),
            Fire::new(128, 32, 128),
            Fire::new(256, 32, 128),
            pool(),
            Fire::new(256, 48, 192),
            Fire::new(384, 48, 192),
            Fire::new(384, 64, 256),
            Fire::new(512, 64, 256),
        ]?;
        SqueezeNet::of(features, classes)
    }

    fn of(features: Sequential, classes: usize) -> Result<SqueezeNet> {
        let classifier = sequential![
            Dropout::new(0.5),
            Conv2d::new(512, classes, 1),
            ReLU::new(),
            AdaptiveAvgPool2d::new(1),
        ]?;
        Ok(SqueezeNet {
            features,
            classifier,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for SqueezeNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let scores = self.classifier.call(self.features.call(images));
        Ok(scores.flatten(1))
    }
}
