//! The command line.

use crate::bench::{Effort, Peaks, Ready, measure};
use crate::report::{Report, page};
use crate::spec::{self, Unary, Workload};
use crate::{Failure, devices, groups, models, tuning};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use clap_complete::{Shell, generate};
use indicatif::{ProgressBar, ProgressStyle};
use kiln::{CompileOptions, DType, Device};
use kiln_compiler::tune::{self, Mode, Precision, Settings, Store};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const BENCH_EXAMPLES: &str = "\
Examples:
  kiln bench                                    the groups pointwise, reductions and matmul
  kiln bench matmul:64..4096x768x768            a sweep: 64, 128, ... rows
  kiln bench conv2d:1,8x64x56x56:64x3x3:p1      a convolution, for 1 and 8 images
  kiln bench @resnet50 --html resnet50.html     a group, with a page of plots
  kiln bench resnet50 encoder-step --json       a network and a training step
  kiln bench conv2d:8x64x56x56:64x3x3:p1 --candidates
                                                every algorithm that it could be computed by
  kiln bench --list                             everything that can be measured";

const TUNE_EXAMPLES: &str = "\
Examples:
  kiln tune resnet50                            measures what is not in the store yet
  kiln tune @mobilenet @transformer --budget 60
  KILN_TUNE=on cargo run                        lets a program tune itself";

const CACHE_EXAMPLES: &str = "\
Examples:
  kiln cache list
  kiln cache show conv                          the records whose key contains \"conv\"
  kiln cache verify                             exits with 1 if lines of the file are damaged
  kiln cache merge other-machine.jsonl
  kiln cache clear matmul                       forgets the records whose key contains \"matmul\"";

/// The command line's description.
pub fn command() -> Command {
    let json = || flag("json", "Prints JSON");
    let workloads = || {
        Arg::new("workload")
            .num_args(0..)
            .help("Ops with sizes, networks, training steps, or @groups; see --list")
    };
    let store = || {
        path(
            "store",
            "The store's file [default: KILN_TUNE_STORE, or the user's cache folder]",
        )
    };
    let measured = |c: Command| {
        c.arg(workloads())
            .arg(flag(
                "list",
                "Lists the ops, groups, networks and training steps",
            ))
            .arg(option("dtype", "Element type of ops").default_value("f32"))
            .arg(option("device", "cpu or cuda:N").default_value("cpu"))
            .arg(
                option("threads", "Threads of the CPU engine")
                    .value_parser(value_parser!(u32).range(1..=4096)),
            )
            .arg(
                option(
                    "precision",
                    "exact, default or fast: which approximations may be used",
                )
                .value_parser(value_parser!(Precision)),
            )
            .arg(json())
    };
    let bench = measured(Command::new("bench"))
        .about("Measures ops, networks and training steps")
        .after_help(BENCH_EXAMPLES)
        .arg(
            option("time", "Milliseconds for each workload")
                .default_value("500")
                .value_parser(value_parser!(u64).range(1..)),
        )
        .arg(
            option("rounds", "Rounds over all workloads")
                .default_value("5")
                .value_parser(value_parser!(u32).range(1..1000)),
        )
        .arg(flag(
            "no-peaks",
            "Does not measure what the device can do at most",
        ))
        .arg(flag(
            "candidates",
            "Times every candidate algorithm of each kernel instead, and remembers nothing",
        ))
        .arg(path("csv", "Writes a CSV file"))
        .arg(path("html", "Writes a page with a roofline and bars"));
    let tune = measured(Command::new("tune"))
        .about("Measures the candidates of every kernel and remembers the fastest")
        .after_help(TUNE_EXAMPLES)
        .arg(store())
        .arg(
            option("budget", "Seconds for each workload")
                .default_value("60")
                .value_parser(value_parser!(u64)),
        )
        .arg(
            option(
                "workspace",
                "Most bytes that a candidate may need beside its arguments",
            )
            .value_parser(value_parser!(u64)),
        );
    let key = |required| {
        Arg::new("key")
            .required(required)
            .help("A part of the records' keys")
    };
    let cache = Command::new("cache")
        .about("Looks after the store of measurements")
        .after_help(CACHE_EXAMPLES)
        .subcommand_required(true)
        .arg(store().global(true))
        .arg(json().global(true))
        .subcommand(
            Command::new("list").about("A line a record: what was measured, and the fastest"),
        )
        .subcommand(
            Command::new("show")
                .about("Every candidate and its times")
                .arg(key(false)),
        )
        .subcommand(
            Command::new("verify").about("Checks the file; exits with 1 if lines are damaged"),
        )
        .subcommand(
            Command::new("merge")
                .about("Takes the records of other stores")
                .arg(
                    Arg::new("file")
                        .required(true)
                        .num_args(1..)
                        .value_parser(value_parser!(PathBuf))
                        .value_hint(ValueHint::FilePath)
                        .help("Stores of machines with the same or other traits"),
                ),
        )
        .subcommand(
            Command::new("clear")
                .about("Forgets records; all of them without a key")
                .arg(key(false)),
        );
    Command::new("kiln")
        .version(env!("CARGO_PKG_VERSION"))
        .about("Benchmarks and tunes Kiln's kernels on this machine")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(bench)
        .subcommand(tune)
        .subcommand(cache)
        .subcommand(Command::new("devices").about("Lists the devices that programs can run on").arg(json()))
        .subcommand(
            Command::new("completions")
                .about("Prints completions for a shell")
                .after_help("Example:\n  kiln completions bash > ~/.local/share/bash-completion/completions/kiln")
                .arg(Arg::new("shell").required(true).value_parser(value_parser!(Shell))),
        )
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn option(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).help(help)
}

