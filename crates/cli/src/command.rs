//! The implementation of the commands.

use crate::args::{Where, command, packages, workloads};
use crate::bench::{Effort, Peaks, Ready, WorkloadMeasurements, candidates, measure};
use crate::doctor::Doctor;
use crate::failure::{from_error, say, say_json, warn};
use crate::report::{Report, page};
use crate::spec::{self, Workload};
use crate::{Failure, cache, devices, groups, launch, onnx, package, tuning};
use clap::ArgMatches;
use clap_complete::{Shell, generate};
use kiln::data::Progress;
use kiln::{CompileOptions, DType, Device};
use kiln_compiler::tune::{self, Mode, Precision, Settings, Store};
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Runs a command line whose first word is the program's name. Exits with 0 on success, 1 if something failed, 2 if
/// the command line is wrong; see [`exit_code`](crate::exit_code).
///
/// # Errors
/// The cause of the failure.
pub fn run(words: impl IntoIterator<Item = OsString>) -> Result<ExitCode, Failure> {
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => {
            e.print()?;
            return Ok(ExitCode::from(e.exit_code() as u8));
        }
    };
    match matches.subcommand() {
        Some(("bench", m)) => bench(m)?,
        Some(("tune", m)) => tune_command(m)?,
        Some(("cache", m)) => return cache::cache(m),
        Some(("inspect", m)) => package::inspect(m)?,
        Some(("run", m)) => package::run(m)?,
        Some(("verify", m)) => return package::verify(m),
        Some(("export-c", m)) => package::export_c(m)?,
        Some(("diff", m)) => return package::diff(m),
        Some(("onnx", m)) => return onnx::command(m, effort),
        Some(("launch", m)) => return launch::launch(m),
        Some(("devices", m)) => devices(m)?,
        Some(("doctor", m)) => {
            let doctor = Doctor::examine();
            match m.get_flag("json") {
                true => say_json(&doctor)?,
                false => say(&doctor.to_string())?,
            }
        }
        Some(("completions", m)) => {
            if let Some(shell) = m.get_one::<Shell>("shell") {
                let mut text = Vec::new();
                generate(*shell, &mut command(), "kiln", &mut text);
                say(&String::from_utf8(text)?)?;
            }
        }
        _ => return Err("no such command".into()), // clap does not let it come here
    }
    Ok(ExitCode::SUCCESS)
}

/// Lists the devices once, or until the reader of the output has enough.
fn devices(m: &ArgMatches) -> Result<(), Failure> {
    let mut told = false;
    loop {
        let mut listing = devices::list();
        if std::mem::replace(&mut told, true) {
            // The reason why there is no GPU stands above.
            listing.1 = None;
        }
        match m.get_flag("json") {
            true => say_json(&json!({ "devices": listing.0, "no_gpu": listing.1 }))?,
            false => say(&devices::text(&listing))?,
        }
        match m.get_one::<u64>("watch") {
            Some(seconds) => std::thread::sleep(Duration::from_secs(*seconds)),
            None => return Ok(()),
        }
    }
}

/// The arguments that bench and tune have in common.
struct Job {
    workloads: Vec<Workload>,
    dtype: DType,
    device: Device,
    json: bool,
}

/// Reads the arguments that bench and tune have in common; `None` if the command only lists workloads.
fn job(m: &ArgMatches, usual: &[&str]) -> Result<Option<Job>, Failure> {
    let json = m.get_flag("json");
    if m.get_flag("list") {
        match json {
            true => say_json(&list_json())?,
            false => say(&list())?,
        }
        return Ok(None);
    }
    set_threads(m);
    if let Some(precision) = m.get_one::<Precision>("precision") {
        tune::set_precision(*precision);
    }
    let device = match m.get_one("device") {
        Some(Where(Some(n))) => Device::cuda(*n)?,
        _ => Device::Cpu,
    };
    Ok(Some(Job {
        workloads: workloads(m, usual)?,
        dtype: m.get_one("dtype").copied().unwrap_or(DType::F32),
        device,
        json,
    }))
}

