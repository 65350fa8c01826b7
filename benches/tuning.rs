//! The cost and the quality of tuning: ResNet-50 tuned with an empty store and with a filled store, and choices of the
//! tuner compared with the best of a much longer measurement.
//!
//! Run `cargo bench --bench tuning`. `KILN_BENCH_PART=network` or `picks` runs one of the two parts.

use kiln::nn::{Forward, Module};
use kiln::tuning::{Mode, Settings, Trial};
use kiln::{
    CompileOptions, Compiled, Conv, DType, Layout, Program, Spec, Tensor, Var, compile_with,
    memory, no_grad,
};
use kiln_codegen::Body;
use kiln_compiler::tune::{Effort, Precision, measure};
use kiln_models::ResNet;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let folder = std::env::temp_dir().join(format!("kiln-bench-tuning-{}", std::process::id()));
    if let Some(store) = std::env::var_os("KILN_BENCH_STORE") {
        return measure_start(Path::new(&store));
    }
    let store = folder.join("tune.jsonl");
    std::fs::create_dir_all(&folder)?;
    let part = std::env::var("KILN_BENCH_PART").unwrap_or_default();
    if part != "picks" {
        tune_network(&store)?;
    }
    if part != "network" {
        compare_picks(&folder)?;
    }
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

fn resnet50() -> kiln::Result<ResNet> {
    let model = ResNet::resnet50(1000)?;
    model.eval();
    Ok(model)
}

fn resnet(model: &ResNet, options: &CompileOptions) -> kiln::Result<Compiled<Tensor, Tensor>> {
    let image = Spec::new(DType::F32, [1, 3, 224, 224]);
    compile_with(image, options, |x| no_grad(|| model.call(&x)))
}

/// Measures the tuning of ResNet-50 on one image of 224 x 224.
fn tune_network(store: &Path) -> Result<(), Failure> {
    let model = resnet50()?;
    let untuned = resnet(&model, &options(Mode::Off, store))?;
    measure_compilation(&model, store)?;
    let before = memory::stats();
    let start = Instant::now();
    let tuned = resnet(&model, &options(Mode::On, store))?;
    let time = start.elapsed();
    let after = memory::stats();
    let report = &tuned.explain().tuning;
    let kinds = report.choices.len();
    println!("ResNet-50 tuned with an empty store: {time:.1?}, {kinds} kinds of kernels");
    println!(
        "  additional memory: {} KiB in use, {} KiB in reserve",
        after.allocated.saturating_sub(before.allocated) >> 10,
        after.reserved.saturating_sub(before.reserved) >> 10
    );
    for program in [&untuned, &tuned] {
        println!("  {}", program.explain().layout);
    }
    for choice in &report.choices {
        println!(
            "  {}: {choice}",
            choice.key.split(" | ").next().unwrap_or("")
        );
    }
    let again = resnet(&model, &options(Mode::On, store))?;
    println!(
        "with a filled store, in the same process: {:.2?}",
        again.explain().tuning.time
    );
    for _ in 0..3 {
        let program_path = std::env::current_exe()?;
        let output = Command::new(program_path)
            .env("KILN_BENCH_STORE", store)
            .output()?;
        print!("{}", String::from_utf8(output.stdout)?);
    }
    let x = Tensor::rand([1, 3, 224, 224], DType::F32);
    x.realize()?;
    let mut min_times = [Duration::MAX; 2];
    for _ in 0..15 {
        for (program, min_times) in [&untuned, &tuned].into_iter().zip(&mut min_times) {
            let start = Instant::now();
            program.run(&x)?;
            *min_times = start.elapsed().min(*min_times);
        }
    }
    let [untuned, tuned] = min_times.map(|t| t.as_secs_f64() * 1e3);
    println!(
        "a run, tuned {tuned:.1} ms, untuned {untuned:.1} ms, ratio {:.2}",
        tuned / untuned
    );
    Ok(())
}

