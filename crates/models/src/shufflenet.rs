//! Networks that process half of the channels and shuffle them.

use kiln::nn::{
    BatchNorm2d, Conv2d, Forward, Hooks, Kernel, Linear, MaxPool2d, Module, ReLU, Sequential,
    sequential,
};
use kiln::{Error, Pool, Result, Tensor, cat};

fn conv(from: usize, to: usize) -> Result<Conv2d> {
    Conv2d::new(from, to, Kernel::new(1).bias(false))
}

fn depthwise(channels: usize, stride: usize) -> Result<Conv2d> {
    let kernel = Kernel::new(3).stride(stride).padding(1);
    Conv2d::new(channels, channels, kernel.groups(channels).bias(false))
}

/// With stride 1, convolves half of the channels and keeps the other half; with a larger stride, convolves all of them
/// in two branches.
#[derive(Module)]
struct InvertedResidual {
    branch1: Sequential,
    branch2: Sequential,
    hooks: Hooks,
}

impl InvertedResidual {
    fn new(from: usize, to: usize, stride: usize) -> Result<InvertedResidual> {
        let half = to / 2;
        let branch1 = match stride {
            1 => Sequential::new(),
            _ => sequential![
                depthwise(from, stride),
                BatchNorm2d::new(from),
                conv(from, half),
                BatchNorm2d::new(half),
                ReLU::new(),
            ]?,
        };
        let branch2 = sequential![
            conv(if stride == 1 { half } else { from }, half),
            BatchNorm2d::new(half),
            ReLU::new(),
            depthwise(half, stride),
            BatchNorm2d::new(half),
            conv(half, half),
            BatchNorm2d::new(half),
            ReLU::new(),
        ]?;
        let hooks = Hooks::new();
        Ok(InvertedResidual {
            branch1,
            branch2,
            hooks,
        })
    }
}

impl Forward for InvertedResidual {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let halves = match self.branch1.is_empty() {
            true => {
                let [left, right] = <[Tensor; 2]>::try_from(x.check()?.chunk(2, 1))
                    .map_err(|_| Error::invalid("ShuffleNetV2", "an image without channels"))?;
                [left, self.branch2.call(right)]
            }
            false => [self.branch1.call(&x), self.branch2.call(&x)],
        };
        Ok(cat(&halves, 1).channel_shuffle(2))
    }
}

/// "ShuffleNet V2: Practical Guidelines for Efficient CNN Architecture Design" (Ma et al., 2018): images `[n, 3, h, w]`
/// to scores `[n, classes]`.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::ShuffleNetV2;
///
/// let model = ShuffleNetV2::shufflenet_v2_x0_5(10)?;
/// model.eval();
/// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [2, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct ShuffleNetV2 {
    conv1: Sequential,
    maxpool: MaxPool2d,
    stage2: Sequential,
    stage3: Sequential,
    stage4: Sequential,
    conv5: Sequential,
    fc: Linear,
    hooks: Hooks,
}

impl ShuffleNetV2 {
    sizes! { ShuffleNetV2, classes:
        /// The network of 0.5 times the channels.
        shufflenet_v2_x0_5 = ShuffleNetV2::new([24, 48, 96, 192, 1024], classes);
        /// The network of 1.0 times the channels.
        shufflenet_v2_x1_0 = ShuffleNetV2::new([24, 116, 232, 464, 1024], classes);
        /// The network of 1.5 times the channels.
        shufflenet_v2_x1_5 = ShuffleNetV2::new([24, 176, 352, 704, 1024], classes);
        /// The network of 2.0 times the channels.
        shufflenet_v2_x2_0 = ShuffleNetV2::new([24, 244, 488, 976, 2048], classes);
    }

    fn new(channels: [usize; 5], classes: usize) -> Result<ShuffleNetV2> {
        let [stem, a, b, c, last] = channels;
        let stage = |from, to, blocks| -> Result<Sequential> {
            let mut stage = Sequential::new().add(InvertedResidual::new(from, to, 2)?);
            for _ in 1..blocks {
                stage.push(InvertedResidual::new(to, to, 1)?);
            }
            Ok(stage)
        };
        let kernel = Kernel::new(3).stride(2).padding(1).bias(false);
        Ok(ShuffleNetV2 {
            conv1: sequential![
                Conv2d::new(3, stem, kernel),
                BatchNorm2d::new(stem),
                ReLU::new(),
            ]?,
            maxpool: MaxPool2d::new(Pool::new(3).stride(2).padding(1))?,
            stage2: stage(stem, a, 4)?,
            stage3: stage(a, b, 8)?,
            stage4: stage(b, c, 4)?,
            conv5: sequential![conv(c, last), BatchNorm2d::new(last), ReLU::new()]?,
            fc: Linear::new(last, classes)?,
            hooks: Hooks::new(),
        })
    }
}

impl Forward for ShuffleNetV2 {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.maxpool.call(self.conv1.call(images));
        let x = self.stage3.call(self.stage2.call(x));
        let x = self.conv5.call(self.stage4.call(x));
        Ok(self.fc.call(x.mean([2, 3])))
    }
}
