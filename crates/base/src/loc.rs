//! Source locations of the user's calls.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::panic::Location;

/// Where in the user's source an operation was recorded. Never part of equality of programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loc {
    /// Path of the source file as the compiler saw it.
    pub file: Cow<'static, str>,
    /// Line, from 1; 0 where the location is unknown.
    pub line: u32,
    /// Column, from 1.
    pub column: u32,
}

impl Loc {
    /// The location of nothing in particular.
    pub const UNKNOWN: Loc = Loc {
        file: Cow::Borrowed(""),
        line: 0,
        column: 0,
    };

    /// The location of the caller.
    #[track_caller]
    pub fn caller() -> Loc {
        Location::caller().into()
    }

    /// Whether this names a place at all.
    pub fn is_known(&self) -> bool {
        self.line != 0
    }
}

impl From<&'static Location<'static>> for Loc {
    fn from(l: &'static Location<'static>) -> Loc {
        Loc {
            file: Cow::Borrowed(l.file()),
            line: l.line(),
            column: l.column(),
        }
    }
}

impl fmt::Display for Loc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_known() {
            write!(f, "{}:{}:{}", self.file, self.line, self.column)
        } else {
            f.write_str("<unknown>")
        }
    }
}
