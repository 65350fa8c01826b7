//! What tuning costs, and how good its picks are: ResNet-50 tuned from nothing and compiled with a filled
//! store, and picks beside the best of a much longer measurement.
//!
//! `cargo bench --bench tuning` prints it; nothing is asserted. `KILN_BENCH_PART=network` or `picks` asks for
//! one of the two.

use kiln::nn::{Forward, Module};
use kiln::tuning::{Mode, Settings, Trial};
use kiln::{
    CompileOptions, Compiled, Conv, DType, Layout, Program, Spec, Tensor, Var, compile_with,
    memory, no_grad,
};
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

/// How often each shape is tuned from nothing.
const REPEATS: usize = 3;
/// The largest ratio to the best at which a pick counts as right.
const NEAR: f64 = 1.03;

/// Products and convolutions of networks: what is picked in tunings from nothing, and what the rules pick,
/// beside what is best by a longer measurement. `KILN_BENCH_ONLY` selects shapes by a part of their names,
/// `KILN_BENCH_DUMP` names a file for all times of the longer measurements, a JSON line each.
fn picks(folder: &Path) -> Result<(), Failed> {
    let long = Effort {
        least: 30,
        most: 80,
        time: Duration::from_secs(2),
        burst: Duration::from_millis(1),
        patience: Duration::from_secs(60),
    };
    let only = std::env::var("KILN_BENCH_ONLY").unwrap_or_default();
    let mut dump = match std::env::var_os("KILN_BENCH_DUMP") {
        Some(path) => Some(std::fs::File::create(path)?),
        None => None,
    };
    let (mut near, mut by_rule, mut all) = ([0; REPEATS], 0, 0);
    println!(
        "shape, the best and its time; time of the default and of {REPEATS} picks as a part of it"
    );
    for (name, compile) in shapes()? {
        if !name.contains(&only) {
            continue;
        }
        // One layout, in which there are algorithms to choose from.
        let options = |mode, store: &Path| CompileOptions {
            layout: Layout::ChannelsFirst,
            ..options(mode, store)
        };
        let plain = compile(&options(Mode::Off, Path::new("")))?;
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
        print!(
            "{name:44} {:10} {:8.3} ms  {default:5.2} ",
            best.name,
            least * 1e3
        );
        all += 1;
        by_rule += (default <= NEAR) as usize;
        for (repeat, near) in near.iter_mut().enumerate() {
            let store = folder.join(format!("picks-{repeat}.jsonl"));
            let tuned = compile(&options(Mode::On, &store))?;
            let choice = tuned
                .explain()
                .kernels
                .iter()
                .find_map(|k| k.choice.clone());
            let pick = ratio(&choice.ok_or("no choice")?.chosen);
            *near += (pick <= NEAR) as usize;
            print!(" {pick:5.2}");
        }
        println!();
        if let Some(file) = &mut dump {
            use std::io::Write;
            writeln!(file, "{}", serde_json::to_string(&(&name, &trials))?)?;
        }
    }
    println!("within 3% of the best: {near:?} of {all} picks, {by_rule} by rule");
    Ok(())
}

/// All candidates of a program's kernel that has some.
fn exhaustive(program: &Program, effort: &Effort) -> Result<Vec<Trial>, Failed> {
    let stages = program.explain().stages.as_ref().ok_or("no stages")?;
    let tasks = stages.program.tasks.iter();
    let tried = tasks.map(|task| measure(task, 0, Precision::Default, effort, None));
    Ok(tried.max_by_key(Vec::len).unwrap_or_default())
}

type Compile = Box<dyn Fn(&CompileOptions) -> kiln::Result<Compiled<Tensor, Tensor>>>;

/// Layers of ResNet-50, MobileNetV3-Small and a transformer of width 768, for 1 and 8 images or sequences.
fn shapes() -> kiln::Result<Vec<(String, Compile)>> {
    let mut shapes = Vec::new();
    for batch in [1, 8] {
        for (channels, size, outputs, kernel, stride, groups) in CONVOLUTIONS {
            let x = Spec::new(DType::F32, [batch, channels, size, size]);
            let w = Tensor::randn([outputs, channels / groups, kernel, kernel], DType::F32);
            let w = Var::new(&w)?;
            let name = format!(
                "conv {batch}x{channels}x{size}x{size} to {outputs}, {kernel}x{kernel}, step {stride}, {groups} groups"
            );
            let compile = move |options: &CompileOptions| {
                compile_with(&x, options, |x| {
                    let padding = kernel as i64 / 2;
                    x.conv2d_with(
                        w.get(),
                        Conv::new()
                            .stride(stride)
                            .padding(padding)
                            .groups(groups as i64),
                    )
                    .relu()
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

/// Channels, size of the image, output channels, size of the filter, step, groups.
const CONVOLUTIONS: [(usize, usize, usize, usize, i64, usize); 22] = [
    (3, 224, 64, 7, 2, 1),
    (64, 56, 64, 1, 1, 1),
    (64, 56, 64, 3, 1, 1),
    (64, 56, 256, 1, 1, 1),
    (256, 56, 128, 1, 1, 1),
    (128, 56, 128, 3, 2, 1),
    (128, 28, 512, 1, 1, 1),
    (128, 28, 128, 3, 1, 1),
    (256, 14, 256, 3, 1, 1),
    (1024, 14, 256, 1, 1, 1),
    (512, 7, 512, 3, 1, 1),
    (512, 7, 2048, 1, 1, 1),
    (3, 224, 16, 3, 2, 1),
    (16, 112, 16, 3, 2, 16),
    (16, 56, 72, 1, 1, 1),
    (72, 56, 72, 3, 2, 72),
    (96, 28, 96, 5, 2, 96),
    (240, 14, 240, 5, 1, 240),
    (40, 14, 240, 1, 1, 1),
    (240, 14, 40, 1, 1, 1),
    (576, 7, 576, 5, 1, 576),
    (96, 7, 576, 1, 1, 1),
];

/// Rows, products in a sum, columns.
const PRODUCTS: [(usize, usize, usize); 8] = [
    (1, 768, 768),
    (1, 768, 3072),
    (1, 3072, 768),
    (4, 384, 1024),
    (128, 768, 2304),
    (128, 768, 768),
    (128, 768, 3072),
    (128, 3072, 768),
];