fn path(name: &'static str, help: &'static str) -> Arg {
    let arg = option(name, help)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf));
    arg.value_hint(ValueHint::FilePath)
}

/// Runs a command line, its first word the program's name. Exits with 0 if all went well, 1 if something
/// failed, 2 if the command line is wrong.
///
/// # Errors
/// What failed.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => {
            e.print()?;
            return Ok(ExitCode::from(e.exit_code() as u8));
        }
    };
    match matches.subcommand() {
        Some(("bench", m)) => bench(m),
        Some(("tune", m)) => tune_command(m),
        Some(("cache", m)) => cache(m),
        Some(("devices", m)) => {
            let found = devices::list();
            match m.get_flag("json") {
                true => println!("{}", serde_json::to_string_pretty(&found.0)?),
                false => print!("{}", devices::text(&found)),
            }
            Ok(ExitCode::SUCCESS)
        }
        Some(("completions", m)) => {
            if let Some(shell) = m.get_one::<Shell>("shell") {
                generate(*shell, &mut command(), "kiln", &mut std::io::stdout());
            }
            Ok(ExitCode::SUCCESS)
        }
        _ => Err("no such command".into()), // clap does not let it come here
    }
}

/// What bench and tune have in common.
struct Job {
    workloads: Vec<Workload>,
    dtype: DType,
    device: Device,
    json: bool,
}

/// Reads what bench and tune have in common; `None` if there is nothing to do but to list.
fn job(m: &ArgMatches, usual: &[&str]) -> Result<Option<Job>, Failure> {
    if m.get_flag("list") {
        print!("{}", listed());
        return Ok(None);
    }
    let texts = m.get_many::<String>("workload").into_iter().flatten();
    let mut texts: Vec<&str> = texts.map(String::as_str).collect();
    if texts.is_empty() {
        texts = usual.to_vec();
    }
    let mut workloads = Vec::new();
    for text in texts {
        workloads.extend(spec::parse(text)?);
    }
    if let Some(threads) = m.get_one::<u32>("threads") {
        kiln::set_threads(*threads as usize);
    }
    if let Some(precision) = m.get_one::<Precision>("precision") {
        tune::set_precision(*precision);
    }
    let text = |name: &str| m.get_one::<String>(name).map_or("", String::as_str);
    Ok(Some(Job {
        workloads,
        dtype: dtype(text("dtype"))?,
        device: device(text("device"))?,
        json: m.get_flag("json"),
    }))
}

