//! What datasets, loaders and readers promise.

mod collate;
mod datasets;
mod loader;
mod npy;
mod npz;
mod samplers;
mod splits;
mod tables;
mod workers;

use kiln_data::{DataLoader, Dataset, FnDataset};
use kiln_tensor::{Result, Tensor};

/// The samples 0, 1, … as i64.
fn numbers(len: usize) -> impl Dataset<Item = i64> {
    FnDataset::new(len, |i| Ok(i as i64))
}

/// The values of each batch of a pass.
fn values(loader: &DataLoader<Tensor>) -> Result<Vec<Vec<i64>>> {
    loader.iter().map(|batch| batch?.to_vec::<i64>()).collect()
}

/// The message of what must be an error.
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(e) => e.to_string(),
    }
}

/// A folder of a test's own, removed at the end.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("kiln-data-{name}-{}", std::process::id()));
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
