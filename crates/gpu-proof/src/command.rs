//! `kiln-conformance gpu`: runs the parts, each in a process of its own, and writes a page.

use crate::driver::Driver;
use crate::{Failed, PARTS, Part, Report, Settings};
use kiln_tensor::Device;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant, SystemTime};

/// What the command takes.
pub const USAGE: &str = "usage: kiln-conformance gpu [options]

Proves the GPU that the CUDA driver shows first, and writes DIR/gpu.md, DIR/gpu.json and the hardware's
outputs, DIR/hardware.tar. It exits with 1 if anything is wrong. On the emulated driver nothing is timed.

  --out DIR       where results go (default: gpu-report)
  --parts A,B     only these parts, or all but these with a minus: -models,-products
  --limit N       seconds for the whole; parts that don't fit are left out (default 3600)
  --seeds N       random programs (default 1000)
  --first N       the first of them (default 0); with --seeds 1 it is printed
  --short         a small share of everything, to see that it works
  --tests DIR     a folder with the test binaries `kiln` and `runtime`
  --python FILE   a Python that may have PyTorch (default: python3)
  --commit HASH   what was built, for the page
  --list          only says what parts there are";

struct Given {
    out: PathBuf,
    parts: Vec<String>,
    limit: u64,
    seeds: Option<u64>,
    first: u64,
    short: bool,
    tests: Option<PathBuf>,
    python: String,
    commit: String,
    list: bool,
    /// The part to run in this process, with the file for its report.
    only: Option<(String, PathBuf)>,
}

fn parse(mut parser: lexopt::Parser) -> Result<Given, Failed> {
    use lexopt::prelude::*;
    let mut given = Given {
        out: "gpu-report".into(),
        parts: Vec::new(),
        limit: 3600,
        seeds: None,
        first: 0,
        short: false,
        tests: None,
        python: "python3".into(),
        commit: option_env!("KILN_COMMIT").unwrap_or("unknown").into(),
        list: false,
        only: None,
    };
    while let Some(arg) = parser.next()? {
        match arg {
            Long("out") => given.out = parser.value()?.into(),
            Long("parts") => {
                let names = parser.value()?.string()?;
                given.parts.extend(names.split(',').map(str::to_string));
            }
            Long("limit") => given.limit = parser.value()?.parse()?,
            Long("seeds") => given.seeds = Some(parser.value()?.parse()?),
            Long("first") => given.first = parser.value()?.parse()?,
            Long("short") => given.short = true,
            Long("tests") => given.tests = Some(parser.value()?.into()),
            Long("python") => given.python = parser.value()?.string()?,
            Long("commit") => given.commit = parser.value()?.string()?,
            Long("list") => given.list = true,
            Long("part") => {
                given.only = Some((parser.value()?.string()?, parser.value()?.into()));
            }
            Long("help") | Short('h') => return Err(USAGE.into()),
            other => return Err(format!("{}\n{USAGE}", other.unexpected()).into()),
        }
    }
    for name in given.parts.iter().map(|n| n.trim_start_matches('-')) {
        if Part::named(name).is_none() {
            let names: Vec<&str> = PARTS.iter().map(|p| p.name).collect();
            return Err(format!("no part {name}; there are {}", names.join(", ")).into());
        }
    }
    Ok(given)
}

