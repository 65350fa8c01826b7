//! One side of the comparison: a process that runs a workload when it is asked to.

use crate::Failure;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running side.
pub struct Side {
    /// Its name, its version and its threads.
    pub name: String,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Seconds of each run.
    pub times: Vec<f64>,
    /// The loss, or the mean of the result's absolute values, of each run.
    pub values: Vec<f64>,
    /// Milliseconds on all processors.
    pub busy: f64,
}

impl Side {
    /// Starts it and waits until it is ready. `None` where it says that it has no such workload.
    pub fn start(name: &str, command: &mut Command) -> Result<Option<Side>, Failure> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (stdin, stdout) = pipes.ok_or("no pipes")?;
        let mut side = Side {
            name: name.to_string(),
            child,
            stdin,
            stdout: BufReader::new(stdout),
            times: Vec::new(),
            values: Vec::new(),
            busy: 0.0,
        };
        let ready = side.line()?;
        let words: Vec<&str> = ready.split_whitespace().collect();
        match words[..] {
            ["ready", version, threads] => {
                side.name = format!("{name} {version}, {threads} threads");
                Ok(Some(side))
            }
            ["absent"] => Ok(None),
            _ => Err(format!("{name} does not start: {ready}").into()),
        }
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.is_empty() {
            true => Err(format!("{} ended early", self.name).into()),
            false => Ok(line),
        }
    }

    /// Asks for numbers.
    pub fn ask(&mut self, what: &str) -> Result<Vec<f64>, Failure> {
        writeln!(self.stdin, "{what}")?;
        let line = self.line()?;
        let numbers = line.split_whitespace().map(str::parse);
        Ok(numbers.collect::<Result<_, _>>()?)
    }

    /// Tells it something that it does not answer.
    pub fn tell(&mut self, what: &str) -> Result<(), Failure> {
        Ok(writeln!(self.stdin, "{what}")?)
    }

    /// One run.
    pub fn step(&mut self) -> Result<(), Failure> {
        let [time, value] = self.ask("step")?[..] else {
            return Err(format!("{} does not give two numbers", self.name).into());
        };
        self.times.push(time);
        self.values.push(value);
        Ok(())
    }

    /// Some runs, whose time on all processors is counted.
    pub fn round(&mut self, steps: usize) -> Result<(), Failure> {
        let before = self.processor_time()?;
        for _ in 0..steps {
            self.step()?;
        }
        self.busy += self.processor_time()? - before;
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

    /// Median and least time of a run, in milliseconds.
    pub fn summary(&self) -> (f64, f64) {
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
