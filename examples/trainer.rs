//! A training loop to copy and change: progress, TensorBoard, gradient accumulation, mixed precision, early stopping,
//! the best and the last checkpoint, and going on after a stop.
//!
//! `cargo run --release --example trainer --features progress,tensorboard [FOLDER]` trains on the shipped digits. Run
//! again with the same folder, it goes on where it was stopped.

use kiln::data::{DataLoader, Progress, TensorDataset, random_split};
use kiln::nn::Checkpoint;
use kiln::nn::amp::{GradScaler, Scaling};
use kiln::prelude::*;
use kiln::tensorboard::{SummaryWriter, WriterOptions};
use kiln::{autocast, get_rng_state, set_rng_state};
use std::path::{Path, PathBuf};

type Failure = Box<dyn std::error::Error>;
type Batches = DataLoader<(Tensor, Tensor)>;

/// The settings of a training loop.
struct Trainer {
    /// The folder of the checkpoints and of TensorBoard's files.
    folder: PathBuf,
    epochs: usize,
    /// The number of batches whose gradients are added up for a step.
    accumulate: usize,
    /// The number of epochs without a better validation loss after which training stops.
    patience: usize,
    /// The dtype of products and convolutions. Losses are scaled if it is f16.
    dtype: DType,
}

/// The progress of a training, as its checkpoints hold it.
struct Progressed {
    epoch: usize,
    step: usize,
    best_loss: f64,
    /// Epochs since that loss.
    waited: usize,
}

impl Trainer {
    fn last(&self) -> PathBuf {
        self.folder.join("last.safetensors")
    }

    fn best(&self) -> PathBuf {
        self.folder.join("best.safetensors")
    }

