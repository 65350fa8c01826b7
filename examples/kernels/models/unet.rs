//! A U-Net (Ronneberger et al., 2015) with batch norms.

use kiln::nn::{BatchNorm2d, Conv2d, ConvTranspose2d, Forward, Module, ModuleList, Sequential};
use kiln::{Result, Tensor, cat};

/// Two 3x3 convolutions, each with batch norm and ReLU.
fn double(from: usize, to: usize) -> Result<Sequential> {
    let mut layers = Sequential::new();
    for channels in [from, to] {
        layers = layers
            .add(Conv2d::new(channels, to, 3)?.padding(1))
            .add(BatchNorm2d::new(to)?)
            .add(kiln::nn::ReLU::new());
    }
    Ok(layers)
}

/// Images `[n, channels, h, w]` to scores `[n, classes, h, w]`; h and w are multiples of 2 to the number
/// of levels.
#[derive(Module)]
pub struct UNet {
    down: ModuleList<Sequential>,
    bottom: Sequential,
    up: ModuleList<ConvTranspose2d>,
    merge: ModuleList<Sequential>,
    head: Conv2d,
}

impl UNet {
    /// Of some levels, the first of which has `width` channels.
    ///
    /// # Errors
    /// If a number of channels is zero.
    pub fn new(channels: usize, width: usize, levels: usize, classes: usize) -> Result<UNet> {
        let mut down = Vec::new();
        let (mut up, mut merge) = (Vec::new(), Vec::new());
        let mut from = channels;
        for level in 0..levels {
            let to = width << level;
            down.push(double(from, to)?);
            up.insert(0, ConvTranspose2d::new(2 * to, to, 2)?.stride(2));
            merge.insert(0, double(2 * to, to)?);
            from = to;
        }
        Ok(UNet {
            down: ModuleList(down),
            bottom: double(from, 2 * from)?,
            up: ModuleList(up),
            merge: ModuleList(merge),
            head: Conv2d::new(width, classes, 1)?,
        })
    }
}

impl Forward for UNet {
    fn forward(&self, images: &Tensor) -> Tensor {
        let mut x = images.clone();
        let mut skipped = Vec::new();
        for level in self.down.iter() {
            x = level.forward(&x);
            skipped.push(x.clone());
            x = x.max_pool2d(2, 2, 0, 1, false);
        }
        x = self.bottom.forward(&x);
        for (up, merge) in self.up.iter().zip(self.merge.iter()) {
            let skip = skipped.pop().expect("as many levels up as down");
            x = merge.forward(&cat(&[&skip, &up.forward(&x)], 1));
        }
        self.head.forward(&x)
    }
}
