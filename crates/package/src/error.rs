//! Errors of packages.

use std::io;
use std::path::{Path, PathBuf};

/// An error of opening, running or writing a package.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file can't be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The contents contradict themselves, or do not match their checksums.
    #[error("the package is damaged: {0}")]
    Damaged(String),
    /// The file is not a package.
    #[error("this is not a Kiln package: {0}")]
    SomethingElse(String),
    /// A package of a format that this build does not read.
    #[error(
        "the package is of format {found} and was written by {by}; this build reads format {}",
        crate::FORMAT
    )]
    Format {
        /// Its format.
        found: u64,
        /// The program that wrote it, as it names itself.
        by: String,
    },
    /// The programs are of a format that this build does not run. Everything else in the package can be read.
    #[error(
        "the package's programs are of plan format {found}, as {by} writes them, and this build runs format {}: \
             export the package with the Kiln that this runtime is of",
        kiln_plan::FORMAT
    )]
    PlanFormat {
        /// Their format.
        found: u32,
        /// The program that wrote them.
        by: String,
    },
    /// There is nothing of this name.
    #[error("there is no {what} `{name}`; there is {}", listed(has))]
    Missing {
        /// The kind of thing that was asked for, such as `entry`.
        what: &'static str,
        /// The name that was asked for.
        name: String,
        /// The names that exist.
        has: Vec<String>,
    },
    /// An input of a run or a new value of a state does not fit.
    #[error("{0}")]
    Value(String),
    /// The program can't be prepared, or a run of it failed.
    #[error("{entry}: {error}")]
    Run {
        /// The entry, or the state or tensor.
        entry: String,
        /// The cause.
        error: kiln_runtime::Error,
    },
    /// The contents to write do not make a package.
    #[error("the package can't be written: {0}")]
    Contents(String),
    /// Any of these, with the file that it is about.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        error: Box<Error>,
    },
}

/// Shorthand for a result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns the error without the file that it is about.
    pub fn cause(&self) -> &Error {
        match self {
            Error::File { error, .. } => error.cause(),
            error => error,
        }
    }

    pub(crate) fn missing(
        what: &'static str,
        name: &str,
        has: impl IntoIterator<Item = impl Into<String>>,
    ) -> Error {
        Error::Missing {
            what,
            name: name.into(),
            has: has.into_iter().map(Into::into).collect(),
        }
    }

    pub(crate) fn in_file(self, path: &Path) -> Error {
        match self {
            Error::File { .. } => self,
            error => Error::File {
                path: path.to_path_buf(),
                error: Box::new(error),
            },
        }
    }
}

fn listed(names: &[String]) -> String {
    const MAX_NAMES: usize = 12;
    let shown: Vec<String> = names
        .iter()
        .take(MAX_NAMES)
        .map(|n| format!("`{n}`"))
        .collect();
    match names.len() {
        0 => "none".into(),
        n if n > MAX_NAMES => format!("{} and {} more", shown.join(", "), n - MAX_NAMES),
        _ => shown.join(", "),
    }
}

/// An [`Error::Damaged`] from format arguments.
macro_rules! damaged {
    ($($text:tt)*) => { $crate::Error::Damaged(format!($($text)*)) };
}
pub(crate) use damaged;

/// Returns an [`Error::Damaged`] from format arguments unless a condition holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)*) => {
        if !$holds {
            return Err($crate::error::damaged!($($text)*));
        }
    };
}
pub(crate) use ensure;

/// The error of an entry, state or tensor, from its cause.
pub(crate) fn failed(entry: impl Into<String>) -> impl FnOnce(kiln_runtime::Error) -> Error {
    |error| Error::Run {
        entry: entry.into(),
        error,
    }
}

/// The error of a tensor that can't be built from the file's bytes.
pub(crate) fn unfit(name: &str, error: kiln_runtime::Error) -> Error {
    match error {
        error @ kiln_runtime::Error::OutOfMemory { .. } => {
            failed(format!("tensor `{name}`"))(error)
        }
        error => damaged!("tensor `{name}`: {error}"),
    }
}
