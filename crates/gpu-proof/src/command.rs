//! `kiln-conformance gpu`: runs the parts, each in a process of its own, and writes a page.

use crate::driver::Driver;
use crate::process::run_within;
use crate::{Failed, PARTS, Part, Report, STAGE_SECONDS, Settings, Stage};
use kiln_tensor::Device;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// The usage of the command.
pub const USAGE: &str = "usage: kiln-conformance gpu [options]

Proves the GPU that the CUDA driver shows first. Results are written as they are known, a line each, to
DIR/PART.jsonl; DIR/gpu.md and DIR/gpu.json say what all of these say, and DIR/hardware.tar has the hardware's
outputs. It exits with 1 if anything is wrong, with 3 if nothing is, but something was left out for lack of time.
On the emulated driver nothing is timed.

  --out DIR       where results go, beside those of earlier calls (default: gpu-report)
  --stage a       the parts of a stage: a, b or c, each of at most ten minutes
  --parts A,B     only these parts, or all but these with a minus: -models,-products
  --limit N       seconds for the whole (default: 600 a stage)
  --seeds N       random programs (default 1000)
  --first N       the first of them (default 0); with --seeds 1 it is printed
  --short         a small share of everything, to see that it works
  --tests DIR     a folder with the test binaries `kiln` and `runtime`
  --python FILE   a Python that may have PyTorch (default: python3)
  --commit HASH   what was built, for the page
  --page          only writes the page of what is in DIR
  --list          only says what parts there are";

struct Arguments {
    out: PathBuf,
    stage: Option<Stage>,
    parts: Vec<String>,
    limit: Option<u64>,
    seeds: Option<u64>,
    first: u64,
    short: bool,
    tests: Option<PathBuf>,
    python: String,
    commit: String,
    page: bool,
    list: bool,
    /// The part to run in this process, and its seconds.
    only: Option<(String, u64)>,
}

