//! Inception v3.
#![allow(non_snake_case)] // torchvision's names

use crate::googlenet::{GoogLeNetConfig, from_imagenet};
use crate::ops::{BasicConv2d, same_size};
use kiln::nn::{Dropout, Forward, Hooks, Kernel, Linear, Mode, Module, module};
use kiln::{AsTensor, AvgPool, Pool, Result, Tensor, cat};

/// A kernel of 1 by `n`, padded so that its results are as large as its input; `column` is `n` by 1.
fn row(n: usize) -> Kernel {
    Kernel::new([1, n]).padding([0, n / 2])
}

fn column(n: usize) -> Kernel {
    Kernel::new([n, 1]).padding([n / 2, 0])
}

fn pointwise() -> Kernel {
    Kernel::new(1)
}

/// A 3x3 kernel that halves the size.
fn halving() -> Kernel {
    Kernel::new(3).stride(2)
}

fn mean_pool(x: &Tensor) -> Tensor {
    x.avg_pool2d(AvgPool::new(3).stride(1).padding(1))
}

fn max_pool(x: &Tensor) -> Tensor {
    x.max_pool2d(Pool::new(3).stride(2))
}

module!(
    struct InceptionA(from: usize, pooled: usize) {
        branch1x1: BasicConv2d = BasicConv2d::new(from, 64, pointwise()),
        branch5x5_1: BasicConv2d = BasicConv2d::new(from, 48, pointwise()),
        branch5x5_2: BasicConv2d = BasicConv2d::new(48, 64, same_size(5)),
        branch3x3dbl_1: BasicConv2d = BasicConv2d::new(from, 64, pointwise()),
        branch3x3dbl_2: BasicConv2d = BasicConv2d::new(64, 96, same_size(3)),
        branch3x3dbl_3: BasicConv2d = BasicConv2d::new(96, 96, same_size(3)),
        branch_pool: BasicConv2d = BasicConv2d::new(from, pooled, pointwise()),
    }
);

impl Forward for InceptionA {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let branch5x5 = self.branch5x5_2.call(self.branch5x5_1.call(&x));
        let dbl = self.branch3x3dbl_2.call(self.branch3x3dbl_1.call(&x));
        let branches = [
            self.branch1x1.call(&x),
            branch5x5,
            self.branch3x3dbl_3.call(dbl),
            self.branch_pool.call(mean_pool(&x)),
        ];
        Ok(cat(&branches, 1))
    }
}

module!(
    struct InceptionB(from: usize) {
        branch3x3: BasicConv2d = BasicConv2d::new(from, 384, halving()),
        branch3x3dbl_1: BasicConv2d = BasicConv2d::new(from, 64, pointwise()),
        branch3x3dbl_2: BasicConv2d = BasicConv2d::new(64, 96, same_size(3)),
        branch3x3dbl_3: BasicConv2d = BasicConv2d::new(96, 96, halving()),
    }
);

impl Forward for InceptionB {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let dbl = self.branch3x3dbl_2.call(self.branch3x3dbl_1.call(&x));
        let branches = [
            self.branch3x3.call(&x),
            self.branch3x3dbl_3.call(dbl),
            max_pool(&x),
        ];
        Ok(cat(&branches, 1))
    }
}

module!(
    struct InceptionC(from: usize, within: usize) {
        branch1x1: BasicConv2d = BasicConv2d::new(from, 192, pointwise()),
        branch7x7_1: BasicConv2d = BasicConv2d::new(from, within, pointwise()),
        branch7x7_2: BasicConv2d = BasicConv2d::new(within, within, row(7)),
        branch7x7_3: BasicConv2d = BasicConv2d::new(within, 192, column(7)),
        branch7x7dbl_1: BasicConv2d = BasicConv2d::new(from, within, pointwise()),
        branch7x7dbl_2: BasicConv2d = BasicConv2d::new(within, within, column(7)),
        branch7x7dbl_3: BasicConv2d = BasicConv2d::new(within, within, row(7)),
        branch7x7dbl_4: BasicConv2d = BasicConv2d::new(within, within, column(7)),
        branch7x7dbl_5: BasicConv2d = BasicConv2d::new(within, 192, row(7)),
        branch_pool: BasicConv2d = BasicConv2d::new(from, 192, pointwise()),
    }
);

impl Forward for InceptionC {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let branch7x7 = self.branch7x7_2.call(self.branch7x7_1.call(&x));
        let dbl = self.branch7x7dbl_2.call(self.branch7x7dbl_1.call(&x));
        let dbl = self.branch7x7dbl_4.call(self.branch7x7dbl_3.call(dbl));
        let branches = [
            self.branch1x1.call(&x),
            self.branch7x7_3.call(branch7x7),
            self.branch7x7dbl_5.call(dbl),
            self.branch_pool.call(mean_pool(&x)),
        ];
        Ok(cat(&branches, 1))
    }
}

