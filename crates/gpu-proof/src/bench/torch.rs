//! The same work by PyTorch, in a process of Python.

use crate::process::ends_with_us;
use crate::{Report, Settings};
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

const SCRIPT: &str = include_str!("torch.py");

/// PyTorch's seconds of each case of a part by name; none where it is not installed or sees no GPU, which the
/// report then says.
pub(super) fn times(settings: &Settings, part: &str, report: &mut Report) -> BTreeMap<String, f64> {
    let mut command = Command::new(&settings.python);
    command.args(["-c", SCRIPT, part]).stderr(Stdio::piped());
    let output = match ends_with_us(&mut command).output() {
        Ok(output) => output,
        Err(e) => {
            report.note(format!("PyTorch: {} does not start: {e}", settings.python));
            return BTreeMap::new();
        }
    };
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        let last = errors.trim().lines().last().unwrap_or("no message");
        report.note(format!("PyTorch: {last}"));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let mut times = BTreeMap::new();
    for line in text.lines() {
        match line.split_once('\t') {
            Some(("note", note)) => report.note(note),
            Some((name, time)) => drop(time.parse().map(|t| times.insert(name.to_string(), t))),
            None => {}
        }
    }
    times
}
