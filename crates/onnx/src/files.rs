//! Files of single values, as the standard's tests have them.

use crate::data::Data;
use crate::fault::{for_caller, invalid, unsupported};
use crate::loaded::Kind;
use crate::maps::{Keys, Maps};
use crate::proto::{ContentType, DataType, MapProto, OptionalProto, SequenceProto, TensorProto};
use crate::tensor;
use kiln_tensor::{Result, Tensor, stack};
use prost::Message;

/// Reads a value of a kind from a message of a tensor, a sequence, a map or an optional.
///
/// # Errors
/// If the bytes are damaged or hold a dtype that Kiln does not have.
#[track_caller]
pub fn read_value(bytes: &[u8], kind: Kind) -> Result<Data> {
    for_caller(|| {
        let damaged =
            |e: prost::DecodeError| invalid(format!("this is not a value of kind {kind:?}: {e}"));
        match kind {
            Kind::Tensor | Kind::Packed(_) | Kind::Text => {
                read_any_tensor(&TensorProto::decode(bytes).map_err(damaged)?)
            }
            Kind::Sequence => read_sequence(&SequenceProto::decode(bytes).map_err(damaged)?),
            Kind::Optional => read_optional(&OptionalProto::decode(bytes).map_err(damaged)?),
            Kind::Map => {
                let map = MapProto::decode(bytes).map_err(damaged)?;
                read_maps(&map, std::slice::from_ref(&map))
            }
        }
    })
}

fn read_any_tensor(t: &TensorProto) -> Result<Data> {
    Ok(match tensor::is_text(t) {
        true => tensor::read_text(t)?.into(),
        false => tensor::read(t, None)?.into(),
    })
}

fn read_sequence(s: &SequenceProto) -> Result<Data> {
    if let Some(first_map) = s.map_values.first() {
        return read_maps(first_map, &s.map_values);
    }
    let tensors = s.tensor_values.iter().map(read_any_tensor);
    let sequences = s.sequence_values.iter().map(read_sequence);
    let optionals = s.optional_values.iter().map(read_optional);
    tensors
        .chain(sequences)
        .chain(optionals)
        .collect::<Result<_>>()
        .map(Data::Sequence)
}

/// Reads maps with the keys of the first.
fn read_maps(example: &MapProto, maps: &[MapProto]) -> Result<Data> {
    let same = |m: &&MapProto| (&m.keys, &m.string_keys) == (&example.keys, &example.string_keys);
    if !maps.iter().all(|m| same(&m)) {
        return Err(unsupported("maps with different keys"));
    }
    let keys = match example.string_keys.is_empty() {
        true => Keys::Integers(example.keys.as_slice().into()),
        false => Keys::Texts(tensor::texts("the keys of maps", &example.string_keys)?.into()),
    };
    let mut values = Vec::new();
    for map in maps {
        let list = map.values.as_ref().map_or(&[][..], |s| &s.tensor_values);
        if list.len() != keys.len() {
            return Err(invalid("a map has other than one value for each key"));
        }
        for t in list {
            values.push(tensor::read(t, None)?.reshape(()));
        }
    }
    let shape = [maps.len() as i64, keys.len() as i64];
    Ok(Data::Maps(Maps {
        keys,
        values: stack(values, 0).reshape(shape),
    }))
}

fn read_optional(o: &OptionalProto) -> Result<Data> {
    if let Some(t) = &o.tensor_value {
        return read_any_tensor(t);
    }
    match (&o.sequence_value, &o.optional_value) {
        (Some(s), _) => read_sequence(s),
        (None, Some(o)) => read_optional(o),
        (None, None) => Ok(Data::Nothing),
    }
}

/// Returns the message of a value of a kind.
///
/// # Errors
/// If a value can't be computed, or is not of the kind.
#[track_caller]
pub fn write_value(name: &str, value: &Data, kind: Kind) -> Result<Vec<u8>> {
    for_caller(|| match (kind, value) {
        (Kind::Optional, _) => Ok(write_optional(name, value)?.encode_to_vec()),
        (Kind::Packed(packed), Data::Tensor(t)) => {
            Ok(tensor::write_packed(name, t, packed)?.encode_to_vec())
        }
        (_, Data::Text(t)) => Ok(tensor::write_text(name, t).encode_to_vec()),
        (_, Data::Tensor(t)) => Ok(tensor::write(name, t)?.encode_to_vec()),
        (_, Data::Sequence(list)) => Ok(write_sequence(name, list)?.encode_to_vec()),
        (_, Data::Maps(maps)) => Ok(write_maps(name, maps)?.encode_to_vec()),
        (_, Data::Nothing) => Err(invalid(format!("{name:?} has no value"))),
    })
}

fn write_sequence(name: &str, list: &[Data]) -> Result<SequenceProto> {
    let mut s = SequenceProto {
        name: Some(name.to_string()),
        elem_type: Some(ContentType::Tensor.into()),
        ..SequenceProto::default()
    };
    for value in list {
        match value {
            Data::Tensor(t) => s.tensor_values.push(tensor::write("", t)?),
            Data::Text(t) => s.tensor_values.push(tensor::write_text("", t)),
            Data::Sequence(list) => {
                s.elem_type = Some(ContentType::Sequence.into());
                s.sequence_values.push(write_sequence("", list)?);
            }
            Data::Maps(maps) => {
                s.elem_type = Some(ContentType::Sequence.into());
                s.sequence_values.push(write_maps("", maps)?);
            }
            Data::Nothing => {
                s.elem_type = Some(ContentType::Optional.into());
                s.optional_values.push(OptionalProto::default());
            }
        }
    }
    Ok(s)
}

fn write_maps(name: &str, maps: &Maps) -> Result<SequenceProto> {
    let keyed = |values| match &maps.keys {
        Keys::Integers(list) => MapProto {
            key_type: Some(DataType::Int64.into()),
            keys: list.to_vec(),
            values,
            ..MapProto::default()
        },
        Keys::Texts(list) => MapProto {
            key_type: Some(DataType::String.into()),
            string_keys: list.iter().map(|k| k.clone().into_bytes()).collect(),
            values,
            ..MapProto::default()
        },
    };
    let map = |row: Tensor| {
        let values = row.unbind(0).into_iter().map(Data::Tensor);
        let values: Vec<Data> = values.collect();
        Ok(keyed(Some(write_sequence("", &values)?)))
    };
    Ok(SequenceProto {
        name: Some(name.to_string()),
        elem_type: Some(ContentType::Map.into()),
        map_values: (maps.values.unbind(0).into_iter().map(map)).collect::<Result<_>>()?,
        ..SequenceProto::default()
    })
}

fn write_optional(name: &str, value: &Data) -> Result<OptionalProto> {
    let mut o = OptionalProto {
        name: Some(name.to_string()),
        ..OptionalProto::default()
    };
    match value {
        Data::Tensor(t) => {
            o.elem_type = Some(ContentType::Tensor.into());
            o.tensor_value = Some(tensor::write("", t)?);
        }
        Data::Text(t) => {
            o.elem_type = Some(ContentType::Tensor.into());
            o.tensor_value = Some(tensor::write_text("", t));
        }
        Data::Sequence(list) => {
            o.elem_type = Some(ContentType::Sequence.into());
            o.sequence_value = Some(write_sequence("", list)?);
        }
        Data::Maps(maps) => {
            o.elem_type = Some(ContentType::Sequence.into());
            o.sequence_value = Some(write_maps("", maps)?);
        }
        Data::Nothing => {}
    }
    Ok(o)
}
