//! Networks for mobile phones.

use crate::ops::{SqueezeExcitation, conv_norm, make_divisible, same_size};
use kiln::nn::{
    BatchNorm, Dropout, Forward, Hardsigmoid, Hardswish, Hooks, Linear, Module, ReLU, Sequential,
    sequential,
};
use kiln::{Result, Tensor};

/// The activation after a batch norm.
#[derive(Clone, Copy, PartialEq)]
enum Activation {
    None,
    Relu,
    Hardswish,
}

/// Makes a convolution, a batch norm and an activation.
fn conv(
    channels: [usize; 2],
    kernel: usize,
    stride: usize,
    groups: usize,
    activation: Activation,
) -> Result<Sequential> {
    let kernel = same_size(kernel).stride(stride).groups(groups);
    let norm = BatchNorm::new().eps(1e-3).momentum(0.01);
    let mut layers = conv_norm(channels[0], channels[1], kernel, norm)?;
    match activation {
        Activation::None => {}
        Activation::Relu => layers.push(ReLU::new()),
        Activation::Hardswish => layers.push(Hardswish::new()),
    }
    Ok(layers)
}

/// Expansion, depthwise convolution, squeeze-and-excitation and projection, with a shortcut where the shape stays the
/// same.
#[derive(Module)]
struct InvertedResidual {
    block: Sequential,
    #[skip]
    shortcut: bool,
    hooks: Hooks,
}

impl InvertedResidual {
    fn new(row: &Row) -> Result<InvertedResidual> {
        let &(from, kernel, expanded, to, weighs, activation, stride) = row;
        let mut block = Sequential::new();
        if expanded != from {
            block.push(conv([from, expanded], 1, 1, 1, activation)?);
        }
        block.push(conv([expanded; 2], kernel, stride, expanded, activation)?);
        if weighs {
            let squeezed = make_divisible((expanded / 4) as f64);
            let (activation, weights) = (ReLU::new(), Hardsigmoid::new());
            block.push(SqueezeExcitation::new(
                expanded, squeezed, activation, weights,
            )?);
        }
        block.push(conv([expanded, to], 1, 1, 1, Activation::None)?);
        Ok(InvertedResidual {
            block,
            shortcut: stride == 1 && from == to,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for InvertedResidual {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let y = self.block.call(&x);
        Ok(if self.shortcut { y + x } else { y })
    }
}

/// The settings of a block: channels, kernel, expanded channels, result channels, true with squeeze-and-excitation,
/// activation and stride.
type Row = (usize, usize, usize, usize, bool, Activation, usize);

const SMALL: [Row; 11] = [
    (16, 3, 16, 16, true, Activation::Relu, 2),
    (16, 3, 72, 24, false, Activation::Relu, 2),
    (24, 3, 88, 24, false, Activation::Relu, 1),
    (24, 5, 96, 40, true, Activation::Hardswish, 2),
    (40, 5, 240, 40, true, Activation::Hardswish, 1),
    (40, 5, 240, 40, true, Activation::Hardswish, 1),
    (40, 5, 120, 48, true, Activation::Hardswish, 1),
    (48, 5, 144, 48, true, Activation::Hardswish, 1),
    (48, 5, 288, 96, true, Activation::Hardswish, 2),
    (96, 5, 576, 96, true, Activation::Hardswish, 1),
    (96, 5, 576, 96, true, Activation::Hardswish, 1),
];

const LARGE: [Row; 15] = [
    (16, 3, 16, 16, false, Activation::Relu, 1),
    (16, 3, 64, 24, false, Activation::Relu, 2),
    (24, 3, 72, 24, false, Activation::Relu, 1),
    (24, 5, 72, 40, true, Activation::Relu, 2),
    (40, 5, 120, 40, true, Activation::Relu, 1),
    (40, 5, 120, 40, true, Activation::Relu, 1),
    (40, 3, 240, 80, false, Activation::Hardswish, 2),
    (80, 3, 200, 80, false, Activation::Hardswish, 1),
    (80, 3, 184, 80, false, Activation::Hardswish, 1),
    (80, 3, 184, 80, false, Activation::Hardswish, 1),
    (80, 3, 480, 112, true, Activation::Hardswish, 1),
    (112, 3, 672, 112, true, Activation::Hardswish, 1),
    (112, 5, 672, 160, true, Activation::Hardswish, 2),
    (160, 5, 960, 160, true, Activation::Hardswish, 1),
    (160, 5, 960, 160, true, Activation::Hardswish, 1),
];

/// "Searching for MobileNetV3" (Howard et al., 2019): images `[n, 3, h, w]` to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::MobileNetV3;
///
/// let model = MobileNetV3::small(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct MobileNetV3 {
    features: Sequential,
    classifier: Sequential,
    hooks: Hooks,
}

impl MobileNetV3 {
    /// Makes the small network.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn small(classes: usize) -> Result<MobileNetV3> {
        MobileNetV3::new(&SMALL, 1024, classes)
    }

    /// Makes the large network.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn large(classes: usize) -> Result<MobileNetV3> {
        MobileNetV3::new(&LARGE, 1280, classes)
    }

    fn new(rows: &[Row], hidden: usize, classes: usize) -> Result<MobileNetV3> {
        let mut features = sequential![conv([3, 16], 3, 2, 1, Activation::Hardswish)]?;
        let mut from = 16;
        for row in rows {
            features.push(InvertedResidual::new(row)?);
            from = row.3;
        }
        features.push(conv([from, 6 * from], 1, 1, 1, Activation::Hardswish)?);
        let classifier = sequential![
            Linear::new(6 * from, hidden),
            Hardswish::new(),
            Dropout::new(0.2),
            Linear::new(hidden, classes),
        ]?;
        Ok(MobileNetV3 {
            features,
            classifier,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for MobileNetV3 {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.features.call(images);
        let x = x.adaptive_avg_pool2d(1).flatten(1);
        Ok(self.classifier.call(&x))
    }
}