impl Given {
    fn wants(&self, part: &Part) -> bool {
        let named = |n: &String| n == part.name;
        let without = |n: &String| n.strip_prefix('-') == Some(part.name);
        let all = self.parts.iter().all(|n| n.starts_with('-'));
        (all || self.parts.iter().any(named)) && !self.parts.iter().any(without)
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

/// Runs the command with the arguments behind `gpu`; gives whether nothing is wrong.
///
/// # Errors
/// If the arguments are off, there is no GPU, or results can't be written.
pub fn run(parser: lexopt::Parser) -> Result<bool, Failed> {
    let given = parse(parser)?;
    if given.list {
        for p in PARTS {
            say!("{:12} {} (at most {} s)", p.name, p.claim, p.limit);
        }
        return Ok(true);
    }
    let device = Device::cuda(0)?;
    let settings = given.settings(device);
    if let Some((name, file)) = &given.only {
        let part = Part::named(name).ok_or("no such part")?;
        let report = part.run(&settings);
        std::fs::write(file, report.to_json().to_string())?;
        return Ok(report.wrong.is_empty());
    }
    std::fs::create_dir_all(&given.out)?;
    let facts = facts(&settings, &given.commit)?;
    for (key, value) in &facts {
        say!("{key}: {value}");
    }
    let start = Instant::now();
    let mut reports: Vec<(&Part, Report)> = Vec::new();
    for part in PARTS.iter().filter(|p| given.wants(p)) {
        say!("{}: {}", part.name, part.claim);
        let left = given.limit.saturating_sub(start.elapsed().as_secs());
        // The emulator is slow, and nobody waits for it.
        let limit = part.limit * if settings.emulated() { 20 } else { 1 };
        let report = in_process(part, &given, limit.min(left))?;
        say!(
            "{}: {} hold, {} wrong, {:.1} s",
            part.name,
            report.held,
            report.wrong.len(),
            report.seconds
        );
        reports.push((part, report));
        // What is known so far survives if the whole is stopped.
        write(&given.out, &facts, &reports)?;
    }
    let wrong: usize = reports.iter().map(|(_, r)| r.wrong.len()).sum();
    say!("{wrong} wrong; see {}", given.out.join("gpu.md").display());
    Ok(wrong == 0)
}

/// Runs a part in a process of its own, for at most so many seconds.
fn in_process(part: &Part, given: &Given, limit: u64) -> Result<Report, Failed> {
    if limit < 5 {
        let mut report = Report::default();
        report.note("left out: no time is left");
        return Ok(report);
    }
    let file = given.out.join(format!("{}.part", part.name));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu", "--part", part.name]).arg(&file);
    command.arg("--out").arg(&given.out);
    command.args(["--python", &given.python]);
    if given.short {
        command.arg("--short");
    }
    if let Some(seeds) = given.seeds {
        command.args(["--seeds", &seeds.to_string()]);
    }
    command.args(["--first", &given.first.to_string()]);
    if let Some(tests) = &given.tests {
        command.arg("--tests").arg(tests);
    }
    let start = Instant::now();
    let ended = wait(command.spawn()?, Duration::from_secs(limit))?;
    let found = std::fs::read(&file).ok();
    let _ = std::fs::remove_file(&file);
    let found = found.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
    let mut report = found.as_ref().map(Report::from_json).unwrap_or_default();
    match ended {
        None => report.wrong(format!("stopped after {limit} s")),
        Some(status) if found.is_none() => report.wrong(format!("ended with {status}")),
        Some(_) => {}
    }
    report.seconds = start.elapsed().as_secs_f64();
    Ok(report)
}

/// Waits for a process; one that takes longer is killed.
fn wait(mut child: Child, limit: Duration) -> Result<Option<ExitStatus>, Failed> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What was proven, where and when.
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

fn write(
    out: &Path,
    facts: &[(&'static str, String)],
    reports: &[(&Part, Report)],
) -> Result<(), Failed> {
    let wrong: usize = reports.iter().map(|(_, r)| r.wrong.len()).sum();
    let mut page = String::from("# A GPU, proven\n\n");
    for (key, value) in facts {
        page += &format!("- {key}: {value}\n");
    }
    page += &format!(
        "\n{}\n\n",
        match wrong {
            0 => "Nothing is wrong.".to_string(),
            n => format!("**{n} wrong.**"),
        }
    );
    for (part, report) in reports {
        page += &report.to_markdown(part.name, part.claim);
    }
    std::fs::write(out.join("gpu.md"), page.trim_end().to_string() + "\n")?;
    let facts: serde_json::Map<String, Value> = facts
        .iter()
        .map(|(k, v)| (k.to_string(), json!(v)))
        .collect();
    let parts: serde_json::Map<String, Value> = reports
        .iter()
        .map(|(p, r)| (p.name.to_string(), r.to_json()))
        .collect();
    let all = json!({"facts": facts, "wrong": wrong, "parts": parts});
    std::fs::write(out.join("gpu.json"), serde_json::to_string_pretty(&all)?)?;
    Ok(())
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
