//! The test suites of the engine, from copied binaries: `kiln`, whose tests of single ops run on the GPU too, and
//! `runtime`.

use crate::process::ends_with_us;
use crate::{Failed, Report, Settings};
use std::path::Path;
use std::process::Command;

/// A binary, the tests of it to run, and whether single graphs are compiled for the GPU.
const SUITES: [(&str, &[&str], bool); 3] = [
    ("runtime", &["cuda::"], false),
    ("kiln", &["cuda"], false),
    ("kiln", &["ops::"], true),
];

pub(crate) fn run(settings: &Settings, report: &mut Report) -> Result<(), Failed> {
    let Some(folder) = &settings.tests else {
        report.note("skipped: no folder of test binaries was given (--tests)");
        return Ok(());
    };
    for (name, filters, ops) in SUITES {
        let path = folder.join(name);
        if !path.is_file() {
            report.note(format!("skipped: there is no {}", path.display()));
            continue;
        }
        if settings.is_over() {
            report.leave_out(format!("{name} {}", filters.join(" ")));
            continue;
        }
        eprintln!("  {name} {}", filters.join(" "));
        suite(&path, name, filters, ops, settings, report)?;
    }
    Ok(())
}

fn suite(
    path: &Path,
    name: &str,
    filters: &[&str],
    ops: bool,
    settings: &Settings,
    report: &mut Report,
) -> Result<(), Failed> {
    let mut command = Command::new(path);
    command.args(filters).args(["--test-threads", "4"]);
    if std::env::var_os("KILN_CUDA_DRIVER").is_none() {
        // Else the suites use the emulated driver.
        command.env("KILN_CUDA_DRIVER", "libcuda.so.1");
    }
    if ops {
        command.env("KILN_TEST_DEVICE", "cuda");
    }
    if settings.short {
        command.arg("--list");
    }
    let output = ends_with_us(&mut command).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let count = |end: &str| text.lines().filter(|l| l.ends_with(end)).count();
    let end = if settings.short { ": test" } else { "... ok" };
    let done = count(end);
    for line in text.lines().filter(|l| l.ends_with(end)) {
        report.check(line, Ok(()));
    }
    for line in text.lines().filter(|l| l.ends_with("... FAILED")) {
        report.wrong(format!("{name}: {line}"));
    }
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> = text.lines().chain(errors.lines()).collect();
        let end = &lines[lines.len().saturating_sub(15)..];
        report.wrong(format!(
            "{name} ended with {}: {}",
            output.status,
            end.join(" | ")
        ));
    } else if done == 0 {
        report.wrong(format!("{name} has no tests named {filters:?}"));
    }
    Ok(())
}
