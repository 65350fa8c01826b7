//! Images per second on their way to a network, compared with torchvision's.
//!
//! `cargo bench -p kiln-vision --bench throughput` writes JPEGs of 500x375 that a formula gives, decodes them,
//! applies `RandomResizedCrop(224)`, `RandomHorizontalFlip`, `ToTensor` and `Normalize`, and loads them in batches
//! of 64 with two workers. With `KILN_PYTHON=` a Python that has torchvision, `throughput.py` does the same with
//! Pillow and `transforms.v2`, in alternating rounds and on the same files, and also on files that Pillow wrote with
//! colours at half the resolution, as cameras do.

use kiln_data::{DataLoader, Dataset, FnDataset, Rng};
use kiln_tensor::{Result, Tensor};
use kiln_vision::transforms::{
    Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, ToTensor, Transform,
};
use kiln_vision::{Image, Mode};
use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// An error that ends the bench.
type Failure = Box<dyn std::error::Error>;

const WIDTH: usize = 500;
const HEIGHT: usize = 375;
/// The number of files, and how often a pass reads each.
const FILES: usize = 64;
const TIMES: usize = 16;
const ROUNDS: usize = 5;

fn train() -> impl Transform<Image, Output = Tensor> {
    Compose::new((
        RandomResizedCrop::new(224),
        RandomHorizontalFlip::new(),
        ToTensor::new(),
        Normalize::new([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ))
}

/// A picture of waves and some noise.
fn picture(n: usize) -> Result<Image> {
    let mut noise = Rng::new(n as u64);
    let mut bytes = Vec::with_capacity(WIDTH * HEIGHT * 3);
    for y in 0..HEIGHT {
        for x in 0..WIDTH {
            for c in 0..3 {
                let (x, y, c, n) = (x as f64, y as f64, c as f64, n as f64);
                let wave = (x * (0.013 + 0.007 * c + 0.001 * (n % 7.0)) + n).sin();
                let rings = ((x * x + y * y) * (0.0006 + 0.00007 * c) + n * 0.7).sin();
                let level = 128.0 + 70.0 * wave * (y * 0.02).cos() + 30.0 * rings;
                bytes.push((level + 24.0 * (noise.unit() - 0.5)).clamp(0.0, 255.0) as u8);
            }
        }
    }
    Image::from_bytes(bytes, WIDTH, HEIGHT, Mode::RGB)
}

fn file(folder: &Path, n: usize) -> PathBuf {
    folder.join(format!("{n}.jpg"))
}

/// Milliseconds per image to decode and to transform, and images per second of a loader.
type Figures = [f64; 3];

fn kiln(folder: &Path) -> Result<Figures, Failure> {
    let files: Vec<Vec<u8>> = (0..FILES)
        .map(|n| std::fs::read(file(folder, n)))
        .collect::<Result<_, _>>()?;
    let start = Instant::now();
    let images: Vec<Image> = files
        .iter()
        .map(|f| Image::decode(f))
        .collect::<Result<_>>()?;
    let decode = start.elapsed().as_secs_f64() * 1e3 / FILES as f64;
    let transform = train();
    let copies = images.clone();
    let start = Instant::now();
    for image in copies {
        black_box(transform.call(image)?);
    }
    let transforms = start.elapsed().as_secs_f64() * 1e3 / FILES as f64;
    let folder = folder.to_path_buf();
    let data = FnDataset::new(FILES * TIMES, move |n| {
        let image = Image::open(file(&folder, n % FILES))?;
        Ok(image.into_mode(Mode::RGB))
    });
    let data = data.map(move |image| transform.call(image));
    let loader = DataLoader::new(data)
        .batch_size(64)
        .shuffle(true)
        .workers(2);
    let loader = loader.build()?;
    let start = Instant::now();
    for batch in loader.iter() {
        black_box(batch?);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok([decode, transforms, (FILES * TIMES) as f64 / seconds])
}

fn python(arguments: &[&str], folder: &Path) -> Result<Option<String>, Failure> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        return Ok(None);
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/throughput.py");
    let mut command = Command::new(python);
    let out = command.arg(script).args(arguments).arg(folder).output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into());
    }
    Ok(Some(String::from_utf8(out.stdout)?))
}

fn torchvision(folder: &Path) -> Result<Option<Figures>, Failure> {
    let Some(text) = python(&["measure"], folder)? else {
        return Ok(None);
    };
    let mut figures = [0.0; 3];
    for (figure, word) in figures.iter_mut().zip(text.split_whitespace()) {
        *figure = word.parse()?;
    }
    Ok(Some(figures))
}

/// The better of two rounds, figure by figure.
fn better(a: Figures, b: Figures) -> Figures {
    [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2])]
}

fn row(name: &str, [decode, transforms, loader]: Figures) {
    println!("| {name} | {decode:.2} | {transforms:.2} | {loader:.0} |");
}

fn measure(name: &str, folder: &Path) -> Result<(), Failure> {
    let (mut ours, mut theirs) = (kiln(folder)?, torchvision(folder)?);
    for _ in 1..ROUNDS {
        ours = better(ours, kiln(folder)?);
        theirs = match (theirs, torchvision(folder)?) {
            (Some(a), Some(b)) => Some(better(a, b)),
            _ => None,
        };
    }
    row(&format!("Kiln, {name}"), ours);
    if let Some(theirs) = theirs {
        row(&format!("torchvision, {name}"), theirs);
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    // `cargo test` runs benches too.
    if !std::env::args().any(|a| a == "--bench") {
        return Ok(());
    }
    let folder = std::env::temp_dir().join(format!("kiln-throughput-{}", std::process::id()));
    let (whole, halved) = (folder.join("whole"), folder.join("halved"));
    std::fs::create_dir_all(&whole)?;
    std::fs::create_dir_all(&halved)?;
    for n in 0..FILES {
        let image = picture(n)?;
        image.save(file(&whole, n))?;
        image.save(halved.join(format!("{n}.png")))?;
    }
    println!("| | decoding, ms | transforms, ms | loader, images/s |\n|---|---|---|---|");
    measure("colours whole", &whole)?;
    if python(&["write"], &halved)?.is_some() {
        measure("colours halved", &halved)?;
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
