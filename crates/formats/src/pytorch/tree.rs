//! Conversion of the objects of a pickle to values.

use super::arrays::View;
use super::pickle::{Graph, Id, Node, kind};
use crate::Value;
use crate::fault::Fault;
use kiln_tensor::Tensor;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// The maximum nesting depth of lists and dicts.
const MAX_DEPTH: usize = 200;

/// The maximum number of values, where a shared value counts each time that it is named.
const MAX_VALUES: u64 = 1 << 24;

/// A place within an object.
#[derive(Clone, Copy)]
enum Step {
    At(usize),
    Key(Id),
}

/// The place that first named a node: a step within another one. The root has none.
type Origin = Option<(Id, Step)>;

/// The state of a visited node.
#[derive(Clone, Copy)]
enum Walked {
    /// On the current path.
    Open,
    /// Done, with its number of values.
    Done(u64),
}

/// The walk that checks that an object is a tree of values.
pub(super) struct Walk<'a> {
    graph: &'a Graph,
    walked: HashMap<Id, (Walked, Origin)>,
    /// The tensors, each with a node that holds it; see [`Walk::path`].
    pub views: Vec<(Arc<View>, Id)>,
}

impl<'a> Walk<'a> {
    /// Walks over the node and everything within it.
    ///
    /// # Errors
    /// If it contains itself, is too deep or too large, or holds values of a kind that Kiln does not have.
    pub(super) fn new(graph: &'a Graph, root: Id) -> Result<Walk<'a>, Fault> {
        let mut walk = Walk {
            graph,
            walked: HashMap::new(),
            views: Vec::new(),
        };
        walk.visit(root, None, 0)?;
        Ok(walk)
    }

    fn visit(&mut self, id: Id, place: Origin, depth: usize) -> Result<u64, Fault> {
        match self.walked.get(&id) {
            Some((Walked::Open, _)) => return Err(self.refused(place, "it holds itself")),
            Some((Walked::Done(count), _)) => return Ok(*count),
            None => {}
        }
        if depth > MAX_DEPTH {
            let why = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(self.refused(place, &why));
        }
        self.walked.insert(id, (Walked::Open, place));
        let graph = self.graph;
        let mut count = 1u64;
        match graph.node(id) {
            Node::Refused(why) => return Err(self.refused(place, why)),
            Node::Global(global) => match &**global {
                super::names::Global::Dtype(_) => {}
                super::names::Global::Refused(why) => return Err(self.refused(place, why)),
                _ => return Err(self.refused(place, "it is a class, and no value")),
            },
            Node::Storage(..) => {
                let why = "it is a storage by itself; save a tensor over it";
                return Err(self.refused(place, why));
            }
            Node::Tensor(view) => self.views.push((view.clone(), id)),
            Node::Tuple(all) | Node::List(all) => {
                for (i, child) in all.iter().enumerate() {
                    let inner = self.visit(*child, Some((id, Step::At(i))), depth + 1)?;
                    count = count.saturating_add(inner);
                }
            }
            Node::Dict(entries) => {
                for (key, value) in entries {
                    if scalar(graph.node(*key)).is_none() {
                        let what = kind(graph.node(*key));
                        let why = format!("a key of it is {what}, and not a text or a number");
                        return Err(self.refused(place, &why));
                    }
                    let inner = self.visit(*value, Some((id, Step::Key(*key))), depth + 1)?;
                    count = count.saturating_add(inner);
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
        if count > MAX_VALUES {
            let why = format!("it holds more than {MAX_VALUES} values");
            return Err(self.refused(place, &why));
        }
        self.walked.insert(id, (Walked::Done(count), place));
        Ok(count)
    }

    /// The path of the first place that names a node, shortened. It is made for messages alone: many tensors may lie
    /// under one long key.
    pub(super) fn path(&self, id: Id) -> String {
        self.path_to(self.walked.get(&id).and_then(|(_, place)| *place))
    }

    fn path_to(&self, mut place: Origin) -> String {
        /// The maximum number of steps from the root, and of characters of one.
        const SHOWN: (usize, usize) = (20, 200);
        let mut steps = Vec::new();
        while let Some((within, step)) = place {
            steps.push(step);
            place = self.walked.get(&within).and_then(|(_, place)| *place);
        }
        let name = |step: &Step| match step {
            Step::At(i) => i.to_string(),
            Step::Key(key) => {
                let name = scalar(self.graph.node(*key)).map_or(String::new(), |key| key.name());
                name.chars().take(SHOWN.1).collect()
            }
        };
        match &steps[..] {
            [] => "the object".to_string(),
            steps => {
                let names: Vec<String> = steps.iter().rev().take(SHOWN.0).map(name).collect();
                names.join(".")
            }
        }
    }

    /// The error for the value at a place.
    fn refused(&self, place: Origin, why: &str) -> Fault {
        Fault::unsupported(why).within(self.path_to(place))
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

/// Builds the values of nodes that were walked over; objects that are named twice are shared.
pub(super) struct Values<'a> {
    graph: &'a Graph,
    tensors: &'a HashMap<Arc<View>, Tensor>,
    built: HashMap<Id, Value>,
    /// Numbers of keys, equal for equal keys. A key that is named often is compared once.
    numbers: HashMap<Id, usize>,
    by_text: HashMap<String, usize>,
}

impl<'a> Values<'a> {
    pub(super) fn new(graph: &'a Graph, tensors: &'a HashMap<Arc<View>, Tensor>) -> Values<'a> {
        Values {
            graph,
            tensors,
            built: HashMap::new(),
            numbers: HashMap::new(),
            by_text: HashMap::new(),
        }
    }

    /// The value of a node.
    pub(super) fn value(&mut self, id: Id) -> Result<Value, Fault> {
        if let Some(value) = self.built.get(&id) {
            return Ok(value.clone());
        }
        let node = self.graph.node(id);
        let child = |id: &Id| self.value(*id);
        let value = match node {
            Node::Tuple(all) => Value::Tuple(all.iter().map(child).collect::<Result<_, _>>()?),
            Node::List(all) => Value::List(all.iter().map(child).collect::<Result<_, _>>()?),
            Node::Dict(entries) => self.dict(entries)?,
            Node::Tensor(view) => match self.tensors.get(view) {
                Some(tensor) => Value::Tensor(tensor.clone()),
                None => return Err("a tensor was not read".into()),
            },
            Node::Array(array) => Value::Tensor(array.tensor()?),
            Node::Global(global) => match &**global {
                super::names::Global::Dtype(dtype) => {
                    let row = super::names::DTYPES.iter().find(|(d, ..)| d == dtype);
                    Value::Str(format!("torch.{}", row.map_or("", |r| r.1)).into())
                }
                _ => return Err("a class is not a value".into()),
            },
            other => match scalar(other) {
                Some(value) => value,
                None => return Err(format!("{} is not a value", kind(other)).into()),
            },
        };
        self.built.insert(id, value.clone());
        Ok(value)
    }

    /// A later value replaces that of an equal key, which keeps its place, as in Python.
    fn dict(&mut self, entries: &[(Id, Id)]) -> Result<Value, Fault> {
        let mut dict: Vec<(Value, Value)> = Vec::new();
        let mut positions: HashMap<usize, usize> = HashMap::new();
        for (key, value) in entries {
            let (number, value) = (self.number(*key)?, self.value(*value)?);
            match positions.entry(number) {
                Entry::Occupied(at) => dict[*at.get()].1 = value,
                Entry::Vacant(place) => {
                    place.insert(dict.len());
                    dict.push((self.value(*key)?, value));
                }
            }
        }
        Ok(Value::Dict(dict.into()))
    }

    fn number(&mut self, key: Id) -> Result<usize, Fault> {
        if let Some(number) = self.numbers.get(&key) {
            return Ok(*number);
        }
        let next = self.by_text.len();
        let text = self.value(key)?.key();
        let number = *self.by_text.entry(text).or_insert(next);
        self.numbers.insert(key, number);
        Ok(number)
    }
}
