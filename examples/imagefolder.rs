//! Trains a ResNet-18 on a folder of pictures, keeps the best weights, goes on where it was stopped, and writes a page
//! of its mistakes. Without arguments it tries itself out on a few handwritten digits.

use kiln::amp::{GradScaler, Scaling};
use kiln::data::{DataLoader, Dataset, Progress, Subset, stratified_split};
use kiln::nn::optim::*;
use kiln::nn::{Checkpoint, Forward, Module, StateDict};
use kiln::vision::datasets::{ImageFolder, Pairs};
use kiln::vision::transforms::{
    CenterCrop, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor,
};
use kiln::vision::{Image, Mode};
use kiln::{DType, Tensor, get_rng_state, no_autocast, no_grad, set_rng_state};
use kiln_models::ResNet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const USAGE: &str = "usage: imagefolder [FOLDER] [options]

Trains on FOLDER/train/CLASS/*.png and validates on FOLDER/val/CLASS/*.png; if these folders are missing,
FOLDER/CLASS/*.png are split. Without FOLDER a few handwritten digits are trained on.

  --epochs N        passes over the pictures (default 10)
  --lr X            the learning rate, at most (default 0.001)
  --batch-size N    pictures in a batch (default 32)
  --size N          height and width that pictures are brought to (default 224)
  --schedule NAME   cosine, one-cycle, step or constant (default cosine)
  --dtype NAME      f32, or what is computed in mixed precision: bf16 or f16 (default f32)
  --flip            mirrors half of the pictures that are trained on
  --workers N       threads that load pictures (default 2)
  --seed N          of weights, order and augmentation (default 0)
  --out FOLDER      where last.safetensors, best.safetensors and mistakes.html go (default: runs)
  --resume FILE     goes on from a last.safetensors
  --digits FOLDER   only writes the digits as pictures of 32x32 into a folder, to train on";

type Failure = Box<dyn std::error::Error>;
type Part = Arc<Subset<Arc<ImageFolder>>>;

#[derive(Clone)]
struct Options {
    folder: Option<PathBuf>,
    out: PathBuf,
    epochs: usize,
    /// The epoch before which it stops, as if it were interrupted.
    until: usize,
    lr: f64,
    batch_size: usize,
    size: usize,
    schedule: String,
    dtype: DType,
    flip: bool,
    workers: usize,
    seed: u64,
    resume: Option<PathBuf>,
}

fn main() -> Result<(), Failure> {
    use lexopt::prelude::*;
    let mut options = Options {
        folder: None,
        out: "runs".into(),
        epochs: 10,
        until: usize::MAX,
        lr: 1e-3,
        batch_size: 32,
        size: 224,
        schedule: "cosine".into(),
        dtype: DType::F32,
        flip: false,
        workers: 2,
        seed: 0,
        resume: None,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Value(folder) => options.folder = Some(folder.into()),
            Long("epochs") => options.epochs = args.value()?.parse()?,
            Long("lr") => options.lr = args.value()?.parse()?,
            Long("batch-size") => options.batch_size = args.value()?.parse()?,
            Long("size") => options.size = args.value()?.parse()?,
            Long("schedule") => options.schedule = args.value()?.string()?,
            Long("dtype") => {
                options.dtype = match args.value()?.string()?.as_str() {
                    "f32" => DType::F32,
                    "bf16" => DType::BF16,
                    "f16" => DType::F16,
                    other => return Err(format!("there is no dtype {other:?}\n{USAGE}").into()),
                }
            }
            Long("flip") => options.flip = true,
            Long("workers") => options.workers = args.value()?.parse()?,
            Long("seed") => options.seed = args.value()?.parse()?,
            Long("out") => options.out = args.value()?.into(),
            Long("resume") => options.resume = Some(args.value()?.into()),
            Long("digits") => return write_digits(&PathBuf::from(args.value()?), usize::MAX),
            Long("help") | Short('h') => {
                println!("{USAGE}");
                return Ok(());
            }
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    match options.folder.clone() {
        Some(folder) => run(&options, &Data::read(&folder, options.seed)?).map(drop),
        None => trial(&options),
    }
}

/// A short training on a few digits, at once and with an interruption, which makes no difference.
fn trial(options: &Options) -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("kiln-imagefolder-{}", std::process::id()));
    write_digits(&folder.join("digits"), 10)?;
    let data = Data::read(&folder.join("digits"), options.seed)?;
    let out = |name: &str| folder.join(name);
    let short = Options { epochs: 2, batch_size: 16, size: 32, ..options.clone() };
    let whole = run(&Options { out: out("whole"), ..short.clone() }, &data)?;
    run(&Options { out: out("parts"), until: 1, ..short.clone() }, &data)?;
    let last = out("parts").join("last.safetensors");
    let resumed = run(&Options { out: out("parts"), resume: Some(last), ..short }, &data)?;
    let same = bytes(&whole)? == bytes(&resumed)?;
    println!("interrupted and resumed, the weights are {}", if same { "the same" } else { "others" });
    fs::remove_dir_all(&folder)?;
    if same { Ok(()) } else { Err("a resumed training differs".into()) }
}

fn bytes(model: &ResNet) -> kiln::Result<Vec<Vec<u8>>> {
    model.state_dict().iter().map(|(_, t)| t.to_bytes()).collect()
}

/// Pictures to train on and to validate on.
struct Data {
    train: Part,
    val: Part,
    classes: Vec<String>,
}

impl Data {
    fn read(folder: &Path, seed: u64) -> Result<Data, Failure> {
        let read = |folder: PathBuf| ImageFolder::new(folder).map(Arc::new);
        let whole = |set: Arc<ImageFolder>| {
            let all: Vec<usize> = (0..set.len()).collect();
            Subset::new(set, all).map(Arc::new)
        };
        let (train, val) = (folder.join("train"), folder.join("val"));
        if train.is_dir() && val.is_dir() {
            let (train, val) = (read(train)?, read(val)?);
            let classes = train.classes().to_vec();
            if val.classes() != classes {
                return Err(format!("{classes:?} are trained on, {:?} validated", val.classes()).into());
            }
            return Ok(Data { train: whole(train)?, val: whole(val)?, classes });
        }
        let all = read(folder.to_path_buf())?;
        let parts = stratified_split(all.clone(), &all.targets(), [0.8, 0.2], seed)?;
        let part = |i: usize| Subset::new(all.clone(), parts[i].indices()).map(Arc::new);
        Ok(Data { train: part(0)?, val: part(1)?, classes: all.classes().to_vec() })
    }
}

const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const STD: [f64; 3] = [0.229, 0.224, 0.225];

/// Batches of images `[n, 3, size, size]` and labels `[n]`.
type Batches = DataLoader<(Tensor, Tensor)>;

fn train_loader(o: &Options, data: &Data) -> kiln::Result<Batches> {
    let augmented = Compose::new((
        RandomResizedCrop::new(o.size).scale([0.6, 1.0]),
        RandomHorizontalFlip::new().p(if o.flip { 0.5 } else { 0.0 }),
        ToTensor::new(),
        Normalize::new(MEAN, STD),
    ));
    let loader = DataLoader::new(data.train.clone().transform(augmented));
    let loader = loader.batch_size(o.batch_size.min(data.train.len())).shuffle(true).drop_last(true);
    loader.seed(o.seed).workers(o.workers).build()
}

fn val_loader(o: &Options, data: &Data) -> kiln::Result<Batches> {
    let plain =
        Compose::new((Resize::new(o.size), CenterCrop::new(o.size), ToTensor::new(), Normalize::new(MEAN, STD)));
    let loader = DataLoader::new(data.val.clone().transform(plain));
    loader.batch_size(o.batch_size).workers(o.workers).build()
}

fn schedule(o: &Options, optimizer: &mut Optimizer, steps: usize) -> Result<Scheduler, Failure> {
    let all = (o.epochs * steps).max(1);
    let schedules: Vec<Box<dyn Schedule>> = match o.schedule.as_str() {
        "cosine" => vec![Box::new(CosineAnnealingLR::new(all))],
        "one-cycle" => vec![Box::new(OneCycleLR::new(o.lr, all + 1))],
        "step" => vec![Box::new(StepLR::new(all.div_ceil(3)))],
        "constant" => vec![],
        other => return Err(format!("there is no schedule {other:?}\n{USAGE}").into()),
    };
    Ok(Scheduler::chained(optimizer, schedules)?)
}

/// Trains, and writes the page of mistakes of the best weights; gives the last ones.
fn run(o: &Options, data: &Data) -> Result<ResNet, Failure> {
    fs::create_dir_all(&o.out)?;
    let (last, best_file) = (o.out.join("last.safetensors"), o.out.join("best.safetensors"));
    kiln::manual_seed(o.seed);
    let model = ResNet::resnet18(data.classes.len())?;
    let mut optimizer = Optimizer::new(model.parameters(), AdamW::new().lr(o.lr))?;
    let mut scaler = GradScaler::with(Scaling::new().enabled(o.dtype == DType::F16))?;
    let (train, val) = (train_loader(o, data)?, val_loader(o, data)?);
    let steps = train.len().unwrap_or(0);
    let mut schedule = schedule(o, &mut optimizer, steps)?;
    let (mut first, mut best) = (0, -1.0);
    if let Some(file) = &o.resume {
        let saved = Checkpoint::load(file)?;
        let restore = saved.restore().module("model", &model);
        restore.optimizer("optimizer", &mut optimizer).scheduler("schedule", &mut schedule).finish()?;
        scaler.load_state_dict(&saved.get("scaler")?)?;
        set_rng_state(saved.get("rng")?);
        (first, best) = (saved.get("epoch")?, saved.get("best")?);
    }
    for epoch in first..o.epochs.min(o.until) {
        train.set_epoch(epoch as u64);
        let loss = train_epoch(o, &model, &train, (&mut optimizer, &mut scaler), &mut schedule, epoch)?;
        let (accuracy, _) = validate(o, &model, &val)?;
        println!("epoch {}: loss {loss:.4}, accuracy {:.2} %", epoch + 1, 100.0 * accuracy);
        if accuracy > best {
            best = accuracy;
            model.state_dict().save(&best_file)?;
        }
        let checkpoint = Checkpoint::new().module("model", &model).optimizer("optimizer", &optimizer);
        let checkpoint = checkpoint.scheduler("schedule", &schedule).value("rng", &get_rng_state());
        let checkpoint = checkpoint.value("scaler", &scaler.state_dict()?);
        checkpoint.value("epoch", &(epoch + 1)).value("best", &best).save(&last)?;
    }
    let (last, kept) = (model.state_dict(), StateDict::load(&best_file)?);
    let last: Vec<_> = last.iter().map(|(name, t)| (name.to_string(), t.clone())).collect();
    model.load_state_dict(&kept, true)?;
    let (accuracy, mistakes) = validate(o, &model, &val)?;
    let page = write_page(&o.out, data, &mistakes)?;
    println!("best: {:.2} %, {} mistakes ({})", 100.0 * accuracy, mistakes.len(), page.display());
    model.load_state_dict(&last.into_iter().collect(), true)?;
    Ok(model)
}

/// Computes in mixed precision, where that is asked for.
fn mixed<T>(o: &Options, f: impl FnOnce() -> T) -> T {
    match o.dtype {
        DType::F32 => no_autocast(f),
        dtype => kiln::autocast(dtype, f),
    }
}

/// The mean loss of an epoch.
fn train_epoch(
    o: &Options,
    model: &ResNet,
    batches: &Batches,
    (optimizer, scaler): (&mut Optimizer, &mut GradScaler),
    schedule: &mut Scheduler,
    epoch: usize,
) -> kiln::Result<f64> {
    model.train();
    let progress = Progress::new(format!("epoch {}", epoch + 1), batches.len().map(|n| n as u64));
    let (mut sum, mut steps) = (0.0, 0.0);
    for batch in progress.wrap(batches) {
        let (images, labels) = batch?;
        let loss = mixed(o, || model.call(&images).cross_entropy(&labels));
        optimizer.zero_grad();
        scaler.scale(&loss).backward()?;
        scaler.step(optimizer)?;
        scaler.update()?;
        sum += f64::from(loss.item::<f32>()?);
        steps += 1.0;
        progress.set_postfix([("loss", sum / steps), ("lr", schedule.last_lr()[0])]);
        schedule.step(optimizer)?;
    }
    progress.finish_and_clear();
    Ok(sum / steps)
}

/// A picture that was taken for another class.
struct Mistake {
    index: usize,
    label: usize,
    prediction: usize,
    probability: f32,
}

/// The share of pictures that are classified rightly, and the others.
fn validate(o: &Options, model: &ResNet, batches: &Batches) -> kiln::Result<(f64, Vec<Mistake>)> {
    model.eval();
    let progress = Progress::new("validating", batches.len().map(|n| n as u64));
    let (mut mistakes, mut count) = (Vec::new(), 0);
    for batch in progress.wrap(batches.with_indices()) {
        let (indices, (images, labels)) = batch?;
        let (probabilities, predictions) = no_grad(|| {
            let scores = mixed(o, || model.call(&images));
            scores.to_dtype(DType::F32).softmax(1).max(1)
        });
        let (probabilities, predictions) = (probabilities.to_vec::<f32>()?, predictions.to_vec::<i64>()?);
        for (i, label) in labels.to_vec::<i64>()?.into_iter().enumerate() {
            count += 1;
            if predictions[i] != label {
                mistakes.push(Mistake {
                    index: indices[i],
                    label: label as usize,
                    prediction: predictions[i] as usize,
                    probability: probabilities[i],
                });
            }
        }
    }
    progress.finish_and_clear();
    mistakes.sort_by(|a, b| b.probability.total_cmp(&a.probability));
    Ok((1.0 - mistakes.len() as f64 / count.max(1) as f64, mistakes))
}

/// Pictures, what they are and what they were taken for, the surest mistakes first.
fn write_page(out: &Path, data: &Data, mistakes: &[Mistake]) -> Result<PathBuf, Failure> {
    const MOST: usize = 200;
    let pictures = out.join("mistakes");
    fs::create_dir_all(&pictures)?;
    let mut page = String::from(
        "<!doctype html><meta charset=utf-8><title>Mistakes</title>\
         <style>body{font:14px sans-serif}figure{display:inline-block;margin:8px;width:140px}\
         img{width:128px;image-rendering:pixelated}</style>",
    );
    write!(page, "<h1>{} mistakes of {} pictures</h1>", mistakes.len(), data.val.len())?;
    for (n, mistake) in mistakes.iter().take(MOST).enumerate() {
        let (image, _) = data.val.get(mistake.index)?;
        image.save(pictures.join(format!("{n:04}.png")))?;
        let name = |class: usize| escape(&data.classes[class]);
        write!(
            page,
            "<figure><img src=\"mistakes/{n:04}.png\"><figcaption>{}, taken for {} ({:.1} %)</figcaption></figure>",
            name(mistake.label),
            name(mistake.prediction),
            100.0 * mistake.probability
        )?;
    }
    let file = out.join("mistakes.html");
    fs::write(&file, page)?;
    Ok(file)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

/// Writes the shipped digits (UCI, CC BY 4.0) as pictures of 32x32, at most so many of each.
fn write_digits(folder: &Path, most: usize) -> Result<(), Failure> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits.csv");
    let mut written = [0; 10];
    for line in fs::read_to_string(file)?.lines() {
        let row = line.split(',').map(str::parse).collect::<std::result::Result<Vec<u8>, _>>()?;
        let (pixels, label) = (&row[..64], usize::from(row[64]));
        if written[label] == most {
            continue;
        }
        let large = (0..32 * 32).map(|i| pixels[i / 32 / 4 * 8 + i % 32 / 4] * 15);
        let class = folder.join(label.to_string());
        fs::create_dir_all(&class)?;
        let image = Image::from_bytes(large.collect::<Vec<u8>>(), 32, 32, Mode::L)?;
        image.save(class.join(format!("{:04}.png", written[label])))?;
        written[label] += 1;
    }
    println!("{} digits in {}", written.iter().sum::<usize>(), folder.display());
    Ok(())
}
