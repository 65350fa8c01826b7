//! safetensors files: <https://huggingface.co/docs/safetensors>.

use crate::StateDict;
use crate::fault::Fault;
use kiln_tensor::memory::Budget;
use kiln_tensor::{DType, Result, Tensor};
use safetensors::tensor::{Dtype, Metadata as Header, TensorInfo};
use serde::de::{Error as _, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::panic::Location;
use std::path::Path;

/// Texts by name in the header of a safetensors file.
pub type Metadata = Option<HashMap<String, String>>;

impl StateDict {
    /// Writes a safetensors file. The file is replaced atomically: it is written
    /// next to its destination and moved there once it is on the disk.
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
    let contents = File::open(path).map_err(Fault::from).and_then(read);
    contents.map_err(|fault| fault.in_file("load", path, loc))
}

fn write(state: &StateDict, metadata: Metadata, path: &Path) -> Result<(), Fault> {
    let mut tensors: Vec<(&str, &Tensor)> = state.iter().collect();
    // The widest dtypes first, which aligns all values.
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
    let mut prefix = Vec::new();
    Read::take(&mut file, 9).read_to_end(&mut prefix)?;
    let Some((length, b"{")) = prefix.split_first_chunk::<8>() else {
        return Err("this is not a safetensors file".into());
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
    let mut budget = Budget::new();
    let text = budget.read_exact(&mut file, length, "the header")?;
    let contents = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
    let Contents {
        metadata,
        mut tensors,
    } = contents;
    drop(text);
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    if let Some(pair) = tensors.windows(2).find(|p| p[0].0 == p[1].0) {
        return Err(damaged(format!("two tensors are called {:?}", pair[0].0)));
    }
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0;
    for (name, info) in &tensors {
        let dtype = dtype_of(info).map_err(|e| e.within(name))?;
        let (shape, (from, to)) = (&info.shape, info.data_offsets);
        let mut sizes = shape.iter();
        let bytes = sizes.try_fold(dtype.size(), |bytes, d| bytes.checked_mul(*d));
        if from != end || bytes.is_none() || to.checked_sub(from) != bytes {
            let what = format!("{name}, {dtype} of shape {shape:?}, can't be at {from} to {to}");
            return Err(damaged(what));
        }
        end = to;
    }
    if end as u64 != values {
        return Err(damaged(format!(
            "its tensors take {end} bytes, and it has {values}"
        )));
    }
    // Tensors without elements are the same if their types are.
    let mut empty: HashMap<(DType, Vec<usize>), Tensor> = HashMap::new();
    let mut state = budget.reserve(tensors.len(), "the names of tensors")?;
    for (name, info) in tensors {
        let key = (dtype_of(&info)?, info.shape);
        if let Some(tensor) = empty.get(&key) {
            state.push((name, tensor.clone()));
            continue;
        }
        budget.spend(TENSOR, "a tensor")?;
        let fill = |bytes: &mut [u8]| crate::read::fill(&mut file, bytes);
        let tensor = Tensor::filled(key.0, &key.1[..], fill).map_err(|e| e.within(&name))?;
        if key.1.contains(&0) {
            empty.insert(key, tensor.clone());
        }
        state.push((name, tensor));
    }
    state.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((StateDict::of_distinct(state), metadata))
}

/// The memory that a tensor takes besides its values and its name, rounded up.
const TENSOR: u64 = 1024;

/// The contents of a header.
struct Contents {
    metadata: Metadata,
    /// In the order of the header; a name may come twice.
    tensors: Vec<(String, TensorInfo)>,
}

impl<'de> Deserialize<'de> for Contents {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Contents, D::Error> {
        from.deserialize_map(Contents {
            metadata: None,
            tensors: Vec::new(),
        })
    }
}

impl<'de> Visitor<'de> for Contents {
    type Value = Contents;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Contents, A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            if name != "__metadata__" {
                self.tensors.push((name, map.next_value()?));
            } else if self.metadata.replace(map.next_value()?).is_some() {
                return Err(A::Error::custom("there are two entries of metadata"));
            }
        }
        Ok(self)
    }
}

fn dtype_of(info: &TensorInfo) -> Result<DType, Fault> {
    let dtype = DType::from_name(&info.dtype.to_string().to_lowercase());
    dtype.ok_or_else(|| Fault::unsupported(format!("there is no dtype {:?}", info.dtype)))
}

/// The name of a dtype in safetensors files: its own, in capitals.
fn dtype_in_file(dtype: DType) -> serde_json::Result<Dtype> {
    serde_json::from_value(dtype.name().to_uppercase().into())
}
