//! Replacing files whole.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Error, ErrorKind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes the file at `path` by `write`: a reader sees the old file or the whole new one, never a part.
pub(crate) fn replace<E: From<io::Error>>(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> Result<(), E>,
) -> Result<(), E> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let Some(name) = path.file_name() else {
        return Err(Error::new(ErrorKind::InvalidInput, "the path names no file").into());
    };
    let mut beside = OsString::from(".");
    beside.push(name);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    beside.push(format!(".{}.{count}.tmp", std::process::id()));
    let beside = path.with_file_name(beside);
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&beside)?;
    let written = (|| {
        let mut file = BufWriter::new(file);
        write(&mut file)?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        Ok(fs::rename(&beside, path)?)
    })();
    if written.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&beside);
    }
    written
}
