//! GoogLeNet.

use crate::ops::{BasicConv2d, same_size};
use kiln::nn::{Dropout, Forward, Kernel, Linear, MaxPool2d, Mode, Sequential, module, sequential};
use kiln::{AsTensor, Pool, Result, Tensor, cat};

/// Converts images that were normalised with ImageNet's means and deviations, `[n, 3, h, w]`, to means and deviations
/// of 0.5, which the published weights of these networks expect.
pub(crate) fn from_imagenet(images: &Tensor) -> Tensor {
    let (means, deviations) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let channels = |f: &dyn Fn(usize) -> f64| {
        let values = Tensor::from_slice(&[f(0), f(1), f(2)], [3, 1, 1]);
        values.to_dtype(images.dtype()).to(images.device())
    };
    let scale = channels(&|i| deviations[i] / 0.5);
    let shift = channels(&|i| (means[i] - 0.5) / 0.5);
    images * &scale + &shift
}

/// Makes a max pooling of `size` by `size` windows that halves the size, rounded up.
fn halving_pool(size: usize) -> Result<MaxPool2d> {
    MaxPool2d::new(Pool::new(size).stride(2).ceil_mode(true))
}

module!(
    /// Four parallel branches: 1x1, 3x3, a second 3x3 where the paper has 5x5, and pooling. `to` are the channels of
    /// all convolutions.
    struct Inception(from: usize, to: [usize; 6]) {
        branch1: BasicConv2d = BasicConv2d::new(from, to[0], Kernel::new(1)),
        branch2: Sequential = sequential![
            BasicConv2d::new(from, to[1], Kernel::new(1)),
            BasicConv2d::new(to[1], to[2], same_size(3)),
        ],
        branch3: Sequential = sequential![
            BasicConv2d::new(from, to[3], Kernel::new(1)),
            BasicConv2d::new(to[3], to[4], same_size(3)),
        ],
        branch4: Sequential = sequential![
            MaxPool2d::new(Pool::new(3).stride(1).padding(1).ceil_mode(true)),
            BasicConv2d::new(from, to[5], Kernel::new(1)),
        ],
    }
);

impl Forward for Inception {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let left = [self.branch1.call(&x), self.branch2.call(&x)];
        let right = [self.branch3.call(&x), self.branch4.call(&x)];
        Ok(cat(left.iter().chain(&right), 1))
    }
}

module!(
    /// Scores from an inner layer, which give the first layers a stronger gradient in training.
    struct InceptionAux(from: usize, classes: usize) {
        conv: BasicConv2d = BasicConv2d::new(from, 128, Kernel::new(1)),
        fc1: Linear = Linear::new(2048, 1024),
        fc2: Linear = Linear::new(1024, classes),
        dropout: Dropout = Dropout::new(0.7),
    }
);

impl Forward for InceptionAux {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.conv.call(x.adaptive_avg_pool2d(4)).flatten(1);
        let x = self.dropout.call(self.fc1.call(&x).relu());
        Ok(self.fc2.call(&x))
    }
}

config! {
    /// The settings of a [`GoogLeNet`] or an [`Inception3`](crate::Inception3). The default has 1000 classes and
    /// auxiliary heads, as torchvision's classes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct GoogLeNetConfig {
        /// The number of scores of an image.
        pub classes: usize = 1000,
        /// True if there are auxiliary heads, of which an Inception v3 has one. Training uses them.
        pub aux_logits: bool = true,
        /// True if images are normalised with ImageNet's means and deviations, and are first converted to those of the
        /// published weights.
        pub transform_input: bool = false,
    }
}

/// The results of a [`GoogLeNet`].
#[derive(Clone, Debug)]
pub struct GoogLeNetOutputs {
    /// Scores `[n, classes]`.
    pub logits: Tensor,
    /// The scores of the second auxiliary head in training.
    pub aux_logits2: Option<Tensor>,
    /// The scores of the first auxiliary head in training.
    pub aux_logits1: Option<Tensor>,
}

