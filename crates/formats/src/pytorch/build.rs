//! Functions that pickles call: they build tensors over storages, dicts, and sizes.

use super::arrays::View;
use super::names::Global;
use super::pickle::{Builder, Graph, Id, MAX_ARGUMENTS, Node, kind};
use crate::fault::Fault;
use kiln_tensor::DType;
use std::collections::HashMap;

/// The maximum number of dims of a tensor: PyTorch's limit.
pub(super) const MAX_DIMS: usize = 64;

/// A range of bytes in a checkpoint that tensors are views of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Storage {
    /// Its name in the file.
    pub key: String,
    /// The dtype of its elements; `None` for bytes.
    pub dtype: Option<DType>,
    /// The number of bytes.
    pub bytes: u64,
}

impl View {
    /// Checks that the size in bytes does not overflow and that the view lies in its storage.
    fn check(&self, storage: &Storage) -> Result<(), String> {
        let size = self.dtype.size() as u128;
        let product = |sizes: &[usize]| {
            let sizes = sizes.iter().map(|n| *n as u128);
            sizes
                .map(|n| n.max(1))
                .try_fold(size, |a, n| a.checked_mul(n))
        };
        let bytes = product(&self.shape).filter(|n| *n <= isize::MAX as u128);
        let last_offset = self.shape.iter().zip(&self.strides).try_fold(
            self.offset as u128,
            |offset, (n, stride)| {
                offset.checked_add(*stride as u128 * (*n as u128).saturating_sub(1))
            },
        );
        let is_inside = last_offset.is_some_and(|offset| {
            offset.saturating_add(1).saturating_mul(size) <= u128::from(storage.bytes)
        });
        match bytes.is_some() && (self.len() == 0 || is_inside) {
            true => Ok(()),
            false => Err(format!(
                "a tensor of {} of shape {:?}, strides {:?} and offset {} does not lie in its storage of {} bytes",
                self.dtype, self.shape, self.strides, self.offset, storage.bytes
            )),
        }
    }
}

/// The storages that a pickle names, and the tensors of the tar form, which it names by key.
#[derive(Default)]
pub(super) struct Storages {
    pub list: Vec<Storage>,
    by_key: HashMap<String, usize>,
    /// Tensors of the tar form by key.
    pub tensors: HashMap<String, Node>,
}

impl Storages {
    /// Registers a storage and returns its number. A key must have the same dtype and size everywhere.
    pub(super) fn storage(&mut self, storage: Storage) -> Result<usize, String> {
        if let Some(&number) = self.by_key.get(&storage.key) {
            let declared = &self.list[number];
            let size = |s: &Storage| match s.dtype {
                Some(dtype) => format!("{} bytes of {dtype}", s.bytes),
                None => format!("{} bytes", s.bytes),
            };
            return match *declared == storage {
                true => Ok(number),
                false => Err(format!(
                    "storage {} is declared with {}, and again with {}",
                    storage.key,
                    size(declared),
                    size(&storage)
                )),
            };
        }
        self.by_key.insert(storage.key.clone(), self.list.len());
        self.list.push(storage);
        Ok(self.list.len() - 1)
    }