fn dtype(name: &str) -> Result<DType, Failure> {
    let floats = [DType::F32, DType::F64, DType::F16, DType::BF16];
    let found = floats.into_iter().find(|d| d.to_string() == name);
    found.ok_or_else(|| format!("--dtype takes f32, f64, f16 or bf16, not {name:?}").into())
}

fn device(name: &str) -> Result<Device, Failure> {
    if name == "cpu" {
        return Ok(Device::Cpu);
    }
    let number = name.strip_prefix("cuda:").and_then(|n| n.parse().ok());
    match number {
        Some(n) => Ok(Device::cuda(n)?),
        None => Err(format!("--device takes cpu or cuda:N, not {name:?}").into()),
    }
}

/// Everything that can be measured.
fn listed() -> String {
    let mut text = "ops, with sizes such as\n".to_string();
    for op in spec::ops() {
        let about = Unary::ALL
            .iter()
            .find(|u| u.0.name() == op)
            .map_or("", |u| u.1);
        text += &format!("  {op}:{:<28} {about}\n", spec::example(op));
    }
    text += "networks and training steps\n";
    for (name, about) in models::all() {
        text += &format!("  {name:<16} {about}\n");
    }
    text += "groups\n";
    for (name, about, _) in groups::GROUPS {
        text += &format!("  @{name:<15} {about}\n");
    }
    text
}