/// Measures the compilation of a new program, and the extra time of its first run, which emits code and packs weights.
fn measure_compilation(model: &ResNet, store: &Path) -> Result<(), Failure> {
    let x = Tensor::rand([1, 3, 224, 224], DType::F32);
    x.realize()?;
    for (_, weights) in model.named_parameters() {
        weights.get().realize()?;
    }
    for _ in 0..3 {
        let start = Instant::now();
        let compiled = resnet(model, &options(Mode::Off, store))?;
        let compile = start.elapsed();
        let runs: Vec<Duration> = (0..6)
            .map(|_| {
                let start = Instant::now();
                compiled.run(&x).map(|_| start.elapsed())
            })
            .collect::<Result<_, _>>()?;
        let later = runs[1..].iter().min().ok_or("no runs")?;
        println!(
            "ResNet-50 compiled in {compile:.1?}, the first run {:.1?} over a later one's {later:.1?}",
            runs[0].saturating_sub(*later)
        );
    }
    Ok(())
}

/// Measures the start of a new process with a filled store.
fn measure_start(store: &Path) -> Result<(), Failure> {
    let model = resnet50()?;
    let compiled = resnet(&model, &options(Mode::Frozen, store))?;
    let report = &compiled.explain().tuning;
    let missing = report.missing().count();
    println!(
        "with a filled store, in a new process: {:.2?}, {missing} missing",
        report.time
    );
    Ok(())
}

/// The number of tunings with an empty store for each shape.
const REPEATS: usize = 3;
/// The maximum ratio to the best time of a good pick.
const MAX_PICK_RATIO: f64 = 1.03;
/// The maximum ratio to the best time of a fair default.
const MAX_DEFAULT_RATIO: f64 = 1.15;

/// Compares the picks of the tuner with an empty store, and the defaults, with the best of a longer measurement, for
/// products and convolutions of networks. `KILN_BENCH_ONLY` selects shapes by a part of their names. `KILN_BENCH_DUMP`
/// names a file for all times of the longer measurements, as JSON lines.
fn compare_picks(folder: &Path) -> Result<(), Failure> {
    let effort = Effort {
        min_rounds: 30,
        max_rounds: 80,
        time: Duration::from_secs(2),
        burst: Duration::from_millis(1),
        patience: Duration::from_secs(60),
    };
    let only = std::env::var("KILN_BENCH_ONLY").unwrap_or_default();
    let mut dump = match std::env::var_os("KILN_BENCH_DUMP") {
        Some(path) => Some(std::fs::File::create(path)?),
        None => None,
    };
    let (mut good_picks, mut good_defaults, mut fair_defaults, mut shape_count) =
        ([0; REPEATS], 0, 0, 0);
    println!(
        "shape, the best and its time; the default, its ratio to the best and that of {REPEATS} picks"
    );
    for (name, compile) in shapes()? {
        if !name.contains(&only) {
            continue;
        }
        // All tunings use one layout, that of networks.
        let options = |mode, store: &Path| CompileOptions {
            layout: Layout::ChannelsLast,
            ..options(mode, store)
        };
        // The defaults, with the other candidates available.
        let untuned = compile(&options(Mode::Frozen, &folder.join("empty.jsonl")))?;
        let trials = measure_candidates(&untuned, &effort)?;
        let times = trials
            .iter()
            .filter_map(|t| Some((t, t.time()?.as_secs_f64())));
        let Some((best, min_time)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            continue;
        };
        let ratio = |name: &str| {
            let time = trials.iter().find(|t| t.name == name).and_then(Trial::time);
            time.map_or(f64::INFINITY, |t| t.as_secs_f64() / min_time)
        };
        let default_ratio = ratio(&trials[0].name);
        let names: Vec<&String> = trials.iter().map(|t| &t.name).collect();
        print!(
            "{name:34} {:10} {:8.3} ms  {:10} {default_ratio:5.2} ",
            best.name,
            min_time * 1e3,
            names[0]
        );
        shape_count += 1;
        good_defaults += (default_ratio <= MAX_PICK_RATIO) as usize;
        fair_defaults += (default_ratio <= MAX_DEFAULT_RATIO) as usize;
        for (repeat, good_picks) in good_picks.iter_mut().enumerate() {
            let store = folder.join(format!("picks-{repeat}.jsonl"));
            let tuned = compile(&options(Mode::On, &store))?;
            let mut choices = tuned
                .explain()
                .kernels
                .iter()
                .filter_map(|k| k.choice.clone());
            let choice = choices
                .rfind(|c| !c.key.starts_with("fused"))
                .ok_or("no choice")?;
            let pick = ratio(&choice.chosen);
            *good_picks += (pick <= MAX_PICK_RATIO) as usize;
            print!(" {pick:5.2}");
        }
        println!();
        if let Some(file) = &mut dump {
            use std::io::Write;
            writeln!(file, "{}", serde_json::to_string(&(&name, &trials))?)?;
        }
    }
    println!(
        "within 3% of the best: {good_picks:?} of {shape_count} picks, {good_defaults} defaults; \
         {fair_defaults} defaults within 15%"
    );
    Ok(())
}

