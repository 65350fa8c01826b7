//! Source locations of the user's calls.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// The location in the user's source where an operation was recorded. It is never part of the equality of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loc(At);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum At {
    Unknown,
    Source(Source),
    /// Boxed, because few locations have the function.
    Call(Box<(Source, Cow<'static, str>)>),
    Recorded(u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Source {
    file: Cow<'static, str>,
    line: u32,
    column: u32,
}

impl Loc {
    /// The unknown location.
    pub const UNKNOWN: Loc = Loc(At::Unknown);

    /// Returns a location in a source file; line and column count from 1.
    pub fn new(file: impl Into<Cow<'static, str>>, line: u32, column: u32) -> Loc {
        Loc(At::Source(Source {
            file: file.into(),
            line,
            column,
        }))
    }

    /// Returns the same location, with the function that the user called there.
    pub fn calling(self, function: &'static str) -> Loc {
        match self.0 {
            At::Source(source) => Loc(At::Call(Box::new((source, function.into())))),
            other => Loc(other),
        }
    }

    /// Makes the location of the op at this position of a recording, to be looked up on demand: equal programs share
    /// their compiled form, but were recorded at different lines.
    pub fn recorded(position: usize) -> Loc {
        Loc(At::Recorded(position as u32))
    }

    /// Returns the location of the caller.
    #[track_caller]
    pub fn caller() -> Loc {
        Location::caller().into()
    }

    /// True if the location is known.
    pub fn is_known(&self) -> bool {
        self.0 != At::Unknown
    }

    /// Returns the position of [`Loc::recorded`], if it is one.
    pub fn position(&self) -> Option<usize> {
        match self.0 {
            At::Recorded(position) => Some(position as usize),
            _ => None,
        }
    }

    fn source(&self) -> Option<&Source> {
        match &self.0 {
            At::Source(source) => Some(source),
            At::Call(call) => Some(&call.0),
            _ => None,
        }
    }

    /// Returns the path of the source file as the compiler saw it; empty if there is none.
    pub fn file(&self) -> &str {
        self.source().map_or("", |s| &s.file)
    }

    /// Returns the line, from 1; 0 if there is none.
    pub fn line(&self) -> u32 {
        self.source().map_or(0, |s| s.line)
    }

    /// Returns the column, from 1; 0 if there is none.
    pub fn column(&self) -> u32 {
        self.source().map_or(0, |s| s.column)
    }

    /// Returns the function that the user called there, if known.
    pub fn called_function(&self) -> Option<Cow<'static, str>> {
        match &self.0 {
            At::Call(call) => Some(call.1.clone()),
            _ => None,
        }
    }
}

impl From<&'static Location<'static>> for Loc {
    fn from(l: &'static Location<'static>) -> Loc {
        Loc::new(l.file(), l.line(), l.column())
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.source()) {
            (At::Recorded(position), _) => write!(f, "op {position} of its recording"),
            (_, Some(s)) => write!(f, "{}:{}:{}", s.file, s.line, s.column),
            (_, None) => f.write_str("<unknown>"),
        }
    }
}
