//! The values that models take and give.

use crate::fault::{for_caller, invalid};
use crate::maps::{Keys, Maps};
use crate::text::Text;
use crate::value::Value;
use kiln_tensor::{Device, Result, Tensor};
use std::sync::Arc;

/// A value that a model takes or gives.
#[derive(Clone, Debug)]
pub enum Data {
    /// A tensor.
    Tensor(Tensor),
    /// A tensor of text.
    Text(Text),
    /// A sequence.
    Sequence(Vec<Data>),
    /// A map, or a list of them.
    Maps(Maps),
    /// An optional without content.
    Nothing,
}

impl From<Tensor> for Data {
    fn from(t: Tensor) -> Data {
        Data::Tensor(t)
    }
}

impl From<Text> for Data {
    fn from(t: Text) -> Data {
        Data::Text(t)
    }
}

impl From<&Tensor> for Data {
    fn from(t: &Tensor) -> Data {
        Data::Tensor(t.clone())
    }
}

impl From<Data> for Value {
    fn from(d: Data) -> Value {
        match d {
            Data::Tensor(t) => t.into(),
            Data::Text(t) => t.into(),
            Data::Sequence(list) => Value::Sequence(list.into_iter().map(Value::from).collect()),
            Data::Maps(maps) => Value::Maps(maps),
            Data::Nothing => Value::Nothing,
        }
    }
}

impl Data {
    /// Returns the data of a value. Text that is chosen by indices is read.
    pub(crate) fn from_value(value: Value) -> Result<Data> {
        Ok(match value {
            Value::Tensor(t) => Data::Tensor(t.tensor()),
            Value::Text(t) => Data::Text(t),
            Value::Chosen(index, from) => Data::Text(Text::choose(&index, &from)?),
            Value::Maps(maps) => Data::Maps(maps),
            Value::Sequence(list) => Data::Sequence(
                list.into_iter()
                    .map(Data::from_value)
                    .collect::<Result<_>>()?,
            ),
            Value::Nothing => Data::Nothing,
        })
    }

    /// Returns the device of the first tensor in it.
    pub(crate) fn device(&self) -> Option<Device> {
        match self {
            Data::Tensor(t) => Some(t.device()),
            Data::Maps(maps) => Some(maps.values.device()),
            Data::Sequence(list) => list.iter().find_map(Data::device),
            Data::Text(_) | Data::Nothing => None,
        }
    }
}

/// The meaning of a tensor that a program gives.
#[derive(Clone)]
pub(crate) enum Form {
    Tensor,
    /// Indices of texts.
    Text(Arc<[String]>),
    /// The values of maps.
    Maps(Keys),
}

impl Form {
    /// Returns the tensor of a value and its meaning, unless the value lies on the host.
    pub fn split(value: &Value) -> Option<(Form, Tensor)> {
        match value {
            Value::Tensor(t) => Some((Form::Tensor, t.tensor())),
            Value::Chosen(index, from) => Some((Form::Text(from.clone()), index.clone())),
            Value::Maps(maps) => Some((Form::Maps(maps.keys.clone()), maps.values.clone())),
            Value::Text(_) | Value::Sequence(_) | Value::Nothing => None,
        }
    }

    /// Returns the data of a tensor.
    pub fn data(self, t: Tensor) -> Result<Data> {
        Ok(match self {
            Form::Tensor => Data::Tensor(t),
            Form::Text(from) => Data::Text(Text::choose(&t, &from)?),
            Form::Maps(keys) => Data::Maps(Maps { keys, values: t }),
        })
    }
}

/// The outputs of a model, in its order.
#[derive(Clone, Debug)]
pub struct Outputs {
    pub(crate) names: Vec<String>,
    pub(crate) values: Vec<Data>,
}

impl Outputs {
    /// Returns the tensor with a name; of a list of maps, its values.
    ///
    /// # Errors
    /// If there is no output of this name, or it is not a tensor.
    #[track_caller]
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        for_caller(|| match self.value(name)? {
            Data::Tensor(t) => Ok(t),
            Data::Maps(maps) => Ok(&maps.values),
            _ => Err(invalid(format!(
                "the output {name:?} is not a tensor; `text` and `value` give others"
            ))),
        })
    }

    /// Returns the text with a name.
    ///
    /// # Errors
    /// If there is no output of this name, or it is not text.
    #[track_caller]
    pub fn text(&self, name: &str) -> Result<&Text> {
        for_caller(|| match self.value(name)? {
            Data::Text(t) => Ok(t),
            _ => Err(invalid(format!("the output {name:?} is not text"))),
        })
    }

    /// Returns the value with a name.
    ///
    /// # Errors
    /// If there is no output of this name.
    #[track_caller]
    pub fn value(&self, name: &str) -> Result<&Data> {
        for_caller(|| {
            let mut named = self.iter().filter(|(n, _)| *n == name);
            let tensor = named.next().map(|(_, value)| value);
            tensor.ok_or_else(|| {
                let names = self.names.join(", ");
                invalid(format!("there is no output {name:?}; there are {names}"))
            })
        })
    }

    /// Returns the values with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Data)> {
        self.names.iter().map(String::as_str).zip(&self.values)
    }
}
