//! The cost of tuning and the quality of its picks: ResNet-50 tuned from nothing and compiled with a filled store,
//! and picks compared with the best of a much longer measurement.
//!
//! `cargo bench --bench tuning` prints it; nothing is asserted. `KILN_BENCH_PART=network` or `picks` runs only one of
//! the two.

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

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let folder = std::env::temp_dir().join(format!("kiln-bench-tuning-{}", std::process::id()));
    if let Some(store) = std::env::var_os("KILN_BENCH_STORE") {
        return start(Path::new(&store));
    }
    let store = folder.join("tune.jsonl");
    std::fs::create_dir_all(&folder)?;
    let part = std::env::var("KILN_BENCH_PART").unwrap_or_default();
    if part != "picks" {
        network(&store)?;
    }
    if part != "network" {
        picks(&folder)?;
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

/// ResNet-50, one image of 224 x 224.
fn network(store: &Path) -> Result<(), Failed> {
    let model = resnet50()?;
    let plain = resnet(&model, &options(Mode::Off, store))?;
    compiling(&model, store)?;
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
    for program in [&plain, &tuned] {
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
            program.run(&x)?;
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

/// The time to compile a program of which nothing is known yet, and the extra time of its first run, in which code is
/// emitted and weights are packed.
fn compiling(model: &ResNet, store: &Path) -> Result<(), Failed> {
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

/// A process that has read nothing yet.
fn start(store: &Path) -> Result<(), Failed> {
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

/// The number of tunings from nothing for each shape.
const REPEATS: usize = 3;
/// The largest ratio to the best at which a pick counts as right.
const NEAR: f64 = 1.03;
/// The same ratio for a default, which needs no measurement.
const FAIR: f64 = 1.15;

/// Products and convolutions of networks: what is picked in tunings from nothing, and what the rules pick,
/// beside what is best by a longer measurement. `KILN_BENCH_ONLY` selects shapes by a part of their names,
/// `KILN_BENCH_DUMP` names a file for all times of the longer measurements, a JSON line each.
fn picks(folder: &Path) -> Result<(), Failed> {
    let long = Effort {
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
    let (mut near, mut by_rule, mut fair, mut all) = ([0; REPEATS], 0, 0, 0);
    println!(
        "shape, the best and its time; the default, its time and that of {REPEATS} picks as a part of the best"
    );
    for (name, compile) in shapes()? {
        if !name.contains(&only) {
            continue;
        }
        // The layout of networks, and one for all tunings.
        let options = |mode, store: &Path| CompileOptions {
            layout: Layout::ChannelsLast,
            ..options(mode, store)
        };
        // By the rules, but with the other ways at hand.
        let plain = compile(&options(Mode::Frozen, &folder.join("empty.jsonl")))?;
        let trials = exhaustive(&plain, &long)?;
        let timed = trials
            .iter()
            .filter_map(|t| Some((t, t.time()?.as_secs_f64())));
        let Some((best, least)) = timed.min_by(|a, b| a.1.total_cmp(&b.1)) else {
            continue;
        };
        let ratio = |name: &str| {
            let time = trials.iter().find(|t| t.name == name).and_then(Trial::time);
            time.map_or(f64::INFINITY, |t| t.as_secs_f64() / least)
        };
        let default = ratio(&trials[0].name);
        let names: Vec<&String> = trials.iter().map(|t| &t.name).collect();
        print!(
            "{name:34} {:10} {:8.3} ms  {:10} {default:5.2} ",
            best.name,
            least * 1e3,
            names[0]
        );
        all += 1;
        by_rule += (default <= NEAR) as usize;
        fair += (default <= FAIR) as usize;
        for (repeat, near) in near.iter_mut().enumerate() {
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
            *near += (pick <= NEAR) as usize;
            print!(" {pick:5.2}");
        }
        println!();
        if let Some(file) = &mut dump {
            use std::io::Write;
            writeln!(file, "{}", serde_json::to_string(&(&name, &trials))?)?;
        }
    }
    println!(
        "within 3% of the best: {near:?} of {all} picks, {by_rule} defaults; {fair} defaults within 15%"
    );
    Ok(())
}

/// All candidates of a program's kernel that has some.
fn exhaustive(program: &Program, effort: &Effort) -> Result<Vec<Trial>, Failed> {
    let stages = program.explain().stages.as_ref().ok_or("no stages")?;
    let mut tasks = stages.program.tasks.iter();
    let task = tasks.rfind(|t| !matches!(t.work.body, Body::Fused(_)));
    let task = task.ok_or("only fused kernels")?;
    Ok(measure(task, 0, Precision::Default, effort, None))
}

type Compile = Box<dyn Fn(&CompileOptions) -> kiln::Result<Compiled<Tensor, Tensor>>>;

/// Layers of ResNets, VGG-16, a U-Net and of transformers for 1 and 8 images or sequences: the convolutions for
/// which there are several algorithms, and products.
fn shapes() -> kiln::Result<Vec<(String, Compile)>> {
    let mut shapes = Vec::new();
    for batch in [1, 8] {
        for (channels, size, outputs) in CONVOLUTIONS {
            let x = Spec::new(DType::F32, [batch, 16, size, size]);
            let weights = |shape| Var::new(Tensor::randn(shape, DType::F32));
            let first = weights([channels, 16, 1, 1])?;
            let w = weights([outputs, channels, 3, 3])?;
            let name = format!("conv {batch}x{channels}x{size}x{size} to {outputs}, 3x3");
            // Behind another, as in a network: how an argument lies is given.
            let compile = move |options: &CompileOptions| {
                compile_with(&x, options, |x| {
                    let x = x.conv2d(first.get()).relu();
                    x.conv2d_with(w.get(), Conv::new().padding(1)).relu()
                })
            };
            shapes.push((name, Box::new(compile) as Compile));
        }
        for (rows, sum, columns) in PRODUCTS {
            let rows = batch * rows;
            let x = Spec::new(DType::F32, [rows, sum]);
            // As a linear layer has it: transposed.
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

/// Channels, size of the image, output channels.
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

/// Rows, products in a sum, columns.
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
