//! Image functions compared with torchvision's, on an image of 500x375.
//!
//! `cargo bench -p kiln-vision --bench functions` prints the shortest time of each in microseconds; with `KILN_PYTHON=`
//! a Python that has torchvision, also that of `torchvision.transforms.functional` on PIL images, in one thread.

use kiln_tensor::Result;
use kiln_vision::functional::{self as f, Rotate};
use kiln_vision::{Image, Interpolation, Mode};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

/// An error that ends the bench.
type Failure = Box<dyn std::error::Error>;

/// A function to measure, by its name in `functions.py`.
type Function = (&'static str, fn(&Image) -> Result<()>);

fn rotated(x: &Image, interpolation: Interpolation) -> Result<Image> {
    f::rotate(x, Rotate::new(10.0).interpolation(interpolation))
}

/// Drops the result of a function.
fn done<T>(result: Result<T>) -> Result<()> {
    black_box(result?);
    Ok(())
}

const FUNCTIONS: &[Function] = &[
    ("resize to 256", |x| done(f::resize(x, 256))),
    ("resized_crop to 224", |x| {
        done(f::resized_crop(x, 30, 40, 275, 367, (224, 224)))
    }),
    ("center_crop", |x| done(f::center_crop(x, 224))),
    ("pad", |x| done(f::pad(x, 4))),
    ("hflip", |x| done(f::hflip(x))),
    ("vflip", |x| done(f::vflip(x))),
    ("rotate, nearest", |x| {
        done(rotated(x, Interpolation::Nearest))
    }),
    ("rotate, bilinear", |x| {
        done(rotated(x, Interpolation::Bilinear))
    }),
    ("rotate, bicubic", |x| {
        done(rotated(x, Interpolation::Bicubic))
    }),
    ("adjust_brightness", |x| done(f::adjust_brightness(x, 1.3))),
    ("adjust_contrast", |x| done(f::adjust_contrast(x, 1.3))),
    ("adjust_saturation", |x| done(f::adjust_saturation(x, 1.3))),
    ("adjust_hue", |x| done(f::adjust_hue(x, 0.1))),
    ("adjust_sharpness", |x| done(f::adjust_sharpness(x, 1.3))),
    ("gaussian_blur", |x| {
        done(f::gaussian_blur(x, 5, (1.0, 1.0)))
    }),
    ("rgb_to_grayscale", |x| done(f::rgb_to_grayscale(x, 3))),
    ("autocontrast", |x| done(Ok(f::autocontrast(x)))),
    ("equalize", |x| done(Ok(f::equalize(x)))),
    ("invert", |x| done(Ok(f::invert(x)))),
    ("posterize", |x| done(f::posterize(x, 3))),
    ("solarize", |x| done(f::solarize(x, 100.0))),
    ("to_tensor", |x| done(f::to_tensor(x))),
    ("pil_to_tensor", |x| done(f::pil_to_tensor(x))),
];

/// The shortest of several times, in microseconds.
fn least(x: &Image, function: fn(&Image) -> Result<()>) -> Result<f64> {
    let mut least = f64::MAX;
    for _ in 0..10 {
        let start = Instant::now();
        for _ in 0..5 {
            function(x)?;
        }
        least = least.min(start.elapsed().as_secs_f64() * 1e6 / 5.0);
    }
    Ok(least)
}

fn torchvision() -> Result<BTreeMap<String, f64>, Failure> {
    let Some(python) = std::env::var_os("KILN_PYTHON") else {
        return Ok(BTreeMap::new());
    };
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/functions.py");
    let out = Command::new(python).arg(script).output()?;
    if !out.status.success() {
        return Err(String::from_utf8_lossy(&out.stderr).into());
    }
    let mut times = BTreeMap::new();
    for line in String::from_utf8(out.stdout)?.lines() {
        let (name, time) = line.split_once('\t').ok_or("a line without a time")?;
        times.insert(name.to_string(), time.parse()?);
    }
    Ok(times)
}

fn main() -> Result<(), Failure> {
    // `cargo test` runs benches too.
    if !std::env::args().any(|a| a == "--bench") {
        return Ok(());
    }
    let bytes = (0..500 * 375 * 3).map(|n: usize| (n.wrapping_mul(2_654_435_761) >> 13) as u8);
    let x = Image::from_bytes(bytes.collect::<Vec<u8>>(), 500, 375, Mode::RGB)?;
    println!("| µs | Kiln | torchvision |\n|---|---|---|");
    let theirs = torchvision()?;
    for (name, function) in FUNCTIONS {
        let ours = least(&x, *function)?;
        let theirs = theirs
            .get(*name)
            .map_or(String::new(), |t| format!("{t:.0}"));
        println!("| {name} | {ours:.0} | {theirs} |");
    }
    Ok(())
}
