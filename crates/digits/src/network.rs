//! The network.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Kernel, Linear, Module};
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
            conv1: Conv2d::new(1, 16, Kernel::new(3).padding(1))?,
            bn1: BatchNorm2d::new(16)?,
            conv2: Conv2d::new(16, 32, Kernel::new(3).padding(1))?,
            bn2: BatchNorm2d::new(32)?,
            fc1: Linear::new(32 * 4 * 4, 64)?,
            fc2: Linear::new(64, 10)?,
        })
    }
}

impl Forward for Network {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.bn1.call(self.conv1.call(images)).relu();
        let x = self.bn2.call(self.conv2.call(&x)).relu();
        let x = x.max_pool2d(2).flatten(1, -1);
        Ok(self.fc2.call(self.fc1.call(&x).relu()))
    }
}
