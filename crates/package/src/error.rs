//! What can go wrong.

use std::io;
use std::path::{Path, PathBuf};

/// Why a package can't be opened, run or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file can't be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What is in it contradicts itself, or is not what its checksums say.
    #[error("the package is damaged: {0}")]
    Damaged(String),
    /// The file is no package.
    #[error("this is no Kiln package: {0}")]
    SomethingElse(String),
    /// A package of a format that this build does not read.
    #[error(
        "the package is of format {found} and was written by {by}; this build reads format {}",
        crate::FORMAT
    )]
    Format {
        /// Its format.
        found: u64,
        /// What wrote it, as it says.
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
        /// What wrote them.
        by: String,
    },
    /// There is nothing of this name.
    #[error("there is no {what} `{name}`; there is {}", listed(has))]
    Missing {
        /// What was asked for, such as `entry`.
        what: &'static str,
        /// By this name.
        name: String,
        /// The names that there are.
        has: Vec<String>,
    },
    /// What a run was given, or a state was set to, does not fit.
    #[error("{0}")]
    Value(String),
    /// The program can't be made ready, or a run of it failed.
    #[error("{entry}: {error}")]
    Run {
        /// The entry.
        entry: String,
        /// What went wrong.
        error: kiln_runtime::Error,
    },
    /// What a package should be written of does not make one.
    #[error("the package can't be written: {0}")]
    Contents(String),
    /// Any of these, of a file.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<Error>,
    },
}

/// Shorthand for a result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
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
    const MOST: usize = 12;
    let shown: Vec<String> = names.iter().take(MOST).map(|n| format!("`{n}`")).collect();
    match names.len() {
        0 => "none".into(),
        n if n > MOST => format!("{} and {} more", shown.join(", "), n - MOST),
        _ => shown.join(", "),
    }
}

/// An [`Error::Damaged`] from format arguments.
macro_rules! damaged {
    ($($text:tt)*) => { $crate::Error::Damaged(format!($($text)*)) };
}
pub(crate) use damaged;
