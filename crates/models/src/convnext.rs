//! Convolutional networks in the manner of transformers.

use crate::limits;
use crate::ops::{LayerNorm2d, Permute, StochasticDepth};
use kiln::nn::{
    AdaptiveAvgPool2d, Conv2d, Flatten, Forward, GELU, Hooks, Kernel, LayerNorm, Linear, Module,
    Norm, Sequential, module, sequential,
};
use kiln::{Result, Tensor, Var, default_dtype};

const EPS: f64 = 1e-6;

/// The initial factor of a block's result.
const LAYER_SCALE: f64 = 1e-6;

module!(
    struct CNBlock(channels: usize, p: f64) {
        layer_scale: Var = Var::parameter(Tensor::full([channels, 1, 1], LAYER_SCALE, default_dtype())),
        block: Sequential = sequential![
            Conv2d::new(channels, channels, Kernel::new(7).padding(3).groups(channels)),
            Permute::new([0, 2, 3, 1]),
            LayerNorm::with(channels, Norm::new().eps(EPS)),
            Linear::new(channels, 4 * channels),
            GELU::new(),
            Linear::new(4 * channels, channels),
            Permute::new([0, 3, 1, 2]),
        ],
        stochastic_depth: StochasticDepth = StochasticDepth::new(p),
    }
);

impl Forward for CNBlock {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.block.call(&x) * self.layer_scale.get();
        Ok(self.stochastic_depth.call(y) + x)
    }
}

/// "A ConvNet for the 2020s" (Liu et al., 2022): images `[n, 3, h, w]` of at least 32 by 32 to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::ConvNeXt;
///
/// let model = ConvNeXt::convnext_tiny(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 32, 32], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct ConvNeXt {
    features: Sequential,
    avgpool: AdaptiveAvgPool2d,
    classifier: Sequential,
    hooks: Hooks,
}

impl ConvNeXt {
    sizes! { ConvNeXt, classes:
        /// ConvNeXt-T.
        convnext_tiny = ConvNeXt::new([96, 192, 384, 768], [3, 3, 9, 3], 0.1, classes);
        /// ConvNeXt-S.
        convnext_small = ConvNeXt::new([96, 192, 384, 768], [3, 3, 27, 3], 0.4, classes);
        /// ConvNeXt-B.
        convnext_base = ConvNeXt::new([128, 256, 512, 1024], [3, 3, 27, 3], 0.5, classes);
        /// ConvNeXt-L.
        convnext_large = ConvNeXt::new([192, 384, 768, 1536], [3, 3, 27, 3], 0.5, classes);
    }

    /// Makes a network with four stages of `blocks` blocks of `channels` channels each. In training, the last block is
    /// dropped with probability `stochastic_depth` and the first never; in between, the probability grows linearly.
    ///
    /// # Errors
    /// If the probability is out of range, if a size is above 2^24 or there are more than
    /// 4096 layers, or inside `compile`: make networks before.
    pub fn new(
        channels: [usize; 4],
        blocks: [usize; 4],
        stochastic_depth: f64,
        classes: usize,
    ) -> Result<ConvNeXt> {
        limits::check("ConvNeXt", &blocks, &channels)?;
        let mut features = sequential![sequential![
            Conv2d::new(3, channels[0], Kernel::new(4).stride(4)),
            LayerNorm2d::new(channels[0], EPS),
        ]]?;
        let last = (blocks.iter().sum::<usize>()).saturating_sub(1).max(1);
        let mut before = 0;
        for i in 0..4 {
            let mut stage = Sequential::new();
            for _ in 0..blocks[i] {
                let p = stochastic_depth * before as f64 / last as f64;
                stage.push(CNBlock::new(channels[i], p)?);
                before += 1;
            }
            features.push(stage);
            if let Some(next) = channels.get(i + 1) {
                features.push(sequential![
                    LayerNorm2d::new(channels[i], EPS),
                    Conv2d::new(channels[i], *next, Kernel::new(2).stride(2)),
                ]?);
            }
        }
        let model = ConvNeXt {
            features,
            avgpool: AdaptiveAvgPool2d::new(1)?,
            classifier: sequential![
                LayerNorm2d::new(channels[3], EPS),
                Flatten::new(),
                Linear::new(channels[3], classes),
            ]?,
            hooks: Hooks::new(),
        };
        Ok(model)
    }
}

impl Forward for ConvNeXt {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.avgpool.call(self.features.call(images));
        Ok(self.classifier.call(x))
    }
}