module!(
    struct InceptionD(from: usize) {
        branch3x3_1: BasicConv2d = BasicConv2d::new(from, 192, pointwise()),
        branch3x3_2: BasicConv2d = BasicConv2d::new(192, 320, halving()),
        branch7x7x3_1: BasicConv2d = BasicConv2d::new(from, 192, pointwise()),
        branch7x7x3_2: BasicConv2d = BasicConv2d::new(192, 192, row(7)),
        branch7x7x3_3: BasicConv2d = BasicConv2d::new(192, 192, column(7)),
        branch7x7x3_4: BasicConv2d = BasicConv2d::new(192, 192, halving()),
    }
);

impl Forward for InceptionD {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let branch7x7x3 = self.branch7x7x3_2.call(self.branch7x7x3_1.call(&x));
        let branch7x7x3 = self.branch7x7x3_3.call(branch7x7x3);
        let branches = [
            self.branch3x3_2.call(self.branch3x3_1.call(&x)),
            self.branch7x7x3_4.call(branch7x7x3),
            max_pool(&x),
        ];
        Ok(cat(&branches, 1))
    }
}

module!(
    struct InceptionE(from: usize) {
        branch1x1: BasicConv2d = BasicConv2d::new(from, 320, pointwise()),
        branch3x3_1: BasicConv2d = BasicConv2d::new(from, 384, pointwise()),
        branch3x3_2a: BasicConv2d = BasicConv2d::new(384, 384, row(3)),
        branch3x3_2b: BasicConv2d = BasicConv2d::new(384, 384, column(3)),
        branch3x3dbl_1: BasicConv2d = BasicConv2d::new(from, 448, pointwise()),
        branch3x3dbl_2: BasicConv2d = BasicConv2d::new(448, 384, same_size(3)),
        branch3x3dbl_3a: BasicConv2d = BasicConv2d::new(384, 384, row(3)),
        branch3x3dbl_3b: BasicConv2d = BasicConv2d::new(384, 384, column(3)),
        branch_pool: BasicConv2d = BasicConv2d::new(from, 192, pointwise()),
    }
);

impl Forward for InceptionE {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let branch3x3 = self.branch3x3_1.call(&x);
        let dbl = self.branch3x3dbl_2.call(self.branch3x3dbl_1.call(&x));
        let branches = [
            self.branch1x1.call(&x),
            self.branch3x3_2a.call(&branch3x3),
            self.branch3x3_2b.call(&branch3x3),
            self.branch3x3dbl_3a.call(&dbl),
            self.branch3x3dbl_3b.call(&dbl),
            self.branch_pool.call(mean_pool(&x)),
        ];
        Ok(cat(&branches, 1))
    }
}

module!(
    /// Scores from an inner layer, which give the first layers a stronger gradient in training.
    struct InceptionAux(from: usize, classes: usize) {
        conv0: BasicConv2d = BasicConv2d::new(from, 128, pointwise()),
        conv1: BasicConv2d = BasicConv2d::new(128, 768, Kernel::new(5)),
        fc: Linear = Linear::new(768, classes),
    }
);

impl Forward for InceptionAux {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let x = self.conv0.call(x.avg_pool2d(AvgPool::new(5).stride(3)));
        let x = self.conv1.call(x).adaptive_avg_pool2d(1);
        Ok(self.fc.call(x.flatten(1)))
    }
}

/// The settings of an [`Inception3`].
pub type Inception3Config = GoogLeNetConfig;

/// The results of an [`Inception3`].
#[derive(Clone, Debug)]
pub struct InceptionOutputs {
    /// Scores `[n, classes]`.
    pub logits: Tensor,
    /// The scores of the auxiliary head in training.
    pub aux_logits: Option<Tensor>,
}

