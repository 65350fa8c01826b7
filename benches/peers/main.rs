//! Operations, networks and training steps beside other libraries, in alternating rounds, from the same
//! weights on the same data.
//!
//! `benches/peers/setup` installs the others, `cargo bench --bench peers` prints the table. Behind `--`
//! stand the workloads to compare (all otherwise); `--threads N` sets the threads of every side, `--rounds N`
//! how many rounds there are, `--only SIDE` compares Kiln with one side alone (`torch`, `compiled`,
//! `onnxruntime`, `candle`, `tract`, `burn`), and with `--profile` only Kiln runs, and prints the time of
//! each kernel.
//!
//! Sides must agree on their results. Beside the time on the clock stands the time on all processors,
//! which other programs on the machine disturb less. Peak memory is the most resident memory of the
//! process during the runs, above what was resident before the model was made. Every side runs with
//! the system's defaults but `compiled`: that is torch.compile with an allocator that keeps its memory
//! and asks for huge pages, so that page faults are not part of the comparison.

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

/// The number of rounds unless another is given; each is [`STEPS`] runs of every side.
const ROUNDS: usize = 11;
const STEPS: usize = 3;
/// Before a side's turn: threads of others go on spinning for some milliseconds after their last run.
const PAUSE: Duration = Duration::from_millis(50);
/// Runs before the rounds, whose results must agree.
const WARM_UP: usize = 5;
/// The relative tolerance between results, which are f32 sums in other orders: for the losses of a training step's
/// first two runs, and for those of later runs. Rounding may move the operand of a ReLU to the other side of zero;
/// gradients then differ by some thousandths, also between PyTorch with and without oneDNN, and steps accumulate
/// that.
const AGREE: [f64; 2] = [1e-3, 3e-2];
/// The same for steps computed in f16 or bf16.
const HALF_TOLERANCE: [f64; 2] = [2e-2, 5e-2];
/// The same for bytes; each side chooses their scales in its own way.
const AGREE_IN_BYTES: [f64; 2] = [0.1, 0.1];
/// An allocator that gives nothing back to the system, with huge pages.
const KEEPS_MEMORY: &str = "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=17179869184:\
                            glibc.malloc.top_pad=67108864:glibc.malloc.hugetlb=1";

/// The other sides: what they are called on the command line and in the table.
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

fn here() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers")
}

/// A Python program of this folder.
fn python(script: &str) -> Command {
    let mut command = Command::new(here().join(".venv/bin/python"));
    command.arg(here().join(script));
    command
}

/// The command that starts a side, but for its arguments; `None` where it is not installed.
fn command(peer: &str) -> Option<Command> {
    let mut command = match peer {
        "candle" | "tract" | "burn" => Command::new(here().join("rust/target/release/rust-peers")),
        "onnxruntime" => python("onnx_side.py"),
        _ => python("torch_side.py"),
    };
    if peer != "onnxruntime" {
        command.arg(peer);
    }
    if peer == "compiled" {
        command.env("GLIBC_TUNABLES", KEEPS_MEMORY);
    }
    Path::new(command.get_program()).exists().then_some(command)
}

/// Writes the workload as ONNX, for the sides that read that.
fn export(name: &str, start: &Path) -> Result<(), Failure> {
    let mut command = python("onnx_side.py");
    if !Path::new(command.get_program()).exists() {
        return Ok(());
    }
    command.args(["export", name]).arg(start);
    let done = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    match done.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&done.stderr).into()),
    }
}

/// A file that is removed at the end, whatever that is.
struct Start(PathBuf);

impl Drop for Start {
    fn drop(&mut self) {
        for end in ["", ".onnx"] {
            let _ = std::fs::remove_file(format!("{}{end}", self.0.display()));
        }
    }
}

/// The other sides and Kiln's least time as a part of theirs.
type Ratios = Vec<(String, f64)>;

