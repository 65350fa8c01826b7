//! Tests of file formats.

mod checkpoints;
mod folders;
mod hostile;
mod large;
mod npy;
mod npz;
mod pickles;
mod tables;

use kiln_tensor::Result;
use tempfile::TempDir;

/// The message of an expected error.
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(e) => e.to_string(),
    }
}

/// A file of `fixtures.py`.
fn fixture(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/formats/pytorch")
        .join(name)
}

/// The names of a folder's files, sorted.
fn names(folder: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    let name = |e: std::io::Result<std::fs::DirEntry>| {
        e.expect("readable")
            .file_name()
            .to_string_lossy()
            .into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}
