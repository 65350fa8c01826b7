//! Source locations of the user's calls.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// Where in the user's source an operation was recorded. Never part of equality of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loc(At);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum At {
    Unknown,
    Source(Source),
    /// Boxed since few places say the function.
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
    /// The location of nothing in particular.
    pub const UNKNOWN: Loc = Loc(At::Unknown);

    /// A place in a source file; line and column count from 1.
    pub fn new(file: impl Into<Cow<'static, str>>, line: u32, column: u32) -> Loc {
        Loc(At::Source(Source {
            file: file.into(),
            line,
            column,
        }))
    }

    /// The same place, where the user called this function.
    pub fn calling(self, function: &'static str) -> Loc {
        match self.0 {
            At::Source(source) => Loc(At::Call(Box::new((source, function.into())))),
            other => Loc(other),
        }
    }

    /// That of the op at this position of a recording, to be looked up when somebody asks: programs that are
    /// alike share what is compiled, and were recorded at different lines.
    pub fn recorded(position: usize) -> Loc {
        Loc(At::Recorded(position as u32))
    }

    /// The location of the caller.
    #[track_caller]
    pub fn caller() -> Loc {
        Location::caller().into()
    }

    /// Whether this names a place at all.
    pub fn is_known(&self) -> bool {
        self.0 != At::Unknown
    }

    /// The position of [`Loc::recorded`], if it is one.
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

    /// Path of the source file as the compiler saw it; empty where there is none.
    pub fn file(&self) -> &str {
        self.source().map_or("", |s| &s.file)
    }

    /// Line, from 1; 0 where there is none.
    pub fn line(&self) -> u32 {
        self.source().map_or(0, |s| s.line)
    }

    /// Column, from 1; 0 where there is none.
    pub fn column(&self) -> u32 {
        self.source().map_or(0, |s| s.column)
    }

    /// The function that the user called there, where that is said.
    pub fn called(&self) -> Option<Cow<'static, str>> {
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
