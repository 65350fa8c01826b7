//! Training steps beside PyTorch's, in alternating rounds, from the same weights on the same data.
//!
//! `benches/peers/setup` installs PyTorch, `cargo bench --bench peers` prints the table. With
//! `-- --profile` only Kiln runs, and prints the time of each kernel.

mod kiln_side;
mod models;

use kiln_side::Failure;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Rounds; each is [`STEPS`] steps of one side, then as many of the other.
const ROUNDS: usize = 11;
const STEPS: usize = 5;
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
            for (name, title) in models::NAMES {
                if only.is_none_or(|o| *o == name) {
                    println!("{title}");
                    compare(name, profile)?;
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

fn compare(name: &str, profile: bool) -> Result<(), Failure> {
    let start: PathBuf = std::env::temp_dir().join(format!("kiln-peers-{}", std::process::id()));
    let this = std::env::current_exe()?;
    let made = Command::new(&this)
        .args(["start", name])
        .arg(&start)
        .status()?;
    if !made.success() {
        return Err("no start to train from".into());
    }
    let threads = std::thread::available_parallelism()?.to_string();
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
            for _ in 0..STEPS {
                side.step()?;
            }
        }
    }
    println!(
        "  {:<28} {:>10} {:>10} {:>12}",
        "", "median", "least", "peak memory"
    );
    let mut figures = Vec::new();
    for side in [&mut kiln, &mut torch] {
        let (median, least) = side.summary();
        let memory = side.ask("memory")?[0] / 1e6;
        println!(
            "  {:<28} {median:>7.1} ms {least:>7.1} ms {memory:>9.1} MB",
            side.name
        );
        figures.push([median, least, memory]);
    }
    let [time, least, memory] = [0, 1, 2].map(|i| figures[0][i] / figures[1][i]);
    println!(
        "  {:<28} {time:>10.2} {least:>10.2} {memory:>12.2}\n",
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