    /// Trains until `epochs` are over or the validation loss no longer falls, then loads the best weights. Goes on from
    /// the last checkpoint if there is one. Returns the lowest validation loss.
    fn fit(
        &self,
        model: &impl Forward,
        (optimizer, schedule): (&mut Optimizer, &mut Scheduler),
        (train, val): (&Batches, &Batches),
        loss: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> Result<f64, Failure> {
        std::fs::create_dir_all(&self.folder)?;
        let mut scaler = GradScaler::with(Scaling::new().enabled(self.dtype == DType::F16))?;
        let mut at = Progressed { epoch: 0, step: 0, best_loss: f64::INFINITY, waited: 0 };
        if self.last().exists() {
            let saved = Checkpoint::load(self.last())?;
            let restore = saved.restore().module("model", model);
            restore.optimizer("optimizer", optimizer).scheduler("schedule", schedule).finish()?;
            scaler.load_state_dict(&saved.get("scaler")?)?;
            set_rng_state(saved.get("rng")?);
            (at.epoch, at.step) = (saved.get("epoch")?, saved.get("step")?);
            (at.best_loss, at.waited) = (saved.get("best_loss")?, saved.get("waited")?);
            println!("going on after epoch {}", at.epoch);
        }
        // Values that an unfinished epoch logged are dropped.
        let writer = SummaryWriter::new(WriterOptions::new(&self.folder).purge_step(at.step as i64))?;
        while at.epoch < self.epochs && at.waited < self.patience {
            train.set_epoch(at.epoch as u64);
            model.train();
            let bar = Progress::new(format!("epoch {}", at.epoch + 1), train.len().map(|n| n as u64));
            let batches = train.len().unwrap_or(0);
            optimizer.zero_grad();
            for (i, batch) in bar.wrap(train).enumerate() {
                let (x, y) = batch?;
                let value = autocast(self.dtype, || loss(&model.call(&x), &y)) / self.accumulate as f64;
                scaler.scale(&value).backward()?;
                if (i + 1) % self.accumulate == 0 || i + 1 == batches {
                    scaler.step(optimizer)?;
                    scaler.update()?;
                    optimizer.zero_grad();
                    writer.add_scalar("loss/train", value * self.accumulate as f64, at.step)?;
                    writer.add_scalar("lr", schedule.last_lr()[0], at.step)?;
                    schedule.step(optimizer)?;
                    at.step += 1;
                }
            }
            bar.finish_and_clear();
            let validation = self.validate(model, val, &loss)?;
            writer.add_scalar("loss/val", validation, at.step)?;
            at.epoch += 1;
            at.waited += 1;
            if validation < at.best_loss {
                (at.best_loss, at.waited) = (validation, 0);
                model.state_dict().save(self.best())?;
            }
            println!("epoch {}: validation loss {validation:.4}, best {:.4}", at.epoch, at.best_loss);
            let checkpoint = Checkpoint::new().module("model", model).optimizer("optimizer", optimizer);
            let checkpoint = checkpoint.scheduler("schedule", schedule).value("scaler", &scaler.state_dict()?);
            let checkpoint = checkpoint.value("rng", &get_rng_state()).value("epoch", &at.epoch);
            let checkpoint = checkpoint.value("step", &at.step).value("best_loss", &at.best_loss);
            checkpoint.value("waited", &at.waited).save(self.last())?;
        }
        writer.close()?;
        model.load_state_dict(&StateDict::load(self.best())?, true)?;
        Ok(at.best_loss)
    }

    /// The mean loss over all elements of a data set.
    fn validate(
        &self,
        model: &impl Forward,
        batches: &Batches,
        loss: impl Fn(&Tensor, &Tensor) -> Tensor,
    ) -> kiln::Result<f64> {
        model.eval();
        let (mut sum, mut count) = (0.0, 0.0);
        for batch in batches {
            let (x, y) = batch?;
            let n = y.shape()?[0] as f64;
            sum += n * no_grad(|| autocast(self.dtype, || loss(&model.call(&x), &y))).item::<f64>()?;
            count += n;
        }
        Ok(sum / count)
    }
}

fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1).map(PathBuf::from);
    let temporary = std::env::temp_dir().join(format!("kiln-trainer-{}", std::process::id()));
    let trainer = Trainer {
        folder: folder.clone().unwrap_or_else(|| temporary.clone()),
        epochs: 12,
        accumulate: 2,
        patience: 3,
        dtype: DType::BF16,
    };
    kiln::manual_seed(0);
    let (images, labels) = digits()?;
    let parts = random_split(TensorDataset::new((images, labels))?, [0.8, 0.2], 0)?;
    let train = DataLoader::new(parts[0].clone()).batch_size(64).shuffle(true).seed(0).build()?;
    let val = DataLoader::new(parts[1].clone()).batch_size(64).build()?;
    let model = sequential![
        "conv": Conv2d::new(1, 16, Kernel::new(3).padding(1)),
        "relu": ReLU::new(),
        "pool": AdaptiveAvgPool2d::new(4),
        "flat": Flatten::new(),
        "drop": Dropout::new(0.1),
        "fc": Linear::new(256, 10),
    ]?;
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(1e-2))?;
    let mut schedule = Scheduler::new(&mut optimizer, CosineAnnealingLR::new(12 * 12))?;
    let loss = |scores: &Tensor, labels: &Tensor| scores.cross_entropy(labels);
    let best = trainer.fit(&model, (&mut optimizer, &mut schedule), (&train, &val), loss)?;
    println!("the best validation loss is {best:.4}");
    if folder.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}

/// The shipped digits (UCI, CC BY 4.0), `[1797, 1, 8, 8]` between 0 and 1, and their labels `[1797]`.
fn digits() -> Result<(Tensor, Tensor), Failure> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv");
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for line in std::fs::read_to_string(file)?.lines() {
        let row = line.split(',').map(str::parse).collect::<Result<Vec<u8>, _>>()?;
        pixels.extend(row[..64].iter().map(|p| f32::from(*p) / 16.0));
        labels.push(i64::from(row[64]));
    }
    Ok((Tensor::from_slice(&pixels, [labels.len(), 1, 8, 8]), Tensor::from(labels)))
}