/// Everything that can be measured, with names and descriptions.
fn list_json() -> serde_json::Value {
    let named = |name: String, about: &str| json!({ "name": name, "about": about });
    let ops = spec::ops().map(|op| named(format!("{op}:{}", spec::example(op)), spec::about(op)));
    let models = kiln_models::workloads::names().map(|(name, about)| named(name.into(), about));
    let groups = groups::GROUPS.iter().map(|(name, about, members)| {
        json!({ "name": format!("@{name}"), "about": about, "members": members })
    });
    json!({
        "ops": ops.collect::<Vec<_>>(),
        "models": models.collect::<Vec<_>>(),
        "groups": groups.collect::<Vec<_>>(),
    })
}

/// The same list as text.
fn list() -> String {
    let list = list_json();
    let titles = [
        ("ops", "ops, with sizes such as"),
        ("models", "networks and training steps"),
        ("groups", "groups"),
    ];
    let mut text = String::new();
    for (key, title) in titles {
        text += &format!("{title}\n");
        for entry in list[key].as_array().into_iter().flatten() {
            let text_of = |field: &str| entry[field].as_str().unwrap_or_default().to_string();
            let line = format!("  {:<32} {}", text_of("name"), text_of("about"));
            text += &format!("{}\n", line.trim_end());
        }
    }
    text
}

fn bench(m: &ArgMatches) -> Result<(), Failure> {
    let packages = packages(m)?;
    if !packages.is_empty() {
        set_threads(m);
        return package::bench(m, &packages, &effort(m));
    }
    let Some(job) = job(m, &["@pointwise", "@reductions", "@matmul"])? else {
        return Ok(());
    };
    let effort = effort(m);
    if cfg!(debug_assertions) {
        warn("this is not a release build: neither its times nor its peaks are the machine's");
    }
    let (results, left_out) = match m.get_flag("candidates") {
        true => try_all(&job, &effort)?,
        false => (measured(&job, &effort)?, Vec::new()),
    };
    let dtypes: BTreeSet<&str> = results.iter().map(|r| &r.dtype[..]).collect();
    let peaks = match m.get_flag("no-peaks") {
        true => None,
        false => Some(Peaks::measure(job.device, &dtypes)?),
    };
    let report = Report {
        device: devices::info(job.device),
        version: env!("CARGO_PKG_VERSION").into(),
        release: !cfg!(debug_assertions),
        peaks,
        results,
        left_out,
    };
    if let Some(file) = m.get_one::<PathBuf>("csv") {
        let saved = report.save_csv(file);
        saved.map_err(|e| format!("{}: {e}", file.display()))?;
    }
    if let Some(file) = m.get_one::<PathBuf>("html") {
        let page = page(&report)?;
        kiln_base::file::replace(file, |f| f.write_all(page.as_bytes()))
            .map_err(|e| format!("{}: {e}", file.display()))?;
    }
    match job.json {
        true => say_json(&report.json()),
        false => say(&report.table()),
    }
}

/// The effort that the command line asks for.
fn effort(m: &ArgMatches) -> Effort {
    Effort {
        time: Duration::from_millis(m.get_one("time").copied().unwrap_or(500)),
        rounds: m.get_one::<u32>("rounds").copied().unwrap_or(5) as usize,
    }
}

fn set_threads(m: &ArgMatches) {
    if let Some(threads) = m.get_one::<u32>("threads") {
        kiln::set_threads(*threads as usize);
    }
}

