//! The values in checkpoints.

use crate::StateDict;
use crate::fault::Fault;
use kiln_tensor::{Error, Result, Tensor};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// The maximum number of bytes of the paths within a value, all together.
const MAX_PATHS: u64 = 1 << 26;

/// A value in a checkpoint: a tensor, a number, a text, or lists and dicts of these. Clones are cheap.
///
/// ```
/// use kiln_formats::Value;
/// use kiln_tensor::Tensor;
///
/// let checkpoint = Value::dict([
///     ("model", Value::dict([("weight", Tensor::from([1.0f32, 2.0]))])),
///     ("epoch", 7.into()),
/// ]);
/// assert_eq!(checkpoint.get("epoch")?.int()?, 7);
/// let state = checkpoint.get("model")?.state_dict()?;
/// assert_eq!(state.names().collect::<Vec<_>>(), ["weight"]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone)]
pub enum Value {
    /// Python's `None`.
    None,
    /// A bool.
    Bool(bool),
    /// An integer, as Python has them, of at most 128 bits.
    Int(i128),
    /// A float.
    Float(f64),
    /// A text. A dtype is one too, `torch.float32`, and so is a device, `cuda:0`.
    Str(Arc<str>),
    /// Bytes.
    Bytes(Arc<[u8]>),
    /// A tensor or a parameter.
    Tensor(Tensor),
    /// A list.
    List(Arc<[Value]>),
    /// A tuple; a `torch.Size` is one.
    Tuple(Arc<[Value]>),
    /// A dict or an ordered dict. No key comes twice.
    Dict(Arc<[(Value, Value)]>),
}

