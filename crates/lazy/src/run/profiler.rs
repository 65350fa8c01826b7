//! The time of a program: the kernels that ran, with their cost and the user's lines.
//!
//! ```
//! use kiln_tensor::{DType, Tensor, profiler};
//!
//! let x = Tensor::ones([64, 64], DType::F32);
//! let (sum, profile) = profiler::profile(|| x.matmul(&x).sum(()).item::<f32>());
//! assert_eq!(sum?, 64.0 * 64.0 * 64.0);
//! println!("{}", profile.key_averages().table(10));
//! # Ok::<(), kiln_tensor::Error>(())
//! ```

use crate::caller::user_line;
use crate::{Error, ErrorKind, Result};
use kiln_base::{Loc, Scoped};
use kiln_compiler::{Explain, KernelInfo};
use kiln_runtime::{Buffer, Executable, StepEvent};
use std::cell::RefCell;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::panic::Location;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tracing::{Level, debug, enabled, info};

thread_local! {
    static COLLECTOR: RefCell<Option<Profile>> = const { RefCell::new(None) };
}

/// Runs `f` and returns its result, and the kernels that its reads and compiled functions launched on this thread.
/// Kernels that prepare parameters are omitted: they run only when a parameter has changed.
pub fn profile<T>(f: impl FnOnce() -> T) -> (T, Profile) {
    let guard = Scoped::new(&COLLECTOR, Some(Profile::default()));
    let value = f();
    let mut profile = COLLECTOR.take().unwrap_or_default();
    drop(guard);
    profile.wall = profile.start.elapsed();
    collect(|enclosing| enclosing.merge(profile.clone()));
    (value, profile)
}

/// The kernels that ran, in the order of their start.
#[derive(Clone, Debug)]
pub struct Profile {
    start: Instant,
    wall: Duration,
    events: Vec<KernelEvent>,
    runs: Vec<RunEvent>,
    numbers: Vec<NumberEvent>,
    compilations: Vec<CompileEvent>,
    waits: Vec<WaitEvent>,
}

/// A number that a run reported, such as a new scale of losses.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberEvent {
    /// The name of the number.
    pub name: String,
    /// The time of the report, since the profile's start.
    pub at: Duration,
    /// The number.
    pub value: f64,
}

/// One kernel's execution; kernels that start together count as one.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelEvent {
    /// The kernel's name.
    pub name: String,
    /// The ops that it computes, with the user's lines.
    pub ops: Vec<String>,
    /// The time of its start, since the profile's start.
    pub start: Duration,
    /// Its duration.
    pub time: Duration,
    /// The number of arithmetic operations, as estimated by the compiler.
    pub flops: f64,
    /// The number of bytes of the buffers that it touches, each counted once.
    pub bytes: f64,
}

/// One run of a program: of a read, or of a compiled function.
#[derive(Clone, Debug, PartialEq)]
pub struct RunEvent {
    /// The time of its start, since the profile's start.
    pub start: Duration,
    /// Its duration for this thread.
    pub time: Duration,
    /// The user's line.
    pub loc: Loc,
}

/// A plan that was compiled for a read or a compiled function.
#[derive(Clone, Debug, PartialEq)]
pub struct CompileEvent {
    /// The time of its start, since the profile's start.
    pub start: Duration,
    /// Its duration.
    pub time: Duration,
    /// The user's line.
    pub loc: Loc,
    /// The reason: how the program differed from earlier ones.
    pub reason: String,
}

/// A wait for data.
#[derive(Clone, Debug, PartialEq)]
pub struct WaitEvent {
    /// The time of its start, since the profile's start.
    pub start: Duration,
    /// Its duration.
    pub time: Duration,
    /// The data: `DataLoader` for the batches of one.
    pub what: &'static str,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            start: Instant::now(),
            wall: Duration::ZERO,
            events: Vec::new(),
            runs: Vec::new(),
            numbers: Vec::new(),
            compilations: Vec::new(),
            waits: Vec::new(),
        }
    }
}

/// True if this thread is profiled.
pub fn is_profiling() -> bool {
    COLLECTOR.with_borrow(Option::is_some)
}

