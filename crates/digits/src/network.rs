//! The network.

use kiln::nn::{BatchNorm2d, Conv2d, Forward, Kernel, Linear, module};
use kiln::{Result, Tensor};

module!(
    /// Images `[n, 1, 8, 8]` to scores `[n, 10]`.
    pub struct Network() {
        conv1: Conv2d = Conv2d::new(1, 16, Kernel::new(3).padding(1)),
        bn1: BatchNorm2d = BatchNorm2d::new(16),
        conv2: Conv2d = Conv2d::new(16, 32, Kernel::new(3).padding(1)),
        bn2: BatchNorm2d = BatchNorm2d::new(32),
        fc1: Linear = Linear::new(32 * 4 * 4, 64),
        fc2: Linear = Linear::new(64, 10),
    }
);

impl Forward for Network {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.bn1.call(self.conv1.call(images)).relu();
        let x = self.bn2.call(self.conv2.call(&x)).relu();
        let x = x.max_pool2d(2).flatten(1);
        Ok(self.fc2.call(self.fc1.call(&x).relu()))
    }
}
