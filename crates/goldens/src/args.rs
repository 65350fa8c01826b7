//! The arguments of a case, by position or name.

use crate::engine::Array;
use kiln_tensor::{DType, Device, Other, Scalar, Tensor};
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The reason for a case without outputs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Failure {
    /// No handler knows the operator.
    Unknown,
    /// The operator, or this form of the call, is not supported.
    Unsupported(String),
    /// The call is wrong.
    Rejected(String),
}

pub(crate) type Parsed<T> = Result<T, Failure>;

/// An argument.
#[derive(Clone)]
pub enum Arg {
    /// A tensor of the case.
    Tensor(String, Tensor, Array),
    /// Python's `None`.
    None,
    /// A number or truth value.
    Number(Scalar),
    /// A text.
    Text(String),
    /// A list or tuple.
    List(Vec<Arg>),
    /// Python's `slice(start, stop, step)`.
    Slice([Option<i64>; 3]),
    /// Python's `...`.
    Ellipsis,
    /// A dtype.
    DType(DType),
    /// A value that has no counterpart in Kiln.
    Other(String),
}

impl Arg {
    /// Reads an argument; see the contract of the goldens.
    /// `leaves` are the tensors that need gradients.
    pub(crate) fn parse(
        v: &Value,
        tensors: &BTreeMap<String, Array>,
        leaves: &BTreeMap<String, Tensor>,
    ) -> Result<Arg, String> {
        let list = |items: &Vec<Value>| -> Result<Arg, String> {
            let items = items.iter().map(|i| Arg::parse(i, tensors, leaves));
            Ok(Arg::List(items.collect::<Result<_, _>>()?))
        };
        Ok(match v {
            Value::Null => Arg::None,
            Value::Bool(b) => Arg::Number(Scalar::Bool(*b)),
            Value::Number(n) => match n.as_i64() {
                Some(i) => Arg::Number(Scalar::Int(i)),
                None => Arg::Number(Scalar::Float(n.as_f64().unwrap_or(f64::NAN))),
            },
            Value::String(s) => Arg::Text(s.clone()),
            Value::Array(items) => list(items)?,
            Value::Object(o) => {
                let (key, value) = o.iter().next().ok_or("an empty object")?;
                match (key.as_str(), value) {
                    ("t", Value::String(name)) => {
                        let array = tensors
                            .get(name)
                            .ok_or(format!("there is no tensor {name}"))?;
                        let leaf = leaves.get(name).cloned();
                        let tensor = leaf.unwrap_or_else(|| array.tensor());
                        Arg::Tensor(name.clone(), tensor, array.clone())
                    }
                    ("tuple", Value::Array(items)) => list(items)?,
                    ("slice", Value::Array(parts)) => {
                        let component = |i: usize| parts.get(i).and_then(Value::as_i64);
                        Arg::Slice([component(0), component(1), component(2)])
                    }
                    ("ellipsis", _) => Arg::Ellipsis,
                    ("dtype", Value::String(name)) => match dtype(name) {
                        Some(d) => Arg::DType(d),
                        None => Arg::Other(format!("the dtype {name}")),
                    },
                    ("f", Value::String(name)) => Arg::Number(Scalar::Float(match name.as_str() {
                        "inf" => f64::INFINITY,
                        "-inf" => f64::NEG_INFINITY,
                        _ => f64::NAN,
                    })),
                    _ => Arg::Other(format!("{v}")),
                }
            }
        })
    }

    fn in_f64(&mut self) {
        match self {
            Arg::Tensor(_, t, array) => {
                *array = array.in_f64();
                *t = array.tensor();
            }
            Arg::List(items) => items.iter_mut().for_each(Arg::in_f64),
            _ => {}
        }
    }

    fn move_to(&mut self, device: Device, leaves: &BTreeMap<String, Tensor>) {
        match self {
            Arg::Tensor(name, t, _) => {
                *t = leaves.get(name).map_or_else(|| t.to(device), Tensor::clone);
            }
            Arg::List(items) => items.iter_mut().for_each(|i| i.move_to(device, leaves)),
            _ => {}
        }
    }

