//! State in safetensors files.

use crate::StateDict;
use kiln_tensor::{DType, Error, ErrorKind, Result, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const DTYPES: [(DType, Dtype); 13] = [
    (DType::Bool, Dtype::BOOL),
    (DType::U8, Dtype::U8),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
];

impl StateDict {
    /// Writes a safetensors file. A reader sees the old file or the whole new one, never a part: the
    /// file is written beside its place and moved there once it is on the disk.
    ///
    /// # Errors
    /// If a value can't be computed or the file can't be written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut values = Vec::with_capacity(self.len());
        for (name, t) in self.iter() {
            values.push((name, dtype_in_file(t.dtype()), t.shape()?, t.to_bytes()?));
        }
        let views = values.iter().map(|(name, dtype, shape, bytes)| {
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (*name, view))
        });
        let views: Result<Vec<_>, _> = views.collect();
        let bytes = views.and_then(|views| safetensors::serialize(views, None));
        let bytes = named("save", path, bytes)?;
        named("save", path, replace_file(path, &bytes))
    }

    /// Reads a safetensors file. The names come in alphabetical order.
    ///
    /// # Errors
    /// If the file can't be read, is damaged, or holds a dtype that Kiln does not have.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
        let path = path.as_ref();
        let bytes = named("load", path, fs::read(path))?;
        let file = named("load", path, SafeTensors::deserialize(&bytes))?;
        let mut values = file.tensors();
        values.sort_by(|a, b| a.0.cmp(&b.0));
        let mut state = Vec::with_capacity(values.len());
        for (name, view) in values {
            let found = DTYPES.iter().find(|(_, d)| *d == view.dtype());
            let Some((dtype, _)) = found else {
                let problem = format!("there is no dtype {:?} for {name}", view.dtype());
                return named("load", path, Err(problem));
            };
            let t = Tensor::from_bytes(view.data(), *dtype, view.shape());
            state.push((name, t.check()?.clone()));
        }
        Ok(state.into_iter().collect())
    }
}

fn dtype_in_file(dtype: DType) -> Dtype {
    let found = DTYPES.iter().find(|(d, _)| *d == dtype);
    found.map_or(Dtype::F32, |(_, d)| *d)
}

/// A result whose error names the file and the user's line.
#[track_caller]
fn named<T, E: std::fmt::Display>(op: &str, path: &Path, result: Result<T, E>) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(e) => {
            let message = format!("{}: {e}", path.display());
            Err(Error::at_caller(ErrorKind::Io, op, message))
        }
    }
}

/// Writes a file in one step, as far as readers and crashes can see.
fn replace_file(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.tmp", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || {
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    let result = write();
    if result.is_err() {
        let _ = fs::remove_file(&beside);
        return result;
    }
    // The rename itself is on the disk once its folder is.
    #[cfg(unix)]
    if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
