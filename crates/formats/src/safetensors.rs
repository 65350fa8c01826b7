//! safetensors files: <https://huggingface.co/docs/safetensors>.

use crate::StateDict;
use crate::fault::Fault;
use kiln_tensor::memory::Budget;
use kiln_tensor::{DType, Result, Tensor};
use safetensors::tensor::{Dtype, Metadata as Header, TensorInfo};
use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::panic::Location;
use std::path::Path;

/// Texts by name in the header of a safetensors file.
pub type Metadata = Option<HashMap<String, String>>;

impl StateDict {
    /// Writes a safetensors file. A reader sees the old file or the whole new one, never a part: the
    /// file is written next to its destination and moved there once it is on the disk.
    ///
    /// # Errors
    /// If a value can't be computed or the file can't be written.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        write_safetensors(path, self, None)
    }
}

/// Writes a safetensors file with texts in its header; see [`StateDict::save`].
///
/// # Errors
/// As [`StateDict::save`].
#[track_caller]
pub fn write_safetensors(
    path: impl AsRef<Path>,
    state: &StateDict,
    metadata: Metadata,
) -> Result<()> {
    let (path, loc) = (path.as_ref(), Location::caller());
    for (_, t) in state.iter() {
        t.realize()?;
    }
    let written = write(state, metadata, path);
    written.map_err(|fault| fault.in_file("save", path, loc))
}

/// Reads a safetensors file, and the texts in its header. The names come in alphabetical order.
///
/// # Errors
/// If the file can't be read, is damaged, or holds a dtype that Kiln does not have.
#[track_caller]
pub fn read_safetensors(path: impl AsRef<Path>) -> Result<(StateDict, Metadata)> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let found = File::open(path).map_err(Fault::from).and_then(read);
    found.map_err(|fault| fault.in_file("load", path, loc))
}

fn write(state: &StateDict, metadata: Metadata, path: &Path) -> Result<(), Fault> {
    let mut tensors: Vec<(&str, &Tensor)> = state.iter().collect();
    // The widest dtypes first, so that all values are aligned.
    tensors.sort_by_key(|(name, t)| (Reverse(dtype_in_file(t.dtype()).ok()), *name));
    let header = header(&tensors, metadata)?;
    kiln_base::file::replace(path, |file| {
        file.write_all(&header)?;
        for (_, t) in tensors {
            t.with_bytes(|bytes| file.write_all(bytes))??;
        }
        Ok(())
    })
}

/// The bytes before the values: the header's length and the header, padded so that the values are aligned.
fn header(tensors: &[(&str, &Tensor)], metadata: Metadata) -> Result<Vec<u8>, Fault> {
    let mut infos = Vec::with_capacity(tensors.len());
    let mut end = 0;
    for (name, t) in tensors {
        let begin = end;
        end += t.nbytes()?;
        let info = TensorInfo {
            dtype: dtype_in_file(t.dtype()).map_err(|e| e.to_string())?,
            shape: t.shape()?,
            data_offsets: (begin, end),
        };
        infos.push((name.to_string(), info));
    }
    let metadata = metadata.map(|texts| texts.into_iter().collect());
    let metadata = Header::new(metadata, infos).map_err(|e| e.to_string())?;
    let mut text = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(header)
}

/// Reads each tensor directly into its final memory.
pub(crate) fn read(mut file: File) -> Result<(StateDict, Metadata), Fault> {
    /// The format's limit.
    const MAX_HEADER_BYTES: u64 = 100_000_000;
    let damaged = |what: String| Fault::from(format!("the safetensors file is damaged: {what}"));
    let file_bytes = file.metadata()?.len();
    let mut start = Vec::new();
    Read::take(&mut file, 9).read_to_end(&mut start)?;
    let Some((length, b"{")) = start.split_first_chunk::<8>() else {
        return Err("this is not a safetensors file".to_string().into());
    };
    let length = u64::from_le_bytes(*length);
    let values = file_bytes
        .saturating_sub(8)
        .checked_sub(length)
        .filter(|_| length <= MAX_HEADER_BYTES);
    let Some(values) = values else {
        return Err(damaged(format!("its header can't be {length} bytes long")));
    };
    file.seek(SeekFrom::Start(8))?;
    let text = Budget::new().exactly(&mut file, length, "the header")?;
    serde_json::from_slice::<DistinctNames>(&text).map_err(|e| damaged(e.to_string()))?;
    let header: Header = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
    let names = header.offset_keys();
    let infos = names
        .iter()
        .filter_map(|name| Some((name.clone(), header.info(name)?.clone())));
    // The constructor checks that tensors are contiguous and have the sizes that their shapes need.
    let header = Header::new(header.metadata().clone(), infos.collect());
    let header = header.map_err(|e| damaged(e.to_string()))?;
    if header.data_len() as u64 != values {
        let wanted = header.data_len();
        return Err(damaged(format!(
            "its tensors take {wanted} bytes, and it has {values}"
        )));
    }
    let mut state = Vec::with_capacity(names.len());
    for name in names {
        let Some(info) = header.info(&name) else {
            continue;
        };
        let tensor = read_tensor(&mut file, info).map_err(|e| e.within(&name))?;
        state.push((name, tensor));
    }
    state.sort_by(|a, b| a.0.cmp(&b.0));
    let metadata = header.metadata().clone();
    let metadata = metadata.map(|texts| texts.into_iter().collect());
    Ok((state.into_iter().collect(), metadata))
}

/// The keys of a JSON object, none of which comes twice. `Header` keeps only the last of these.
struct DistinctNames;

impl<'de> Deserialize<'de> for DistinctNames {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<DistinctNames, D::Error> {
        from.deserialize_map(DistinctNames)
    }
}

impl<'de> Visitor<'de> for DistinctNames {
    type Value = DistinctNames;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<DistinctNames, A::Error> {
        let mut names = HashSet::new();
        while let Some((name, IgnoredAny)) = map.next_entry::<String, IgnoredAny>()? {
            if let Some(twice) = names.replace(name) {
                return Err(A::Error::custom(format!(
                    "two tensors are called {twice:?}"
                )));
            }
        }
        Ok(self)
    }
}

fn read_tensor(file: &mut File, info: &TensorInfo) -> Result<Tensor, Fault> {
    let dtype = DType::from_name(&info.dtype.to_string().to_lowercase());
    let Some(dtype) = dtype else {
        return Err(Fault::unsupported(format!(
            "there is no dtype {:?}",
            info.dtype
        )));
    };
    Tensor::filled(dtype, &info.shape[..], |bytes| {
        crate::read::fill(file, bytes)
    })
}

/// The name of a dtype in safetensors files: its own, in capitals.
fn dtype_in_file(dtype: DType) -> serde_json::Result<Dtype> {
    serde_json::from_value(dtype.name().to_uppercase().into())
}
