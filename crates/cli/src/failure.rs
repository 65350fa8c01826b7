//! The failures of a command, its output, and its exit codes.

use crate::spec::SpecError;
use kiln::ErrorKind;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

/// The cause that stops a command.
pub type Failure = Box<dyn std::error::Error>;

/// A command line that asks for something impossible.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Prints the failure of a command and returns its exit code: 1, or 2 if the command line is wrong. A reader of the
/// output that closes the pipe is not a failure.
pub fn exit_code(result: Result<ExitCode, Failure>) -> ExitCode {
    let e = match result {
        Ok(code) => return code,
        Err(e) => e,
    };
    let closed = |e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe;
    if e.downcast_ref().is_some_and(closed) {
        return ExitCode::SUCCESS;
    }
    let text = match e.downcast_ref::<kiln::Error>() {
        Some(e) => message(e),
        None => e.to_string(),
    };
    let _ = writeln!(io::stderr(), "kiln: {text}");
    ExitCode::from(1 + u8::from(e.is::<Usage>() || e.is::<SpecError>()))
}

/// An error of the library without the line of this crate's source, which means nothing to a user.
pub(crate) fn message(e: &kiln::Error) -> String {
    format!("{}: {}", e.op(), e.message())
}

/// The failure of a workload, caused by its sizes or by the machine.
pub(crate) fn from_error(workload: &dyn fmt::Display, e: &kiln::Error) -> Failure {
    let text = format!("{workload}: {}", message(e));
    match e.kind() {
        ErrorKind::Op | ErrorKind::Value => Usage(text).into(),
        _ => text.into(),
    }
}

/// Writes to the standard output.
///
/// # Errors
/// If it can't be written, as when its reader has closed it.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Writes JSON with a line end to the standard output.
pub(crate) fn say_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    say(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Prints a warning on the standard error.
pub(crate) fn warn(text: &str) {
    let _ = writeln!(io::stderr(), "kiln: warning: {text}");
}
