//! Compares networks as C with the runtime, on one thread: `cargo bench -p kiln-c99 --bench beside`.
//!
//! For each network it prints the times of the package's entry and of the printed function, compiled with `cc -O3`
//! for any processor and for this one. It also prints the size of the library without weights, and the distance
//! between the results.

#[path = "../tests/c99/cc.rs"]
mod cc;

use cc::Library;
use kiln::nn::{
    BatchNorm2d, Conv2d, Flatten, Forward, Kernel, LSTM, Linear, MaxPool2d, Module, ReLU,
    sequential,
};
use kiln::package::{Buffer, Builder, Entry, Package, set_threads};
use kiln::{Compiled, DType, Spec, Tensor, compile, with_seed};
use kiln_c99::Export;
use kiln_models::{MobileNetV3, ResNet, TransformerConfig};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `cargo test` runs every target with `--test`.
    if std::env::args().any(|a| a == "--test") || !cc::is_there() {
        return Ok(());
    }
    set_threads(1);
    println!(
        "{:<22} {:>12} {:>12} {:>14} {:>10} {:>10}",
        "network", "runtime", "cc -O3", "-march=native", "code", "apart"
    );
    with_seed(1, || -> kiln::Result<()> {
        let digits = sequential![
            Conv2d::new(1, 16, Kernel::new(3).padding(1)),
            BatchNorm2d::new(16),
            ReLU::new(),
            Conv2d::new(16, 32, Kernel::new(3).padding(1)),
            BatchNorm2d::new(32),
            ReLU::new(),
            MaxPool2d::new(2),
            Flatten::new(),
            Linear::new(512, 64),
            ReLU::new(),
            Linear::new(64, 10)
        ]?;
        network("digits", &digits, [1, 1, 8, 8])?;
        network("ResNet-18", &ResNet::resnet18(1000)?, [1, 3, 224, 224])?;
        network(
            "MobileNetV3 small",
            &MobileNetV3::small(1000)?,
            [1, 3, 224, 224],
        )?;
        let lstm = LSTM::new(128, 256)?;
        let forward = compile(Spec::new(DType::F32, (32, 1, 128)), |x| lstm.call(x).0)?;
        beside("LSTM, 32 steps", &lstm, &forward, &[32, 1, 128])?;
        let encoder = TransformerConfig::default().encoder_block()?;
        encoder.eval();
        let forward = compile(Spec::new(DType::F32, (1, 256, 768)), |x| encoder.call(x))?;
        beside("encoder, 256 tokens", &encoder, &forward, &[1, 256, 768])
    })?;
    Ok(())
}

fn network(
    name: &str,
    model: &impl Forward<Tensor, Tensor>,
    shape: [usize; 4],
) -> kiln::Result<()> {
    model.eval();
    let forward = compile(Spec::new(DType::F32, shape), |x| model.call(x))?;
    beside(name, model, &forward, &shape)
}

fn beside<I, O>(
    name: &str,
    model: &dyn Module,
    forward: &Compiled<I, O>,
    shape: &[usize],
) -> kiln::Result<()> {
    let builder = Builder::new().module("", model);
    let builder = builder.entry("forward", forward).inputs(["x"]);
    let package = builder.outputs(["y"]).to_bytes();
    let package = Package::from_bytes(&package.expect("a package")).expect("a package");
    let entry = package.entry("forward").expect("an entry");
    let x = Tensor::randn(shape, DType::F32).to_bytes()?;
    let sizes: Vec<i64> = shape.iter().map(|n| *n as i64).collect();
    let given = Buffer::from_bytes(DType::F32, &sizes, &x).expect("an input");
    let run = |entry: &Entry| entry.run([("x", given.clone())]).expect("a run")[0].clone();
    let wanted = run(&entry);
    let own = least(|| drop(run(&entry)));

    let sources = Export::new("model").sources(&package).expect("sources");
    let in_file = sources.files.iter().any(|(n, _)| n.ends_with(".bin"));
    let shim = cc::shim("model", "forward", 3 + usize::from(in_file));
    let bytes = wanted.len() * 4;
    let inputs = [x];
    let mut times = Vec::new();
    let mut apart = 0f64;
    let mut code = 0;
    for flags in ["-O3", "-O3 -march=native"] {
        let library = Library::new(&sources, "model", flags, &shim);
        code = library.bytes();
        let found = library.call("forward", &inputs, &[bytes]).expect("a call");
        let found = DType::F32.floats(&found[0]);
        let wanted = DType::F32.floats(&wanted.to_bytes().expect("a result"));
        let most = wanted.iter().fold(0f64, |m, x| m.max(x.abs()));
        let off = found.iter().zip(&wanted).map(|(a, b)| (a - b).abs());
        apart = off.fold(apart, f64::max) / most;
        times.push(least(|| {
            let _ = library.call("forward", &inputs, &[bytes]);
        }));
    }
    println!(
        "{name:<22} {:>9.3} ms {:>9.3} ms {:>11.3} ms {:>7} KB {:>10.1e}",
        own * 1e3,
        times[0] * 1e3,
        times[1] * 1e3,
        code / 1000,
        apart
    );
    Ok(())
}

/// The shortest time of several runs, in seconds.
fn least(mut run: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut least = f64::INFINITY;
    while began.elapsed().as_secs_f64() < 1.0 || least.is_infinite() {
        let now = Instant::now();
        run();
        least = least.min(now.elapsed().as_secs_f64());
    }
    least
}