/// Inception v3 ("Rethinking the Inception Architecture for Computer Vision", Szegedy et al., 2015): images `[n, 3, h,
/// w]` of at least 75 by 75, designed for 299 by 299, to scores `[n, classes]`. In training, [`Inception3::outputs`]
/// also returns the scores of the auxiliary head.
///
/// ```
/// use kiln::nn::{Forward, Module};
/// use kiln::{DType, Tensor};
/// use kiln_models::{Inception3, Inception3Config};
///
/// let model = Inception3::new(Inception3Config { classes: 10, ..Inception3Config::default() })?;
/// model.eval();
/// let images = Tensor::rand([1, 3, 75, 75], DType::F32);
/// assert_eq!(model.call(&images).shape()?, [1, 10]);
/// # Ok::<(), kiln::Error>(())
/// ```
#[derive(Module)]
pub struct Inception3 {
    Conv2d_1a_3x3: BasicConv2d,
    Conv2d_2a_3x3: BasicConv2d,
    Conv2d_2b_3x3: BasicConv2d,
    Conv2d_3b_1x1: BasicConv2d,
    Conv2d_4a_3x3: BasicConv2d,
    Mixed_5b: InceptionA,
    Mixed_5c: InceptionA,
    Mixed_5d: InceptionA,
    Mixed_6a: InceptionB,
    Mixed_6b: InceptionC,
    Mixed_6c: InceptionC,
    Mixed_6d: InceptionC,
    Mixed_6e: InceptionC,
    AuxLogits: Option<InceptionAux>,
    Mixed_7a: InceptionD,
    Mixed_7b: InceptionE,
    Mixed_7c: InceptionE,
    dropout: Dropout,
    fc: Linear,
    transform_input: bool,
    mode: Mode,
    hooks: Hooks,
}

impl Inception3 {
    /// Makes the network with random weights.
    ///
    /// # Errors
    /// Inside `compile`: make networks before.
    pub fn new(config: Inception3Config) -> Result<Inception3> {
        let aux = config.aux_logits;
        let aux = aux.then(|| InceptionAux::new(768, config.classes));
        Ok(Inception3 {
            Conv2d_1a_3x3: BasicConv2d::new(3, 32, halving())?,
            Conv2d_2a_3x3: BasicConv2d::new(32, 32, Kernel::new(3))?,
            Conv2d_2b_3x3: BasicConv2d::new(32, 64, same_size(3))?,
            Conv2d_3b_1x1: BasicConv2d::new(64, 80, pointwise())?,
            Conv2d_4a_3x3: BasicConv2d::new(80, 192, Kernel::new(3))?,
            Mixed_5b: InceptionA::new(192, 32)?,
            Mixed_5c: InceptionA::new(256, 64)?,
            Mixed_5d: InceptionA::new(288, 64)?,
            Mixed_6a: InceptionB::new(288)?,
            Mixed_6b: InceptionC::new(768, 128)?,
            Mixed_6c: InceptionC::new(768, 160)?,
            Mixed_6d: InceptionC::new(768, 160)?,
            Mixed_6e: InceptionC::new(768, 192)?,
            AuxLogits: aux.transpose()?,
            Mixed_7a: InceptionD::new(768)?,
            Mixed_7b: InceptionE::new(1280)?,
            Mixed_7c: InceptionE::new(2048)?,
            dropout: Dropout::new(0.5)?,
            fc: Linear::new(2048, config.classes)?,
            transform_input: config.transform_input,
            mode: Mode::new(),
            hooks: Hooks::new(),
        })
    }

    /// Returns the scores of images `[n, 3, h, w]`, and in training those of the auxiliary head, if there is one.
    ///
    /// # Errors
    /// If the images do not fit.
    #[track_caller]
    pub fn outputs(&self, images: impl AsTensor) -> Result<InceptionOutputs> {
        let mut x = images.as_tensor().into_owned();
        if self.transform_input {
            x = from_imagenet(&x);
        }
        let x = self.Conv2d_2a_3x3.call(self.Conv2d_1a_3x3.call(x));
        let x = max_pool(&self.Conv2d_2b_3x3.call(x));
        let x = self.Conv2d_4a_3x3.call(self.Conv2d_3b_1x1.call(x));
        let x = self.Mixed_5b.call(max_pool(&x));
        let x = self.Mixed_5d.call(self.Mixed_5c.call(x));
        let x = self.Mixed_6b.call(self.Mixed_6a.call(x));
        let x = self.Mixed_6d.call(self.Mixed_6c.call(x));
        let x = self.Mixed_6e.call(x);
        let head = self.AuxLogits.as_ref();
        let head = head.filter(|_| self.mode.is_training());
        let aux_logits = head.map(|head| head.call(&x));
        let x = self.Mixed_7b.call(self.Mixed_7a.call(x));
        let x = self.Mixed_7c.call(x).adaptive_avg_pool2d(1);
        let logits = self.fc.call(self.dropout.call(x).flatten(1));
        logits.check()?;
        Ok(InceptionOutputs { logits, aux_logits })
    }
}

impl Forward for Inception3 {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        Ok(self.outputs(images)?.logits)
    }
}
