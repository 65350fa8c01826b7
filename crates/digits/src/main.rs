//! Trains a small convolutional network on the shipped handwritten digits, saves it and loads it back. Exports it
//! into a package, which is run by a program that links only the runtime.
//!
//! The whole step (forward, backward and the update of every parameter) is recorded once and compiled
//! into one plan that writes parameters and moments in place.

mod curve;
mod data;
mod elsewhere;
mod network;
mod say;

use data::Digits;
use kiln::data::{DataLoader, TensorDataset, random_split};
use kiln::nn::amp::{self, Amp, Initialize, OptLevel};
use kiln::nn::optim::{AdamW, OneCycleLR, Optimizer, Scheduler};
use kiln::nn::{Forward, Module, StateDict};
use kiln::{Compiled, CrossEntropy, DType, DimSpec, Spec, Tensor, compile};
use lexopt::prelude::*;
use network::Network;
use say::sayln;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "usage: digits [--seed N] [--epochs N] [--out FOLDER] [--seeds N [--opt-level L] [--half D]]

Trains a convolutional network on 1,437 of 1,797 handwritten digits and tests it on the others.

  --seed N      of the split, the weights and the order of the batches (default 0)
  --epochs N    passes over the training digits (default 12)
  --out FOLDER  where the weights and the package go (default: a folder for temporary files)
  --seeds N     only trains and tests, with each of the seeds below N, and prints the median
  --opt-level L how much of that is done in a narrower float: O0 to O3 of kiln::nn::amp (default: no mixed precision)
  --half D      the narrower float: bf16 or f16 (default bf16)";

/// Images in a batch.
const BATCH: usize = 64;

struct Options {
    seed: u64,
    epochs: usize,
    out: PathBuf,
    seeds: Option<u64>,
    opt_level: Option<OptLevel>,
    half: DType,
}

fn main() -> ExitCode {
    let job = |o: Options| match o.seeds {
        Some(n) => seeds(&o, n),
        None => run(&o),
    };
    let options = options().map_err(|e| format!("{e}\n{USAGE}").into());
    match options.and_then(|o| o.map_or(Ok(true), job)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments; `None` if only help was requested.
fn options() -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options {
        seed: 0,
        epochs: 12,
        out: std::env::temp_dir().join("kiln-digits"),
        seeds: None,
        opt_level: None,
        half: DType::BF16,
    };
    let level = |text: &str| {
        let mut levels = OptLevel::ALL.into_iter();
        let level = levels.find(|level| format!("{level:?}") == text);
        level.ok_or("not one of O0 to O3")
    };
    let half = |text: &str| match text {
        "bf16" => Ok(DType::BF16),
        "f16" => Ok(DType::F16),
        _ => Err("neither bf16 nor f16"),
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("help") | Short('h') => {
                sayln!("{USAGE}");
                return Ok(None);
            }
            Long("seed") => options.seed = args.value()?.parse()?,
            Long("epochs") => options.epochs = args.value()?.parse()?,
            Long("out") => options.out = args.value()?.into(),
            Long("seeds") => options.seeds = Some(args.value()?.parse()?),
            Long("opt-level") => options.opt_level = Some(args.value()?.parse_with(level)?),
            Long("half") => options.half = args.value()?.parse_with(half)?,
            _ => return Err(arg.unexpected()),
        }
    }
    if options.opt_level.is_some() && options.seeds.is_none() {
        return Err("--opt-level goes with --seeds".into());
    }
    Ok(Some(options))
}

