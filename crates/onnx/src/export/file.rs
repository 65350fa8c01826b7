//! The files of a model.

use super::writer::Value;
use crate::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto};
use crate::tensor;
use kiln_base::file::replace;
use kiln_tensor::{Error, Tensor};
use prost::Message;
use std::io::{self, Write};
use std::path::Path;

/// The maximum number of bytes of weights in a file with the graph: protobuf reads 2 GB.
pub(super) const MAX_INLINE: u64 = (1 << 31) - (64 << 20);
/// The least bytes of a weight that is worth a place of its own, as other exporters have it.
const MIN_EXTERNAL: u64 = 1024;
/// The alignment of weights, so that they can be mapped.
const ALIGNMENT: u64 = 4096;

/// A tensor to be written.
pub(super) struct Weight {
    name: String,
    bytes: u64,
    tensor: Tensor,
}

impl Weight {
    pub fn new(value: &Value, tensor: Tensor) -> Weight {
        let elements = kiln_base::numel(&value.fact.shape).as_const().unwrap_or(0);
        Weight {
            name: value.name.to_string(),
            bytes: elements as u64 * value.dtype().size() as u64,
            tensor,
        }
    }
}

/// The reason that files can't be written.
pub(super) enum Failure {
    Value(Error),
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(e: io::Error) -> Failure {
        Failure::Io(e)
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Value(e)
    }
}

/// Writes the model, and in front of it the file of its weights if they have more bytes than `max_inline`.
pub(super) fn save(
    mut model: ModelProto,
    weights: Vec<Weight>,
    path: &Path,
    max_inline: u64,
) -> Result<(), Failure> {
    let total: u64 = weights.iter().map(|w| w.bytes).sum();
    let mut written: Vec<TensorProto> = Vec::new();
    if total > max_inline {
        let mut file_name = path.file_name().unwrap_or_default().to_os_string();
        file_name.push(".data");
        let location = file_name.to_string_lossy().into_owned();
        replace::<Failure>(&path.with_file_name(&file_name), |file| {
            let mut offset = 0;
            for weight in &weights {
                let mut t = tensor::write(&weight.name, &weight.tensor)?;
                if weight.bytes >= MIN_EXTERNAL {
                    let start = u64::next_multiple_of(offset, ALIGNMENT);
                    let gap = [0; ALIGNMENT as usize];
                    file.write_all(&gap[..(start - offset) as usize])?;
                    file.write_all(&t.raw_data.take().unwrap_or_default())?;
                    offset = start + weight.bytes;
                    let entry = |key: &str, value: String| StringStringEntryProto {
                        key: Some(key.into()),
                        value: Some(value),
                    };
                    t.external_data = vec![
                        entry("location", location.clone()),
                        entry("offset", start.to_string()),
                        entry("length", weight.bytes.to_string()),
                    ];
                    t.data_location = Some(DataLocation::External.into());
                }
                written.push(t);
            }
            Ok(())
        })?;
    } else {
        for weight in &weights {
            written.push(tensor::write(&weight.name, &weight.tensor)?);
        }
    }
    if let Some(graph) = &mut model.graph {
        written.append(&mut graph.initializer);
        graph.initializer = written;
    }
    replace::<Failure>(path, |file| Ok(file.write_all(&model.encode_to_vec())?))
}
