//! The values of names.

use crate::fault::invalid;
use crate::loaded::Loaded;
use crate::proto::{AttributeProto, OperatorSetIdProto};
use crate::value::Value;
use kiln_tensor::Result;
use std::collections::HashMap;

/// The values of names while a graph or a function's body is recorded.
pub(crate) struct Scope<'a> {
    pub model: &'a Loaded,
    pub opsets: &'a [OperatorSetIdProto],
    /// The graph around this one, whose names are seen here.
    pub outer: Option<&'a Scope<'a>>,
    /// The attributes of the call of the function whose body this is.
    pub attributes: HashMap<&'a str, &'a AttributeProto>,
    pub values: HashMap<String, Value>,
    pub depth: usize,
}

impl<'a> Scope<'a> {
    /// The scope of the model's graph.
    pub fn new(model: &'a Loaded) -> Scope<'a> {
        Scope {
            model,
            opsets: &model.opsets,
            outer: None,
            attributes: HashMap::new(),
            values: HashMap::new(),
            depth: 0,
        }
    }

    /// Returns the value of a name.
    pub fn get(&self, name: &str) -> Result<Value> {
        match (self.values.get(name), self.outer) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(outer)) => outer.get(name),
            (None, None) => Err(invalid(format!("nothing gives the value {name:?}"))),
        }
    }

    /// Gives a name its value.
    pub fn set(&mut self, name: &str, value: Value) {
        self.values.insert(name.to_string(), value);
    }

    /// Returns an attribute of the call of the function whose body this is.
    pub fn attribute(&self, name: &str) -> Option<&AttributeProto> {
        match self.attributes.get(name) {
            Some(a) => Some(a),
            None => self.outer?.attribute(name),
        }
    }
}
