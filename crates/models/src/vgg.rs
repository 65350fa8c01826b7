//! Plain convolutional networks: AlexNet and VGG.

use kiln::nn::{
    AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Dropout, Forward, Kernel, Linear, MaxPool2d, ReLU,
    Sequential, module, sequential,
};
use kiln::{Pool, Result, Tensor};

module!(
    /// AlexNet ("One weird trick for parallelizing convolutional neural networks", Krizhevsky, 2014), as in
    /// torchvision: images `[n, 3, h, w]` of at least 63 by 63 to scores `[n, classes]`.
    pub struct AlexNet(classes: usize) {
        features: Sequential = alexnet_features(),
        avgpool: AdaptiveAvgPool2d = AdaptiveAvgPool2d::new(6),
        classifier: Sequential = sequential![
            Dropout::new(0.5),
            Linear::new(256 * 6 * 6, 4096),
            ReLU::new(),
            Dropout::new(0.5),
            Linear::new(4096, 4096),
            ReLU::new(),
            Linear::new(4096, classes),
        ],
    }
);

fn alexnet_features() -> Result<Sequential> {
    let pool = || MaxPool2d::new(Pool::new(3).stride(2));
    let conv3 = |from: usize, to: usize| Conv2d::new(from, to, Kernel::new(3).padding(1));
    sequential![
        Conv2d::new(3, 64, Kernel::new(11).stride(4).padding(2)),
        ReLU::new(),
        pool(),
        Conv2d::new(64, 192, Kernel::new(5).padding(2)),
        ReLU::new(),
        pool(),
        conv3(192, 384),
        ReLU::new(),
        conv3(384, 256),
        ReLU::new(),
        conv3(256, 256),
        ReLU::new(),
        pool(),
    ]
}

impl Forward for AlexNet {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.avgpool.call(self.features.call(images));
        Ok(self.classifier.call(x.flatten(1)))
    }
}

module!(
    /// VGG ("Very Deep Convolutional Networks for Large-Scale Image Recognition", Simonyan and Zisserman, 2014), as in
    /// torchvision: images `[n, 3, h, w]` of at least 32 by 32 to scores `[n, classes]`. `convs` are the numbers of
    /// convolutions of 64, 128, 256, 512 and again 512 channels; with batch norms if `norm`.
    pub struct Vgg(convs: [usize; 5], norm: bool, classes: usize) {
        features: Sequential = vgg_features(convs, norm),
        avgpool: AdaptiveAvgPool2d = AdaptiveAvgPool2d::new(7),
        classifier: Sequential = sequential![
            Linear::new(512 * 7 * 7, 4096),
            ReLU::new(),
            Dropout::new(0.5),
            Linear::new(4096, 4096),
            ReLU::new(),
            Dropout::new(0.5),
            Linear::new(4096, classes),
        ],
    }
);

fn vgg_features(convs: [usize; 5], norm: bool) -> Result<Sequential> {
    let mut features = Sequential::new();
    let mut from = 3;
    for (convs, to) in convs.into_iter().zip([64, 128, 256, 512, 512]) {
        for _ in 0..convs {
            features.push(Conv2d::new(from, to, Kernel::new(3).padding(1))?);
            if norm {
                features.push(BatchNorm2d::new(to)?);
            }
            features.push(ReLU::new());
            from = to;
        }
        features.push(MaxPool2d::new(2)?);
    }
    Ok(features)
}

impl Vgg {
    sizes! { Vgg, classes:
        /// VGG-11.
        vgg11 = Vgg::new([1, 1, 2, 2, 2], false, classes);
        /// VGG-11 with batch norms.
        vgg11_bn = Vgg::new([1, 1, 2, 2, 2], true, classes);
        /// VGG-13.
        vgg13 = Vgg::new([2, 2, 2, 2, 2], false, classes);
        /// VGG-13 with batch norms.
        vgg13_bn = Vgg::new([2, 2, 2, 2, 2], true, classes);
        /// VGG-16.
        vgg16 = Vgg::new([2, 2, 3, 3, 3], false, classes);
        /// VGG-16 with batch norms.
        vgg16_bn = Vgg::new([2, 2, 3, 3, 3], true, classes);
        /// VGG-19.
        vgg19 = Vgg::new([2, 2, 4, 4, 4], false, classes);
        /// VGG-19 with batch norms.
        vgg19_bn = Vgg::new([2, 2, 4, 4, 4], true, classes);
    }
}

impl Forward for Vgg {
    fn forward(&self, images: Tensor) -> Result<Tensor> {
        let x = self.avgpool.call(self.features.call(images));
        Ok(self.classifier.call(x.flatten(1)))
    }
}
