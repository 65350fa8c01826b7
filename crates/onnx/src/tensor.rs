//! Tensors of ONNX files.

use crate::fault::{invalid, unsupported};
use crate::proto::tensor_proto::{DataLocation, DataType};
use crate::proto::{SparseTensorProto, StringStringEntryProto, TensorProto};
use kiln_tensor::{DType, Result, Tensor};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

/// Returns the dtype with ONNX's number.
pub(crate) fn dtype(number: i64) -> Result<DType> {
    let found = i32::try_from(number)
        .ok()
        .and_then(|n| DataType::try_from(n).ok());
    let name = found.map_or("a dtype that ONNX does not have", |d| d.as_str_name());
    Ok(match found {
        Some(DataType::Float) => DType::F32,
        Some(DataType::Uint8) => DType::U8,
        Some(DataType::Int8) => DType::I8,
        Some(DataType::Uint16) => DType::U16,
        Some(DataType::Int16) => DType::I16,
        Some(DataType::Int32) => DType::I32,
        Some(DataType::Int64) => DType::I64,
        Some(DataType::Bool) => DType::Bool,
        Some(DataType::Float16) => DType::F16,
        Some(DataType::Double) => DType::F64,
        Some(DataType::Uint32) => DType::U32,
        Some(DataType::Uint64) => DType::U64,
        Some(DataType::Bfloat16) => DType::BF16,
        _ => {
            return Err(unsupported(format!(
                "{name} ({number}) is no dtype of Kiln's"
            )));
        }
    })
}

/// Returns ONNX's number of a dtype.
pub(crate) fn number(dtype: DType) -> DataType {
    match dtype {
        DType::Bool => DataType::Bool,
        DType::U8 => DataType::Uint8,
        DType::I8 => DataType::Int8,
        DType::I16 => DataType::Int16,
        DType::I32 => DataType::Int32,
        DType::I64 => DataType::Int64,
        DType::U16 => DataType::Uint16,
        DType::U32 => DataType::Uint32,
        DType::U64 => DataType::Uint64,
        DType::F16 => DataType::Float16,
        DType::BF16 => DataType::Bfloat16,
        DType::F32 => DataType::Float,
        DType::F64 => DataType::Double,
    }
}

/// Returns the tensor of a message. External data lies in files of `folder`.
pub(crate) fn read(t: &TensorProto, folder: Option<&Path>) -> Result<Tensor> {
    read_unnamed(t, folder).map_err(|e| {
        let message = format!("the tensor {:?}: {}", t.name(), e.message());
        e.with_message(&message)
    })
}

fn read_unnamed(t: &TensorProto, folder: Option<&Path>) -> Result<Tensor> {
    let dtype = dtype(t.data_type().into())?;
    let bytes = bytes_of(&t.dims, dtype)?;
    if t.data_location() == DataLocation::External {
        let folder = folder.ok_or_else(|| invalid("external data needs the model's folder"))?;
        return external(dtype, &t.dims, bytes, &t.external_data, folder);
    }
    if let Some(raw) = &t.raw_data {
        let fits = raw.len() as u64 == bytes;
        if !fits {
            return Err(wrong_length(bytes, raw.len()));
        }
        return Ok(Tensor::from_bytes(raw, dtype, &t.dims));
    }
    let raw = typed_bytes(t, dtype);
    if raw.len() as u64 != bytes {
        return Err(wrong_length(bytes, raw.len()));
    }
    Ok(Tensor::from_bytes(&raw, dtype, &t.dims))
}

fn wrong_length(wanted: u64, found: usize) -> kiln_tensor::Error {
    invalid(format!(
        "its shape takes {wanted} bytes, and it has {found}"
    ))
}

/// Returns the number of bytes of a tensor.
fn bytes_of(dims: &[i64], dtype: DType) -> Result<u64> {
    let bytes = dims.iter().try_fold(dtype.size() as u64, |bytes, d| {
        bytes.checked_mul(u64::try_from(*d).ok()?)
    });
    bytes.ok_or_else(|| invalid(format!("{dims:?} is no shape of a tensor")))
}