/// True if the loaded and the exported network predict what the trained one does, and the exported one trains alike.
fn run(options: &Options) -> Result<bool, Failure> {
    let (train, test) = parts(options.seed)?;
    sayln!(
        "{} handwritten digits (UCI, CC BY 4.0): {} to train on, {} to test\n",
        train.labels.len() + test.labels.len(),
        train.labels.len(),
        test.labels.len()
    );

    let network = Network::new()?;
    sayln!("{network}\n{} parameters\n", network.num_parameters());
    let mut trained =
        Training::new(&network, options, train.labels.len() / BATCH)?.run(&train, options)?;

    network.eval();
    let classifier = classifier(&network, &trained.training.amp)?;
    let predictions = predict(&classifier, &test)?;
    let (right, accuracy) = score(&predictions, &test);
    sayln!(
        "\ntested: {right} of {} right, {accuracy:.2} %",
        test.labels.len()
    );

    std::fs::create_dir_all(&options.out)?;
    let file = options.out.join("digits.safetensors");
    network.state_dict().save(&file)?;
    let reloaded_network = Network::new()?;
    reloaded_network.load_state_dict(&StateDict::load(&file)?, true)?;
    reloaded_network.eval();
    let reloaded = predict(
        &self::classifier(&reloaded_network, &trained.training.amp)?,
        &test,
    )?;
    let differ = predictions
        .iter()
        .zip(&reloaded)
        .filter(|(a, b)| a != b)
        .count();
    sayln!(
        "saved and loaded back: {differ} predictions differ ({})",
        file.display()
    );
    let further = loader(&train, options.seed + 1)?;
    let mut batches = Vec::new();
    for _ in 0..elsewhere::EPOCHS {
        batches.extend(further.iter().collect::<kiln::Result<Vec<_>>>()?);
    }
    let exported = (&network, &classifier);
    let equal = elsewhere::run(
        &options.out,
        exported,
        &mut trained.training,
        &test,
        &batches,
    )?;
    sayln!("");

    trained.report()?;
    sayln!("\nthe loss");
    curve::print(&trained.losses);
    sayln!("");
    test.draw(&predictions);
    Ok(differ == 0 && equal)
}

/// Trains and tests with each of the seeds below `n`.
fn seeds(options: &Options, n: u64) -> Result<bool, Failure> {
    let mut accuracies = Vec::new();
    for seed in 0..n {
        let (train, test) = parts(seed)?;
        let network = Network::new()?;
        let options = Options {
            seed,
            out: options.out.clone(),
            ..*options
        };
        let trained =
            Training::new(&network, &options, train.labels.len() / BATCH)?.run(&train, &options)?;
        network.eval();
        let predictions = predict(&classifier(&network, &trained.training.amp)?, &test)?;
        let (right, accuracy) = score(&predictions, &test);
        sayln!(
            "seed {seed}: {right} of {} right, {accuracy:.2} %\n",
            test.labels.len()
        );
        accuracies.push(accuracy);
    }
    accuracies.sort_by(f64::total_cmp);
    if let Some(median) = accuracies.get(accuracies.len() / 2) {
        sayln!("median of {n} seeds: {median:.2} %");
    }
    Ok(true)
}

/// The training and the test digits; seeds all random numbers.
fn parts(seed: u64) -> Result<(Digits, Digits), Failure> {
    kiln::manual_seed(seed);
    let digits = Digits::read()?;
    let dataset = TensorDataset::new(digits.tensors())?;
    let subsets = random_split(dataset, [0.8, 0.2], seed)?;
    Ok((
        digits.part(subsets[0].indices()),
        digits.part(subsets[1].indices()),
    ))
}

fn predict(classifier: &Compiled<Tensor, Tensor>, test: &Digits) -> Result<Vec<i64>, Failure> {
    let (images, _) = test.tensors();
    Ok(classifier.run(&images)?.to_vec::<i64>()?)
}

/// Batches of the digits, in a new order at each pass.
fn loader(train: &Digits, seed: u64) -> kiln::Result<DataLoader<(Tensor, Tensor)>> {
    DataLoader::new(TensorDataset::new(train.tensors())?)
        .batch_size(BATCH)
        .shuffle(true)
        .drop_last(true)
        .seed(seed)
        .build()
}

/// The number of correct predictions, and their percentage.
fn score(predictions: &[i64], test: &Digits) -> (usize, f64) {
    let pairs = predictions.iter().zip(&test.labels);
    let right = pairs.filter(|(p, l)| p == l).count();
    (right, 100.0 * right as f64 / test.labels.len() as f64)
}

/// The predicted digits `[n]` of images `[n, 1, 8, 8]`, compiled for any n.
fn classifier(network: &Network, amp: &Amp) -> kiln::Result<Compiled<Tensor, Tensor>> {
    compile(images("batch"), |x| {
        amp.forward(&x, |x| network.call(&x)).argmax(1)
    })
}

fn images(batch: impl Into<DimSpec>) -> Spec {
    Spec::new(DType::F32, (batch, 1, 8, 8))
}

