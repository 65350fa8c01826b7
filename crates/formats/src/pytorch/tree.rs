//! Conversion of the objects of a pickle to values.

use super::build::View;
use super::pickle::{Graph, Id, Node, kind};
use crate::Value;
use crate::fault::Fault;
use crate::value::Dict;
use kiln_tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// The deepest nesting of lists and dicts.
const DEEPEST: usize = 200;

/// The most values, where a shared value counts each time that it is named.
const MOST_VALUES: u64 = 1 << 24;

/// The state of a visited node: on the current path, or done, with its number of values.
#[derive(Clone, Copy)]
enum Walked {
    Open,
    Done(u64),
}

/// The walk that checks that an object is a tree of values.
pub(super) struct Walk<'a> {
    graph: &'a Graph,
    walked: HashMap<Id, Walked>,
    path: Vec<String>,
    /// The tensors, each with the path of one place that names it.
    pub views: Vec<(Arc<View>, String)>,
}

impl<'a> Walk<'a> {
    /// Walks over the node and everything within it.
    ///
    /// # Errors
    /// If it contains itself, is too deep or too large, or holds values of a kind that Kiln does not have.
    pub(super) fn over(graph: &'a Graph, root: Id) -> Result<Walk<'a>, Fault> {
        let mut walk = Walk {
            graph,
            walked: HashMap::new(),
            path: Vec::new(),
            views: Vec::new(),
        };
        walk.visit(root)?;
        Ok(walk)
    }

    fn visit(&mut self, id: Id) -> Result<u64, Fault> {
        match self.walked.get(&id) {
            Some(Walked::Open) => return Err(self.refused("it holds itself")),
            Some(Walked::Done(count)) => return Ok(*count),
            None => {}
        }
        if self.path.len() > DEEPEST {
            return Err(self.refused(&format!("it is nested more than {DEEPEST} levels deep")));
        }
        self.walked.insert(id, Walked::Open);
        let graph = self.graph;
        let mut count = 1u64;
        match graph.node(id) {
            Node::Refused(why) => return Err(self.refused(why)),
            Node::Global(global) => match &**global {
                super::names::Global::Dtype(_) => {}
                super::names::Global::Refused(why) => return Err(self.refused(why)),
                _ => return Err(self.refused("it is a class, and no value")),
            },
            Node::Storage(..) => {
                return Err(self.refused("it is a storage by itself; save a tensor over it"));
            }
            Node::Tensor(view) => self.views.push((view.clone(), self.path.join("."))),
            Node::Tuple(all) | Node::List(all) => {
                for (i, child) in all.iter().enumerate() {
                    count = count.saturating_add(self.within(i.to_string(), *child)?);
                }
            }
            Node::Dict(entries) => {
                for (key, value) in entries {
                    let Some(key) = scalar(graph.node(*key)) else {
                        let what = kind(graph.node(*key));
                        return Err(self.refused(&format!(
                            "a key of it is {what}, and not a text or a number"
                        )));
                    };
                    count = count.saturating_add(self.within(key.name(), *value)?);
                }
            }
            Node::None
            | Node::Bool(_)
            | Node::Int(_)
            | Node::Float(_)
            | Node::Str(_)
            | Node::Bytes(_)
            | Node::Array(_) => {}
        }
        if count > MOST_VALUES {
            return Err(self.refused(&format!("it holds more than {MOST_VALUES} values")));
        }
        self.walked.insert(id, Walked::Done(count));
        Ok(count)
    }

    fn within(&mut self, name: String, id: Id) -> Result<u64, Fault> {
        self.path.push(name);
        let count = self.visit(id)?;
        self.path.pop();
        Ok(count)
    }

    /// The error for the value at the current path.
    fn refused(&self, why: &str) -> Fault {
        const SHOWN: usize = 20;
        let path = match &self.path[..] {
            [] => "the object".to_string(),
            path => path[..path.len().min(SHOWN)].join("."),
        };
        Fault::unsupported(why).within(path)
    }
}

/// The value of a node without parts, such as a number or a text.
fn scalar(node: &Node) -> Option<Value> {
    Some(match node {
        Node::None => Value::None,
        Node::Bool(b) => Value::Bool(*b),
        Node::Int(i) => Value::Int(*i),
        Node::Float(x) => Value::Float(*x),
        Node::Str(text) => Value::Str(text.clone()),
        Node::Bytes(bytes) => Value::Bytes(bytes.clone()),
        _ => return None,
    })
}

/// Builds the value of a node that was walked over; objects that are named twice are shared.
pub(super) fn value(
    graph: &Graph,
    id: Id,
    tensors: &HashMap<Arc<View>, Tensor>,
    made: &mut HashMap<Id, Value>,
) -> Result<Value, Fault> {
    if let Some(value) = made.get(&id) {
        return Ok(value.clone());
    }
    let node = graph.node(id);
    let mut part = |id: &Id| value(graph, *id, tensors, made);
    let found = match node {
        Node::Tuple(all) => Value::Tuple(all.iter().map(part).collect::<Result<_, _>>()?),
        Node::List(all) => Value::List(all.iter().map(part).collect::<Result<_, _>>()?),
        Node::Dict(entries) => {
            let mut dict = Dict::default();
            for (key, value) in entries {
                dict.insert(part(key)?, part(value)?);
            }
            dict.finish()
        }
        Node::Tensor(view) => match tensors.get(view) {
            Some(tensor) => Value::Tensor(tensor.clone()),
            None => return Err("a tensor was not read".to_string().into()),
        },
        Node::Array(array) => Value::Tensor(array.tensor()?),
        Node::Global(global) => match &**global {
            super::names::Global::Dtype(dtype) => {
                let row = super::names::DTYPES.iter().find(|(d, ..)| d == dtype);
                Value::Str(format!("torch.{}", row.map_or("", |r| r.1)).into())
            }
            _ => return Err("a class is no value".to_string().into()),
        },
        other => match scalar(other) {
            Some(value) => value,
            None => return Err(format!("{} is no value", kind(other)).into()),
        },
    };
    made.insert(id, found.clone());
    Ok(found)
}
