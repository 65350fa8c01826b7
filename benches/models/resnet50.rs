//! ResNet-50 for inference, of plain functions.

use kiln::{DType, Device, Result, Tensor, Var};

/// The parameters of ResNet-50, by layer in order.
pub struct ResNet {
    device: Device,
    layers: Vec<Layer>,
}

struct Layer {
    weight: Var,
    mean: Var,
    variance: Var,
    stride: usize,
}

/// Blocks of each stage with the width of their middle convolution.
const STAGES: [(usize, usize); 4] = [(3, 64), (4, 128), (6, 256), (3, 512)];

impl ResNet {
    /// On a device.
    pub fn new(device: Device) -> Result<ResNet> {
        let layer = |from, to, kernel, stride| Layer::new(from, to, kernel, stride, device);
        let mut layers = vec![layer(3, 64, 7, 2)?];
        let mut channels = 64;
        for (stage, (blocks, width)) in STAGES.into_iter().enumerate() {
            for block in 0..blocks {
                let stride = if block == 0 && stage > 0 { 2 } else { 1 };
                layers.push(layer(channels, width, 1, 1)?);
                layers.push(layer(width, width, 3, stride)?);
                layers.push(layer(width, width * 4, 1, 1)?);
                if block == 0 {
                    layers.push(layer(channels, width * 4, 1, stride)?);
                }
                channels = width * 4;
            }
        }
        Ok(ResNet { device, layers })
    }

    /// The classes' scores `[n, 1000]` of images `[n, 3, 224, 224]`.
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let mut layers = self.layers.iter();
        let mut next = |x: &Tensor| layers.next().map_or_else(|| x.clone(), |l| l.forward(x));
        let mut x = next(x)
            .relu()
            .max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false);
        for (blocks, _) in STAGES {
            for block in 0..blocks {
                let y = next(&x).relu();
                let y = next(&y).relu();
                let y = next(&y);
                let shortcut = if block == 0 { next(&x) } else { x };
                x = (y + shortcut).relu();
            }
        }
        let pooled = x.mean([2, 3]);
        let head = Tensor::full([1000, 2048], 0.01, DType::F32).to(self.device);
        pooled.linear(&head, None)
    }
}

impl Layer {
    fn new(
        inputs: usize,
        outputs: usize,
        kernel: usize,
        stride: usize,
        device: Device,
    ) -> Result<Layer> {
        let var = |shape: &[usize], value: f64| {
            Var::new(&Tensor::full(shape, value, DType::F32).to(device))
        };
        Ok(Layer {
            weight: var(&[outputs, inputs, kernel, kernel], 0.01)?,
            mean: var(&[outputs], 0.1)?,
            variance: var(&[outputs], 1.5)?,
            stride,
        })
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let pad = self.weight.shape()[2] / 2;
        let stride = [self.stride; 2];
        let y = x.conv2d(&self.weight.get(), None, stride, [pad; 2], [1, 1], 1);
        y.batch_norm(
            Some(&self.mean),
            Some(&self.variance),
            None,
            None,
            false,
            0.1,
            1e-5,
        )
    }
}
