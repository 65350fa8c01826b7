//! State in safetensors files.

use crate::StateDict;
use kiln_tensor::{DType, Error, ErrorKind, Result, Tensor};
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata as FileHeader, SafeTensors, TensorInfo};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;
use std::{fs, io, io::Write};

impl StateDict {
    /// Writes a safetensors file. A reader sees the old file or the whole new one, never a part: the
    /// file is written beside its place and moved there once it is on the disk.
    ///
    /// # Errors
    /// If a value can't be computed or the file can't be written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write(self, None, path.as_ref())
    }

    /// Reads a safetensors file. The names come in alphabetical order.
    ///
    /// # Errors
    /// If the file can't be read, is damaged, or holds a dtype that Kiln does not have.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
        Ok(read(path.as_ref())?.0)
    }
}

/// Texts by name in the header of a safetensors file.
pub(crate) type Metadata = Option<HashMap<String, String>>;

#[track_caller]
pub(crate) fn write(state: &StateDict, metadata: Metadata, path: &Path) -> Result<()> {
    let mut tensors: Vec<(&str, &Tensor)> = state.iter().collect();
    for (_, t) in &tensors {
        t.realize()?;
    }
    // The widest dtypes first, so that all values are aligned.
    tensors.sort_by_key(|(name, t)| (Reverse(dtype_in_file(t.dtype()).ok()), *name));
    let header = named("save", path, header(&tensors, metadata))?;
    // One tensor after the other, so that no more than the values of one are copied.
    let written = kiln_base::file::replace(path, |file| {
        file.write_all(&header).map_err(Failed::Writing)?;
        tensors.iter().try_for_each(|(_, t)| {
            let values = t.to_bytes().map_err(Failed::Reading)?;
            file.write_all(&values).map_err(Failed::Writing)
        })
    });
    match written {
        Err(Failed::Reading(e)) => Err(e),
        Err(Failed::Writing(e)) => named("save", path, Err(e)),
        Ok(()) => Ok(()),
    }
}

/// What went wrong while a file was written.
enum Failed {
    /// A value can't be had.
    Reading(Error),
    /// The file can't be written.
    Writing(io::Error),
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Failed {
        Failed::Writing(e)
    }
}

/// What stands in front of the values: the header's length and the header, filled up so that the values are
/// aligned.
#[track_caller]
fn header(tensors: &[(&str, &Tensor)], metadata: Metadata) -> Result<Vec<u8>> {
    let invalid = |e: String| Error::at_caller(ErrorKind::Io, "save", e);
    let mut infos = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, t) in tensors {
        let begin = end;
        end += t.nbytes()?;
        let info = TensorInfo {
            dtype: dtype_in_file(t.dtype()).map_err(|e| invalid(e.to_string()))?,
            shape: t.shape()?,
            data_offsets: (begin, end),
        };
        infos.push((name.to_string(), info));
    }
    let metadata = FileHeader::new(metadata, infos).map_err(|e| invalid(e.to_string()))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| invalid(e.to_string()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

#[track_caller]
pub(crate) fn read(path: &Path) -> Result<(StateDict, Metadata)> {
    let bytes = named("load", path, fs::read(path))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| unreadable(&bytes, e));
    let file = named("load", path, file)?;
    let (_, header) = named("load", path, SafeTensors::read_metadata(&bytes))?;
    let mut values = file.tensors();
    values.sort_by(|a, b| a.0.cmp(&b.0));
    let mut state = Vec::with_capacity(values.len());
    for (name, view) in values {
        let dtype = view.dtype().to_string().to_lowercase();
        let Some(dtype) = DType::from_name(&dtype) else {
            let problem = format!("there is no dtype {:?} for {name}", view.dtype());
            return named("load", path, Err(problem));
        };
        let t = Tensor::from_bytes(view.data(), dtype, view.shape());
        state.push((name, t.check()?.clone()));
    }
    Ok((state.into_iter().collect(), header.metadata().clone()))
}

/// What is wrong with the bytes of a file: one that begins as safetensors files do is damaged.
fn unreadable(bytes: &[u8], e: SafeTensorError) -> String {
    let (length, rest) = bytes.split_at(bytes.len().min(8));
    let length = length.try_into().map(u64::from_le_bytes);
    match length.is_ok_and(|n| n > 0) && rest.first() == Some(&b'{') {
        true => format!("the safetensors file is damaged: {e}"),
        false => "this is not a safetensors file".to_string(),
    }
}

/// What safetensors files call a dtype: its name, in capitals.
fn dtype_in_file(dtype: DType) -> serde_json::Result<Dtype> {
    serde_json::from_value(dtype.name().to_uppercase().into())
}

/// A result whose error names the file and the user's line.
#[track_caller]
pub(crate) fn named<T, E: std::fmt::Display>(
    op: &str,
    path: &Path,
    result: Result<T, E>,
) -> Result<T> {
    match result {
        Ok(value) => Ok(value),
        Err(e) => {
            let message = format!("{}: {e}", path.display());
            Err(Error::at_caller(ErrorKind::Io, op, message))
        }
    }
}