module!(
    /// GoogLeNet, or Inception v1 ("Going Deeper with Convolutions", Szegedy et al., 2014): images `[n, 3, h, w]` of at
    /// least 15 by 15 to scores `[n, classes]`. In training, [`GoogLeNet::outputs`] also returns the scores of the
    /// auxiliary heads.
    ///
    /// ```
    /// use kiln::nn::{Forward, Module};
    /// use kiln::{DType, Tensor};
    /// use kiln_models::{GoogLeNet, GoogLeNetConfig};
    ///
    /// let model = GoogLeNet::new(GoogLeNetConfig { classes: 10, ..GoogLeNetConfig::default() })?;
    /// let images = Tensor::rand([2, 3, 64, 64], DType::F32);
    /// let seen = model.outputs(&images)?;
    /// let labels = Tensor::from([3i64, 4]);
    /// let mut loss = seen.logits.cross_entropy(&labels);
    /// for aux in [seen.aux_logits1, seen.aux_logits2].into_iter().flatten() {
    ///     loss = loss + aux.cross_entropy(&labels) * 0.3;
    /// }
    /// model.eval();
    /// assert_eq!(model.call(&images).shape()?, [2, 10]);
    /// # Ok::<(), kiln::Error>(())
    /// ```
    pub struct GoogLeNet(config: GoogLeNetConfig) {
        conv1: BasicConv2d = BasicConv2d::new(3, 64, same_size(7).stride(2)),
        maxpool1: MaxPool2d = halving_pool(3),
        conv2: BasicConv2d = BasicConv2d::new(64, 64, Kernel::new(1)),
        conv3: BasicConv2d = BasicConv2d::new(64, 192, same_size(3)),
        maxpool2: MaxPool2d = halving_pool(3),
        inception3a: Inception = Inception::new(192, [64, 96, 128, 16, 32, 32]),
        inception3b: Inception = Inception::new(256, [128, 128, 192, 32, 96, 64]),
        maxpool3: MaxPool2d = halving_pool(3),
        inception4a: Inception = Inception::new(480, [192, 96, 208, 16, 48, 64]),
        inception4b: Inception = Inception::new(512, [160, 112, 224, 24, 64, 64]),
        inception4c: Inception = Inception::new(512, [128, 128, 256, 24, 64, 64]),
        inception4d: Inception = Inception::new(512, [112, 144, 288, 32, 64, 64]),
        inception4e: Inception = Inception::new(528, [256, 160, 320, 32, 128, 128]),
        maxpool4: MaxPool2d = halving_pool(2),
        inception5a: Inception = Inception::new(832, [256, 160, 320, 32, 128, 128]),
        inception5b: Inception = Inception::new(832, [384, 192, 384, 48, 128, 128]),
        aux1: Option<InceptionAux> = config.aux_logits.then(|| InceptionAux::new(512, config.classes)),
        aux2: Option<InceptionAux> = config.aux_logits.then(|| InceptionAux::new(528, config.classes)),
        dropout: Dropout = Dropout::new(0.2),
        fc: Linear = Linear::new(1024, config.classes),
        transform_input: bool = config.transform_input,
        mode: Mode = Mode::new(),
    }
);

impl GoogLeNet {
    /// Returns the scores of images `[n, 3, h, w]`, and in training those of the auxiliary heads, if there are any.
    ///
    /// # Errors
    /// If the images do not fit.
    #[track_caller]
    pub fn outputs(&self, images: impl AsTensor) -> Result<GoogLeNetOutputs> {
        let mut x = images.as_tensor().into_owned();
        if self.transform_input {
            x = from_imagenet(&x);
        }
        let x = self.maxpool1.call(self.conv1.call(x));
        let x = self.maxpool2.call(self.conv3.call(self.conv2.call(x)));
        let x = self.inception3b.call(self.inception3a.call(x));
        let x = self.inception4a.call(self.maxpool3.call(x));
        let aux_logits1 = self.aux(&self.aux1, &x);
        let x = self.inception4c.call(self.inception4b.call(x));
        let x = self.inception4d.call(x);
        let aux_logits2 = self.aux(&self.aux2, &x);
        let x = self.maxpool4.call(self.inception4e.call(x));
        let x = self.inception5b.call(self.inception5a.call(x));
        let x = self.dropout.call(x.adaptive_avg_pool2d(1).flatten(1));
        let logits = self.fc.call(x);
        logits.check()?;
        Ok(GoogLeNetOutputs {
            logits,
            aux_logits2,
            aux_logits1,
        })
    }

    fn aux(&self, head: &Option<InceptionAux>, x: &Tensor) -> Option<Tensor> {
        let head = head.as_ref().filter(|_| self.mode.is_training());
        head.map(|head| head.call(x))
    }
}

impl Forward for GoogLeNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        Ok(self.outputs(images)?.logits)
    }
}
