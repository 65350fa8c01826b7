//! The network.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Linear, Module};
use kiln::{Result, Tensor};

/// Images `[n, 1, 8, 8]` to scores `[n, 10]`.
#[derive(Module)]
pub struct Network {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    fc1: Linear,
    fc2: Linear,
}

impl Network {
    /// With random weights.
    pub fn new() -> Result<Network> {
        Ok(Network {
            conv1: Conv2d::new(1, 16, 3)?.padding(1),
            bn1: BatchNorm2d::new(16)?,
            conv2: Conv2d::new(16, 32, 3)?.padding(1),
            bn2: BatchNorm2d::new(32)?,
            fc1: Linear::new(32 * 4 * 4, 64)?,
            fc2: Linear::new(64, 10)?,
        })
    }
}

impl Forward for Network {
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.bn1.forward(&self.conv1.forward(images)).relu();
        let x = self.bn2.forward(&self.conv2.forward(&x)).relu();
        let x = x.max_pool2d(2).flatten(1, -1);
        self.fc2.forward(&self.fc1.forward(&x).relu())
    }
}
