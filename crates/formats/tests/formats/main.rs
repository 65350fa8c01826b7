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

/// A folder of one test, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-formats-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder is there");
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
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