    /// The number of the storage with a key.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        self.by_key.get(key).copied()
    }

    /// Builds a storage from `('storage', class, key, location, elements)`, with a view of it in old files.
    fn persistent_storage(&mut self, graph: &Graph, parts: &[Id]) -> Result<Node, String> {
        let (key, class) = (key(graph, parts[2])?, graph.node(parts[1]));
        let dtype = match class {
            Node::Global(class) => match &**class {
                Global::StorageOf(dtype) => *dtype,
                Global::Refused(why) => return Ok(Node::Refused(why.clone())),
                other => return Err(format!("a storage of {other:?}")),
            },
            other => return Err(format!("a storage of {}", kind(other))),
        };
        let bytes = size(graph, parts[4])?.checked_mul(dtype.map_or(1, DType::size));
        let bytes = bytes
            .ok_or_else(|| format!("storage {key} is too large: its size in bytes overflows"))?
            as u64;
        // Before 0.4 a storage could be part of another: a key, the first element, and the number of elements.
        let start = match parts.get(5).map(|part| graph.node(*part)) {
            None | Some(Node::None) => 0,
            Some(Node::Tuple(part)) if part.len() == 3 => size(graph, part[1])?,
            Some(other) => return Err(format!("a view of a storage that is {}", kind(other))),
        };
        let storage = self.storage(Storage { key, dtype, bytes })?;
        Ok(Node::Storage(storage, start))
    }

    fn tensor(
        &self,
        graph: &Graph,
        arguments: &[Id],
        dtype: Option<DType>,
    ) -> Result<Node, String> {
        let [storage, offset, shape, strides, ..] = arguments else {
            return Err(format!(
                "a tensor of {} arguments, but it takes storage, offset, shape and strides",
                arguments.len()
            ));
        };
        let (storage, start) = match graph.node(*storage) {
            Node::Storage(at, start) => (*at, *start),
            Node::Refused(why) => return Ok(Node::Refused(why.clone())),
            other => return Err(format!("a tensor over {}", kind(other))),
        };
        let backing = &self.list[storage];
        let Some(dtype) = dtype.or(backing.dtype) else {
            return Err("a tensor over bytes, of no dtype".to_string());
        };
        let view = View {
            storage,
            dtype,
            offset: size(graph, *offset)?.saturating_add(start),
            shape: sizes(graph, *shape)?,
            strides: sizes(graph, *strides)?,
        };
        self.view(view)
    }

    /// Checks that a tensor lies in its storage, and returns it as a node.
    pub(super) fn view(&self, view: View) -> Result<Node, String> {
        let storage = &self.list[view.storage];
        if view.shape.len() != view.strides.len() || view.shape.len() > MAX_DIMS {
            return Err(format!(
                "a tensor of shape {:?} and strides {:?}",
                view.shape, view.strides
            ));
        }
        view.check(storage)?;
        Ok(Node::Tensor(view.into()))
    }

    fn build(
        &mut self,
        graph: &Graph,
        function: &Global,
        arguments: &[Id],
    ) -> Result<Node, String> {
        let nodes: Vec<&Node> = arguments.iter().map(|id| graph.node(*id)).collect();
        Ok(match (function, &nodes[..]) {
            (Global::Refused(why), _) => Node::Refused(why.clone()),
            (Global::Dict, []) => Node::Dict(Vec::new()),
            (Global::Dict, [Node::Dict(entries)]) => Node::Dict(entries.clone()),
            (Global::Dict, [Node::List(pairs)]) => {
                let pairs = pairs.iter().map(|pair| match graph.node(*pair) {
                    Node::Tuple(pair) | Node::List(pair) if pair.len() == 2 => Ok((pair[0], pair[1])),
                    other => Err(format!("a dict's entry that is {}", kind(other))),
                });
                Node::Dict(pairs.collect::<Result<_, _>>()?)
            }
            (Global::Size, [Node::Tuple(items) | Node::List(items)]) => Node::Tuple(items.clone()),
            (Global::Device, [Node::Str(device)]) => Node::Str(device.clone()),
            (Global::Device, [Node::Str(device), Node::Int(index)]) => {
                Node::Str(format!("{device}:{index}").into())
            }
            (Global::Encode, [Node::Str(text), Node::Str(coding)]) if &**coding == "latin1" => {
                let bytes = text.chars().map(|c| u8::try_from(u32::from(c)));
                let bytes: Result<Vec<u8>, _> = bytes.collect();
                Node::Bytes(bytes.map_err(|_| "a character above U+00FF in bytes of latin1".to_string())?.into())
            }
            // The tensor class called with a tensor, and functions whose first argument is a tensor.
            (
                Global::Parameter | Global::TensorClass | Global::RebuildParameter,
                [tensor @ (Node::Tensor(_) | Node::Refused(_)), ..],
            ) => (*tensor).clone(),
            (Global::Tensor, items) => match items.get(6) {
                Some(Node::Dict(entries)) if !entries.is_empty() => Node::Refused(
                    "a view of conjugates or of negatives; in PyTorch, save x.resolve_conj().resolve_neg()".into(),
                ),
                _ => self.tensor(graph, arguments, None)?,
            },
            (Global::TensorOfDtype, [.., _, _, Node::Global(dtype)])
            | (Global::TensorOfDtype, [_, _, _, _, _, _, Node::Global(dtype), _]) => match &**dtype {
                Global::Dtype(dtype) => self.tensor(graph, arguments, Some(*dtype))?,
                Global::Refused(why) => Node::Refused(why.clone()),
                other => return Err(format!("a tensor of the dtype {other:?}")),
            },
            (Global::FromType, [Node::Global(function), Node::Global(class), Node::Tuple(items), ..])
                if matches!(**class, Global::TensorClass | Global::Parameter)
                    && **function != Global::FromType
                    && items.len() <= MAX_ARGUMENTS =>
            {
                let items = items.clone();
                return self.build(graph, function, &items);
            }
            _ => {
                let kinds: Vec<&str> = nodes.iter().map(|n| kind(n)).collect();
                return Err(format!("a call of {function:?} with {kinds:?}"));
            }
        })
    }
}

