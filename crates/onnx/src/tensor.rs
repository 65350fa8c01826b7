//! Tensors of ONNX files.

use crate::fault::{invalid, unsupported};
use crate::packed::Packed;
use crate::proto::{
    DataLocation, DataType, SparseTensorProto, StringStringEntryProto, TensorProto,
};
use crate::scan::Span;
use crate::text::Text;
use crate::value::{Known, MAX_KNOWN, Traced, Value};
use kiln_tensor::{DType, Result, Tensor};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

/// Returns the dtype with ONNX's number.
pub(crate) fn dtype(n: i64) -> Result<DType> {
    let dtype = i32::try_from(n)
        .ok()
        .and_then(|n| DataType::try_from(n).ok());
    let own = DType::ALL.into_iter().find(|d| Some(number(*d)) == dtype);
    own.ok_or_else(|| {
        let name = dtype.map(|d| format!("{d:?}").to_uppercase());
        let name = name.as_deref().unwrap_or("a dtype that ONNX does not have");
        unsupported(format!("{name} ({n}) is not a dtype of Kiln's"))
    })
}

/// Returns the dtype of few bits with ONNX's number.
pub(crate) fn packed(n: i64) -> Option<Packed> {
    let number = i32::try_from(n)
        .ok()
        .and_then(|n| DataType::try_from(n).ok());
    number.and_then(Packed::from_number)
}

/// True if the message holds text.
pub(crate) fn is_text(t: &TensorProto) -> bool {
    t.data_type() == DataType::String as i32
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
        DType::F8E4M3 => DataType::Float8e4m3fn,
        DType::F8E5M2 => DataType::Float8e5m2,
        DType::F8E4M3FNUZ => DataType::Float8e4m3fnuz,
        DType::F8E5M2FNUZ => DataType::Float8e5m2fnuz,
    }
}

/// Returns the tensor of a message. External data lies in files of `folder`.
pub(crate) fn read(t: &TensorProto, folder: Option<&Path>) -> Result<Tensor> {
    read_unnamed(t, folder).map_err(|e| {
        let message = format!("the tensor {:?}: {}", t.name(), e.message());
        e.with_message(&message)
    })
}

/// Returns texts of what `holder` names.
pub(crate) fn texts(holder: &str, list: &[Vec<u8>]) -> Result<Vec<String>> {
    let text = |bytes: &Vec<u8>| {
        let text = String::from_utf8(bytes.clone());
        text.map_err(|_| invalid(format!("{holder} holds text that is not UTF-8")))
    };
    list.iter().map(text).collect()
}

/// Returns the tensor of a message whose bytes are still in a file.
pub(crate) fn read_stored(t: &TensorProto, file: &mut File, span: Span) -> Result<Tensor> {
    let named =
        |message: &dyn std::fmt::Display| invalid(format!("the tensor {:?}: {message}", t.name()));
    let failed = |e: std::io::Error| named(&e);
    file.seek(SeekFrom::Start(span.offset)).map_err(failed)?;
    let is_whole =
        packed(t.data_type().into()).is_none() && t.data_location() == DataLocation::Default;
    let expected = dtype(t.data_type().into()).and_then(|d| Ok((d, bytes_of(&t.dims, d)?)));
    match expected {
        Ok((dtype, bytes)) if is_whole && bytes == span.bytes => {
            Tensor::filled(dtype, &t.dims, |memory| {
                file.read_exact(memory).map_err(failed)
            })
        }
        // Numbers of few bits, and whatever is wrong.
        _ => {
            let mut raw = Vec::new();
            file.take(span.bytes)
                .read_to_end(&mut raw)
                .map_err(failed)?;
            let raw_data = Some(raw.into());
            read(
                &TensorProto {
                    raw_data,
                    ..t.clone()
                },
                None,
            )
        }
    }
}

