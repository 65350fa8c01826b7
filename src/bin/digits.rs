//! Classifies the shipped handwritten digits with a trained convolutional network.
//!
//! The network is recorded once and compiled: convolutions fold with their batch norms, everything
//! else fuses. The compiled predictions are then compared with the reference evaluation, one by one.

use kiln::{Compiled, DType, Result, Spec, Tensor, Var, compile, evaluate_reference};
use std::collections::HashMap;
use std::io::Read;
use std::process::ExitCode;
use std::time::Instant;

const DIGITS: &[u8] = include_bytes!("../../data/digits.csv.gz");
const WEIGHTS: &[u8] = include_bytes!("../../data/digits_cnn.safetensors");

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the compiled network agrees with the reference.
fn run() -> Result<bool, Failure> {
    let (pixels, labels) = read_digits()?;
    let network = Network::load()?;
    let count = labels.len();
    println!(
        "{count} handwritten digits (UCI, CC BY 4.0), a convolutional network trained in PyTorch\n"
    );

    let start = Instant::now();
    let image = Spec::new(DType::F32, ["batch".into(), 1.into(), 8.into(), 8.into()]);
    let classify = compile(&[image], |x| network.forward(&x[0]))?;
    let compile_time = start.elapsed();
    let images = Tensor::from_slice(&pixels, [count, 1, 8, 8]);
    let predictions = classify.run(&[&images])?[0].to_vec::<i64>()?;
    describe(&classify, count, compile_time)?;

    let start = Instant::now();
    classify.run(&[&images])?;
    println!(
        "  time          {:.2} ms for all {count}\n",
        start.elapsed().as_secs_f64() * 1e3
    );

    let right = predictions
        .iter()
        .zip(&labels)
        .filter(|(p, l)| p == l)
        .count();
    println!("{right} of {count} right");
    let reference = evaluate_reference(&[&network.forward(&images)])?[0].to_vec::<i64>()?;
    let differ = predictions
        .iter()
        .zip(&reference)
        .filter(|(a, b)| a != b)
        .count();
    println!(
        "{} of {count} predictions equal the reference evaluation's\n",
        count - differ
    );
    draw(&pixels, &labels, &predictions);
    Ok(differ == 0)
}

/// conv1(1->8) bn1 relu conv2(8->16) bn2 relu maxpool2 flatten fc1(256->64) relu fc2(64->10).
struct Network {
    weights: HashMap<String, Var>,
}

impl Network {
    fn load() -> Result<Network, Failure> {
        let file = safetensors::SafeTensors::deserialize(WEIGHTS)?;
        let mut weights = HashMap::new();
        for (name, view) in file.iter() {
            if view.dtype() == safetensors::Dtype::F32 {
                let tensor = Tensor::from_bytes(view.data(), DType::F32, view.shape());
                weights.insert(name.to_string(), Var::new(&tensor)?);
            }
        }
        let missing = |name: &&&str| !weights.contains_key(**name);
        if let Some(name) = NAMES.iter().find(missing) {
            return Err(format!("the weight {name} is missing").into());
        }
        Ok(Network { weights })
    }

    /// The predicted digits `[n]` of images `[n, 1, 8, 8]`.
    fn forward(&self, images: &Tensor) -> Tensor {
        let x = self.conv_block(images, "conv1", "bn1");
        let x = self.conv_block(&x, "conv2", "bn2");
        let x = x
            .max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)
            .flatten(1, -1);
        let x = self.linear(&x, "fc1").relu();
        self.linear(&x, "fc2").argmax(1, false)
    }

    fn conv_block(&self, x: &Tensor, conv: &str, norm: &str) -> Tensor {
        let weight = self.get(conv, "weight");
        let x = x.conv2d(&weight, None, [1, 1], [1, 1], [1, 1], 1);
        let statistic = |what: &str| Some(&self.weights[&format!("{norm}.{what}")]);
        x.batch_norm(
            statistic("running_mean"),
            statistic("running_var"),
            Some(&self.get(norm, "weight")),
            Some(&self.get(norm, "bias")),
            false,
            0.1,
            1e-5,
        )
        .relu()
    }

    fn linear(&self, x: &Tensor, name: &str) -> Tensor {
        x.linear(&self.get(name, "weight"), Some(&self.get(name, "bias")))
    }

    fn get(&self, layer: &str, what: &str) -> Tensor {
        self.weights[&format!("{layer}.{what}")].get()
    }
}

const NAMES: [&str; 14] = [
    "conv1.weight",
    "bn1.weight",
    "bn1.bias",
    "bn1.running_mean",
    "bn1.running_var",
    "conv2.weight",
    "bn2.weight",
    "bn2.bias",
    "bn2.running_mean",
    "bn2.running_var",
    "fc1.weight",
    "fc1.bias",
    "fc2.weight",
    "fc2.bias",
];

/// Pixels in 0..=1, 64 a digit, and labels.
fn read_digits() -> Result<(Vec<f32>, Vec<i64>), Failure> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(DIGITS).read_to_string(&mut text)?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .from_reader(text.as_bytes());
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record = record?;
        let numbers = record.iter().map(|n| n.trim().parse::<i64>());
        let numbers = numbers.collect::<std::result::Result<Vec<i64>, _>>()?;
        let [digit @ .., label] = numbers.as_slice() else {
            return Err("an empty line among the digits".into());
        };
        if digit.len() != 64 {
            return Err(format!("a digit has 64 pixels, not {}", digit.len()).into());
        }
        pixels.extend(digit.iter().map(|p| *p as f32 / 16.0));
        labels.push(*label);
    }
    Ok((pixels, labels))
}

fn describe(classify: &Compiled, count: usize, time: std::time::Duration) -> Result<(), Failure> {
    let explain = classify.explain();
    let memory = classify.executable().memory(&[count as i64])?;
    println!("the compiler");
    println!(
        "  folded        {} convolutions with their batch norms",
        explain.folded()
    );
    println!(
        "  kernels       {} in every run: {}",
        explain.kernels_run(),
        names(explain.kernels.iter().filter(|k| !k.prepared))
    );
    println!(
        "  prepared      {} that run only when a weight changes",
        explain.kernels_prepared()
    );
    println!(
        "  memory        {:.2} MB at the peak (no layout needs less than {:.2})",
        memory.peak as f64 / 1e6,
        memory.lower_bound as f64 / 1e6
    );
    println!("  compiled in   {:.1} ms", time.as_secs_f64() * 1e3);
    Ok(())
}

fn names<'a>(kernels: impl Iterator<Item = &'a kiln::KernelInfo>) -> String {
    kernels
        .map(|k| k.name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Draws a few digits with their predictions, two rows of pixels a line of text.
fn draw(pixels: &[f32], labels: &[i64], predictions: &[i64]) {
    let wrong = (0..labels.len())
        .filter(|i| labels[*i] != predictions[*i])
        .take(2);
    let shown: Vec<usize> = (0..4).chain(wrong).collect();
    let shade = |p: f32| [' ', '░', '▒', '▓', '█'][(p * 4.0).round() as usize % 5];
    for row in 0..8 {
        for i in &shown {
            let line = &pixels[i * 64 + row * 8..i * 64 + row * 8 + 8];
            let text: String = line.iter().flat_map(|p| [shade(*p); 2]).collect();
            print!("{text}  ");
        }
        println!();
    }
    for i in &shown {
        let mark = if labels[*i] == predictions[*i] {
            ""
        } else {
            " (wrong)"
        };
        print!(
            "{:<18}",
            format!("{} -> {}{mark}", labels[*i], predictions[*i])
        );
    }
    println!();
}
