//! Pickles that are not checkpoints, such as those of data sets: lists and dicts of texts, numbers and arrays.

use super::arrays::Array;
use super::names::{self, Global};
use super::pickle::{self, Builder, Graph, Id, Node, kind};
use super::tree;
use crate::Value;
use crate::fault::Fault;
use crate::npy_header::CODES;
use kiln_tensor::{DType, Result as TensorResult};
use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;

/// Reads a Python pickle, of any protocol and of Python 2 or 3, without running code, as `pickle.load` does. It may
/// hold numbers, texts, bytes, lists, tuples, dicts, and NumPy's arrays of numbers, which become tensors. Bytes that
/// Python 2 wrote become a text if they are UTF-8. Many older data sets have this form.
///
/// ```no_run
/// let batch = kiln_formats::read_pickle("cifar-10-batches-py/data_batch_1")?;
/// let images = batch.get("data")?.tensor()?; // u8, [10000, 3072]
/// let labels = batch.get("labels")?.list()?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the file can't be read, is damaged, holds values of a kind that Kiln does not have, or names that would run
/// code; the message says which.
#[track_caller]
pub fn read_pickle(path: impl AsRef<Path>) -> TensorResult<Value> {
    let (path, loc) = (path.as_ref(), Location::caller());
    read(path).map_err(|fault| fault.in_file("read_pickle", path, loc))
}

fn read(path: &Path) -> Result<Value, Fault> {
    let mut file = BufReader::new(File::open(path)?);
    let mut graph = Graph::default();
    let root = pickle::read(&mut file, &mut graph, &mut Plain)?;
    tree::Walk::new(&graph, root)?;
    tree::Values::new(&graph, &HashMap::new()).value(root)
}

/// The builder of plain pickles.
struct Plain;

impl Builder for Plain {
    fn global(&self, module: &str, name: &str) -> Result<Global, String> {
        names::plain(module, name)
    }

    fn persistent(&mut self, _: &Graph, _: Id) -> Result<Node, Fault> {
        Err("a reference to what is outside of the pickle".into())
    }

    fn call(&mut self, graph: &Graph, function: &Global, arguments: &[Id]) -> Result<Node, Fault> {
        let nodes: Vec<&Node> = arguments.iter().map(|id| graph.node(*id)).collect();
        Ok(match (function, &nodes[..]) {
            (Global::Dict, _) | (Global::Encode, _) => {
                return super::build::Storages::default().call(graph, function, arguments);
            }
            (Global::Bytes, []) => Node::Bytes(Vec::new().into()),
            (Global::ArrayDtype, [Node::Str(code), ..]) => dtype(code)?,
            // Its shape, dtype and bytes follow as attributes.
            (Global::NewArray, [Node::Global(class), ..]) if **class == Global::ArrayClass => {
                Node::Array(Array::new(DType::U8, vec![0], Vec::new().into())?.into())
            }
            (Global::ArrayOfBytes, [bytes, dtype, shape, Node::Str(order)]) => {
                row_major(&**order == "C")?;
                let array = Array::new(dtype_of(dtype)?, sizes(graph, shape)?, contents(bytes)?)?;
                Node::Array(array.into())
            }
            _ => {
                let kinds: Vec<&str> = nodes.iter().map(|n| kind(n)).collect();
                return Err(format!("a call of {function:?} with {kinds:?}").into());
            }
        })
    }

    fn attributes(&mut self, graph: &Graph, object: Id, state: Id) -> Result<Option<Node>, Fault> {
        let Node::Tuple(state) = graph.node(state) else {
            return Err(format!("a state that is {}", kind(graph.node(state))).into());
        };
        let parts: Vec<&Node> = state.iter().map(|id| graph.node(*id)).collect();
        match (graph.node(object), &parts[..]) {
            // Version, shape, dtype, Fortran order, bytes.
            (Node::Array(_), [_, shape, dtype, Node::Bool(columns), bytes]) => {
                let shape = sizes(graph, shape)?;
                let is_vector = shape.iter().filter(|size| **size != 1).count() < 2;
                row_major(!columns || is_vector)?;
                let array = Array::new(dtype_of(dtype)?, shape, contents(bytes)?)?;
                Ok(Some(Node::Array(array.into())))
            }
            // Version and byte order, then fields, which dtypes of numbers don't have.
            (Node::Global(dtype), [_, Node::Str(order), ..])
                if matches!(**dtype, Global::Dtype(_)) =>
            {
                match &**order {
                    "|" | "<" | "=" => Ok(None),
                    _ => Err(Fault::unsupported("an array of big-endian numbers")),
                }
            }
            (other, _) => Err(format!("attributes of {}", kind(other)).into()),
        }
    }
}

fn row_major(is: bool) -> Result<(), Fault> {
    match is {
        true => Ok(()),
        false => Err(Fault::unsupported(
            "an array in column-major order; in Python, save numpy.ascontiguousarray(x)",
        )),
    }
}

/// The dtype of a NumPy code.
fn dtype(code: &str) -> Result<Node, Fault> {
    let name = code.trim_start_matches(['<', '|', '=']);
    let row = CODES.iter().find(|(code, _)| *code == name);
    let (_, dtype) = row.ok_or_else(|| {
        Fault::unsupported(format!(
            "an array of NumPy's dtype {code:?}, which Kiln does not have"
        ))
    })?;
    Ok(Node::Global(Global::Dtype(*dtype).into()))
}

fn dtype_of(node: &Node) -> Result<DType, Fault> {
    match node {
        Node::Global(global) => match **global {
            Global::Dtype(dtype) => Ok(dtype),
            _ => Err("a dtype that is another class or function".into()),
        },
        other => Err(format!("a dtype that is {}", kind(other)).into()),
    }
}

fn sizes(graph: &Graph, shape: &Node) -> Result<Vec<usize>, String> {
    super::build::dims(graph, shape, "a shape")
}

fn contents(node: &Node) -> Result<Arc<[u8]>, String> {
    match node {
        Node::Bytes(bytes) => Ok(bytes.clone()),
        // Bytes of Python 2 that happen to be valid text.
        Node::Str(text) => Ok(text.as_bytes().into()),
        other => Err(format!("elements that are {}", kind(other))),
    }
}