impl Value {
    /// A dict. Of several values under one key the last counts.
    pub fn dict<K: Into<Value>, V: Into<Value>>(
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Value {
        let mut dict = Dict::default();
        for (key, value) in entries {
            dict.insert(key.into(), value.into());
        }
        dict.finish()
    }

    /// The value of a dict under a key, or of a list or tuple at an index.
    ///
    /// # Errors
    /// If there is none; the message lists the existing keys.
    #[track_caller]
    pub fn get(&self, key: impl Into<Value>) -> Result<&Value> {
        let key = key.into();
        let value = match (self, &key) {
            (Value::Dict(entries), key) => {
                let text = key.key();
                entries.iter().find(|(k, _)| k.key() == text).map(|e| &e.1)
            }
            (Value::List(items) | Value::Tuple(items), Value::Int(i)) => {
                usize::try_from(*i).ok().and_then(|i| items.get(i))
            }
            _ => None,
        };
        value.ok_or_else(|| {
            Error::invalid("get", format!("there is no {key:?} in {}", self.outline()))
        })
    }

    /// The entries of a dict in their order; none of anything else.
    pub fn entries(&self) -> &[(Value, Value)] {
        match self {
            Value::Dict(entries) => entries,
            _ => &[],
        }
    }

    /// The integer.
    ///
    /// # Errors
    /// If it is not an integer, or does not fit 64 bits.
    #[track_caller]
    pub fn int(&self) -> Result<i64> {
        let int = match self {
            Value::Int(i) => i64::try_from(*i).ok(),
            _ => None,
        };
        int.ok_or_else(|| self.wrong_kind("integer of 64 bits"))
    }

    /// The number, a float or an integer, as a float.
    ///
    /// # Errors
    /// If it is not a number.
    #[track_caller]
    pub fn float(&self) -> Result<f64> {
        match self {
            Value::Float(x) => Ok(*x),
            Value::Int(i) => Ok(*i as f64),
            _ => Err(self.wrong_kind("number")),
        }
    }

    /// The bool.
    ///
    /// # Errors
    /// If it is not a bool.
    #[track_caller]
    pub fn bool(&self) -> Result<bool> {
        match self {
            Value::Bool(b) => Ok(*b),
            _ => Err(self.wrong_kind("bool")),
        }
    }

    /// The text.
    ///
    /// # Errors
    /// If it is not text.
    #[track_caller]
    pub fn str(&self) -> Result<&str> {
        match self {
            Value::Str(text) => Ok(text),
            _ => Err(self.wrong_kind("text")),
        }
    }

    /// The elements of a list or tuple.
    ///
    /// # Errors
    /// If it is not a list or tuple.
    #[track_caller]
    pub fn list(&self) -> Result<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) => Ok(items),
            _ => Err(self.wrong_kind("list")),
        }
    }

    /// The tensor.
    ///
    /// # Errors
    /// If it is not a tensor.
    #[track_caller]
    pub fn tensor(&self) -> Result<&Tensor> {
        match self {
            Value::Tensor(t) => Ok(t),
            _ => Err(self.wrong_kind("tensor")),
        }
    }

    /// The tensors of a dict by name, in order, as `state_dict()` returned them. A module's `_extra_state` is left
    /// out if it is not a tensor.
    ///
    /// # Errors
    /// If it is not a dict of tensors. The message lists the dicts within it.
    #[track_caller]
    pub fn state_dict(&self) -> Result<StateDict> {
        let Value::Dict(entries) = self else {
            return Err(self.wrong_kind("dict of tensors"));
        };
        let mut state = Vec::new();
        for (key, value) in entries.iter() {
            match (key, value) {
                (Value::Str(name), Value::Tensor(t)) => state.push((name.to_string(), t.clone())),
                (Value::Str(name), _) if name.ends_with("_extra_state") => {}
                _ => {
                    let dicts = entries.iter().filter(|(_, v)| matches!(v, Value::Dict(_)));
                    let dicts: Vec<&Value> = dicts.map(|(k, _)| k).collect();
                    let hint = match &dicts[..] {
                        [] => String::new(),
                        [first, ..] => {
                            format!(
                                "; take one of {dicts:?}, as by `.get({first:?})?.state_dict()?`"
                            )
                        }
                    };
                    let message = format!(
                        "{key:?} is {}, so this is not a dict of tensors{hint}",
                        value.outline()
                    );
                    return Err(Error::invalid("state_dict", message));
                }
            }
        }
        Ok(state.into_iter().collect())
    }

    /// All tensors within, each under its path with dots: `optimizer.state.0.exp_avg`.
    ///
    /// # Errors
    /// If two tensors have one path, or the paths take far more memory than those of any checkpoint, as they do where
    /// many tensors lie under one long key.
    #[track_caller]
    pub fn tensors(&self) -> Result<StateDict> {
        let loc = Location::caller();
        let (mut tensors, mut path) = (Vec::new(), String::new());
        let collected = self.collect(&mut path, &mut tensors, &mut 0);
        collected.map_err(|e| Fault::from(e).at("tensors", loc))?;
        let count = tensors.len();
        let state: StateDict = tensors.into_iter().collect();
        match state.len() == count {
            true => Ok(state),
            false => {
                let message = "two tensors have the same path, such as those of the keys 0 and '0'";
                Err(Fault::from(message.to_string()).at("tensors", loc))
            }
        }
    }

    fn collect(
        &self,
        path: &mut String,
        tensors: &mut Vec<(String, Tensor)>,
        bytes: &mut u64,
    ) -> Result<(), String> {
        let prefix = path.len();
        let mut visit = |name: String, value: &Value| {
            let dot = if prefix == 0 { "" } else { "." };
            path.push_str(dot);
            path.push_str(&name);
            *bytes += path.len() as u64;
            if *bytes > MAX_PATHS {
                return Err(format!(
                    "the paths within it take more than {MAX_PATHS} bytes"
                ));
            }
            let collected = value.collect(path, tensors, bytes);
            path.truncate(prefix);
            collected
        };
        match self {
            Value::Tensor(t) => {
                tensors.push((path.clone(), t.clone()));
                Ok(())
            }
            Value::List(list) | Value::Tuple(list) => {
                let mut list = list.iter().enumerate();
                list.try_for_each(|(i, value)| visit(i.to_string(), value))
            }
            Value::Dict(entries) => {
                let mut entries = entries.iter();
                entries.try_for_each(|(key, value)| visit(key.name(), value))
            }
            _ => Ok(()),
        }
    }

    /// A key as a part of a path.
    pub(crate) fn name(&self) -> String {
        match self {
            Value::Str(text) => text.to_string(),
            other => format!("{other:?}"),
        }
    }

    /// Returns a text, equal exactly for equal keys.
    pub(crate) fn key(&self) -> String {
        format!("{self:?}")
    }

    /// A description in a few words.
    pub(crate) fn outline(&self) -> String {
        match self {
            Value::Dict(entries) => {
                const SHOWN: usize = 20;
                let short = |key: String| key.chars().take(200).collect::<String>();
                let keys = entries.iter().take(SHOWN);
                let mut keys: Vec<String> = keys.map(|(k, _)| short(k.key())).collect();
                if entries.len() > SHOWN {
                    keys.push(format!("and {} more", entries.len() - SHOWN));
                }
                format!("a dict of {}", keys.join(", "))
            }
            Value::List(items) => format!("a list of {}", items.len()),
            Value::Tuple(items) => format!("a tuple of {}", items.len()),
            Value::Tensor(_) => format!("a tensor, {self:?}"),
            other => format!("{other:?}"),
        }
    }

    #[track_caller]
    fn wrong_kind(&self, what: &str) -> Error {
        Error::invalid("load", format!("this is no {what} but {}", self.outline()))
    }
}

