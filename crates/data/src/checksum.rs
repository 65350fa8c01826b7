//! Checksums of files.

use crate::fault::invalid;
use crate::progress::Progress;
use kiln_tensor::{Error, ErrorKind, Result};
use md5::Md5;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::panic::Location;
use std::path::Path;

/// True if a file exists and has a checksum, in hexadecimal digits: an MD5 of 32, a SHA-256 of 64, or the first
/// digits of a SHA-256, at least 8 of them, as in the names of PyTorch's weights. torchvision's `check_integrity`.
///
/// ```
/// use kiln_data::check_integrity;
/// let file = std::env::temp_dir().join("kiln-checksum.txt");
/// std::fs::write(&file, "abc").unwrap();
/// assert!(check_integrity(&file, "900150983cd24fb0d6963f7d28e17f72")?);
/// assert!(!check_integrity(&file, "ba7816bf00000000")?);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the file can't be read, or `checksum` is not a checksum.
#[track_caller]
pub fn check_integrity(path: impl AsRef<Path>, checksum: &str) -> Result<bool> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let expected = checksum.to_ascii_lowercase();
    let hex = expected.bytes().all(|b| b.is_ascii_hexdigit());
    if !hex || !(8..=64).contains(&expected.len()) {
        let message =
            format!("{checksum:?} is neither an MD5 nor a SHA-256, in hexadecimal digits");
        return Err(invalid("check_integrity", message, loc));
    }
    if !path.is_file() {
        return Ok(false);
    }
    let digest_result = match expected.len() {
        32 => digest::<Md5>(path),
        _ => digest::<Sha256>(path),
    };
    let digest_result = digest_result.map_err(|e| {
        let message = format!("{}: {e}", path.display());
        Error::new(ErrorKind::Io, "check_integrity", message, loc)
    })?;
    Ok(digest_result.starts_with(&expected))
}

/// The checksum of a file, in hexadecimal digits.
fn digest<D: Digest>(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let progress = Progress::of_bytes(format!("verifying {name}"), file.metadata()?.len());
    let (mut hash, mut buffer) = (D::new(), vec![0; 1 << 18]);
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hash.update(&buffer[..read]);
        progress.inc(read as u64);
    }
    progress.finish_and_clear();
    let mut text = String::new();
    for byte in hash.finalize() {
        // Writing into a text can't fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
