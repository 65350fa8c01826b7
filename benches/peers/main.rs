//! A comparison of operations, networks and training steps with other libraries, in alternating rounds, from the same
//! weights on the same data.
//!
//! `benches/peers/setup` installs the other libraries, `cargo bench --bench peers` prints the table. Arguments after
//! `--` select workloads (default: all). `--threads N` sets the threads of every side, `--rounds N` the number of
//! rounds. `--only SIDE` compares Kiln with one side (`torch`, `compiled`, `onnxruntime`, `candle`, `tract`, `burn`).
//! `--profile` runs Kiln alone and prints the time of each kernel.
//!
//! Sides must agree on their results. Wall time is printed with the time on all processors, which other programs
//! disturb less. Peak memory is the maximum resident memory of the process during the runs, minus the resident memory
//! before the model was created. Every side runs with the system's defaults except `compiled`: torch.compile has an
//! allocator that keeps its memory and uses huge pages, to exclude page faults.

mod kiln_side;
mod side;
mod workloads;

use lexopt::prelude::*;
use side::Side;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The error that stops the comparison.
type Failure = Box<dyn std::error::Error>;

/// The default number of rounds.
const ROUNDS: usize = 11;
/// The number of runs of every side in a round.
const STEPS: usize = 3;
/// The pause before a side runs. Threads of other sides spin for some milliseconds after their last run.
const PAUSE: Duration = Duration::from_millis(50);
/// The number of runs before the rounds, whose results must agree.
const WARM_UP: usize = 5;
/// The relative tolerances of results for the first two runs, and for later runs of a training step. Sides sum in
/// different orders. Rounding may change the sign of a ReLU's operand; gradients then differ by some thousandths, also
/// between PyTorch with and without oneDNN, and steps accumulate the difference.
const F32_TOLERANCE: [f64; 2] = [1e-3, 3e-2];
/// The tolerances of steps computed in f16 or bf16.
const HALF_TOLERANCE: [f64; 2] = [2e-2, 5e-2];
/// The tolerances of 8-bit workloads, for which each side chooses its own scales.
const INT8_TOLERANCE: [f64; 2] = [0.1, 0.1];
/// The settings of an allocator that returns no memory to the system, with huge pages.
const RETAINING_ALLOCATOR: &str = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:\
                            glibc.malloc.top_pad=67108864:glibc.malloc.hugetlb=1";

/// The other sides: their names on the command line and in the table.
const PEERS: [(&str, &str); 6] = [
    ("torch", "PyTorch"),
    ("compiled", "torch.compile"),
    ("onnxruntime", "onnxruntime"),
    ("candle", "candle"),
    ("tract", "tract"),
    ("burn", "burn"),
];

struct Arguments {
    names: Vec<String>,
    threads: usize,
    rounds: usize,
    only: Option<String>,
    profile: bool,
}

fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name, path, threads] => kiln_side::serve(name, path, threads.parse()?),
        ["start", name, path] => kiln_side::write_start(name, path),
        _ => {
            let arguments = arguments()?;
            let mut ratios = Vec::new();
            for (name, title) in workloads::names() {
                if arguments.names.is_empty() || arguments.names.contains(&name) {
                    println!("{name}: {title}");
                    let ratio = compare(&name, &arguments)?;
                    ratios.push((name, ratio));
                }
            }
            print_ratios(&ratios, &arguments);
            Ok(())
        }
    }
}

fn arguments() -> Result<Arguments, Failure> {
    let mut arguments = Arguments {
        names: Vec::new(),
        threads: std::thread::available_parallelism()?.get(),
        rounds: ROUNDS,
        only: None,
        profile: false,
    };
    let mut words = lexopt::Parser::from_env();
    while let Some(word) = words.next()? {
        match word {
            Long("threads") => arguments.threads = words.value()?.parse()?,
            Long("rounds") => arguments.rounds = words.value()?.parse::<usize>()?.max(1),
            Long("only") => {
                let only = words.value()?.string()?;
                if PEERS.iter().all(|p| p.0 != only) {
                    return Err(format!("there is no side {only}").into());
                }
                arguments.only = Some(only);
            }
            Long("profile") => arguments.profile = true,
            Long("bench") => {} // from cargo
            Value(name) => {
                let name = name.string()?;
                if workloads::names().all(|w| w.0 != name) {
                    return Err(format!("there is no workload {name}").into());
                }
                arguments.names.push(name);
            }
            _ => return Err(word.unexpected().into()),
        }
    }
    Ok(arguments)
}

/// Returns the folder of this benchmark.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers")
}

/// Returns the command of a Python program in this folder.
fn python(script: &str) -> Command {
    let mut command = Command::new(folder().join(".venv/bin/python"));
    command.arg(folder().join(script));
    command
}

/// Returns the command that starts a side, without arguments; `None` if it is not installed.
fn command(peer: &str) -> Option<Command> {
    let mut command = match peer {
        "candle" | "tract" | "burn" => {
            Command::new(folder().join("rust/target/release/rust-peers"))
        }
        "onnxruntime" => python("onnx_side.py"),
        _ => python("torch_side.py"),
    };
    if peer != "onnxruntime" {
        command.arg(peer);
    }
    if peer == "compiled" {
        command.env("GLIBC_TUNABLES", RETAINING_ALLOCATOR);
    }
    Path::new(command.get_program()).exists().then_some(command)
}

/// Exports the workload to ONNX, for the sides that read it.
fn export(name: &str, start: &Path) -> Result<(), Failure> {
    let mut command = python("onnx_side.py");
    if !Path::new(command.get_program()).exists() {
        return Ok(());
    }
    command.args(["export", name]).arg(start);
    let output = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into()),
    }
}

/// A start file, removed on drop.
struct Start(PathBuf);

