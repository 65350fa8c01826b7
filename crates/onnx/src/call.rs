//! The application of an operator: its inputs and attributes.

use crate::fault::invalid;
use crate::maps::Maps;
use crate::packed::Packed;
use crate::proto::{AttributeProto, AttributeType, GraphProto, NodeProto, TensorProto};
use crate::scope::Scope;
use crate::tensor;
use crate::text::Text;
use crate::value::{Known, Traced, Value};
use kiln_base::Dim;
use kiln_tensor::{DType, Error, ErrorKind, Result, Tensor};
use std::rc::Rc;

/// An operator applied to its inputs.
pub(crate) struct Call<'a> {
    pub node: &'a NodeProto,
    /// The version of the operator set that the node is of.
    pub version: i64,
    pub inputs: Vec<Option<Value>>,
    /// The graph that the node stands in.
    pub scope: &'a Scope<'a>,
}

/// The results of an operator.
pub(crate) type Results = Result<Vec<Value>>;

fn symbolic_size_error(input: usize) -> Error {
    Error::at_caller(
        ErrorKind::ReadWhileCompiling,
        "onnx",
        format!("input {input} must be known when the model is compiled"),
    )
}

/// The results of an operator that returns one tensor.
pub(crate) fn single(t: Tensor) -> Results {
    Ok(vec![t.into()])
}