/// A dict under construction.
#[derive(Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    positions: std::collections::HashMap<String, usize>,
}

impl Dict {
    /// A later value replaces that of an equal key, which keeps its place, as in Python.
    pub(crate) fn insert(&mut self, key: Value, value: Value) {
        let next = self.entries.len();
        match *self.positions.entry(key.key()).or_insert(next) {
            at if at < next => self.entries[at].1 = value,
            _ => self.entries.push((key, value)),
        }
    }

    pub(crate) fn finish(self) -> Value {
        Value::Dict(self.entries.into())
    }
}

/// Prints values as Python does, tensors by dtype and shape.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("None"),
            Value::Bool(true) => f.write_str("True"),
            Value::Bool(false) => f.write_str("False"),
            Value::Int(i) => write!(f, "{i}"),
            Value::Float(x) => write!(f, "{x:?}"),
            Value::Str(text) => write!(f, "{text:?}"),
            Value::Bytes(bytes) => write!(f, "b\"{}\"", bytes.escape_ascii()),
            Value::Tensor(t) => write!(f, "{}{:?}", t.dtype(), t.shape().unwrap_or_default()),
            Value::List(all) => f.debug_list().entries(all.iter()).finish(),
            Value::Tuple(all) => {
                let mut tuple = f.debug_tuple("");
                all.iter().for_each(|v| {
                    tuple.field(v);
                });
                tuple.finish()
            }
            Value::Dict(entries) => f
                .debug_map()
                .entries(entries.iter().map(|(k, v)| (k, v)))
                .finish(),
        }
    }
}

macro_rules! from {
    ($($ty:ty, $x:ident => $value:expr;)*) => {$(
        impl From<$ty> for Value {
            fn from($x: $ty) -> Value {
                $value
            }
        }
    )*};
}

from! {
    bool, x => Value::Bool(x);
    i32, x => Value::Int(x.into());
    i64, x => Value::Int(x.into());
    u64, x => Value::Int(x.into());
    usize, x => Value::Int(x as i128);
    f32, x => Value::Float(x.into());
    f64, x => Value::Float(x);
    &str, x => Value::Str(x.into());
    String, x => Value::Str(x.into());
    &String, x => Value::Str(x.as_str().into());
    Tensor, x => Value::Tensor(x);
    &Tensor, x => Value::Tensor(x.clone());
    &StateDict, x => Value::dict(x.iter());
    StateDict, x => Value::dict(x);
    &Value, x => x.clone();
}

impl<V: Into<Value>> From<Vec<V>> for Value {
    fn from(values: Vec<V>) -> Value {
        Value::List(values.into_iter().map(V::into).collect())
    }
}

impl<V: Into<Value>> From<Option<V>> for Value {
    fn from(value: Option<V>) -> Value {
        value.map_or(Value::None, V::into)
    }
}