/// Measures the workloads in rounds.
fn measured(job: &Job, effort: &Effort) -> Result<Vec<WorkloadMeasurements>, Failure> {
    let options = CompileOptions::default();
    let compiling = Progress::new("compiling", job.workloads.len() as u64);
    let mut ready = Vec::new();
    for workload in &job.workloads {
        compiling.set_message(workload.to_string());
        let program = Ready::new(workload, job.dtype, job.device, &options);
        ready.push(program.map_err(|e| from_error(workload, &e))?);
        compiling.inc(1);
    }
    compiling.finish_and_clear();
    let measuring = Progress::new("measuring", 1);
    let results = measure(ready, effort, |done, all| {
        measuring.set(done as u64, all as u64);
    })?;
    measuring.finish_and_clear();
    Ok(results)
}

/// Measures every candidate of the workloads' kernels; also lists those that were not timed.
fn try_all(
    job: &Job,
    effort: &Effort,
) -> Result<(Vec<WorkloadMeasurements>, Vec<String>), Failure> {
    let progress = Progress::new("trying", job.workloads.len() as u64);
    let (mut results, mut left_out) = (Vec::new(), Vec::new());
    for workload in &job.workloads {
        progress.set_message(workload.to_string());
        let tried = candidates(workload, job.dtype, job.device, effort);
        let (timed, out) = tried.map_err(|e| from_error(workload, &e))?;
        if timed.is_empty() && out.is_empty() {
            left_out.push(format!("{workload}: there is one way to compute it"));
        }
        results.extend(timed);
        left_out.extend(out);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok((results, left_out))
}

fn tune_command(m: &ArgMatches) -> Result<(), Failure> {
    let Some(job) = job(m, &["@resnet50", "@mobilenet", "@transformer"])? else {
        return Ok(());
    };
    let file = store_file(m)?;
    let failed = |e: std::io::Error| format!("the store {} can't be written: {e}", file.display());
    let store = Store::of(&file);
    store.writable().map_err(failed)?;
    if m.get_flag("retry") {
        let removed = store.retry(|_| true).map_err(failed)?;
        if !job.json {
            say(&format!("{removed} candidates are tried again\n"))?;
        }
    }
    tune::set(Settings {
        mode: Mode::On,
        store: Some(Arc::from(file.as_path())),
        workspace: m.get_one::<u64>("workspace").copied(),
        budget: Duration::from_secs(m.get_one("budget").copied().unwrap_or(60)),
        ..Settings::default()
    });
    let packages = packages(m)?;
    let tuned = match packages.is_empty() {
        true => tune_all(&job)?,
        false => package::tune(m, &packages)?,
    };
    match job.json {
        true => say_json(&tuned)?,
        false => say(&format!("store: {}\n", file.display()))?,
    }
    let notes: BTreeSet<&String> = tuned.iter().flat_map(|t| &t.notes).collect();
    notes.iter().for_each(|note| warn(note));
    match store.unwritten() {
        0 => Ok(()),
        n => Err(format!("{n} records are lost: {} can't be written", file.display()).into()),
    }
}

/// Compiles all workloads by the process's settings and prints the choices for their kernels.
fn tune_all(job: &Job) -> Result<Vec<tuning::Tuned>, Failure> {
    let options = CompileOptions::default();
    let progress = Progress::new("tuning", job.workloads.len() as u64);
    progress.live(|| format!("{} kernels measured", tune::measured()));
    // The interval is long, since the display runs during the measurements.
    progress.tick_every(Duration::from_millis(500));
    let mut tuned_all = Vec::new();
    for workload in &job.workloads {
        progress.set_message(workload.to_string());
        let tuned = tuning::tune(workload, job.dtype, job.device, &options);
        let tuned = tuned.map_err(|e| from_error(workload, &e))?;
        if !job.json {
            progress.suspend(|| say(&tuned.text()))?;
        }
        tuned_all.push(tuned);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(tuned_all)
}

/// The file of the store: the one given, else the user's.
pub(crate) fn store_file(m: &ArgMatches) -> Result<PathBuf, Failure> {
    let chosen = m.get_one::<PathBuf>("store").cloned();
    let none = "there is no cache folder on this machine: name the store's file with --store";
    Ok(chosen.or_else(tune::store_path).ok_or(none)?)
}