/// A bar on the standard error, where that is a terminal.
fn bar(length: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix} [{bar:40}] {pos}/{len} {msg}");
    let bar = ProgressBar::new(length as u64).with_prefix(what);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn bench(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let Some(job) = job(m, &["@pointwise", "@reductions", "@matmul"])? else {
        return Ok(ExitCode::SUCCESS);
    };
    if m.get_flag("candidates") {
        tune::set(Settings {
            mode: Mode::On,
            store: Some(Arc::from(Path::new(""))),
            ..Settings::default()
        });
        tune_all(&job)?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |name: &str| m.get_one::<u64>(name).copied().unwrap_or(500);
    let effort = Effort {
        time: Duration::from_millis(number("time")),
        rounds: m.get_one::<u32>("rounds").copied().unwrap_or(5) as usize,
    };
    let options = CompileOptions::default();
    let compiling = bar(job.workloads.len(), "compiling");
    let mut ready = Vec::new();
    for workload in &job.workloads {
        compiling.set_message(workload.to_string());
        let made = Ready::new(workload, job.dtype, job.device, &options);
        ready.push(made.map_err(|e| format!("{workload}: {e}"))?);
        compiling.inc(1);
    }
    compiling.finish_and_clear();
    let peaks = match m.get_flag("no-peaks") {
        true => None,
        false => Some(Peaks::measure(job.device)?),
    };
    let measuring = bar(1, "measuring");
    let results = measure(ready, &effort, |done, all| {
        measuring.set_length(all as u64);
        measuring.set_position(done as u64);
    })?;
    measuring.finish_and_clear();
    let report = Report {
        device: job.device.name(),
        threads: kiln::threads(),
        version: env!("CARGO_PKG_VERSION").into(),
        peaks,
        results,
    };
    if let Some(file) = m.get_one::<PathBuf>("csv") {
        let saved = report.save_csv(file);
        saved.map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if let Some(file) = m.get_one::<PathBuf>("html") {
        std::fs::write(file, page(&report)?).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    match job.json {
        true => println!("{}", report.json()?),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

fn tune_command(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let Some(job) = job(m, &["@resnet50", "@mobilenet", "@transformer"])? else {
        return Ok(ExitCode::SUCCESS);
    };
    let file = store_file(m)?;
    tune::set(Settings {
        mode: Mode::On,
        store: Some(Arc::from(file.as_path())),
        workspace: m.get_one::<u64>("workspace").copied(),
        budget: Duration::from_secs(m.get_one::<u64>("budget").copied().unwrap_or(60)),
        ..Settings::default()
    });
    tune_all(&job)?;
    if !job.json {
        println!("store: {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Compiles all workloads by the process's settings and prints what was chosen for their kernels.
fn tune_all(job: &Job) -> Result<(), Failure> {
    let options = CompileOptions::default();
    let progress = bar(job.workloads.len(), "tuning");
    let mut all = Vec::new();
    for workload in &job.workloads {
        progress.set_message(workload.to_string());
        let tuned = tuning::tune(workload, job.dtype, job.device, &options);
        let tuned = tuned.map_err(|e| format!("{workload}: {e}"))?;
        if !job.json {
            progress.suspend(|| print!("{}", tuned.text()));
        }
        all.push(tuned);
        progress.inc(1);
    }
    progress.finish_and_clear();
    if job.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}

fn store_file(m: &ArgMatches) -> Result<PathBuf, Failure> {
    let given = m.get_one::<PathBuf>("store").cloned();
    let none = "there is no cache folder on this machine: name the store's file with --store";
    Ok(given.or_else(tune::store_path).ok_or(none)?)
}

fn cache(m: &ArgMatches) -> Result<ExitCode, Failure> {
    let Some((name, m)) = m.subcommand() else {
        return Err("no such command".into()); // clap does not let it come here
    };
    let file = store_file(m)?;
    let store = Store::new(&file);
    let json = m.get_flag("json");
    let failed = |e: std::io::Error| -> Failure { format!("{}: {e}", file.display()).into() };
    let key = || m.get_one::<String>("key").map_or("", String::as_str);
    match name {
        "list" if json => println!("{}", serde_json::to_string_pretty(&store.records())?),
        "list" => print!("{}", tuning::list(&store)),
        "show" => {
            let mut records = store.records();
            records.retain(|r| r.key.contains(key()));
            match json {
                true => println!("{}", serde_json::to_string_pretty(&records)?),
                false => print!("{}", tuning::show(&records)),
            }
        }
        "verify" => return verify(&store, &file, json),
        "merge" => {
            for other in m.get_many::<PathBuf>("file").into_iter().flatten() {
                merge(&store, other, json)?;
            }
        }
        _ => {
            let gone = store.remove(|r| r.key.contains(key())).map_err(failed)?;
            match json {
                true => println!("{{\"removed\": {gone}}}"),
                false => println!("{gone} records removed"),
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what of the file is damaged.
fn verify(store: &Store, file: &Path, json: bool) -> Result<ExitCode, Failure> {
    let (records, damage) = (store.records().len(), store.damage());
    if json {
        let lines: Vec<usize> = damage.iter().map(|d| d.line).collect();
        println!(
            "{}",
            serde_json::json!({ "records": records, "damaged_lines": lines })
        );
    } else {
        println!(
            "{}: {records} records, {} damaged lines",
            file.display(),
            damage.len()
        );
        for d in &damage {
            println!("  line {}: {}", d.line, d.text);
        }
    }
    Ok(ExitCode::from(u8::from(!damage.is_empty())))
}

fn merge(store: &Store, other: &Path, json: bool) -> Result<(), Failure> {
    let merged = store
        .merge(other)
        .map_err(|e| format!("{}: {e}", other.display()))?;
    let (added, older, damaged) = (merged.added, merged.older, merged.damage.len());
    if json {
        println!(
            "{}",
            serde_json::json!({ "added": added, "older": older, "damaged_lines": damaged })
        );
    } else {
        println!(
            "{}: {added} records taken, {older} older ones left, {damaged} damaged lines skipped",
            other.display()
        );
    }
    Ok(())
}
