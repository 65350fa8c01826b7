//! A network that labels every pixel.

use crate::limits;
use kiln::nn::{
    BatchNorm2d, Conv2d, ConvTranspose2d, Forward, Hooks, Kernel, Module, ModuleList, ReLU,
    Sequential, TransposedKernel, sequential,
};
use kiln::{Error, Pool, Result, Tensor, cat};

/// Makes two 3x3 convolutions, each with batch norm and ReLU.
fn double_conv(from: usize, to: usize) -> Result<Sequential> {
    sequential![
        Conv2d::new(from, to, Kernel::new(3).padding(1)),
        BatchNorm2d::new(to),
        ReLU::new(),
        Conv2d::new(to, to, Kernel::new(3).padding(1)),
        BatchNorm2d::new(to),
        ReLU::new(),
    ]
}

config! {
    /// The sizes of a [`UNet`]. The default is the paper's.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct UNetConfig {
        /// The channels of the images.
        pub channels: usize = 1,
        /// The number of scores of a pixel.
        pub classes: usize = 2,
        /// The channels of the first level; each further level has twice as many.
        pub width: usize = 64,
        /// The number of times that the image is halved.
        pub levels: usize = 4,
    }
}

/// "U-Net: Convolutional Networks for Biomedical Image Segmentation" (Ronneberger et al., 2015), padded and with batch
/// norms: images `[n, channels, h, w]` to scores `[n, classes, h, w]`; h and w are multiples of 2 to the number of
/// levels.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::{UNet, UNetConfig};
///
/// let model = UNet::new(UNetConfig { channels: 3, width: 8, ..UNetConfig::default() })?;
/// model.eval();
/// let images = Tensor::rand([1, 3, 64, 32], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [1, 2, 64, 32]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct UNet {
    down: ModuleList<Sequential>,
    bottom: Sequential,
    up: ModuleList<ConvTranspose2d>,
    merge: ModuleList<Sequential>,
    head: Conv2d,
    hooks: Hooks,
}

/// The maximum number of levels: each halves images and doubles the channels.
const MAX_LEVELS: usize = 16;

impl UNet {
    /// Makes the network with random weights.
    ///
    /// # Errors
    /// If a size is above 2^24 or there are more than 16 levels, or inside `compile`: make networks before.
    pub fn new(config: UNetConfig) -> Result<UNet> {
        if config.levels > MAX_LEVELS {
            let message = format!("it has at most {MAX_LEVELS} levels, not {}", config.levels);
            return Err(Error::invalid("UNet", message));
        }
        let sizes = [config.channels, config.classes, config.width];
        limits::check("UNet", &[], &sizes)?;
        let mut down = Vec::new();
        let (mut up, mut merge) = (Vec::new(), Vec::new());
        let mut from = config.channels;
        for level in 0..config.levels {
            let to = config.width << level;
            down.push(double_conv(from, to)?);
            up.insert(
                0,
                ConvTranspose2d::new(2 * to, to, TransposedKernel::new(2).stride(2))?,
            );
            merge.insert(0, double_conv(2 * to, to)?);
            from = to;
        }
        Ok(UNet {
            down: ModuleList(down),
            bottom: double_conv(from, 2 * from)?,
            up: ModuleList(up),
            merge: ModuleList(merge),
            head: Conv2d::new(config.width, config.classes, 1)?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for UNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let mut x = images.clone();
        let mut skipped = Vec::new();
        for level in self.down.iter() {
            x = level.call(&x);
            skipped.push(x.clone());
            x = x.max_pool2d(Pool::new(2).stride(2));
        }
        x = self.bottom.call(&x);
        for (up, merge) in self.up.iter().zip(self.merge.iter()) {
            let skip = skipped.pop().expect("as many levels up as down");
            x = merge.call(cat(&[&skip, &up.call(&x)], 1));
        }
        Ok(self.head.call(&x))
    }
}
