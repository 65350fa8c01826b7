//! Constructors of this crate's errors.

use kiln_tensor::{Error, ErrorKind};
use std::fmt::Display;
use std::panic::Location;
use std::path::Path;

/// A problem with a file, without its name and the caller's line.
#[derive(Debug)]
pub(crate) struct Fault {
    kind: ErrorKind,
    message: String,
}

impl Fault {
    pub(crate) fn unsupported(message: impl Into<String>) -> Fault {
        Fault {
            kind: ErrorKind::Unsupported,
            message: message.into(),
        }
    }

    /// Puts the name of a part before the message.
    pub(crate) fn within(mut self, part: impl Display) -> Fault {
        self.message = format!("{part}: {}", self.message);
        self
    }

    pub(crate) fn at(self, op: &str, loc: &'static Location<'static>) -> Error {
        Error::new(self.kind, op, self.message, loc)
    }

    /// The error of a function that reads or writes the file at `path`.
    pub(crate) fn in_file(self, op: &str, path: &Path, loc: &'static Location<'static>) -> Error {
        self.within(path.display()).at(op, loc)
    }
}

/// A fault for damaged content.
impl From<String> for Fault {
    fn from(message: String) -> Fault {
        Fault {
            kind: ErrorKind::Value,
            message,
        }
    }
}

impl From<&str> for Fault {
    fn from(message: &str) -> Fault {
        Fault::from(message.to_string())
    }
}

impl From<std::io::Error> for Fault {
    fn from(e: std::io::Error) -> Fault {
        Fault::from(&e)
    }
}

impl From<&std::io::Error> for Fault {
    fn from(e: &std::io::Error) -> Fault {
        let kind = match e.kind() {
            std::io::ErrorKind::OutOfMemory => ErrorKind::Memory,
            std::io::ErrorKind::UnexpectedEof => ErrorKind::Value,
            _ => ErrorKind::Io,
        };
        Fault {
            kind,
            message: e.to_string(),
        }
    }
}

impl From<Error> for Fault {
    fn from(e: Error) -> Fault {
        Fault {
            kind: e.kind(),
            message: e.message().to_string(),
        }
    }
}

#[cfg(feature = "zip")]
impl From<zip::result::ZipError> for Fault {
    fn from(e: zip::result::ZipError) -> Fault {
        use zip::result::ZipError;
        match e {
            ZipError::Io(e) => Fault::from(e),
            ZipError::UnsupportedArchive(what) => Fault::unsupported(what),
            ZipError::CompressionMethodNotSupported(_) => Fault::unsupported(e.to_string()),
            _ => Fault::from(e.to_string()),
        }
    }
}
