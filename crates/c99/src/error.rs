//! The errors of emitting a package as C.

use std::path::{Path, PathBuf};

/// The reason why a package is not emitted as C.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The package can't be read, or has no such entry.
    #[error(transparent)]
    Package(#[from] kiln_package::Error),
    /// A kernel, or a part of it, that can't be expressed in C.
    #[error("kernel `{kernel}` can't be emitted as C: {why}")]
    Kernel {
        /// The kernel's name, such as `conv_weight`.
        kernel: String,
        /// The part that can't be expressed in C.
        why: String,
    },
    /// An entry that is not a function of its inputs alone.
    #[error("entry `{entry}` can't be emitted as C: {why}")]
    Entry {
        /// The entry.
        entry: String,
        /// Its other effect.
        why: String,
    },
    /// Work that depends on weights alone fails.
    #[error("work on weights alone, done when sources are emitted, fails: {0}")]
    Prepare(kiln_runtime::Error),
    /// The program contradicts itself.
    #[error("the program is damaged: {0}")]
    Damaged(String),
    /// A file can't be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
}

/// Shorthand for a result with this crate's [`enum@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The error of a kernel that can't be emitted.
    pub(crate) fn kernel(kernel: &str, why: impl Into<String>) -> Error {
        Error::Kernel {
            kernel: kernel.into(),
            why: why.into(),
        }
    }

    /// The error of a function that the C library lacks; [`Error::in_kernel`] adds the kernel.
    pub(crate) fn function(name: &str) -> Error {
        Error::kernel("", format!("libm has no function {name}"))
    }

    /// The same error, of this kernel unless it names one already.
    pub(crate) fn in_kernel(self, name: &str) -> Error {
        match self {
            Error::Kernel { kernel, why } if kernel.is_empty() => Error::kernel(name, why),
            other => other,
        }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |error| Error::Io {
            path: path.into(),
            error,
        }
    }
}
