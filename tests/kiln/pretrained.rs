//! A network trained in PyTorch gives PyTorch's predictions: exactly 1676 of 1797 digits right, by the
//! compiled plan, equal to the reference on every prediction.

use kiln::{Conv, DType, Pool, RunningStats, Spec, Tensor, Var, compile, evaluate_reference};
use std::collections::HashMap;

const DIGITS: &str = include_str!("../../data/digits.csv");
const WEIGHTS: &[u8] = include_bytes!("../../data/digits_cnn.safetensors");

#[test]
fn the_trained_digits_network_is_pytorchs() {
    let (pixels, labels) = read_digits();
    let network = Network::load();
    let count = labels.len();
    let image = Spec::new(DType::F32, ("batch", 1, 8, 8));
    let classify = compile(image, |x| network.forward(&x)).unwrap();
    assert_eq!(classify.explain().folded(), 2);
    let images = Tensor::from_slice(&pixels, [count, 1, 8, 8]);
    let predictions = classify.run(&images).unwrap().to_vec::<i64>().unwrap();
    let right = predictions
        .iter()
        .zip(&labels)
        .filter(|(p, l)| p == l)
        .count();
    assert_eq!((right, count), (1676, 1797));
    let reference = evaluate_reference(network.forward(&images)).unwrap();
    assert_eq!(predictions, reference.to_vec::<i64>().unwrap());
}

/// conv1(1->8) bn1 relu conv2(8->16) bn2 relu maxpool2 flatten fc1(256->64) relu fc2(64->10).
struct Network {
    weights: HashMap<String, Var>,
}

impl Network {
    fn load() -> Network {
        let file = safetensors::SafeTensors::deserialize(WEIGHTS).unwrap();
        let mut weights = HashMap::new();
        for (name, view) in file.iter() {
            if view.dtype() == safetensors::Dtype::F32 {
                let tensor = Tensor::from_bytes(view.data(), DType::F32, view.shape());
                weights.insert(name.to_string(), Var::new(&tensor).unwrap());
            }
        }
        Network { weights }
    }

    /// The predicted digits `[n]` of images `[n, 1, 8, 8]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.conv_block(images, "conv1", "bn1");
        let x = self.conv_block(&x, "conv2", "bn2");
        let x = x
            .max_pool2d(
                Pool::new([2, 2])
                    .stride([2, 2])
                    .padding([0, 0])
                    .dilation([1, 1]),
            )
            .flatten(1);
        let x = self.linear(&x, "fc1").relu();
        self.linear(&x, "fc2").argmax(1)
    }

    fn conv_block(&self, x: &Tensor, conv: &str, norm: &str) -> Tensor {
        let weight = self.get(conv, "weight");
        let x = x.conv2d_with(
            &weight,
            Conv::new().stride([1, 1]).padding([1, 1]).dilation([1, 1]),
        );
        let statistic = |what: &str| self.weights[&format!("{norm}.{what}")].clone();
        x.batch_norm_with(
            RunningStats::new()
                .running_mean(statistic("running_mean"))
                .running_var(statistic("running_var"))
                .weight(self.get(norm, "weight"))
                .bias(self.get(norm, "bias")),
        )
        .relu()
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        x.linear_with(self.get(name, "weight"), self.get(name, "bias"))
    }

    fn get(&self, layer: &str, what: &str) -> Tensor {
        self.weights[&format!("{layer}.{what}")].get()
    }
}

/// Pixels in 0..=1, 64 a digit, and labels.
fn read_digits() -> (Vec<f32>, Vec<i64>) {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in DIGITS.lines() {
        let numbers: Vec<i64> = line.split(',').map(|n| n.parse().unwrap()).collect();
        pixels.extend(numbers[..64].iter().map(|p| *p as f32 / 16.0));
        labels.push(numbers[64]);
    }
    (pixels, labels)
}
