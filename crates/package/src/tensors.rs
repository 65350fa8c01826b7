//! Tensors as a safetensors file: <https://huggingface.co/docs/safetensors>.

use crate::error::{Error, Result, damaged, ensure, unfit};
use kiln_base::DType;
use kiln_runtime::Buffer;
use kiln_runtime::memory::read_file;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

/// The maximum size of a header, which the format sets.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The alignment of values, from the beginning of the file.
const ALIGN: usize = 64;

/// Reads a safetensors file.
///
/// # Errors
/// If it can't be read, is not a safetensors file, or holds a dtype that Kiln does not have.
pub fn read_safetensors(path: impl AsRef<Path>) -> Result<BTreeMap<String, Buffer>> {
    let path = path.as_ref();
    let tensors = || -> Result<_> {
        let bytes = read_file(path)?;
        let tensor = |(name, range): (String, TensorRange)| {
            let value = Buffer::from_bytes(range.dtype, &range.shape, &bytes[range.bytes]);
            let value = value.map_err(|e| unfit(&name, e))?;
            Ok((name, value))
        };
        read(&bytes)?.into_iter().map(tensor).collect()
    };
    tensors().map_err(|e| e.in_file(path))
}

/// Writes a safetensors file, which atomically replaces an older one.
///
/// # Errors
/// If two tensors have one name, one is on a GPU, or the file can't be written; an older one then stays.
pub fn write_safetensors(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (String, Buffer)>,
) -> Result<()> {
    let path = path.as_ref();
    let written = tensor_file(tensors.into_iter().collect())
        .and_then(|t| kiln_base::file::replace(path, |file| t.write(file)));
    written.map_err(|e| e.in_file(path))
}

/// The bytes of a tensor, which must be on the host.
pub(crate) fn bytes(tensor: &Buffer) -> Result<&[u8]> {
    tensor.bytes().map_err(|e| Error::Contents(e.to_string()))
}

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TensorRange {
    pub dtype: DType,
    pub shape: Vec<i64>,
    /// The range of its bytes in the file.
    pub bytes: Range<usize>,
}

/// The header's record of a tensor.
#[derive(Serialize, Deserialize)]
struct Info {
    dtype: String,
    shape: Vec<i64>,
    data_offsets: (u64, u64),
}

/// A header in file order. Duplicate names are an error.
struct Header(Vec<(String, Info)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Header, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("the header of a safetensors file")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Header, M::Error> {
                let (mut tensors, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(M::Error::custom(format!("`{name}` appears twice")));
                    }
                    match &name[..] {
                        "__metadata__" => {
                            map.next_value::<HashMap<String, String>>()?;
                        }
                        _ => tensors.push((name, map.next_value()?)),
                    }
                }
                Ok(Header(tensors))
            }
        }
        from.deserialize_map(Read)
    }
}

/// The tensors of a file, by name.
///
/// # Errors
/// If it is not a safetensors file: tensors must have the sizes that their shapes need, and are contiguous.
pub(crate) fn read(file: &[u8]) -> Result<BTreeMap<String, TensorRange>> {
    let truncated = || damaged!("its tensors: the length of their header is cut off");
    let (length, rest) = file.split_first_chunk::<8>().ok_or_else(truncated)?;
    let (length, available) = (u64::from_le_bytes(*length), rest.len() as u64);
    ensure!(
        length <= MAX_HEADER_BYTES.min(available),
        "its tensors: their header takes {length} bytes, of which {available} are there and at most {MAX_HEADER_BYTES} \
         are read"
    );
    let (header, values) = rest.split_at(length as usize);
    let header = serde_json::from_slice::<Header>(header);
    let header = header.map_err(|e| damaged!("its tensors: {e}"))?;
    let start = file.len() - values.len();
    let mut tensors = BTreeMap::new();
    for (name, info) in header.0 {
        let Some(range) = tensor_range(&info, start, values.len()) else {
            return Err(damaged!(
                "its tensors: `{name}` has a dtype that Kiln lacks, or a range of bytes that does not fit its shape \
                 or the file"
            ));
        };
        tensors.insert(name, range);
    }
    let mut ranges: Vec<&Range<usize>> = tensors.values().map(|t| &t.bytes).collect();
    ranges.sort_by_key(|r| (r.start, r.end));
    let mut next = start;
    for range in ranges {
        let adjoins = range.start == next;
        ensure!(adjoins, "its tensors: their bytes overlap or leave gaps");
        next = range.end;
    }
    let rest = file.len() - next;
    ensure!(
        rest == 0,
        "its tensors: the last {rest} bytes belong to no tensor"
    );
    Ok(tensors)
}

/// The range of a tensor; `None` if it contradicts the header.
fn tensor_range(info: &Info, start: usize, len: usize) -> Option<TensorRange> {
    let mut dtypes = DType::ALL.into_iter();
    let dtype = dtypes.find(|d| name_in_file(*d) == info.dtype)?;
    let size = |n: u64, d: &i64| n.checked_mul(u64::try_from(*d).ok()?);
    let bytes = info.shape.iter().try_fold(dtype.size() as u64, size)?;
    let (from, to) = info.data_offsets;
    let is_valid = from <= to && to <= len as u64 && to - from == bytes;
    is_valid.then(|| TensorRange {
        dtype,
        shape: info.shape.clone(),
        bytes: start + from as usize..start + to as usize,
    })
}