/// Runs a workload on all sides.
fn compare(name: &str, arguments: &Arguments) -> Result<Ratios, Failure> {
    let start = format!("kiln-peers-{}", std::process::id());
    let start = Start(std::env::temp_dir().join(start));
    let this = std::env::current_exe()?;
    let mut made = Command::new(&this);
    if !made.args(["start", name]).arg(&start.0).status()?.success() {
        return Err("no start to run from".into());
    }
    let threads = arguments.threads.to_string();
    let begin = |title: &str, mut command: Command| {
        command.arg(name).arg(&start.0).arg(&threads);
        Side::start(title, &mut command)
    };
    let mut kiln = Command::new(&this);
    kiln.arg("serve");
    let mut kiln = begin("Kiln", kiln)?.ok_or("Kiln lacks the workload")?;
    if arguments.profile {
        profiled(&mut kiln)?;
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
            Some(command) => sides.extend(begin(title, command)?),
            None => println!("  {title} is not installed: see benches/peers/setup"),
        }
    }
    let agree = match name {
        _ if name.ends_with("f16") => HALF_TOLERANCE,
        _ if name.contains("-int") => AGREE_IN_BYTES,
        _ => AGREE,
    };
    warm_up(&mut sides, agree)?;
    for _ in 0..arguments.rounds {
        for side in &mut sides {
            std::thread::sleep(PAUSE);
            side.round(STEPS)?;
        }
    }
    print_table(&mut sides)
}

/// The first runs of every side, which must agree.
fn warm_up(sides: &mut [Side], agree: [f64; 2]) -> Result<(), Failure> {
    for _ in 0..WARM_UP {
        for side in sides.iter_mut() {
            side.step()?;
        }
    }
    let (kiln, others) = sides.split_first_mut().ok_or("no sides")?;
    for other in others {
        for (i, (a, b)) in kiln.values.iter().zip(&other.values).enumerate() {
            let agree = (a - b).abs() <= agree[(i > 1) as usize] * b.abs();
            if !agree {
                return Err(format!("Kiln gives {a}, {} {b}", other.name).into());
            }
        }
        other.times.clear();
    }
    kiln.times.clear();
    Ok(())
}

/// Times of every side, and Kiln's least as a part of the other's, which it gives.
fn print_table(sides: &mut [Side]) -> Result<Ratios, Failure> {
    println!(
        "  {:<38} {:>10} {:>10} {:>13} {:>12} {:>7}",
        "", "median", "least", "processors", "peak memory", "ratio"
    );
    let (_, kiln) = sides[0].summary();
    let mut ratios = Vec::new();
    for side in sides {
        let (median, least) = side.summary();
        let busy = side.busy / side.times.len() as f64;
        let memory = side.ask("memory")?[0] / 1e6;
        let ratio = kiln / least;
        println!(
            "  {:<38} {median:>7.2} ms {least:>7.2} ms {busy:>10.1} ms {memory:>9.1} MB {ratio:>7.2}",
            side.name,
        );
        let name = side.name.split(',').next().unwrap_or_default();
        ratios.push((name.to_string(), ratio));
    }
    println!();
    Ok(ratios.split_off(1))
}

/// All ratios as a table in Markdown.
fn print_ratios(all: &[(String, Ratios)], arguments: &Arguments) {
    let mut sides: Vec<&String> = Vec::new();
    for (side, _) in all.iter().flat_map(|(_, ratios)| ratios) {
        if !sides.contains(&side) {
            sides.push(side);
        }
    }
    if sides.is_empty() {
        return;
    }
    let (threads, rounds) = (arguments.threads, arguments.rounds);
    println!(
        "Kiln {}: its least time as a part of the other side's. {threads} threads a side, {rounds} alternating rounds \
         of {STEPS} runs. Page faults by the system's defaults, but for torch.compile: `{KEEPS_MEMORY}`.\n",
        env!("CARGO_PKG_VERSION")
    );
    let row = |cells: &mut dyn Iterator<Item = String>| {
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
    };
    row(&mut std::iter::once(String::new()).chain(sides.iter().map(|s| s.to_string())));
    row(&mut (0..=sides.len()).map(|_| "---".to_string()));
    for (name, ratios) in all {
        let of = |side: &&String| {
            let ratio = ratios.iter().find(|(name, _)| name == *side);
            ratio.map_or_else(String::new, |(_, ratio)| format!("{ratio:.2}"))
        };
        row(&mut std::iter::once(name.clone()).chain(sides.iter().map(of)));
    }
}

/// Prints the time of each kernel.
fn profiled(kiln: &mut Side) -> Result<(), Failure> {
    for round in 0..2 {
        if round == 1 {
            kiln.tell("profile")?;
        }
        for _ in 0..WARM_UP {
            kiln.step()?;
        }
    }
    kiln.tell("times")?;
    kiln.ask("memory")?;
    let (median, least) = kiln.summary();
    println!(
        "  {}: {median:.1} ms a step, {least:.1} at least",
        kiln.name
    );
    Ok(())
}