impl Drop for Start {
    fn drop(&mut self) {
        for end in ["", ".onnx"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

/// The other sides, and the ratio of Kiln's minimum time to theirs.
type Ratios = Vec<(String, f64)>;

/// Runs a workload on all sides.
fn compare(name: &str, arguments: &Arguments) -> Result<Ratios, Failure> {
    let start = format!("kiln-peers-{}", std::process::id());
    let start = Start(std::env::temp_dir().join(start));
    let this = std::env::current_exe()?;
    let mut writer = Command::new(&this);
    if !writer
        .args(["start", name])
        .arg(&start.0)
        .status()?
        .success()
    {
        return Err("the start file can't be written".into());
    }
    let threads = arguments.threads.to_string();
    let start_side = |title: &str, mut command: Command| {
        command.arg(name).arg(&start.0).arg(&threads);
        Side::start(title, &mut command)
    };
    let mut kiln = Command::new(&this);
    kiln.arg("serve");
    let mut kiln = start_side("Kiln", kiln)?.ok_or("Kiln lacks the workload")?;
    if arguments.profile {
        print_profile(&mut kiln)?;
        return Ok(Vec::new());
    }
    let mut sides = vec![kiln];
    if arguments
        .only
        .as_ref()
        .is_none_or(|o| ["onnxruntime", "tract"].contains(&&o[..]))
    {
        export(name, &start.0)?;
    }
    for (peer, title) in PEERS {
        if arguments.only.as_ref().is_some_and(|o| o != peer) {
            continue;
        }
        match command(peer) {
            Some(command) => sides.extend(start_side(title, command)?),
            None => println!("  {title} is not installed: see benches/peers/setup"),
        }
    }
    let tolerance = match name {
        _ if name.ends_with("f16") => HALF_TOLERANCE,
        _ if name.contains("-int") => INT8_TOLERANCE,
        _ => F32_TOLERANCE,
    };
    warm_up(&mut sides, tolerance)?;
    for _ in 0..arguments.rounds {
        for side in &mut sides {
            std::thread::sleep(PAUSE);
            side.round(STEPS)?;
        }
    }
    print_table(&mut sides)
}

/// Runs every side before the measurement, and checks that results agree.
fn warm_up(sides: &mut [Side], tolerance: [f64; 2]) -> Result<(), Failure> {
    for _ in 0..WARM_UP {
        for side in sides.iter_mut() {
            side.step()?;
        }
    }
    let (kiln, others) = sides.split_first_mut().ok_or("no sides")?;
    for other in others {
        for (i, (a, b)) in kiln.values.iter().zip(&other.values).enumerate() {
            let agree = (a - b).abs() <= tolerance[(i > 1) as usize] * b.abs();
            if !agree {
                return Err(format!("Kiln gives {a}, {} {b}", other.name).into());
            }
        }
        other.times.clear();
    }
    kiln.times.clear();
    Ok(())
}

/// Prints the times of every side. Returns the ratios of Kiln's minimum time to those of the other sides.
fn print_table(sides: &mut [Side]) -> Result<Ratios, Failure> {
    println!(
        "  {:<38} {:>10} {:>10} {:>13} {:>12} {:>7}",
        "", "median", "minimum", "processors", "peak memory", "ratio"
    );
    let (_, kiln) = sides[0].summary();
    let mut ratios = Vec::new();
    for side in sides {
        let (median, min_time) = side.summary();
        let processor_time = side.processor_time / side.times.len() as f64;
        let memory = side.ask("memory")?[0] / 1e6;
        let ratio = kiln / min_time;
        println!(
            "  {:<38} {median:>7.2} ms {min_time:>7.2} ms {processor_time:>10.1} ms {memory:>9.1} MB {ratio:>7.2}",
            side.name,
        );
        let name = side.name.split(',').next().unwrap_or_default();
        ratios.push((name.to_string(), ratio));
    }
    println!();
    Ok(ratios.split_off(1))
}

/// Prints all ratios as a table in Markdown.
fn print_ratios(workloads: &[(String, Ratios)], arguments: &Arguments) {
    let mut sides: Vec<&String> = Vec::new();
    for (side, _) in workloads.iter().flat_map(|(_, ratios)| ratios) {
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    if sides.is_empty() {
        return;
    }
    let (threads, rounds) = (arguments.threads, arguments.rounds);
    println!(
        "Kiln {}: its minimum time divided by the other side's. {threads} threads per side, {rounds} alternating rounds \
         of {STEPS} runs. torch.compile runs with `{RETAINING_ALLOCATOR}`.\n",
        env!("CARGO_PKG_VERSION")
    );
    let row = |cells: &mut dyn Iterator<Item = String>| {
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    row(&mut std::iter::once(String::new()).chain(sides.iter().map(|s| s.to_string())));
    row(&mut (0..=sides.len()).map(|_| "---".to_string()));
    for (name, ratios) in workloads {
        let ratio_of = |side: &&String| {
            let ratio = ratios.iter().find(|(name, _)| name == *side);
            ratio.map_or_else(String::new, |(_, ratio)| format!("{ratio:.2}"))
        };
        row(&mut std::iter::once(name.clone()).chain(sides.iter().map(ratio_of)));
    }
}

/// Prints the time of each kernel.
fn print_profile(kiln: &mut Side) -> Result<(), Failure> {
    for round in 0..2 {
        if round == 1 {
            kiln.send("profile")?;
        }
        for _ in 0..WARM_UP {
            kiln.step()?;
        }
    }
    kiln.send("times")?;
    kiln.ask("memory")?;
    let (median, min_time) = kiln.summary();
    println!(
        "  {}: {median:.1} ms per step, minimum {min_time:.1}",
        kiln.name
    );
    Ok(())
}