/// A compiled step with its optimiser and schedule.
struct Training {
    step: Step,
    optimizer: Optimizer,
    amp: Amp,
    schedule: Scheduler,
    compiled_in: Duration,
}

/// Maps images and labels to the loss and the number of correct predictions.
type Step = Compiled<(Tensor, Tensor), (Tensor, Tensor)>;

/// The result of training.
struct Trained {
    training: Training,
    losses: Vec<f32>,
    took: Duration,
}

impl Training {
    fn new(network: &Network, options: &Options, batches: usize) -> kiln::Result<Training> {
        let parameters = network.parameters();
        let mut optimizer = Optimizer::new(&parameters, AdamW::new())?;
        let steps = (options.epochs * batches).max(1) as u64;
        let schedule = Scheduler::new(&mut optimizer, OneCycleLR::new(1e-2, steps + 1))?;
        let amp_options =
            Initialize::new(options.opt_level.unwrap_or(OptLevel::O0)).half(options.half);
        let amp_options = amp_options.enabled(options.opt_level.is_some());
        let mut amp = amp::initialize(network, &mut [&mut optimizer], amp_options)?;
        let start = Instant::now();
        let labels = Spec::new(DType::I64, BATCH);
        let step = compile((images(BATCH), labels), |(x, y)| {
            optimizer.zero_grad();
            let scores = amp.forward(&x, |x| network.call(&x)).to_dtype(DType::F32);
            let loss = scores.cross_entropy_with(&y, CrossEntropy::new().label_smoothing(0.05));
            amp.scale_loss(&loss, &mut [&mut optimizer], |scaled| scaled.backward())?;
            optimizer.step()?;
            let right = scores.argmax(1).eq(&y).sum(());
            kiln::Result::Ok((loss, right))
        })?;
        Ok(Training {
            step,
            optimizer,
            amp,
            schedule,
            compiled_in: start.elapsed(),
        })
    }

    fn run(mut self, train: &Digits, options: &Options) -> Result<Trained, Failure> {
        let loader = loader(train, options.seed)?;
        let batches = train.labels.len() / BATCH;
        let start = Instant::now();
        let mut losses = Vec::new();
        for epoch in 0..options.epochs {
            let mut right = 0;
            for batch in &loader {
                let (images, labels) = batch?;
                let (loss, counted) = self.step.run((&images, &labels))?;
                self.schedule.step(&mut self.optimizer)?;
                losses.push(loss.item::<f32>()?);
                right += counted.item::<i64>()?;
            }
            let speed = losses.len() as f64 * BATCH as f64 / start.elapsed().as_secs_f64();
            let recent = &losses[losses.len().saturating_sub(batches)..];
            sayln!(
                "epoch {:>2}: loss {:.4}, accuracy {:.2} %, {speed:.0} images/s",
                epoch + 1,
                recent.iter().sum::<f32>() / recent.len().max(1) as f32,
                100.0 * right as f64 / (batches * BATCH).max(1) as f64,
            );
        }
        Ok(Trained {
            training: self,
            losses,
            took: start.elapsed(),
        })
    }
}

impl Trained {
    /// Prints the compiler's report of the step.
    fn report(&self) -> Result<(), Failure> {
        let step = &self.training.step;
        let explain = step.explain();
        let memory = step.executable().memory(&[])?;
        let ms_per_step = self.took.as_secs_f64() * 1e3 / self.losses.len().max(1) as f64;
        sayln!("the training step: forward, backward and update in one plan");
        sayln!(
            "  kernels       {} ({} launches, of which {} start together with another)",
            explain.kernels_run(),
            explain.launches_run(),
            explain.concurrent()
        );
        sayln!(
            "  biases        {} dropped in front of a batch norm",
            explain.dropped_biases()
        );
        sayln!(
            "  memory        {:.2} MB at the peak (no layout needs less than {:.2})",
            memory.peak as f64 / 1e6,
            memory.lower_bound as f64 / 1e6
        );
        sayln!(
            "  compiled in   {:.1} ms",
            self.training.compiled_in.as_secs_f64() * 1e3
        );
        sayln!(
            "  time          {ms_per_step:.2} ms a step with its batch, {:.1} s in all",
            self.took.as_secs_f64()
        );
        Ok(())
    }
}