fn name_in_file(dtype: DType) -> String {
    dtype.name().to_uppercase()
}

/// A safetensors file to be written: its header, and the values after it.
pub(crate) struct TensorFile {
    pub header: Vec<u8>,
    pub values: Vec<Buffer>,
}

impl TensorFile {
    fn write(&self, to: &mut impl Write) -> Result<()> {
        to.write_all(&self.header)?;
        let mut values = self.values.iter();
        values.try_for_each(|value| Ok(to.write_all(bytes(value)?)?))
    }
}

/// Lays out a file of tensors that are on the host. Tensors of whole cache lines come first, for each of them to
/// begin on one.
///
/// # Errors
/// If two have one name, or a header would be larger than the format allows.
pub(crate) fn tensor_file(mut tensors: Vec<(String, Buffer)>) -> Result<TensorFile> {
    let is_aligned = |b: &Buffer| b.storage().len().is_multiple_of(ALIGN);
    tensors.sort_by(|(a, x), (b, y)| {
        let key = |b: &Buffer| (Reverse(is_aligned(b)), Reverse(b.dtype().size()));
        (key(x), a).cmp(&(key(y), b))
    });
    let mut infos = serde_json::Map::new();
    let mut end = 0;
    for (name, tensor) in &tensors {
        let from = end;
        end += tensor.storage().len() as u64;
        let info = Info {
            dtype: name_in_file(tensor.dtype()),
            shape: tensor.shape().to_vec(),
            data_offsets: (from, end),
        };
        let info = serde_json::to_value(info).map_err(|e| Error::Contents(e.to_string()))?;
        if name == "__metadata__" {
            let message = "`__metadata__` can't be the name of a tensor: safetensors reserves it";
            return Err(Error::Contents(message.into()));
        }
        if infos.insert(name.clone(), info).is_some() {
            return Err(Error::Contents(format!("two tensors are called `{name}`")));
        }
    }
    let mut text = serde_json::to_vec(&infos).map_err(|e| Error::Contents(e.to_string()))?;
    text.resize((8 + text.len()).next_multiple_of(ALIGN) - 8, b' ');
    if text.len() as u64 > MAX_HEADER_BYTES {
        return Err(Error::Contents(format!(
            "the names and shapes of {} tensors take {} bytes, but at most {MAX_HEADER_BYTES} fit into a file",
            tensors.len(),
            text.len()
        )));
    }
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.append(&mut text);
    let values = tensors.into_iter().map(|(_, b)| b).collect();
    Ok(TensorFile { header, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(file: &TensorFile) -> Vec<u8> {
        let mut bytes = file.header.clone();
        let values = file.values.iter();
        values.for_each(|v| bytes.extend(v.bytes().unwrap()));
        bytes
    }

    #[test]
    fn tensors_of_every_dtype_are_read_as_they_were_written() {
        let mut tensors = Vec::new();
        for (i, dtype) in DType::ALL.into_iter().enumerate() {
            for shape in [&[][..], &[3, i as i64], &[64], &[0, 5]] {
                let tensor = Buffer::zeros(dtype, shape).unwrap();
                tensors.push((format!("{dtype}{shape:?}"), tensor));
            }
        }
        let written = bytes(&tensor_file(tensors.clone()).unwrap());
        let found = read(&written).unwrap();
        assert_eq!(found.len(), tensors.len());
        for (name, tensor) in tensors {
            let TensorRange {
                dtype,
                shape,
                bytes,
            } = &found[&name];
            assert_eq!((*dtype, &shape[..]), (tensor.dtype(), tensor.shape()));
            let whole = bytes.len().is_multiple_of(64);
            assert!(!whole || bytes.start.is_multiple_of(64), "{name}");
            assert!(bytes.start.is_multiple_of(dtype.size()));
        }
        let reserved = Buffer::zeros(DType::U8, &[1]).unwrap();
        assert!(tensor_file(vec![("__metadata__".into(), reserved)]).is_err());
    }

    #[test]
    fn contradictory_files_are_refused() {
        let parse = |header: &str, values: usize| {
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header.as_bytes());
            bytes.resize(bytes.len() + values, 0);
            read(&bytes)
        };
        let one = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
        assert!(parse(&format!("{{{one}}}"), 8).is_ok());
        assert!(parse(&format!(r#"{{"__metadata__":{{"x":"y"}},{one}}}"#), 8).is_ok());
        for (header, values) in [
            (format!("{{{one}}}"), 7),
            (format!("{{{one}}}"), 9),
            (format!("{{{one},{one}}}"), 8),
            (format!("{{{one},{}}}", one.replace("\"a\"", "\"b\"")), 8),
            (
                format!(
                    "{{{one},{}}}",
                    one.replace("\"a\"", "\"b\"").replace("0,8", "12,20")
                ),
                20,
            ),
            (one.replace("[2]", "[-2]"), 8),
            (
                format!("{{{}}}", one.replace("[2]", "[4294967296,4294967296,2]")),
                8,
            ),
            (format!("{{{}}}", one.replace("F32", "F33")), 8),
            (format!("{{{}}}", one.replace("0,8", "8,0")), 8),
            ("[".repeat(100_000), 8),
        ] {
            assert!(parse(&header, values).is_err(), "{header:.80}");
        }
        assert!(read(&[]).is_err() && read(&[255; 9]).is_err());
    }
}