/// Calls `f` with the profile of this thread, if there is one.
fn collect(f: impl FnOnce(&mut Profile)) {
    COLLECTOR.with_borrow_mut(|profile| profile.as_mut().map(f));
}

/// Adds a number to the profile of this thread, if there is one.
pub fn note_number(name: &str, value: f64) {
    collect(|profile| {
        profile.numbers.push(NumberEvent {
            name: name.into(),
            at: profile.start.elapsed(),
            value,
        });
    });
}

/// Adds a compilation that has just ended to the log, and to the profile of this thread, if there is one.
pub fn note_compiled(loc: &'static Location<'static>, reason: &str, explain: &Explain) {
    let (loc, time) = (user_line(loc), explain.time);
    info!(
        target: "kiln::compile",
        line = %loc,
        milliseconds = milliseconds(time),
        kernels = explain.kernels_run(),
        temporary_bytes = explain.memory.map(|m| m.peak),
        reason,
        "compiled"
    );
    let measured = explain.tuning.measured().count();
    if measured > 0 {
        let spent = milliseconds(explain.tuning.time);
        info!(target: "kiln::tune", line = %loc, milliseconds = spent, kernels = measured, "tuned");
    }
    collect(|profile| {
        profile.compilations.push(CompileEvent {
            start: profile.start.elapsed().saturating_sub(time),
            time,
            loc: Loc::from(loc),
            reason: reason.into(),
        });
    });
}