/// Measures all candidates of the last kernel of a program that has several.
fn measure_candidates(program: &Program, effort: &Effort) -> Result<Vec<Trial>, Failure> {
    let stages = program.explain().stages.as_ref().ok_or("no stages")?;
    let mut tasks = stages.program.tasks.iter();
    let task = tasks.rfind(|t| !matches!(t.work.body, Body::Fused(_)));
    let task = task.ok_or("only fused kernels")?;
    Ok(measure(task, 0, Precision::Default, effort, None))
}

type Compile = Box<dyn Fn(&CompileOptions) -> kiln::Result<Compiled<Tensor, Tensor>>>;

/// Returns layers of ResNets, VGG-16, a U-Net and transformers, for batches of 1 and 8: products, and convolutions with
/// several algorithms.
fn shapes() -> kiln::Result<Vec<(String, Compile)>> {
    let mut shapes = Vec::new();
    for batch in [1, 8] {
        for (channels, size, outputs) in CONVOLUTIONS {
            let x = Spec::new(DType::F32, [batch, 16, size, size]);
            let weights = |shape| Var::new(Tensor::randn(shape, DType::F32));
            let w1 = weights([channels, 16, 1, 1])?;
            let w = weights([outputs, channels, 3, 3])?;
            let name = format!("conv {batch}x{channels}x{size}x{size} to {outputs}, 3x3");
            // As in a network, the layout of the input is that of another convolution's result.
            let compile = move |options: &CompileOptions| {
                compile_with(&x, options, |x| {
                    let x = x.conv2d(w1.get()).relu();
                    x.conv2d_with(w.get(), Conv::new().padding(1)).relu()
                })
            };
            shapes.push((name, Box::new(compile) as Compile));
        }
        for (rows, sum, columns) in PRODUCTS {
            let rows = batch * rows;
            let x = Spec::new(DType::F32, [rows, sum]);
            // Linear layers have transposed weights.
            let w = Var::new(Tensor::randn([columns, sum], DType::F32))?;
            let name = format!("product {rows}x{sum}x{columns}");
            let compile = move |options: &CompileOptions| {
                compile_with(&x, options, |x| x.matmul(w.get().t()).relu())
            };
            shapes.push((name, Box::new(compile) as Compile));
        }
    }
    Ok(shapes)
}

/// Input channels, size of the image, output channels.
const CONVOLUTIONS: [(usize, usize, usize); 14] = [
    (64, 56, 64),
    (128, 28, 128),
    (256, 14, 256),
    (512, 7, 512),
    (64, 224, 64),
    (64, 112, 128),
    (128, 112, 128),
    (128, 56, 256),
    (256, 56, 256),
    (256, 28, 512),
    (512, 14, 512),
    (16, 128, 16),
    (32, 64, 32),
    (96, 32, 32),
];

/// M, K and N.
const PRODUCTS: [(usize, usize, usize); 16] = [
    (1, 768, 768),
    (1, 768, 3072),
    (1, 3072, 768),
    (4, 384, 1024),
    (128, 768, 2304),
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
    (1, 2048, 1000),
    (16, 64, 64),
    (32, 100, 10),
    (49, 96, 288),
    (64, 256, 64),
    (197, 192, 576),
    (100, 300, 300),
    (512, 64, 512),
];
