//! What tuning costs, and how good its picks are: ResNet-50 tuned from nothing and compiled with a filled
//! store, and picks beside the best of a much longer measurement.
//!
//! `cargo bench --bench tuning` prints it; nothing is asserted.

#[path = "models/resnet50.rs"]
mod resnet50;

use kiln::tuning::{Mode, Settings, Trial};
use kiln::{CompileOptions, Compiled, DType, Device, Spec, Tensor, compile_with, memory};
use kiln_compiler::tune::{Effort, Precision, measure};
use resnet50::ResNet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("kiln-bench-tuning-{}", std::process::id()));
    if let Some(store) = std::env::var_os("KILN_BENCH_STORE") {
        return start(Path::new(&store));
    }
    let store = folder.join("tune.jsonl");
    network(&store)?;
    picks(&folder.join("picks.jsonl"))?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

fn options(mode: Mode, store: &Path) -> CompileOptions {
    CompileOptions {
        tune: Settings {
            mode,
            store: Some(Arc::from(store)),
            ..Settings::default()
        },
        precision: Precision::Default,
        ..CompileOptions::default()
    }
}

fn resnet(model: &ResNet, options: &CompileOptions) -> kiln::Result<Compiled> {
    let image = Spec::fixed(DType::F32, [1, 3, 224, 224]);
    compile_with(&[image], options, |x| model.forward(&x[0]))
}

/// ResNet-50, one image of 224 x 224.
fn network(store: &Path) -> Result<(), Failed> {
    let model = ResNet::new(Device::Cpu)?;
    let plain = resnet(&model, &options(Mode::Off, store))?;
    let before = memory::stats();
    let start = Instant::now();
    let tuned = resnet(&model, &options(Mode::On, store))?;
    let time = start.elapsed();
    let after = memory::stats();
    let report = &tuned.explain().tuning;
    let kinds = report.choices.len();
    println!("ResNet-50 tuned from nothing: {time:.1?}, {kinds} kinds of kernels");
    println!(
        "  memory held more than before: {} KiB in use, {} KiB in reserve",
        after.allocated.saturating_sub(before.allocated) >> 10,
        after.reserved.saturating_sub(before.reserved) >> 10
    );
    for choice in &report.choices {
        println!(
            "  {}: {choice}",
            choice.key.split(" | ").next().unwrap_or("")
        );
    }
    let again = resnet(&model, &options(Mode::On, store))?;
    println!(
        "with a filled store, read already: {:.2?}",
        again.explain().tuning.time
    );
    for _ in 0..3 {
        let me = std::env::current_exe()?;
        let output = Command::new(me).env("KILN_BENCH_STORE", store).output()?;
        print!("{}", String::from_utf8(output.stdout)?);
    }
    let x = Tensor::rand([1, 3, 224, 224], DType::F32);
    x.realize()?;
    let mut least = [Duration::MAX; 2];
    for _ in 0..15 {
        for (program, least) in [&plain, &tuned].into_iter().zip(&mut least) {
            let start = Instant::now();
            program.run(&[&x])?;
            *least = start.elapsed().min(*least);
        }
    }
    let [plain, tuned] = least.map(|t| t.as_secs_f64() * 1e3);
    println!(
        "a run, tuned {tuned:.1} ms, by default {plain:.1} ms, ratio {:.2}",
        tuned / plain
    );
    Ok(())
}

/// A process that has read nothing yet.
fn start(store: &Path) -> Result<(), Failed> {
    let model = ResNet::new(Device::Cpu)?;
    let compiled = resnet(&model, &options(Mode::Frozen, store))?;
    let report = &compiled.explain().tuning;
    let missing = report.missing().count();
    println!(
        "with a filled store, in a new process: {:.2?}, {missing} missing",
        report.time
    );
    Ok(())
}

/// Products and convolutions of many shapes: what was picked beside what is best by a longer measurement.
fn picks(store: &Path) -> Result<(), Failed> {
    let long = Effort {
        least: 30,
        most: 60,
        time: Duration::from_secs(1),
        patience: Duration::from_secs(60),
    };
    let (mut shapes, mut near, mut worst) = (0, 0, (1.0, String::new()));
    for compiled in programs(&options(Mode::On, store))? {
        let stages = compiled.explain().stages.as_ref().ok_or("no stages")?;
        for info in &compiled.explain().kernels {
            let Some(choice) = &info.choice else { continue };
            let launch = match info.prepared {
                true => stages.prepare[info.step],
                false => stages.run[info.step],
            };
            let trials = measure(&stages.program, launch, 0, Precision::Default, &long);
            let best = trials.iter().filter_map(Trial::time).min();
            let picked = trials.iter().find(|t| t.name == choice.chosen);
            let (Some(best), Some(picked)) = (best, picked.and_then(Trial::time)) else {
                continue;
            };
            let ratio = picked.as_secs_f64() / best.as_secs_f64();
            shapes += 1;
            near += (ratio <= 1.03) as usize;
            if ratio > worst.0 {
                worst = (ratio, choice.key.clone());
            }
        }
    }
    println!(
        "{near} of {shapes} picks are within 3% of the best; the worst takes {:.2} times as long:",
        worst.0
    );
    println!("  {}", worst.1);
    Ok(())
}

fn programs(options: &CompileOptions) -> kiln::Result<Vec<Compiled>> {
    let mut programs = Vec::new();
    for [m, k, n] in [
        [1, 512, 512],
        [1, 2048, 1000],
        [7, 64, 64],
        [16, 16, 16],
        [64, 64, 64],
        [100, 30, 70],
        [128, 768, 768],
        [197, 768, 3072],
        [256, 256, 256],
        [512, 512, 512],
        [1000, 3, 1000],
        [3000, 64, 10],
    ] {
        let specs = [
            Spec::fixed(DType::F32, [m, k]),
            Spec::fixed(DType::F32, [k, n]),
        ];
        programs.push(compile_with(&specs, options, |x| x[0].matmul(&x[1]))?);
    }
    for [channels, outputs, size, kernel, groups] in [
        [3, 64, 112, 7, 1],
        [64, 64, 56, 1, 1],
        [64, 64, 56, 3, 1],
        [64, 256, 56, 1, 1],
        [128, 128, 28, 3, 1],
        [256, 256, 14, 3, 1],
        [256, 1024, 14, 1, 1],
        [512, 512, 7, 3, 1],
        [32, 32, 112, 3, 32],
        [96, 96, 56, 3, 96],
        [240, 240, 28, 5, 240],
        [16, 8, 30, 3, 4],
    ] {
        let x = Spec::fixed(DType::F32, [1, channels, size, size]);
        let w = Spec::fixed(DType::F32, [outputs, channels / groups, kernel, kernel]);
        programs.push(compile_with(&[x, w], options, |x| {
            x[0].conv2d(&x[1], None, 1, kernel / 2, 1, groups as i64)
                .relu()
        })?);
    }
    Ok(programs)
}