impl Call<'_> {
    /// True if the input is there.
    pub fn has(&self, i: usize) -> bool {
        matches!(self.inputs.get(i), Some(Some(v)) if !matches!(v, Value::Nothing))
    }

    /// True if the output is used.
    pub fn wants(&self, i: usize) -> bool {
        self.node.output.get(i).is_some_and(|name| !name.is_empty())
    }

    /// Returns an input.
    pub fn value(&self, i: usize) -> Result<&Value> {
        match self.inputs.get(i) {
            Some(Some(value)) => Ok(value),
            _ => Err(invalid(format!("input {i} is missing"))),
        }
    }

    /// Returns an input that is a tensor.
    pub fn traced(&self, i: usize) -> Result<&Traced> {
        match self.value(i)? {
            Value::Tensor(t) => Ok(t),
            Value::Text(_) | Value::Chosen(..) => {
                Err(invalid(format!("input {i} is text, not numbers")))
            }
            Value::Maps(_) => Err(invalid(format!(
                "input {i} is a list of maps, not a tensor"
            ))),
            Value::Sequence(_) => Err(invalid(format!("input {i} is a sequence, not a tensor"))),
            Value::Nothing => Err(invalid(format!("input {i} is an optional without content"))),
        }
    }

    /// Returns an input that is text.
    pub fn text_input(&self, i: usize) -> Result<Text> {
        match self.value(i)? {
            Value::Text(t) => Ok(t.clone()),
            Value::Chosen(index, from) => Text::choose(index, from),
            _ => Err(invalid(format!("input {i} must be text"))),
        }
    }

    /// Returns an input that holds maps.
    pub fn maps(&self, i: usize) -> Result<&Maps> {
        match self.value(i)? {
            Value::Maps(maps) => Ok(maps),
            _ => Err(invalid(format!("input {i} must be a map"))),
        }
    }

    /// Returns an input as a tensor.
    pub fn tensor(&self, i: usize) -> Result<Tensor> {
        Ok(self.traced(i)?.tensor())
    }

    /// Returns an input that may be absent.
    pub fn optional(&self, i: usize) -> Result<Option<Tensor>> {
        self.has(i).then(|| self.tensor(i)).transpose()
    }

    /// Returns all inputs from the `first` as tensors.
    pub fn tensors(&self, first: usize) -> Result<Vec<Tensor>> {
        (first..self.inputs.len()).map(|i| self.tensor(i)).collect()
    }

    /// Returns the elements of an input. They are read if they are not known.
    pub fn known(&self, i: usize) -> Result<Rc<Known>> {
        let input = self.traced(i)?;
        if let Some(known) = input.known() {
            return Ok(known.clone());
        }
        let t = input.tensor();
        let known = Known::from_bytes(t.dtype(), &t.shape()?, &t.to_bytes()?);
        known.map(Rc::new).ok_or_else(|| {
            invalid(format!(
                "input {i} has too many elements for a list of sizes"
            ))
        })
    }

    /// Returns the elements of an input of sizes, which may be symbolic, or `None` if it is absent.
    pub fn sizes(&self, i: usize) -> Result<Option<Vec<Dim>>> {
        if !self.has(i) {
            return Ok(None);
        }
        let dims = self.known(i)?.dims();
        Ok(Some(dims.ok_or_else(|| {
            invalid(format!("input {i} must hold integers"))
        })?))
    }

    /// Returns the elements of an input of integers, or `None` if it is absent.
    pub fn integers(&self, i: usize) -> Result<Option<Vec<i64>>> {
        if !self.has(i) {
            return Ok(None);
        }
        let numbers = self.known(i)?.integers();
        Ok(Some(numbers.ok_or_else(|| symbolic_size_error(i))?))
    }

    /// Returns the elements of an input as floats, or `None` if it is absent.
    pub fn numbers(&self, i: usize) -> Result<Option<Vec<f64>>> {
        if !self.has(i) {
            return Ok(None);
        }
        let known = self.known(i)?;
        let numbers: Option<Vec<f64>> = known.elements.iter().map(|e| e.number()).collect();
        Ok(Some(numbers.ok_or_else(|| symbolic_size_error(i))?))
    }

    /// Returns the first element of an input of integers, or `None` if there is none.
    pub fn first_integer(&self, i: usize) -> Result<Option<i64>> {
        Ok(self.integers(i)?.and_then(|list| list.first().copied()))
    }

    /// Returns the first element of an input as a float, or `None` if there is none.
    pub fn first_number(&self, i: usize) -> Result<Option<f64>> {
        Ok(self.numbers(i)?.and_then(|list| list.first().copied()))
    }

    /// True if the first element of an input is there and not 0.
    pub fn first_flag(&self, i: usize) -> Result<bool> {
        Ok(self.first_integer(i)?.is_some_and(|n| n != 0))
    }

    /// Returns an input of integers that may not be absent.
    pub fn required_integers(&self, i: usize) -> Result<Vec<i64>> {
        let list = self.integers(i)?;
        list.ok_or_else(|| invalid(format!("input {i} is missing")))
    }

    /// Returns integers that are an input since a version of the operator, and an attribute before.
    pub fn integers_or(&self, i: usize, name: &str) -> Result<Option<Vec<i64>>> {
        match self.integers(i)? {
            Some(list) => Ok(Some(list)),
            None => self.ints(name),
        }
    }

    /// Returns an attribute. One of a function's body may stand for an attribute of its call.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        let own = self.node.attribute.iter().find(|a| a.name() == name)?;
        match own.ref_attr_name() {
            "" => Some(own),
            outer => self.scope.attribute(outer),
        }
    }

    fn typed(&self, name: &str, wanted: AttributeType) -> Result<Option<&AttributeProto>> {
        let Some(a) = self.attribute(name) else {
            return Ok(None);
        };
        // Files of the first IR version have no types.
        match a.r#type() {
            found if found == wanted => Ok(Some(a)),
            AttributeType::Undefined => Ok(Some(a)),
            found => Err(invalid(format!(
                "the attribute {name:?} is {found:?}, not {wanted:?}"
            ))),
        }
    }

    /// Returns an integer attribute, or its default.
    pub fn int(&self, name: &str, default: i64) -> Result<i64> {
        let a = self.typed(name, AttributeType::Int)?;
        Ok(a.map_or(default, AttributeProto::i))
    }

    /// Returns an integer attribute that is true unless it is 0.
    pub fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(name, default.into())? != 0)
    }

    /// Returns a float attribute, if it is there.
    pub fn maybe_float(&self, name: &str) -> Result<Option<f64>> {
        let a = self.typed(name, AttributeType::Float)?;
        Ok(a.map(|a| a.f().into()))
    }

    /// Returns a float attribute, or its default.
    pub fn float(&self, name: &str, default: f32) -> Result<f64> {
        Ok(self.maybe_float(name)?.unwrap_or(default.into()))
    }

    /// Returns a text attribute, or its default.
    pub fn text<'s>(&'s self, name: &str, default: &'s str) -> Result<&'s str> {
        match self.typed(name, AttributeType::String)? {
            Some(a) => std::str::from_utf8(a.s())
                .map_err(|_| invalid(format!("the attribute {name:?} is not UTF-8"))),
            None => Ok(default),
        }
    }

    /// Returns an attribute of integers.
    pub fn ints(&self, name: &str) -> Result<Option<Vec<i64>>> {
        let a = self.typed(name, AttributeType::Ints)?;
        Ok(a.map(|a| a.ints.clone()))
    }

    /// Returns an attribute of floats.
    pub fn floats(&self, name: &str) -> Result<Option<Vec<f64>>> {
        let a = self.typed(name, AttributeType::Floats)?;
        Ok(a.map(|a| a.floats.iter().map(|f| f64::from(*f)).collect()))
    }

    /// Returns an attribute of texts.
    pub fn texts(&self, name: &str) -> Result<Option<Vec<String>>> {
        let a = self.typed(name, AttributeType::Strings)?;
        a.map(|a| tensor::texts(&format!("the attribute {name:?}"), &a.strings))
            .transpose()
    }

    /// Returns an attribute that holds a tensor.
    pub fn tensor_attribute(&self, name: &str) -> Result<Option<&TensorProto>> {
        let a = self.typed(name, AttributeType::Tensor)?;
        Ok(a.and_then(|a| a.t.as_ref()))
    }

    /// Returns an attribute that holds a graph.
    pub fn graph(&self, name: &str) -> Result<&GraphProto> {
        let a = self.typed(name, AttributeType::Graph)?;
        let graph = a.and_then(|a| a.g.as_ref());
        graph.ok_or_else(|| invalid(format!("the attribute {name:?} is missing")))
    }

    /// Returns the dtype of few bits that an attribute names by ONNX's number.
    pub fn packed(&self, name: &str) -> Result<Option<Packed>> {
        Ok(tensor::packed(self.int(name, 0)?))
    }

    /// Returns the dtype that an attribute names by ONNX's number, or a default.
    pub fn dtype(&self, name: &str, default: DType) -> Result<DType> {
        match self.int(name, 0)? {
            0 => Ok(default),
            n => tensor::dtype(n),
        }
    }

    /// Returns an axis of `rank` dims from an attribute; negative ones count from the end.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize> {
        axis(self.int(name, default)?, rank)
    }
}

/// Returns an axis of `rank` dims; a negative one counts from the end.
pub(crate) fn axis(axis: i64, rank: usize) -> Result<usize> {
    let from_start = if axis < 0 { axis + rank as i64 } else { axis };
    match usize::try_from(from_start) {
        Ok(a) if a < rank => Ok(a),
        _ => Err(invalid(format!(
            "the axis {axis} is not one of {rank} dims"
        ))),
    }
}

/// Returns a size that may not be symbolic.
pub(crate) fn known_size(t: &Tensor, axis: usize) -> Result<i64> {
    let size = t.dims().get(axis).and_then(Dim::as_const);
    size.ok_or_else(|| invalid(format!("the size of dim {axis} must be known")))
}

/// Returns axes of `rank` dims.
pub(crate) fn axes(list: &[i64], rank: usize) -> Result<Vec<usize>> {
    list.iter().map(|a| axis(*a, rank)).collect()
}