fn parse(mut parser: lexopt::Parser) -> Result<Arguments, Failed> {
    use lexopt::prelude::*;
    let mut arguments = Arguments {
        out: "gpu-report".into(),
        stage: None,
        parts: Vec::new(),
        limit: None,
        seeds: None,
        first: 0,
        short: false,
        tests: None,
        python: "python3".into(),
        commit: option_env!("KILN_COMMIT").unwrap_or("unknown").into(),
        page: false,
        list: false,
        only: None,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Long("out") => arguments.out = parser.value()?.into(),
            Long("parts") => {
                let names = parser.value()?.string()?;
                arguments.parts.extend(names.split(',').map(str::to_string));
            }
            Long("stage") => {
                let name = parser.value()?.string()?;
                let stage = Stage::find(&name);
                arguments.stage = Some(stage.ok_or(format!("no stage {name}; there are a, b, c"))?);
            }
            Long("limit") => arguments.limit = Some(parser.value()?.parse()?),
            Long("seeds") => arguments.seeds = Some(parser.value()?.parse()?),
            Long("first") => arguments.first = parser.value()?.parse()?,
            Long("short") => arguments.short = true,
            Long("tests") => arguments.tests = Some(parser.value()?.into()),
            Long("python") => arguments.python = parser.value()?.string()?,
            Long("commit") => arguments.commit = parser.value()?.string()?,
            Long("page") => arguments.page = true,
            Long("list") => arguments.list = true,
            Long("part") => {
                arguments.only = Some((parser.value()?.string()?, parser.value()?.parse()?));
            }
            Long("help") | Short('h') => return Err(USAGE.into()),
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    for name in arguments.parts.iter().map(|n| n.trim_start_matches('-')) {
        if Part::find(name).is_none() {
            let names: Vec<&str> = PARTS.iter().map(|p| p.name).collect();
            return Err(format!("no part {name}; there are {}", names.join(", ")).into());
        }
    }
    Ok(arguments)
}

impl Arguments {
    fn wants(&self, part: &Part) -> bool {
        let named = |n: &String| n == part.name;
        let without = |n: &String| n.strip_prefix('-') == Some(part.name);
        let all_excluded = self.parts.iter().all(|n| n.starts_with('-'));
        let named =
            (all_excluded || self.parts.iter().any(named)) && !self.parts.iter().any(without);
        named && self.stage.is_none_or(|stage| stage == part.stage)
    }

    /// The file of a part's lines.
    fn lines(&self, part: &Part) -> PathBuf {
        self.out.join(format!("{}.jsonl", part.name))
    }

    fn settings(&self, device: Device) -> Settings {
        let seeds = self.seeds.unwrap_or(if self.short { 5 } else { 1000 });
        Settings {
            seeds,
            first: self.first,
            short: self.short,
            out: Some(self.out.clone()),
            tests: self.tests.clone(),
            python: self.python.clone(),
            ..Settings::new(device)
        }
    }
}

/// Runs the command with the arguments behind `gpu`; gives its exit code.
///
/// # Errors
/// If the arguments are off, there is no GPU, or results can't be written.
pub fn run(parser: lexopt::Parser) -> Result<u8, Failed> {
    let start = Instant::now();
    let arguments = parse(parser)?;
    if arguments.list {
        for p in PARTS {
            let (name, claim, limit) = (p.name, p.claim, p.limit);
            say!("{:?} {name:12} {claim} (at most {limit} s)", p.stage);
        }
        return Ok(0);
    }
    if arguments.page {
        return conclude(&arguments.out);
    }
    let device = Device::cuda(0)?;
    let mut settings = arguments.settings(device);
    if let Some((name, seconds)) = &arguments.only {
        let stage = Part::find(name).ok_or("no such part")?;
        // The last checks take a moment.
        let seconds = seconds.saturating_sub((seconds / 10).clamp(2, 10));
        settings.deadline = Some(start + Duration::from_secs(seconds));
        stage.run(&settings, &mut Report::to_file(&arguments.lines(stage))?);
        return Ok(0);
    }
    std::fs::create_dir_all(&arguments.out)?;
    let facts = facts(&settings, &arguments.commit)?;
    for (key, value) in &facts {
        say!("{key}: {value}");
    }
    let facts: serde_json::Map<String, Value> = facts
        .into_iter()
        .map(|(k, v)| (k.to_string(), json!(v)))
        .collect();
    // A part that a run which is killed never comes to is one without an end.
    for part in PARTS.iter().filter(|p| arguments.wants(p)) {
        Report::to_file(&arguments.lines(part))?;
    }
    std::fs::write(arguments.out.join("facts.json"), json!(facts).to_string())?;
    let stages = if arguments.stage.is_some() { 1 } else { 3 };
    let limit = arguments.limit.unwrap_or(stages * STAGE_SECONDS);
    let end = start + Duration::from_secs(limit);
    for part in PARTS.iter().filter(|p| arguments.wants(p)) {
        say!("{}: {}", part.name, part.claim);
        // Ends of processes, and the page.
        let left = end.saturating_duration_since(Instant::now() + Duration::from_secs(3));
        let report = in_process(part, &arguments, part.limit.min(left.as_secs()))?;
        let (held, wrong, left_out) = (report.held, report.wrong.len(), report.left_out.len());
        say!(
            "{}: {held} hold, {wrong} wrong, {left_out} left out, {:.1} s",
            part.name,
            report.seconds.unwrap_or_default()
        );
        page(&arguments.out)?;
    }
    conclude(&arguments.out)
}

/// Runs a part in a process of its own, for at most so many seconds.
fn in_process(part: &Part, arguments: &Arguments, limit: u64) -> Result<Report, Failed> {
    let lines = arguments.lines(part);
    if limit < 5 {
        let mut report = Report::to_file(&lines)?;
        report.leave_out("all of it: no time is left");
        report.end(0.0);
        return Ok(report);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu", "--part", part.name, &limit.to_string()]);
    command.arg("--out").arg(&arguments.out);
    command.args(["--python", &arguments.python]);
    if arguments.short {
        command.arg("--short");
    }
    if let Some(seeds) = arguments.seeds {
        command.args(["--seeds", &seeds.to_string()]);
    }
    command.args(["--first", &arguments.first.to_string()]);
    if let Some(tests) = &arguments.tests {
        command.arg("--tests").arg(tests);
    }
    let start = Instant::now();
    let ended = run_within(&mut command, Duration::from_secs(limit))?;
    let text = std::fs::read_to_string(&lines).unwrap_or_default();
    let partial = Report::from_lines(&text);
    // The last line, of whatever kind, shows how far the part came.
    let last = text.lines().last().unwrap_or("nothing");
    let mut report = Report::going_on(&lines)?;
    match ended {
        None => report.leave_out(format!("stopped after {limit} s, behind {last}")),
        Some(status) if partial.seconds.is_none() => {
            report.wrong(format!("ended with {status}, behind {last}"));
        }
        Some(_) => {}
    }
    if partial.seconds.is_none() {
        report.end(start.elapsed().as_secs_f64());
    }
    Ok(Report::from_lines(&std::fs::read_to_string(&lines)?))
}

/// The facts of a proof: machine, versions, commit and date.
fn facts(settings: &Settings, commit: &str) -> Result<Vec<(&'static str, String)>, Failed> {
    let driver = Driver::open()?;
    let (major, minor) = settings.device.capability().unwrap_or((0, 0));
    let nvrtc = kiln_runtime::cuda::Nvrtc::get().map(|n| n.version());
    let nvidia = std::fs::read_to_string("/proc/driver/nvidia/version").unwrap_or_default();
    let mut facts = vec![
        ("device", settings.device.name()),
        ("compute capability", format!("{major}.{minor}")),
        ("multiprocessors", driver.multiprocessors()?.to_string()),
        ("CUDA of the driver", driver.version()?),
        (
            "NVRTC",
            nvrtc.map_or_else(|e| e.to_string(), |(a, b)| format!("{a}.{b}")),
        ),
        ("date", date(SystemTime::now())),
        ("commit", commit.to_string()),
    ];
    if let Some(line) = nvidia.lines().next().filter(|_| !settings.emulated()) {
        facts.push(("driver", line.trim().to_string()));
    }
    if settings.emulated() {
        facts.push(("timings", "none: the device is emulated".to_string()));
    }
    Ok(facts)
}

/// A day of the Gregorian calendar in UTC, such as 2026-01-31 (Hinnant, chrono-compatible date algorithms).
fn date(now: SystemTime) -> String {
    let since = now.duration_since(SystemTime::UNIX_EPOCH);
    let days = since.map_or(0, |d| d.as_secs() / 86400) as i64 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Writes the page of all reports in a folder, and gives these.
fn page(out: &Path) -> Result<Vec<(&'static Part, Report)>, Failed> {
    let facts = std::fs::read(out.join("facts.json"))?;
    let facts: serde_json::Map<String, Value> = serde_json::from_slice(&facts)?;
    let report = |part: &'static Part| {
        let lines = std::fs::read_to_string(out.join(format!("{}.jsonl", part.name)));
        Some((part, Report::from_lines(&lines.ok()?)))
    };
    let reports: Vec<(&Part, Report)> = PARTS.iter().filter_map(report).collect();
    let wrong: usize = reports.iter().map(|(_, r)| r.wrong.len()).sum();
    let mut page = String::from("# A GPU, proven\n\n");
    for (key, value) in &facts {
        page += &format!("- {key}: {}\n", value.as_str().unwrap_or_default());
    }
    page += &match wrong {
        0 => "\nNothing is wrong.\n\n".to_string(),
        n => format!("\n**{n} wrong.**\n\n"),
    };
    for (part, report) in &reports {
        page += &report.to_markdown(part.name, part.claim);
    }
    replace(&out.join("gpu.md"), page.trim_end().to_string() + "\n")?;
    let parts: serde_json::Map<String, Value> = reports
        .iter()
        .map(|(p, r)| (p.name.to_string(), r.to_json()))
        .collect();
    let document = json!({"facts": facts, "wrong": wrong, "parts": parts});
    replace(
        &out.join("gpu.json"),
        serde_json::to_string_pretty(&document)?,
    )?;
    Ok(reports)
}

/// Writes a file whole or not at all.
fn replace(path: &Path, text: String) -> Result<(), Failed> {
    let new = path.with_extension("new");
    std::fs::write(&new, text)?;
    Ok(std::fs::rename(new, path)?)
}

/// Writes the page and gives the exit code of what it says.
fn conclude(out: &Path) -> Result<u8, Failed> {
    let reports = page(out)?;
    let wrong: usize = reports.iter().map(|(_, r)| r.wrong.len()).sum();
    let left_out = |r: &Report| r.left_out.len() + usize::from(r.seconds.is_none());
    let left_out = reports.iter().map(|(_, r)| left_out(r)).sum();
    say!(
        "{wrong} wrong, {left_out} left out; see {}",
        out.join("gpu.md").display()
    );
    Ok(match (wrong, left_out) {
        (0, 0) => 0,
        (0, _) => 3,
        _ => 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        let day = |n: u64| date(SystemTime::UNIX_EPOCH + Duration::from_secs(n * 86400 + 5));
        let days = [0, 59, 364, 365, 11016, 11017, 20_000].map(day);
        let expected = [
            "1970-01-01",
            "1970-03-01",
            "1970-12-31",
            "1971-01-01",
            "2000-02-29",
            "2000-03-01",
            "2024-10-04",
        ];
        assert_eq!(days, expected);
    }
}