    /// Collects the names of the tensors in it.
    fn names<'a>(&'a self, out: &mut BTreeSet<&'a str>) {
        match self {
            Arg::Tensor(name, ..) => {
                out.insert(name);
            }
            Arg::List(items) => items.iter().for_each(|i| i.names(out)),
            _ => {}
        }
    }

    fn describe(&self) -> String {
        match self {
            Arg::Tensor(name, t, _) => format!("the tensor {name} of {}", t.dtype()),
            Arg::None => "None".into(),
            Arg::Number(n) => n.to_string(),
            Arg::Text(s) => format!("{s:?}"),
            Arg::List(l) => format!("a list of {}", l.len()),
            Arg::Slice(_) => "a slice".into(),
            Arg::Ellipsis => "...".into(),
            Arg::DType(d) => format!("the dtype {d}"),
            Arg::Other(o) => o.clone(),
        }
    }

    /// An integer, also from a tensor of one element.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Arg::Number(Scalar::Int(i)) => Some(*i),
            Arg::Number(Scalar::Bool(b)) => Some(*b as i64),
            Arg::Tensor(_, t, array) if t.dtype().is_int() => match array.to_i64()[..] {
                [i] => Some(i),
                _ => None,
            },
            _ => None,
        }
    }

    /// One or several integers, also from a tensor.
    pub(crate) fn ints(&self) -> Option<Vec<i64>> {
        match self {
            Arg::List(l) => l.iter().map(Arg::int).collect(),
            Arg::Tensor(_, t, array) if t.dtype().is_int() => Some(array.to_i64()),
            one => Some(vec![one.int()?]),
        }
    }
}

fn dtype(name: &str) -> Option<DType> {
    Some(match name {
        "bool" => DType::Bool,
        "uint8" => DType::U8,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" => DType::I32,
        "int64" => DType::I64,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" => DType::F32,
        "float64" => DType::F64,
        _ => return None,
    })
}

/// A tensor or a number.
pub(crate) enum Operand {
    Tensor(Tensor),
    Number(Scalar),
}

impl<'a> From<&'a Operand> for Other<'a> {
    fn from(o: &'a Operand) -> Other<'a> {
        match o {
            Operand::Tensor(t) => Other::from(t),
            Operand::Number(n) => Other::Number(*n),
        }
    }
}

/// The arguments of a call. It records which are read, so that an argument that no handler reads is noticed.
pub struct Args {
    positional: Vec<Arg>,
    keywords: BTreeMap<String, Arg>,
    used: RefCell<BTreeSet<String>>,
}

/// Arguments that do not affect the values.
const IGNORED: &[&str] = &[
    "requires_grad",
    "device",
    "layout",
    "pin_memory",
    "memory_format",
];

impl Args {
    pub(crate) fn new(positional: Vec<Arg>, keywords: BTreeMap<String, Arg>) -> Args {
        Args {
            positional,
            keywords,
            used: RefCell::default(),
        }
    }

    /// Makes every float tensor f64.
    pub(crate) fn in_f64(&mut self) {
        for arg in self.positional.iter_mut().chain(self.keywords.values_mut()) {
            arg.in_f64();
        }
    }

    /// Moves every tensor, but takes these leaves for those of their names.
    pub(crate) fn move_to(&mut self, device: Device, leaves: &BTreeMap<String, Tensor>) {
        for arg in self.positional.iter_mut().chain(self.keywords.values_mut()) {
            arg.move_to(device, leaves);
        }
    }

    /// The argument at a position or with a name.
    pub(crate) fn get(&self, position: usize, name: &str) -> Option<&Arg> {
        if let Some(a) = self.positional.get(position) {
            self.used.borrow_mut().insert(position.to_string());
            return Some(a);
        }
        self.used.borrow_mut().insert(name.to_string());
        self.keywords.get(name)
    }

