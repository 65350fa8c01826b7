//! The archive of cases.

use std::io::BufReader;
use std::path::Path;

/// Why an archive or a folder of cases can't be read.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file problem.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Damaged compression.
    #[error("the archive does not decompress: {0}")]
    Xz(#[from] lzma_rs::error::Error),
}

/// Unpacks a `.tar.xz` into a folder.
///
/// # Errors
/// If the archive is damaged or the folder can't be written.
pub fn unpack(archive: &Path, into: &Path) -> Result<(), GoldenError> {
    let mut tar = Vec::new();
    let mut file = BufReader::new(std::fs::File::open(archive)?);
    lzma_rs::xz_decompress(&mut file, &mut tar)?;
    tar::Archive::new(&tar[..]).unpack(into)?;
    Ok(())
}

/// The ids of every case in a folder of folders, sorted.
///
/// # Errors
/// If a folder can't be read.
pub fn ids(root: &Path) -> Result<Vec<String>, GoldenError> {
    let mut out = Vec::new();
    for folder in std::fs::read_dir(root)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&folder)? {
            let file = file?.path();
            if file.extension().is_some_and(|e| e == "json") {
                let id = file.with_extension("");
                let id = id.strip_prefix(root).unwrap_or(&id);
                out.push(id.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    out.sort();
    Ok(out)
}