/// Returns the little-endian bytes of elements in a field for their type.
fn typed_bytes(t: &TensorProto, dtype: DType) -> Vec<u8> {
    fn bytes<T: Copy, const N: usize>(list: &[T], to: impl Fn(T) -> [u8; N]) -> Vec<u8> {
        list.iter().flat_map(|v| to(*v)).collect()
    }
    match dtype {
        DType::F32 => bytes(&t.float_data, f32::to_le_bytes),
        DType::F64 => bytes(&t.double_data, f64::to_le_bytes),
        DType::I64 => bytes(&t.int64_data, i64::to_le_bytes),
        DType::I32 => bytes(&t.int32_data, i32::to_le_bytes),
        DType::U64 => bytes(&t.uint64_data, u64::to_le_bytes),
        DType::U32 => bytes(&t.uint64_data, |v| (v as u32).to_le_bytes()),
        DType::Bool => bytes(&t.int32_data, |v| [u8::from(v != 0)]),
        DType::U8 | DType::I8 => bytes(&t.int32_data, |v| [v as u8]),
        DType::I16 | DType::U16 | DType::F16 | DType::BF16 => {
            bytes(&t.int32_data, |v| (v as u16).to_le_bytes())
        }
    }
}

/// Reads elements from a file beside the model.
fn external(
    dtype: DType,
    dims: &[i64],
    bytes: u64,
    entries: &[StringStringEntryProto],
    folder: &Path,
) -> Result<Tensor> {
    let entry = |key: &str| entries.iter().find(|e| e.key() == key).map(|e| e.value());
    let number = |key: &str| match entry(key) {
        Some(text) => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_| invalid(format!("its {key} {text:?} is no number"))),
        None => Ok(None),
    };
    let location = entry("location").ok_or_else(|| invalid("its external data has no location"))?;
    let inside = Path::new(location)
        .components()
        .all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if !inside {
        return Err(invalid(format!(
            "its external data {location:?} is outside of the model's folder"
        )));
    }
    if let Some(length) = number("length")?
        && length != bytes
    {
        return Err(wrong_length(
            bytes,
            usize::try_from(length).unwrap_or(usize::MAX),
        ));
    }
    let path = folder.join(location);
    let failed = |e: std::io::Error| invalid(format!("{}: {e}", path.display()));
    let canonical = path.canonicalize().map_err(failed)?;
    if !canonical.starts_with(folder.canonicalize().map_err(failed)?) {
        return Err(invalid(format!(
            "its external data {location:?} is outside of the model's folder"
        )));
    }
    let mut file = File::open(canonical).map_err(failed)?;
    let offset = number("offset")?.unwrap_or(0);
    let held = file.metadata().map_err(failed)?.len();
    if offset.checked_add(bytes).is_none_or(|end| end > held) {
        return Err(invalid(format!(
            "{bytes} bytes at {offset} are not in {location:?}, which has {held}"
        )));
    }
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    Tensor::filled(dtype, dims, |memory| {
        file.read_exact(memory).map_err(failed)
    })
}

/// Returns the dense tensor of a sparse one.
pub(crate) fn read_sparse(t: &SparseTensorProto, folder: Option<&Path>) -> Result<Tensor> {
    let (Some(values), Some(indices)) = (&t.values, &t.indices) else {
        return Err(invalid("a sparse tensor has no values or no indices"));
    };
    let values = read(values, folder)?;
    let indices = read(indices, folder)?.to_dtype(DType::I64);
    bytes_of(&t.dims, values.dtype())?;
    let flat = match indices.ndim() {
        1 => indices,
        2 if indices.shape()?[1] == t.dims.len() => {
            let mut strides = vec![1i64; t.dims.len()];
            for i in (1..t.dims.len()).rev() {
                strides[i - 1] = strides[i] * t.dims[i];
            }
            (indices * Tensor::from_slice(&strides, strides.len())).sum(1)
        }
        _ => return Err(invalid("the indices of a sparse tensor have a wrong shape")),
    };
    let count: i64 = t.dims.iter().product();
    let dense = Tensor::zeros(count, values.dtype()).index_put((flat,), values);
    Ok(dense.reshape(&t.dims).realize()?.clone())
}

/// Returns the message of a tensor.
pub(crate) fn write(name: &str, t: &Tensor) -> Result<TensorProto> {
    Ok(TensorProto {
        dims: t.shape()?.iter().map(|d| *d as i64).collect(),
        data_type: Some(number(t.dtype()).into()),
        name: Some(name.to_string()),
        raw_data: Some(t.to_bytes()?.into()),
        ..TensorProto::default()
    })
}