/// Returns the text of a message.
pub(crate) fn read_text(t: &TensorProto) -> Result<Text> {
    let elements = texts(&format!("the tensor {:?}", t.name()), &t.string_data)?;
    let size = |d: &i64| {
        let size = usize::try_from(*d);
        size.map_err(|_| invalid(format!("the tensor {:?} has a negative size", t.name())))
    };
    let shape: Vec<usize> = t.dims.iter().map(size).collect::<Result<_>>()?;
    Text::new(elements, &shape)
}

/// Returns the value of a constant, on the model's device.
pub(crate) fn constant(t: &TensorProto, folder: Option<&Path>) -> Result<Value> {
    if is_text(t) {
        return Ok(read_text(t)?.into());
    }
    let (tensor, known) = read_constant(t, folder)?;
    let packed = packed(t.data_type().into());
    Ok(Value::Tensor(
        Traced::constant(tensor, known).packed_as(packed),
    ))
}

fn read_unnamed(t: &TensorProto, folder: Option<&Path>) -> Result<Tensor> {
    if let Some(packed) = packed(t.data_type().into()) {
        return read_packed(packed, t, folder);
    }
    let dtype = dtype(t.data_type().into())?;
    let bytes = bytes_of(&t.dims, dtype)?;
    if t.data_location() == DataLocation::External {
        let folder = folder.ok_or_else(|| invalid("external data needs the model's folder"))?;
        return external(dtype, &t.dims, bytes, &t.external_data, folder);
    }
    if let Some(raw) = &t.raw_data {
        if raw.len() as u64 != bytes {
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

fn read_packed(packed: Packed, t: &TensorProto, folder: Option<&Path>) -> Result<Tensor> {
    let packed_bytes = bytes_of(&t.dims, packed.storage())?;
    let count = packed_bytes as usize / packed.storage().size();
    let bytes = (count as u64)
        .saturating_mul(packed.bits() as u64)
        .div_ceil(8);
    let raw = match (&t.raw_data, t.data_location() == DataLocation::External) {
        (_, true) => {
            let folder = folder.ok_or_else(|| invalid("external data needs the model's folder"))?;
            let dims = [bytes as i64];
            external(DType::U8, &dims, bytes, &t.external_data, folder)?.to_bytes()?
        }
        (Some(raw), false) => raw.to_vec(),
        (None, false) => t.int32_data.iter().map(|n| *n as u8).collect(),
    };
    if raw.len() as u64 != bytes {
        return Err(wrong_length(bytes, raw.len()));
    }
    Ok(Tensor::from_bytes(
        &packed.unpack(&raw, count),
        packed.storage(),
        &t.dims,
    ))
}

fn wrong_length(expected: u64, actual: usize) -> kiln_tensor::Error {
    invalid(format!(
        "its shape takes {expected} bytes, and it has {actual}"
    ))
}

/// Returns the number of bytes of a tensor.
fn bytes_of(dims: &[i64], dtype: DType) -> Result<u64> {
    let bytes = dims.iter().try_fold(dtype.size() as u64, |bytes, d| {
        bytes.checked_mul(u64::try_from(*d).ok()?)
    });
    bytes.ok_or_else(|| invalid(format!("{dims:?} is not the shape of a tensor")))
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
        DType::F8E4M3 | DType::F8E5M2 | DType::F8E4M3FNUZ | DType::F8E5M2FNUZ => {
            bytes(&t.int32_data, |v| [v as u8])
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
            .map_err(|_| invalid(format!("its {key} {text:?} is not a number"))),
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
    let file_len = file.metadata().map_err(failed)?.len();
    if offset.checked_add(bytes).is_none_or(|end| end > file_len) {
        return Err(invalid(format!(
            "{bytes} bytes at {offset} are not in {location:?}, which has {file_len}"
        )));
    }
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    Tensor::filled(dtype, dims, |memory| {
        file.read_exact(memory).map_err(failed)
    })
}

/// Returns the tensor of a message, and its elements if they are few. Nothing is recorded or read from a tensor.
pub(crate) fn read_constant(
    t: &TensorProto,
    folder: Option<&Path>,
) -> Result<(Tensor, Option<Known>)> {
    let tensor = read(t, folder)?;
    let dtype = tensor.dtype();
    let is_external = t.data_location() == DataLocation::External;
    if tensor.numel()? > MAX_KNOWN || is_external {
        return Ok((tensor, None));
    }
    let shape: Vec<usize> = t.dims.iter().map(|d| *d as usize).collect();
    let known = match &t.raw_data {
        _ if packed(t.data_type().into()).is_some() => {
            Known::from_bytes(dtype, &shape, &tensor.to_bytes()?)
        }
        Some(raw) => Known::from_bytes(dtype, &shape, raw),
        None => Known::from_bytes(dtype, &shape, &typed_bytes(t, dtype)),
    };
    Ok((tensor, known))
}

/// Returns the dense tensor of a sparse one.
pub(crate) fn read_sparse(t: &SparseTensorProto) -> Result<Tensor> {
    let (Some(values), Some(indices)) = (&t.values, &t.indices) else {
        return Err(invalid("a sparse tensor has no values or no indices"));
    };
    let dtype = dtype(values.data_type().into())?;
    let (size, rank) = (dtype.size(), t.dims.len());
    let len = bytes_of(&t.dims, dtype)?;
    let inline = |t: &TensorProto, dtype| match &t.raw_data {
        Some(raw) => raw.to_vec(),
        None => typed_bytes(t, dtype),
    };
    let (values, positions) = (inline(values, dtype), inline(indices, DType::I64));
    let (positions, _) = positions.as_chunks::<8>();
    let positions: Vec<i64> = positions.iter().map(|b| i64::from_le_bytes(*b)).collect();
    let count = values.len() / size;
    let width = if positions.len() == count { 1 } else { rank };
    if positions.len() != count * width {
        return Err(invalid("the indices of a sparse tensor have a wrong shape"));
    }
    let position = |index: &[i64]| {
        let sizes = if width == 1 { &[][..] } else { &t.dims[1..] };
        let flat = match index {
            [first, rest @ ..] => rest
                .iter()
                .zip(sizes)
                .try_fold(*first, |at, (i, n)| at.checked_mul(*n)?.checked_add(*i)),
            [] => Some(0),
        };
        let start = usize::try_from(flat?).ok()?.checked_mul(size)?;
        (start + size <= usize::try_from(len).ok()?).then_some(start)
    };
    Tensor::filled(dtype, &t.dims, |memory| {
        memory.fill(0);
        for i in 0..count {
            let start = position(&positions[i * width..(i + 1) * width]);
            let start = start.ok_or_else(|| invalid("an index of a sparse tensor is outside"))?;
            memory[start..start + size].copy_from_slice(&values[i * size..(i + 1) * size]);
        }
        Ok(())
    })
}

/// Returns the message of a text.
pub(crate) fn write_text(name: &str, t: &Text) -> TensorProto {
    TensorProto {
        dims: t.shape().iter().map(|d| *d as i64).collect(),
        data_type: Some(DataType::String.into()),
        name: Some(name.to_string()),
        string_data: t
            .elements()
            .iter()
            .map(|e| e.clone().into_bytes())
            .collect(),
        ..TensorProto::default()
    }
}

/// Returns the message of a tensor, whose numbers are packed.
pub(crate) fn write_packed(name: &str, t: &Tensor, packed: Packed) -> Result<TensorProto> {
    if t.dtype() != packed.storage() {
        let (storage, actual) = (packed.storage(), t.dtype());
        return Err(invalid(format!(
            "{name:?} must be {storage} to be packed, not {actual}"
        )));
    }
    Ok(TensorProto {
        data_type: Some(packed.number().into()),
        raw_data: Some(packed.pack(&t.to_bytes()?).into()),
        ..write(name, t)?
    })
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
