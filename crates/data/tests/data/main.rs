//! Tests of datasets, samplers and loaders.

mod collate;
mod datasets;
mod loader;
mod samplers;
mod splits;
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

/// The message of an expected error.
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => panic!("this must be an error"),
        Err(e) => e.to_string(),
    }
}