/// Runs `f`, which may wait for data, and adds its duration to the log, and to the profile of this thread, if there is
/// one.
pub fn waiting<T>(what: &'static str, f: impl FnOnce() -> T) -> T {
    if !is_profiling() && !enabled!(target: "kiln::data", Level::DEBUG) {
        return f();
    }
    let begin = Instant::now();
    let value = f();
    let time = begin.elapsed();
    debug!(target: "kiln::data", what, milliseconds = milliseconds(time), "waited for data");
    collect(|profile| {
        let start = begin.saturating_duration_since(profile.start);
        profile.waits.push(WaitEvent { start, time, what });
    });
    value
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Runs an executable by `run`, and adds its kernels to the profile of this thread, if there is one.
pub fn run_profiled<T>(
    executable: &Executable,
    explain: &Explain,
    inputs: &mut [Buffer],
    loc: &'static Location<'static>,
    run: impl FnOnce(&mut [Buffer]) -> T,
) -> T {
    if !is_profiling() {
        return run(inputs);
    }
    let symbols = symbols(executable, inputs);
    executable.record_events(true);
    let start = Instant::now();
    let result = run(inputs);
    let (time, events) = (start.elapsed(), executable.take_events());
    executable.record_events(false);
    collect(|profile| {
        profile.runs.push(RunEvent {
            start: start.saturating_duration_since(profile.start),
            time,
            loc: Loc::from(loc),
        });
        let kernels = events.iter().map(|e| {
            let since = e.start.saturating_duration_since(profile.start);
            kernel_event(e, since, explain, &symbols)
        });
        profile.events.extend(kernels.collect::<Vec<_>>());
    });
    result
}

/// The values of a plan's symbols.
fn symbols(executable: &Executable, inputs: &[Buffer]) -> Vec<i64> {
    let symbols = executable.plan().symbols.iter();
    let dim = |(i, axis): (u32, u32)| inputs[i as usize].shape()[axis as usize];
    symbols.map(|s| dim((s.input, s.axis))).collect()
}

fn kernel_event(
    event: &StepEvent,
    start: Duration,
    explain: &Explain,
    symbols: &[i64],
) -> KernelEvent {
    let kernel_of = |step: usize| -> Option<&KernelInfo> {
        explain
            .kernels
            .iter()
            .find(|k| !k.prepared && k.step == step)
    };
    let first = kernel_of(event.step);
    let concurrent = (event.step + 1..).map_while(|s| kernel_of(s).filter(|k| k.concurrent));
    let kernels: Vec<&KernelInfo> = first.into_iter().chain(concurrent).collect();
    let name = first.map_or("kernel", |k| &k.name);
    let sum = |count: &dyn Fn(&KernelInfo) -> i64| kernels.iter().map(|k| count(k) as f64).sum();
    KernelEvent {
        name: match kernels.len() {
            0 | 1 => name.to_string(),
            n => format!("{name} and {} more", n - 1),
        },
        ops: kernels.iter().flat_map(|k| k.ops.iter().cloned()).collect(),
        start,
        time: event.time,
        flops: sum(&|k| k.cost.flops.eval(symbols)),
        bytes: sum(&|k| k.cost.bytes.eval(symbols)),
    }
}

impl Profile {
    /// The kernels, in the order of their start.
    pub fn events(&self) -> &[KernelEvent] {
        &self.events
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[RunEvent] {
        &self.runs
    }

    /// The numbers that runs reported, in order: the scales of a `GradScaler`, one per step.
    pub fn numbers(&self) -> &[NumberEvent] {
        &self.numbers
    }

    /// The compilations, in order, with their reasons.
    pub fn compilations(&self) -> &[CompileEvent] {
        &self.compilations
    }

    /// The waits for data, in order.
    pub fn waits(&self) -> &[WaitEvent] {
        &self.waits
    }

    /// The total time of the waits for data.
    pub fn wait_time(&self) -> Duration {
        self.waits.iter().map(|w| w.time).sum()
    }

    /// The duration of the profiled function.
    pub fn wall_time(&self) -> Duration {
        self.wall
    }

    /// The total time of the kernels.
    pub fn total_time(&self) -> Duration {
        self.events.iter().map(|e| e.time).sum()
    }

    /// Combines kernels with the same name and lines, longest total time first.
    pub fn key_averages(&self) -> KeyAverages {
        let mut rows: Vec<KeyAverage> = Vec::new();
        let mut row_of = std::collections::BTreeMap::new();
        for e in &self.events {
            let index = *row_of.entry((&e.name, &e.ops)).or_insert(rows.len());
            if index == rows.len() {
                rows.push(KeyAverage {
                    name: e.name.clone(),
                    ops: e.ops.clone(),
                    count: 0,
                    total: Duration::ZERO,
                    flops: 0.0,
                    bytes: 0.0,
                });
            }
            let row = &mut rows[index];
            row.count += 1;
            row.total += e.time;
            row.flops += e.flops;
            row.bytes += e.bytes;
        }
        rows.sort_by_key(|r| std::cmp::Reverse(r.total));
        let mut numbers: Vec<(String, Vec<f64>)> = Vec::new();
        for n in &self.numbers {
            match numbers.iter_mut().find(|(name, _)| *name == n.name) {
                Some((_, values)) => values.push(n.value),
                None => numbers.push((n.name.clone(), vec![n.value])),
            }
        }
        KeyAverages {
            rows,
            numbers,
            compilations: self.compilations.clone(),
            waits: (self.waits.len(), self.wait_time()),
            wall: self.wall,
            peaks: None,
        }
    }

    /// Returns the profile in the JSON of Chrome's trace viewer and Perfetto: tracks of runs, kernels, compilations and
    /// waits for data, and one for each kind of number.
    pub fn to_chrome_trace(&self) -> String {
        let mut out = String::from("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n");
        let thread = |id: u32, name: &str| {
            format!(
                "{{\"ph\": \"M\", \"pid\": 0, \"tid\": {id}, \"name\": \"thread_name\", \"args\": \
                 {{\"name\": {}}}}}",
                json(name)
            )
        };
        let span = |id: u32, name: &str, start: Duration, time: Duration, args: String| {
            let us = |t: Duration| t.as_nanos() as f64 / 1e3;
            format!(
                "{{\"ph\": \"X\", \"pid\": 0, \"tid\": {id}, \"name\": {}, \"ts\": {:.3}, \"dur\": \
                 {:.3}, \"args\": {{{args}}}}}",
                json(name),
                us(start),
                us(time)
            )
        };
        let mut lines = vec![
            thread(0, "runs"),
            thread(1, "kernels"),
            thread(2, "compilations"),
            thread(3, "waits for data"),
        ];
        for c in &self.compilations {
            let name = format!("compile at {}", c.loc);
            let args = format!("\"reason\": {}", json(&c.reason));
            lines.push(span(2, &name, c.start, c.time, args));
        }
        for w in &self.waits {
            lines.push(span(3, w.what, w.start, w.time, String::new()));
        }
        for r in &self.runs {
            let name = format!("run at {}", r.loc);
            lines.push(span(0, &name, r.start, r.time, String::new()));
        }
        for e in &self.events {
            let ops = json(&e.ops.join("\n"));
            let args = format!(
                "\"ops\": {ops}, \"flops\": {:.0}, \"bytes\": {:.0}",
                e.flops, e.bytes
            );
            lines.push(span(1, &e.name, e.start, e.time, args));
        }
        for n in self.numbers.iter().filter(|n| n.value.is_finite()) {
            lines.push(format!(
                "{{\"ph\": \"C\", \"pid\": 0, \"name\": {}, \"ts\": {:.3}, \"args\": {{\"value\": {}}}}}",
                json(&n.name),
                n.at.as_nanos() as f64 / 1e3,
                n.value
            ));
        }
        out.push_str(&lines.join(",\n"));
        out.push_str("\n]}\n");
        out
    }

    /// Writes [`Profile::to_chrome_trace`] to a file; an existing file is replaced as a whole.
    ///
    /// # Errors
    /// If the file can't be written.
    #[track_caller]
    pub fn export_chrome_trace(&self, path: impl AsRef<Path>) -> Result<()> {
        let (path, loc) = (path.as_ref(), Location::caller());
        let text = self.to_chrome_trace();
        let written = kiln_base::file::replace(path, |f| f.write_all(text.as_bytes()));
        written.map_err(|e: std::io::Error| {
            let message = format!("{}: {e}", path.display());
            Error::new(ErrorKind::Io, "export_chrome_trace", message, loc)
        })
    }

    /// A page that needs no other file: runs, kernels, compilations and waits for data over time, the kernels with
    /// their cost, and the reasons of compilations.
    pub fn to_html(&self) -> String {
        super::profile_page::page(self)
    }

    /// Adds the events of a nested profile.
    fn merge(&mut self, mut nested: Profile) {
        let offset = nested.start.saturating_duration_since(self.start);
        nested.events.iter_mut().for_each(|e| e.start += offset);
        nested.runs.iter_mut().for_each(|r| r.start += offset);
        nested.numbers.iter_mut().for_each(|n| n.at += offset);
        (nested.compilations.iter_mut()).for_each(|c| c.start += offset);
        nested.waits.iter_mut().for_each(|w| w.start += offset);
        self.events.append(&mut nested.events);
        self.runs.append(&mut nested.runs);
        self.numbers.append(&mut nested.numbers);
        self.compilations.append(&mut nested.compilations);
        self.waits.append(&mut nested.waits);
    }
}

/// Kernels combined by their ops; see [`Profile::key_averages`].
#[derive(Clone, Debug, PartialEq)]
pub struct KeyAverages {
    /// The rows, the longest total time first.
    pub rows: Vec<KeyAverage>,
    /// The [numbers](Profile::numbers) by their names, each in order.
    pub numbers: Vec<(String, Vec<f64>)>,
    /// The compilations, in order.
    pub compilations: Vec<CompileEvent>,
    /// The number of waits for data, and their total time.
    pub waits: (usize, Duration),
    /// The duration of the profiled function.
    pub wall: Duration,
    /// The processor's peaks: operations and bytes per second.
    peaks: Option<[f64; 2]>,
}

/// The executions of one kernel together.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyAverage {
    /// The kernel's name.
    pub name: String,
    /// The ops that it computes, with the user's lines.
    pub ops: Vec<String>,
    /// The number of executions.
    pub count: usize,
    /// The total time of all executions.
    pub total: Duration,
    /// The number of arithmetic operations of all executions.
    pub flops: f64,
    /// The number of bytes of all executions.
    pub bytes: f64,
}

impl KeyAverages {
    /// Adds to each kernel the share of the peak that it reached: the shortest time that the processor needs, divided
    /// by its time. The shortest time follows from its operations at the f32 peak or from its bytes at the peak of a
    /// copy, whichever is longer. The share exceeds 100 % if operands come from the caches, or if an algorithm needs
    /// fewer operations than the plain sum that is counted. Both peaks are measured here, once, with all of Kiln's
    /// threads, which takes half a second. They do not apply to kernels on a GPU.
    pub fn of_peak(mut self) -> KeyAverages {
        static PEAKS: OnceLock<[f64; 2]> = OnceLock::new();
        let peaks = PEAKS.get_or_init(|| {
            let threads = crate::device::threads();
            let operations = kiln_runtime::peaks::operations(threads, false);
            [operations, kiln_runtime::peaks::bandwidth(threads)]
        });
        self.peaks = Some(*peaks);
        self
    }

    /// The share of the peak that a kernel reached, once [`KeyAverages::of_peak`] has measured the peak.
    pub fn share_of_peak(&self, row: &KeyAverage) -> Option<f64> {
        let [operations, bandwidth] = self.peaks?;
        let shortest = (row.flops / operations).max(row.bytes / bandwidth);
        Some(shortest / row.total.as_secs_f64().max(1e-12))
    }

    /// A table of at most `row_limit` rows: share of the time, total time and time per execution, GB/s, GFLOP/s, the
    /// share of the peak where that [was measured](KeyAverages::of_peak), and the user's line of the last op. Below it
    /// are the numbers that runs reported, the compilations with their reasons, and the time of waits for data.
    pub fn table(&self, row_limit: usize) -> String {
        let total: Duration = self.rows.iter().map(|r| r.total).sum();
        let head = self
            .peaks
            .map_or(String::new(), |_| format!("{:>7}  ", "of peak"));
        let mut out = format!(
            "{:>6}  {:>10}  {:>10}  {:>6}  {:>8}  {:>8}  {head}kernel\n",
            "share", "total", "average", "calls", "GB/s", "GFLOP/s"
        );
        for r in self.rows.iter().take(row_limit) {
            let seconds = r.total.as_secs_f64().max(1e-12);
            let line = r.ops.last().map_or("", |o| o);
            let share = self.share_of_peak(r);
            let share = share.map_or(String::new(), |share| format!("{:>6.0}%  ", 100.0 * share));
            // Writing to a string does not fail.
            let _ = writeln!(
                out,
                "{:>5.1}%  {:>10}  {:>10}  {:>6}  {:>8.2}  {:>8.2}  {share}{}: {line}",
                100.0 * seconds / total.as_secs_f64().max(1e-12),
                time(r.total),
                time(r.total / r.count.max(1) as u32),
                r.count,
                r.bytes / seconds / 1e9,
                r.flops / seconds / 1e9,
                r.name,
            );
        }
        let omitted = self.rows.len().saturating_sub(row_limit);
        if omitted > 0 {
            let _ = writeln!(out, "and {omitted} more");
        }
        for (name, values) in &self.numbers {
            let _ = writeln!(out, "{name}: {}", run_lengths(values));
        }
        for c in self.compilations.iter().take(row_limit) {
            let (duration, loc, reason) = (time(c.time), &c.loc, &c.reason);
            let _ = writeln!(out, "compiled at {loc} in {duration}: {reason}");
        }
        if let omitted @ 1.. = self.compilations.len().saturating_sub(row_limit) {
            let _ = writeln!(out, "and {omitted} compilations more");
        }
        if let (count @ 1.., total) = self.waits {
            let share = 100.0 * total.as_secs_f64() / self.wall.as_secs_f64().max(1e-12);
            let total = time(total);
            let _ = writeln!(out, "waited {total} ({share:.1}%) for data, {count} times");
        }
        out
    }
}

impl fmt::Display for KeyAverages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(usize::MAX))
    }
}

/// Formats a sequence of numbers, with equal neighbours combined: `65536 (3 times), 32768`.
fn run_lengths(values: &[f64]) -> String {
    let run = |equal: &[f64]| match equal.len() {
        1 => equal[0].to_string(),
        n => format!("{} ({n} times)", equal[0]),
    };
    let runs: Vec<String> = values.chunk_by(|a, b| a == b).map(run).collect();
    runs.join(", ")
}

pub(super) fn time(t: Duration) -> String {
    match t.as_secs_f64() {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.1} us", s * 1e6),
    }
}

/// Formats a JSON string.
fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if c < ' ' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