    /// An argument that has a name only.
    pub(crate) fn keyword(&self, name: &str) -> Option<&Arg> {
        self.get(usize::MAX, name)
    }

    /// The number of arguments given by position.
    pub(crate) fn positions(&self) -> usize {
        self.positional.len()
    }

    /// An argument that was not read.
    pub(crate) fn unused(&self) -> Option<String> {
        let used = self.used.borrow();
        let position = (0..self.positional.len()).find(|i| !used.contains(&i.to_string()));
        let keyword = self.keywords.iter().find(|(k, a)| {
            !used.contains(*k) && !IGNORED.contains(&k.as_str()) && !matches!(a, Arg::None)
        });
        position
            .map(|i| format!("argument {i}"))
            .or(keyword.map(|(k, a)| format!("{k} = {}", a.describe())))
    }

    /// True if the call asks for its output in one of its inputs, which Kiln can't write.
    pub(crate) fn writes_input(&self) -> bool {
        let mut inputs = BTreeSet::new();
        self.positional.iter().for_each(|a| a.names(&mut inputs));
        let mut outputs = BTreeSet::new();
        self.keywords.get("out").inspect(|a| a.names(&mut outputs));
        !inputs.is_disjoint(&outputs)
    }

    fn typed<T>(
        &self,
        position: usize,
        name: &str,
        what: &str,
        f: impl FnOnce(&Arg) -> Option<T>,
    ) -> Parsed<Option<T>> {
        match self.get(position, name) {
            None | Some(Arg::None) => Ok(None),
            Some(a) => match f(a) {
                Some(v) => Ok(Some(v)),
                None => Err(Failure::Unsupported(format!(
                    "{name} is {}, not {what}",
                    a.describe()
                ))),
            },
        }
    }

    pub(crate) fn opt_tensor(&self, position: usize, name: &str) -> Parsed<Option<Tensor>> {
        self.typed(position, name, "a tensor", |a| match a {
            Arg::Tensor(_, t, _) => Some(t.clone()),
            _ => None,
        })
    }

    pub(crate) fn tensor(&self, position: usize, name: &str) -> Parsed<Tensor> {
        required(name, self.opt_tensor(position, name)?)
    }

    /// The name of a tensor argument in the case's file.
    pub(crate) fn tensor_name(&self, position: usize, name: &str) -> Option<&str> {
        match self.get(position, name) {
            Some(Arg::Tensor(n, ..)) => Some(n),
            _ => None,
        }
    }

    /// The first argument, which most operators work on.
    pub(crate) fn input(&self) -> Parsed<Tensor> {
        self.tensor(0, "input")
    }

    pub(crate) fn tensors(&self, position: usize, name: &str) -> Parsed<Vec<Tensor>> {
        let tensor = |a: &Arg| match a {
            Arg::Tensor(_, t, _) => Some(t.clone()),
            _ => None,
        };
        let list = self.typed(position, name, "a list of tensors", |a| match a {
            Arg::List(l) => l.iter().map(tensor).collect::<Option<Vec<_>>>(),
            _ => None,
        })?;
        required(name, list)
    }

    /// Tensors from a position on, or a list of them at that position.
    pub(crate) fn rest_tensors(&self, position: usize, name: &str) -> Parsed<Vec<Tensor>> {
        match self.get(position, name) {
            Some(Arg::List(_)) => self.tensors(position, name),
            _ => (position..self.positions())
                .map(|i| self.tensor(i, name))
                .collect(),
        }
    }

    pub(crate) fn opt_int(&self, position: usize, name: &str) -> Parsed<Option<i64>> {
        self.typed(position, name, "a whole number", Arg::int)
    }

    pub(crate) fn int(&self, position: usize, name: &str) -> Parsed<i64> {
        required(name, self.opt_int(position, name)?)
    }

