//! Training steps beside PyTorch's, in alternating rounds, from the same weights on the same data.
//!
//! `benches/peers/setup` installs PyTorch, `cargo bench --bench peers` prints the table. Behind `--`,
//! `resnet18` or `encoder` picks one workload and `--threads N` the threads of both sides; with
//! `--profile` only Kiln runs, and prints the time of each kernel.
//!
//! Beside the time on the clock stands the time on all processors, which other programs on the machine
//! disturb less. Peak memory is the most resident memory of the process during the steps, above what was
//! resident before the model was made.

mod kiln_side;
mod models;

use kiln_side::Failure;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Rounds; each is [`STEPS`] steps of one side, then as many of the other.
const ROUNDS: usize = 11;
const STEPS: usize = 3;
/// Steps before the rounds, whose losses must agree.
const WARM_UP: usize = 5;
/// How far losses may be apart, relatively: f32 sums of other orders, over a few steps.
const AGREE: f64 = 1e-3;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["serve", name, path, threads] => kiln_side::serve(name, path, threads.parse()?),
        ["start", name, path] => kiln_side::write_start(name, path),
        _ => {
            let only = words
                .iter()
                .find(|w| models::NAMES.iter().any(|n| n.0 == **w));
            let profile = words.contains(&"--profile");
            let threads = match words.iter().position(|w| *w == "--threads") {
                Some(at) => words
                    .get(at + 1)
                    .ok_or("--threads takes a number")?
                    .parse()?,
                None => std::thread::available_parallelism()?.get(),
            };
            for (name, title) in models::NAMES {
                if only.is_none_or(|o| *o == name) {
                    println!("{title}");
                    compare(name, threads, profile)?;
                }
            }
            Ok(())
        }
    }
}

/// One side: a process that trains.
struct Side {
    name: String,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    times: Vec<f64>,
    losses: Vec<f64>,
    /// Time on all processors, in milliseconds.
    busy: f64,
}

impl Side {
    fn new(name: &str, command: &mut Command) -> Result<Side, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (stdin, stdout) = child
            .stdin
            .take()
            .zip(child.stdout.take())
            .ok_or("no pipes")?;
        let mut side = Side {
            name: name.to_string(),
            child,
            stdin,
            stdout: BufReader::new(stdout),
            times: Vec::new(),
            losses: Vec::new(),
            busy: 0.0,
        };
        let ready = side.line()?;
        let words: Vec<&str> = ready.split_whitespace().collect();
        let ["ready", version, threads] = words[..] else {
            return Err(format!("{name} does not start: {ready}").into());
        };
        side.name = format!("{name} {version}, {threads} threads");
        Ok(side)
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.is_empty() {
            true => Err(format!("{} ended early", self.name).into()),
            false => Ok(line),
        }
    }

    fn ask(&mut self, what: &str) -> Result<Vec<f64>, Failure> {
        writeln!(self.stdin, "{what}")?;
        let line = self.line()?;
        Ok(line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?)
    }

    fn step(&mut self) -> Result<(), Failure> {
        let answer = self.ask("step")?;
        self.times.push(answer[0]);
        self.losses.push(answer[1]);
        Ok(())
    }

    /// The time that the process has spent on all processors, in milliseconds. Linux counts it in
    /// hundredths of a second.
    fn processor_time(&self) -> Result<f64, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? * 10.0)
    }

    /// Median and least time of a step, in milliseconds.
    fn summary(&self) -> (f64, f64) {
        let mut times = self.times.clone();
        times.sort_by(f64::total_cmp);
        (times[times.len() / 2] * 1e3, times[0] * 1e3)
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn compare(name: &str, threads: usize, profile: bool) -> Result<(), Failure> {
    let start: PathBuf = std::env::temp_dir().join(format!("kiln-peers-{}", std::process::id()));
    let this = std::env::current_exe()?;
    let made = Command::new(&this)
        .args(["start", name])
        .arg(&start)
        .status()?;
    if !made.success() {
        return Err("no start to train from".into());
    }
    let threads = threads.to_string();
    let mut command = Command::new(&this);
    let mut kiln = Side::new(
        "Kiln",
        command.args(["serve", name]).arg(&start).arg(&threads),
    )?;
    if profile {
        let result = profiled(&mut kiln);
        std::fs::remove_file(&start)?;
        return result;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers");
    let python = here.join(".venv/bin/python");
    if !python.exists() {
        return Err("PyTorch is not there: run benches/peers/setup first".into());
    }
    let mut command = Command::new(python);
    command
        .arg(here.join("torch_side.py"))
        .arg(name)
        .arg(&start)
        .arg(&threads);
    let mut torch = Side::new("PyTorch", &mut command)?;
    std::fs::remove_file(&start)?;
    for _ in 0..WARM_UP {
        kiln.step()?;
        torch.step()?;
    }
    println!(
        "  losses        {:.6?}\n  PyTorch's     {:.6?}",
        kiln.losses, torch.losses
    );
    for (a, b) in kiln.losses.iter().zip(&torch.losses) {
        if (a - b).abs() > AGREE * b.abs() {
            return Err(format!("the losses {a} and {b} differ").into());
        }
    }
    (kiln.times.clear(), torch.times.clear());
    for _ in 0..ROUNDS {
        for side in [&mut kiln, &mut torch] {
            let before = side.processor_time()?;
            for _ in 0..STEPS {
                side.step()?;
            }
            side.busy += side.processor_time()? - before;
        }
    }
    let names = ["median", "least", "processors", "peak memory"];
    let [a, b, c, d] = names;
    println!("  {:<34} {a:>10} {b:>10} {c:>13} {d:>12}", "");
    let mut figures = Vec::new();
    for side in [&mut kiln, &mut torch] {
        let (median, least) = side.summary();
        let busy = side.busy / side.times.len() as f64;
        let memory = side.ask("memory")?[0] / 1e6;
        let name = &side.name;
        println!("  {name:<34} {median:>7.1} ms {least:>7.1} ms {busy:>10.1} ms {memory:>9.1} MB");
        figures.push([median, least, busy, memory]);
    }
    let [a, b, c, d] = [0, 1, 2, 3].map(|i| figures[0][i] / figures[1][i]);
    println!(
        "  {:<34} {a:>10.2} {b:>10.2} {c:>13.2} {d:>12.2}\n",
        "ratio"
    );
    Ok(())
}

/// Prints the time of each kernel.
fn profiled(kiln: &mut Side) -> Result<(), Failure> {
    for round in 0..2 {
        if round == 1 {
            writeln!(kiln.stdin, "profile")?;
        }
        for _ in 0..WARM_UP {
            kiln.step()?;
        }
    }
    writeln!(kiln.stdin, "times")?;
    kiln.ask("memory")?;
    let (median, least) = kiln.summary();
    println!(
        "  {}: {median:.1} ms a step, {least:.1} at least",
        kiln.name
    );
    Ok(())
}