impl Builder for Storages {
    fn persistent(&mut self, graph: &Graph, id: Id) -> Result<Node, Fault> {
        Ok(match graph.node(id) {
            Node::Tuple(parts)
                if is_text(graph, parts.first(), "storage") && (5..7).contains(&parts.len()) =>
            {
                self.persistent_storage(graph, parts)?
            }
            // A class stored with its source code.
            Node::Tuple(parts) if is_text(graph, parts.first(), "module") && parts.len() > 1 => {
                graph.node(parts[1]).clone()
            }
            _ => {
                let key = key(graph, id)?;
                let tensor = self.tensors.get(&key);
                tensor
                    .ok_or_else(|| format!("there is no tensor {key}"))?
                    .clone()
            }
        })
    }

    fn call(&mut self, graph: &Graph, function: &Global, arguments: &[Id]) -> Result<Node, Fault> {
        Ok(self.build(graph, function, arguments)?)
    }
}

fn is_text(graph: &Graph, id: Option<&Id>, wanted: &str) -> bool {
    id.is_some_and(|id| matches!(graph.node(*id), Node::Str(text) if &**text == wanted))
}

/// The name of a storage or tensor: a text, or a number in old files.
pub(super) fn key(graph: &Graph, id: Id) -> Result<String, String> {
    /// Each use copies the name; real ones are numbers and paths of files.
    const MAX_BYTES: usize = 255;
    match graph.node(id) {
        Node::Str(text) if text.len() > MAX_BYTES => Err(format!(
            "a key of {} bytes; at most {MAX_BYTES} are read",
            text.len()
        )),
        Node::Str(text) => Ok(text.to_string()),
        Node::Int(number) => Ok(number.to_string()),
        other => Err(format!("a key that is {}", kind(other))),
    }
}

pub(super) fn size(graph: &Graph, id: Id) -> Result<usize, String> {
    let found = match graph.node(id) {
        Node::Int(size) => usize::try_from(*size)
            .ok()
            .filter(|n| *n <= isize::MAX as usize),
        _ => None,
    };
    found.ok_or_else(|| format!("a size that is {:?}", graph.node(id)))
}

fn sizes(graph: &Graph, id: Id) -> Result<Vec<usize>, String> {
    dims(graph, graph.node(id), "sizes")
}

/// Reads sizes or strides. A tuple may be named again and again, so a long one is refused before it is copied.
pub(super) fn dims(graph: &Graph, node: &Node, what: &str) -> Result<Vec<usize>, String> {
    match node {
        Node::Tuple(all) | Node::List(all) if all.len() > MAX_DIMS => Err(format!(
            "{what} of {} dims; at most {MAX_DIMS} are read",
            all.len()
        )),
        Node::Tuple(all) | Node::List(all) => all.iter().map(|id| size(graph, *id)).collect(),
        other => Err(format!("{what} that are {}", kind(other))),
    }
}
