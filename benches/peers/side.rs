//! A side of the comparison: a process that runs a workload on request.

use crate::Failure;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A running side.
pub struct Side {
    /// The name, the version and the number of threads.
    pub name: String,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    /// Seconds of each run.
    pub times: Vec<f64>,
    /// The loss, or the mean of the result's absolute values, of each run.
    pub values: Vec<f64>,
    /// The time on all processors, in milliseconds.
    pub processor_time: f64,
}

impl Side {
    /// Starts a side and waits until it is ready. `None` if the side lacks the workload.
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
            processor_time: 0.0,
        };
        let ready = side.read_line()?;
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

    fn read_line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        match line.is_empty() {
            true => Err(format!("{} ended early", self.name).into()),
            false => Ok(line),
        }
    }

    /// Sends a request, and returns the numbers of the answer.
    pub fn ask(&mut self, request: &str) -> Result<Vec<f64>, Failure> {
        writeln!(self.stdin, "{request}")?;
        let line = self.read_line()?;
        let numbers = line.split_whitespace().map(str::parse);
        Ok(numbers.collect::<Result<_, _>>()?)
    }

    /// Sends a request without an answer.
    pub fn send(&mut self, request: &str) -> Result<(), Failure> {
        Ok(writeln!(self.stdin, "{request}")?)
    }

    /// Runs the workload once.
    pub fn step(&mut self) -> Result<(), Failure> {
        let [time, value] = self.ask("step")?[..] else {
            return Err(format!("{} does not give two numbers", self.name).into());
        };
        self.times.push(time);
        self.values.push(value);
        Ok(())
    }

    /// Runs the workload several times, and adds the time on all processors.
    pub fn round(&mut self, steps: usize) -> Result<(), Failure> {
        let start = self.read_processor_time()?;
        for _ in 0..steps {
            self.step()?;
        }
        self.processor_time += self.read_processor_time()? - start;
        Ok(())
    }

    /// Returns the time of the process on all processors in milliseconds, which Linux counts in hundredths of a second.
    fn read_processor_time(&self) -> Result<f64, Failure> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
        let ticks = fields.skip(11).take(2).map(str::parse::<f64>);
        Ok(ticks.sum::<Result<f64, _>>()? * 10.0)
    }

    /// Returns the median and the minimum time of a run, in milliseconds.
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