    pub(crate) fn int_or(&self, position: usize, name: &str, default: i64) -> Parsed<i64> {
        Ok(self.opt_int(position, name)?.unwrap_or(default))
    }

    pub(crate) fn opt_ints(&self, position: usize, name: &str) -> Parsed<Option<Vec<i64>>> {
        self.typed(position, name, "a list of whole numbers", Arg::ints)
    }

    pub(crate) fn ints(&self, position: usize, name: &str) -> Parsed<Vec<i64>> {
        required(name, self.opt_ints(position, name)?)
    }

    pub(crate) fn ints_or(&self, position: usize, name: &str, default: &[i64]) -> Parsed<Vec<i64>> {
        Ok(self.opt_ints(position, name)?.unwrap_or(default.to_vec()))
    }

    /// Integers from a position on, or a list of them at that position.
    pub(crate) fn rest_ints(&self, position: usize, name: &str) -> Parsed<Vec<i64>> {
        let mut out = self.ints(position, name)?;
        for i in position + 1..self.positions() {
            out.push(self.int(i, name)?);
        }
        Ok(out)
    }

    pub(crate) fn opt_number(&self, position: usize, name: &str) -> Parsed<Option<Scalar>> {
        self.typed(position, name, "a number", |a| match a {
            Arg::Number(n) => Some(*n),
            Arg::Tensor(_, t, array) if array.shape.is_empty() => Some(match t.dtype() {
                d if d.is_float() => Scalar::Float(array.to_f64()[0]),
                DType::Bool => Scalar::Bool(array.to_i64()[0] != 0),
                _ => Scalar::Int(array.to_i64()[0]),
            }),
            _ => None,
        })
    }

    pub(crate) fn number(&self, position: usize, name: &str) -> Parsed<Scalar> {
        required(name, self.opt_number(position, name)?)
    }

    pub(crate) fn number_or(
        &self,
        position: usize,
        name: &str,
        default: impl Into<Scalar>,
    ) -> Parsed<Scalar> {
        Ok(self.opt_number(position, name)?.unwrap_or(default.into()))
    }

    pub(crate) fn opt_float(&self, position: usize, name: &str) -> Parsed<Option<f64>> {
        Ok(self.opt_number(position, name)?.map(Scalar::as_f64))
    }

    pub(crate) fn float_or(&self, position: usize, name: &str, default: f64) -> Parsed<f64> {
        Ok(self.opt_float(position, name)?.unwrap_or(default))
    }

    pub(crate) fn bool_or(&self, position: usize, name: &str, default: bool) -> Parsed<bool> {
        let b = self.typed(position, name, "a truth value", |a| match a {
            Arg::Number(n) => Some(n.as_bool()),
            _ => None,
        })?;
        Ok(b.unwrap_or(default))
    }

    pub(crate) fn opt_text(&self, position: usize, name: &str) -> Parsed<Option<String>> {
        self.typed(position, name, "a text", |a| match a {
            Arg::Text(s) => Some(s.clone()),
            _ => None,
        })
    }

    pub(crate) fn dtype(&self, name: &str) -> Parsed<Option<DType>> {
        self.typed(usize::MAX, name, "a dtype", |a| match a {
            Arg::DType(d) => Some(*d),
            _ => None,
        })
    }

    pub(crate) fn opt_operand(&self, position: usize, name: &str) -> Parsed<Option<Operand>> {
        self.typed(position, name, "a tensor or number", |a| match a {
            Arg::Tensor(_, t, _) => Some(Operand::Tensor(t.clone())),
            Arg::Number(n) => Some(Operand::Number(*n)),
            _ => None,
        })
    }

    pub(crate) fn operand(&self, position: usize, name: &str) -> Parsed<Operand> {
        required(name, self.opt_operand(position, name)?)
    }
}

fn required<T>(name: &str, value: Option<T>) -> Parsed<T> {
    value.ok_or_else(|| Failure::Unsupported(format!("a call without {name}")))
}
