//! Errors with the user's source line.

use crate::caller::user_loc;
use crate::label::Label;
use crate::{frame, symbols};
use kiln_base::Loc;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The result of reading or compiling.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error. Cloning is cheap; displaying it draws a code frame where the user's line is known.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    /// The op or function, such as `matmul`.
    op: String,
    message: String,
    loc: Loc,
    notes: Vec<Note>,
}

/// A line below the code frame.
#[derive(Clone)]
pub struct Note {
    /// The text.
    pub text: String,
    /// The name of the cell that the line is about.
    pub label: Option<Arc<Label>>,
    /// The text to add where there is no name.
    pub unnamed: String,
}

impl From<String> for Note {
    fn from(text: String) -> Note {
        Note {
            text,
            label: None,
            unnamed: String::new(),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.label.as_ref().and_then(|label| label.get()) {
            Some(name) => write!(f, "{}, `{name}`", self.text),
            None => write!(f, "{}{}", self.text, self.unnamed),
        }
    }
}

/// The kind of an error.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An operation does not apply to its operands or arguments.
    Op,
    /// Values were wrong when the program ran: an index out of range, an integer division by zero.
    Data,
    /// An operation produced a NaN or an infinity, where these are looked for; see
    /// [`detect_anomaly`](crate::run::anomaly::detect_anomaly).
    Anomaly,
    /// A value was read while recording inside `compile`.
    ReadWhileCompiling,
    /// A `Var` can't take a value.
    Assign,
    /// Data does not fit the request: a length, a dtype, a shape.
    Value,
    /// The program needs something that this build does not support.
    Unsupported,
    /// Not enough memory.
    Memory,
    /// A device, its driver or its compiler is missing or failed.
    Device,
    /// A file can't be read or written.
    Io,
    /// A [`Cancel`](kiln_runtime::Cancel) ended the run. Nothing was assigned, and values can be read again.
    Cancelled,
    /// A defect in Kiln.
    Internal,
}

impl Error {
    /// Returns an error at a location in the user's source.
    pub fn new(
        kind: ErrorKind,
        op: &str,
        message: impl Into<String>,
        loc: impl Into<Loc>,
    ) -> Error {
        Error::with_notes(kind, op, message, loc, Vec::new())
    }

    /// An error with further lines, such as the operands of an op.
    pub fn with_notes(
        kind: ErrorKind,
        op: &str,
        message: impl Into<String>,
        loc: impl Into<Loc>,
        notes: Vec<Note>,
    ) -> Error {
        Error(Arc::new(Inner {
            kind,
            op: op.to_string(),
            message: message.into(),
            loc: user_loc(loc.into()),
            notes,
        }))
    }

    /// An error at the caller's line: for libraries whose functions take part in recording.
    #[track_caller]
    pub fn at_caller(kind: ErrorKind, op: &str, message: impl Into<String>) -> Error {
        let message = symbols::named(&message.into());
        Error::new(kind, op, message, Location::caller())
    }

    /// [`Error::at_caller`] of arguments that don't fit ([`ErrorKind::Value`]).
    #[track_caller]
    pub fn invalid(op: &str, message: impl Into<String>) -> Error {
        Error::at_caller(ErrorKind::Value, op, message)
    }

    /// This error with a further line below the code frame.
    pub fn with_note(mut self, note: impl Into<String>) -> Error {
        let notes = &mut Arc::make_mut(&mut self.0).notes;
        notes.push(Note::from(note.into()));
        self
    }

    /// This error with another message.
    pub fn with_message(mut self, message: &str) -> Error {
        Arc::make_mut(&mut self.0).message = message.into();
        self
    }

    /// Returns this error at `loc`, unless it has a location.
    pub fn or_at(mut self, loc: Loc) -> Error {
        if !self.0.loc.is_known() {
            Arc::make_mut(&mut self.0).loc = user_loc(loc);
        }
        self
    }

    /// The kind of the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The op or function, such as `matmul`.
    pub fn op(&self) -> &str {
        &self.0.op
    }

    /// The message, without the code frame.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The message with its line and notes, for an error that arises from this one elsewhere.
    pub(crate) fn in_one_line(&self) -> String {
        let notes = self.0.notes.iter().map(|note| format!(", {note}"));
        let notes: String = notes.collect();
        format!("{}, at {}{notes}", self.0.message, self.0.loc)
    }

    /// The line of the user's source.
    pub fn loc(&self) -> &Loc {
        &self.0.loc
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let e = &self.0;
        frame::write(f, &format!("{}: {}", e.op, e.message), &e.loc, &e.notes)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// An error of a package, at the line of the `?` that converts it.
impl From<kiln_package::Error> for Error {
    #[track_caller]
    fn from(e: kiln_package::Error) -> Error {
        let kind = match e.cause() {
            kiln_package::Error::Io(_) => ErrorKind::Io,
            kiln_package::Error::Format { .. } | kiln_package::Error::PlanFormat { .. } => {
                ErrorKind::Unsupported
            }
            kiln_package::Error::Run { error, .. } => kind_of(error),
            _ => ErrorKind::Value,
        };
        Error::at_caller(kind, "package", e.to_string())
    }
}

/// An error of a package's buffers, at the line of the `?` that converts it.
impl From<kiln_runtime::Error> for Error {
    #[track_caller]
    fn from(e: kiln_runtime::Error) -> Error {
        Error::at_caller(kind_of(&e), "package", e.to_string())
    }
}

fn kind_of(e: &kiln_runtime::Error) -> ErrorKind {
    match e {
        kiln_runtime::Error::OutOfMemory { .. } => ErrorKind::Memory,
        kiln_runtime::Error::Cancelled => ErrorKind::Cancelled,
        kiln_runtime::Error::Cuda(_) => ErrorKind::Device,
        kiln_runtime::Error::Data { .. } => ErrorKind::Data,
        _ => ErrorKind::Value,
    }
}
