//! The archives of samples and training runs, which are part of the program.

use std::io::Read;
use std::path::{Path, PathBuf};

/// An error of reading an archive or a folder of cases.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file problem.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Damaged compression.
    #[error("the archive does not decompress: {0}")]
    Xz(#[from] lzma_rs::error::Error),
}

const OPINFO: &[u8] = include_bytes!("../../../tests/goldens/opinfo.tar.xz");
const TRAINING: &[u8] = include_bytes!("../../../tests/goldens/training.tar.xz");
const ONNX: &[u8] = include_bytes!("../../../tests/goldens/onnx.tar.xz");
const ONNX_CONTRIB: &[u8] = include_bytes!("../../../tests/goldens/onnx_contrib.tar.xz");
const ONNX_LEARN: &[u8] = include_bytes!("../../../tests/goldens/onnx_learn.tar.xz");
const ONNX_NEWER: &[u8] = include_bytes!("../../../tests/goldens/onnx_newer.tar.xz");
const ONNX_MODELS: &[u8] = include_bytes!("../../../tests/goldens/onnx_models.tar.xz");

/// Unpacks a `.tar.xz` into a folder.
///
/// # Errors
/// If the archive is damaged or the folder can't be written.
pub fn unpack(archive: impl Read, into: &Path) -> Result<(), GoldenError> {
    let mut tar = Vec::new();
    lzma_rs::xz_decompress(&mut std::io::BufReader::new(archive), &mut tar)?;
    tar::Archive::new(&tar[..]).unpack(into)?;
    Ok(())
}

/// A folder of goldens among the temporary files, which is removed when dropped.
pub struct Folder {
    top: PathBuf,
    path: PathBuf,
}

impl Folder {
    /// PyTorch's operator samples. `name` tells folders of one process apart.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn opinfo(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "opinfo", OPINFO)
    }

    /// PyTorch's training runs. `name` tells folders of one process apart.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn training(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "training", TRAINING)
    }

    /// The tests of the ONNX standard, release 1.19.1, whose operators compute with numbers.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn onnx(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "onnx", ONNX)
    }

    /// The node tests of the ONNX standard of release 1.23.2 that release 1.19.1 lacks or has other models of.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn onnx_newer(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "newer", ONNX_NEWER)
    }

    /// Models of onnxruntime's own operators and of quantised ones, with its outputs.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn onnx_contrib(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "contrib", ONNX_CONTRIB)
    }

    /// Models of scikit-learn's estimators as skl2onnx exported them, with onnxruntime's outputs.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn onnx_learn(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "learn", ONNX_LEARN)
    }

    /// Models that PyTorch exported, with inputs and outputs.
    ///
    /// # Errors
    /// If the folder can't be written.
    pub fn onnx_models(name: &str) -> Result<Folder, GoldenError> {
        Folder::of(name, "models", ONNX_MODELS)
    }

    fn of(name: &str, inner: &str, archive: &[u8]) -> Result<Folder, GoldenError> {
        let name = format!("kiln-{inner}-{name}-{}", std::process::id());
        let top = std::env::temp_dir().join(name);
        let folder = Folder {
            path: top.join(inner),
            top,
        };
        unpack(archive, &folder.top)?;
        Ok(folder)
    }

    /// The folder of the goldens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.top);
    }
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
