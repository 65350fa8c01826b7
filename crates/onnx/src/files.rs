//! Files of single values, as the standard's tests have them.

use crate::fault::{for_caller, invalid};
use crate::loaded::Kind;
use crate::model::Data;
use crate::proto::{OptionalProto, SequenceProto, TensorProto, optional_proto, sequence_proto};
use crate::tensor;
use kiln_tensor::Result;
use prost::Message;

/// Reads a value of a kind from a message of a tensor, a sequence or an optional.
///
/// # Errors
/// If the bytes are damaged or hold a dtype that Kiln does not have.
#[track_caller]
pub fn read_value(bytes: &[u8], kind: Kind) -> Result<Data> {
    for_caller(|| {
        let damaged = |e: prost::DecodeError| invalid(format!("this is no {kind:?}: {e}"));
        match kind {
            Kind::Tensor | Kind::Packed(_) | Kind::Text => {
                any_tensor(&TensorProto::decode(bytes).map_err(damaged)?)
            }
            Kind::Sequence => sequence(&SequenceProto::decode(bytes).map_err(damaged)?),
            Kind::Optional => optional(&OptionalProto::decode(bytes).map_err(damaged)?),
        }
    })
}

fn any_tensor(t: &TensorProto) -> Result<Data> {
    Ok(match tensor::is_text(t) {
        true => tensor::read_text(t)?.into(),
        false => tensor::read(t, None)?.into(),
    })
}

fn sequence(s: &SequenceProto) -> Result<Data> {
    let tensors = s.tensor_values.iter().map(any_tensor);
    let sequences = s.sequence_values.iter().map(sequence);
    let optionals = s.optional_values.iter().map(optional);
    tensors
        .chain(sequences)
        .chain(optionals)
        .collect::<Result<_>>()
        .map(Data::Sequence)
}

fn optional(o: &OptionalProto) -> Result<Data> {
    if let Some(t) = &o.tensor_value {
        return any_tensor(t);
    }
    match (&o.sequence_value, &o.optional_value) {
        (Some(s), _) => sequence(s),
        (None, Some(o)) => optional(o),
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
        (Kind::Optional, _) => Ok(to_optional(name, value)?.encode_to_vec()),
        (Kind::Packed(packed), Data::Tensor(t)) => {
            Ok(tensor::write_packed(name, t, packed)?.encode_to_vec())
        }
        (_, Data::Text(t)) => Ok(tensor::write_text(name, t).encode_to_vec()),
        (_, Data::Tensor(t)) => Ok(tensor::write(name, t)?.encode_to_vec()),
        (_, Data::Sequence(list)) => Ok(to_sequence(name, list)?.encode_to_vec()),
        (_, Data::Nothing) => Err(invalid(format!("{name:?} has no value"))),
    })
}

fn to_sequence(name: &str, list: &[Data]) -> Result<SequenceProto> {
    let mut s = SequenceProto {
        name: Some(name.to_string()),
        elem_type: Some(sequence_proto::DataType::Tensor.into()),
        ..SequenceProto::default()
    };
    for value in list {
        match value {
            Data::Tensor(t) => s.tensor_values.push(tensor::write("", t)?),
            Data::Text(t) => s.tensor_values.push(tensor::write_text("", t)),
            Data::Sequence(list) => {
                s.elem_type = Some(sequence_proto::DataType::Sequence.into());
                s.sequence_values.push(to_sequence("", list)?);
            }
            Data::Nothing => {
                s.elem_type = Some(sequence_proto::DataType::Optional.into());
                s.optional_values.push(OptionalProto::default());
            }
        }
    }
    Ok(s)
}

fn to_optional(name: &str, value: &Data) -> Result<OptionalProto> {
    let mut o = OptionalProto {
        name: Some(name.to_string()),
        ..OptionalProto::default()
    };
    match value {
        Data::Tensor(t) => {
            o.elem_type = Some(optional_proto::DataType::Tensor.into());
            o.tensor_value = Some(tensor::write("", t)?);
        }
        Data::Text(t) => {
            o.elem_type = Some(optional_proto::DataType::Tensor.into());
            o.tensor_value = Some(tensor::write_text("", t));
        }
        Data::Sequence(list) => {
            o.elem_type = Some(optional_proto::DataType::Sequence.into());
            o.sequence_value = Some(to_sequence("", list)?);
        }
        Data::Nothing => {}
    }
    Ok(o)
}
