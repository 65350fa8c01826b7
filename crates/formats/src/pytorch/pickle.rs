//! Pickles, read without running anything: <https://docs.python.org/3/library/pickletools.html>.
//!
//! A pickle is a program for a machine with a stack. Objects are [`Node`]s of a [`Graph`] that refer to each other by
//! number, so an object that is named twice exists once. The only functions are those of [`Global`]. Their results
//! are built in [`build`](super::build), and in [`plain`](super::plain) for pickles that are not checkpoints.

use super::arrays::{Array, View};
use super::names::{Global, global};
use crate::fault::Fault;
use kiln_tensor::memory::Budget;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

/// The number of a node.
pub(super) type Id = u32;

/// The maximum number of objects of a file. Real files have a few for each tensor.
const MAX_NODES: usize = 1 << 22;

/// More arguments than any function takes.
pub(super) const MAX_ARGUMENTS: usize = 16;

/// An object.
#[derive(Clone, Debug)]
pub(super) enum Node {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Arc<str>),
    Bytes(Arc<[u8]>),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Global(Arc<Global>),
    /// The storage of this number, starting at this element; see [`super::build::Storage`].
    Storage(usize, usize),
    Tensor(Arc<View>),
    /// A NumPy array.
    Array(Arc<Array>),
    /// A value that Kiln can't hold, with the reason.
    Refused(Arc<str>),
}

/// The objects of pickles, and the remaining memory for them.
#[derive(Default)]
pub(super) struct Graph {
    nodes: Vec<Node>,
    budget: Budget,
}

impl Graph {
    pub(super) fn add(&mut self, node: Node) -> Result<Id, Fault> {
        if self.nodes.len() == MAX_NODES {
            let message = format!("the pickle makes more than {MAX_NODES} objects");
            return Err(Fault::unsupported(message));
        }
        self.nodes.push(node);
        Ok(self.nodes.len() as Id - 1)
    }

    pub(super) fn node(&self, id: Id) -> &Node {
        &self.nodes[id as usize]
    }

    pub(super) fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id as usize]
    }
}

/// An environment that builds the results of a pickle's calls.
pub(super) trait Builder {
    /// Looks up the meaning of a name.
    fn global(&self, module: &str, name: &str) -> Result<Global, String> {
        global(module, name)
    }

    /// Applies attributes to an object: returns a node to replace it, or `None`. Kiln drops the attributes of dicts
    /// and parameters.
    fn attributes(&mut self, graph: &Graph, object: Id, _: Id) -> Result<Option<Node>, Fault> {
        match graph.node(object) {
            Node::Dict(_) | Node::Tensor(_) | Node::Refused(_) => Ok(None),
            other => Err(format!("attributes of {}", kind(other)).into()),
        }
    }

    /// The object of a persistent id.
    fn persistent(&mut self, graph: &Graph, id: Id) -> Result<Node, Fault>;

    /// The result of calling a function with arguments.
    fn call(&mut self, graph: &Graph, function: &Global, arguments: &[Id]) -> Result<Node, Fault>;
}

/// Reads one pickle, up to its last byte, and returns its object.
///
/// # Errors
/// If it is damaged or uses unknown names. The message has the byte's position.
pub(super) fn read(
    file: &mut dyn Read,
    graph: &mut Graph,
    builder: &mut dyn Builder,
) -> Result<Id, Fault> {
    let mut machine = Machine {
        file,
        at: 0,
        graph,
        builder,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        result_bytes: 0,
    };
    loop {
        let start = machine.at;
        let step = machine.step();
        if let Some(object) = step.map_err(|e| e.within(format!("byte {start} of the pickle")))? {
            return Ok(object);
        }
    }
}

struct Machine<'a> {
    file: &'a mut dyn Read,
    /// The number of bytes read.
    at: u64,
    graph: &'a mut Graph,
    builder: &'a mut dyn Builder,
    stack: Vec<Id>,
    /// The heights of the stack at which groups begin.
    marks: Vec<usize>,
    memo: HashMap<u64, Id>,
    /// The number of bytes in the results of functions.
    result_bytes: u64,
}

impl Machine<'_> {
    /// Runs one instruction. Returns the object if it was the last.
    fn step(&mut self) -> Result<Option<Id>, Fault> {
        /// An object with its places on the stack, in the memo and in a list.
        const MAX_BYTES: u64 = 64;
        let [op] = self.bytes()?;
        self.graph
            .budget
            .spend(MAX_BYTES, "what the pickle makes")?;
        match op {
            b'.' => return self.pop().map(Some),
            // The protocol and frames carry no information that is needed.
            0x80 => {
                let [protocol] = self.bytes()?;
                if protocol > 5 {
                    return Err(Fault::unsupported(format!(
                        "pickles of protocol {protocol}"
                    )));
                }
            }
            0x95 => drop(self.number::<8>()?),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => match self.marks.last() {
                Some(mark) if *mark == self.stack.len() => drop(self.marks.pop()),
                _ => drop(self.pop()?),
            },
            b'1' => drop(self.group()?),
            b'2' => self.stack.push(self.top()?),
            b'N' => self.push(Node::None)?,
            0x88 => self.push(Node::Bool(true))?,
            0x89 => self.push(Node::Bool(false))?,
            b'J' => {
                let bytes = self.bytes()?;
                self.push(Node::Int(i32::from_le_bytes(bytes).into()))?;
            }
            b'K' => self.unsigned::<1>()?,
            b'M' => self.unsigned::<2>()?,
            0x8a => self.long::<1>()?,
            0x8b => self.long::<4>()?,
            b'I' | b'L' => self.decimal()?,
            b'G' => {
                let bytes = self.bytes()?;
                self.push(Node::Float(f64::from_be_bytes(bytes)))?;
            }
            b'F' => {
                let line = self.line()?;
                let x = line
                    .parse()
                    .map_err(|_| format!("{line:?} is not a float"))?;
                self.push(Node::Float(x))?;
            }
            0x8c => self.text::<1>()?,
            b'X' => self.text::<4>()?,
            0x8d => self.text::<8>()?,
            b'V' => self.escaped_text()?,
            b'U' => self.old_text::<1>()?,
            b'T' => self.old_text::<4>()?,
            b'S' => self.quoted()?,
            b'C' => self.data::<1>()?,
            b'B' => self.data::<4>()?,
            0x8e | 0x96 => self.data::<8>()?,
            b')' => self.push(Node::Tuple(Vec::new()))?,
            0x85..=0x87 => {
                let start = self.height(usize::from(op - 0x84))?;
                let items = self.stack.split_off(start);
                self.push(Node::Tuple(items))?;
            }
            b't' => {
                let items = self.group()?;
                self.push(Node::Tuple(items))?;
            }
            b']' => self.push(Node::List(Vec::new()))?,
            b'l' => {
                let items = self.group()?;
                self.push(Node::List(items))?;
            }
            b'a' => {
                let value = self.pop()?;
                self.append(&[value])?;
            }
            b'e' => {
                let values = self.group()?;
                self.append(&values)?;
            }
            b'}' => self.push(Node::Dict(Vec::new()))?,
            b'd' => {
                let items = self.group()?;
                self.push(Node::Dict(Vec::new()))?;
                self.set(&items)?;
            }
            b's' => {
                let start = self.height(2)?;
                let pair = self.stack.split_off(start);
                self.set(&pair)?;
            }
            b'u' => {
                let items = self.group()?;
                self.set(&items)?;
            }
            b'p' | b'g' => {
                let line = self.line()?;
                let key = line
                    .parse()
                    .map_err(|_| format!("{line:?} is not a number"))?;
                self.remember_or_recall(op == b'p', key)?;
            }
            b'q' | b'h' => {
                let key = self.number::<1>()?;
                self.remember_or_recall(op == b'q', key)?;
            }
            b'r' | b'j' => {
                let key = self.number::<4>()?;
                self.remember_or_recall(op == b'r', key)?;
            }
            0x94 => self.remember_or_recall(true, self.memo.len() as u64)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.push_global(&module, &name)?;
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let text = |id| match self.graph.node(id) {
                    Node::Str(text) => Ok(text.clone()),
                    _ => Err("a name that is not text".to_string()),
                };
                let (module, name) = (text(module)?, text(name)?);
                self.push_global(&module, &name)?;
            }
            b'R' | 0x81 => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                match self.graph.node(arguments) {
                    Node::Tuple(args) if args.len() <= MAX_ARGUMENTS => {
                        self.call(function, &args.clone())?
                    }
                    other => return Err(format!("arguments that are {}", kind(other)).into()),
                }
            }
            b'i' => {
                let (module, name) = (self.line()?, self.line()?);
                let arguments = self.group()?;
                self.push_global(&module, &name)?;
                let function = self.pop()?;
                self.call(function, &arguments)?;
            }
            b'b' => {
                let (state, object) = (self.pop()?, self.top()?);
                if let Some(new) = self.builder.attributes(self.graph, object, state)? {
                    self.count(&new)?;
                    *self.graph.node_mut(object) = new;
                }
            }
            b'P' => {
                let line = self.line()?;
                let id = self.graph.add(Node::Str(line.into()))?;
                self.persistent(id)?;
            }
            b'Q' => {
                let id = self.pop()?;
                self.persistent(id)?;
            }
            0x8f..=0x91 => {
                let message = "a set, which Kiln does not have; in PyTorch, save sorted(x)";
                return Err(Fault::unsupported(message));
            }
            other => {
                let message = format!("the instruction {other:#04x} is not one of checkpoints");
                return Err(Fault::unsupported(message));
            }
        }
        Ok(None)
    }

    fn take(&mut self, len: u64) -> Result<Vec<u8>, Fault> {
        let bytes = self
            .graph
            .budget
            .read_exact(self.file, len, "what is here")?;
        self.at += len;
        Ok(bytes)
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        let end = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => "it ends here".into(),
            _ => Fault::from(e),
        };
        self.file.read_exact(&mut bytes).map_err(end)?;
        self.at += N as u64;
        Ok(bytes)
    }

    /// Reads an unsigned number of N bytes.
    fn number<const N: usize>(&mut self) -> Result<u64, Fault> {
        let bytes = self.bytes::<N>()?;
        let number = bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        Ok(number)
    }

    /// Reads the text up to the end of the line.
    fn line(&mut self) -> Result<String, Fault> {
        let mut line = Vec::new();
        loop {
            match self.bytes()? {
                [b'\n'] => break,
                [byte] => {
                    self.graph.budget.spend(1, "a line")?;
                    line.push(byte);
                }
            }
        }
        Ok(String::from_utf8(line).map_err(|_| "a line that is not text".to_string())?)
    }

    fn push(&mut self, node: Node) -> Result<(), Fault> {
        let id = self.graph.add(node)?;
        self.stack.push(id);
        Ok(())
    }

    /// The height of the stack below the top `count` objects, which must be in the current group.
    fn height(&self, count: usize) -> Result<usize, Fault> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let height = self.stack.len().checked_sub(count).filter(|h| *h >= floor);
        Ok(height.ok_or_else(|| "the stack is empty".to_string())?)
    }

    fn pop(&mut self) -> Result<Id, Fault> {
        let last = self.height(1)?;
        Ok(self.stack.remove(last))
    }

    fn top(&self) -> Result<Id, Fault> {
        Ok(self.stack[self.height(1)?])
    }

    /// Takes the objects above the last mark.
    fn group(&mut self) -> Result<Vec<Id>, Fault> {
        let mark = self
            .marks
            .pop()
            .ok_or_else(|| "there is no mark".to_string())?;
        Ok(self.stack.split_off(mark))
    }

    fn unsigned<const N: usize>(&mut self) -> Result<(), Fault> {
        let number = self.number::<N>()?;
        self.push(Node::Int(number.into()))
    }

    /// Reads an integer in two's complement, preceded by its length.
    fn long<const N: usize>(&mut self) -> Result<(), Fault> {
        let len = self.number::<N>()?;
        let bytes = self.take(len)?;
        let mut wide = match bytes.last() {
            Some(last) if last & 0x80 != 0 => [0xff; 16],
            _ => [0; 16],
        };
        if bytes.len() > wide.len() {
            return Err(Fault::unsupported(format!("an integer of {len} bytes")));
        }
        wide[..bytes.len()].copy_from_slice(&bytes);
        self.push(Node::Int(i128::from_le_bytes(wide)))
    }

    /// Reads an integer, or a bool as `00` and `01`.
    fn decimal(&mut self) -> Result<(), Fault> {
        let line = self.line()?;
        self.push(match line.as_str() {
            "00" => Node::Bool(false),
            "01" => Node::Bool(true),
            line => {
                let digits = line.strip_suffix('L').unwrap_or(line);
                let number = digits.parse();
                Node::Int(number.map_err(|_| format!("{line:?} is not an integer of 128 bits"))?)
            }
        })
    }

    fn text<const N: usize>(&mut self) -> Result<(), Fault> {
        let len = self.number::<N>()?;
        let bytes = self.take(len)?;
        let text = String::from_utf8(bytes).map_err(|_| "a text that is not UTF-8".to_string())?;
        self.push(Node::Str(text.into()))
    }

    /// Reads a text of Python 2, or bytes, which had the same type there.
    fn old_text<const N: usize>(&mut self) -> Result<(), Fault> {
        let len = self.number::<N>()?;
        let node = match String::from_utf8(self.take(len)?) {
            Ok(text) => Node::Str(text.into()),
            Err(e) => Node::Bytes(e.into_bytes().into()),
        };
        self.push(node)
    }

    fn data<const N: usize>(&mut self) -> Result<(), Fault> {
        let len = self.number::<N>()?;
        let bytes = self.take(len)?;
        self.push(Node::Bytes(bytes.into()))
    }

    /// Reads a text of protocol 0, where `\uXXXX` stands for a character.
    fn escaped_text(&mut self) -> Result<(), Fault> {
        let line = self.line()?;
        let mut text = String::new();
        let mut rest = line.as_str();
        while let Some((before, escape)) = rest.split_once('\\') {
            text.push_str(before);
            let digits = match escape.chars().next() {
                Some('u') => escape.get(1..5),
                Some('U') => escape.get(1..9),
                _ => None,
            };
            let code = digits.and_then(|d| u32::from_str_radix(d, 16).ok());
            let c = code.and_then(char::from_u32);
            text.push(c.ok_or_else(|| format!("{line:?} has an invalid escape"))?);
            rest = &escape[1 + digits.map_or(0, str::len)..];
        }
        text.push_str(rest);
        self.push(Node::Str(text.into()))
    }

    /// Reads a text of protocol 0 between quotes. PyTorch's texts have no escapes, and those with a backslash are
    /// refused.
    fn quoted(&mut self) -> Result<(), Fault> {
        let line = self.line()?;
        let inner = ['\'', '"']
            .iter()
            .find_map(|q| line.strip_prefix(*q)?.strip_suffix(*q));
        match inner.filter(|text| !text.contains('\\')) {
            Some(text) => self.push(Node::Str(text.into())),
            None => Err(format!("{line:?} is not text without escapes").into()),
        }
    }

    fn append(&mut self, values: &[Id]) -> Result<(), Fault> {
        match self.graph.node_mut(self.top()?) {
            Node::List(list) => list.extend(values),
            other => return Err(format!("elements of {}", kind(other)).into()),
        }
        Ok(())
    }

    fn set(&mut self, values: &[Id]) -> Result<(), Fault> {
        let (pairs, []) = values.as_chunks::<2>() else {
            return Err("a key without a value".into());
        };
        match self.graph.node_mut(self.top()?) {
            Node::Dict(dict) => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            other => return Err(format!("entries of {}", kind(other)).into()),
        }
        Ok(())
    }

    fn remember_or_recall(&mut self, remember: bool, key: u64) -> Result<(), Fault> {
        if remember {
            self.memo.insert(key, self.top()?);
        } else {
            let object = self.memo.get(&key);
            self.stack
                .push(*object.ok_or_else(|| format!("nothing was remembered as {key}"))?);
        }
        Ok(())
    }

    fn push_global(&mut self, module: &str, name: &str) -> Result<(), Fault> {
        /// Far more than any name that is known; a text of the pickle may name many.
        const MAX_NAME_BYTES: usize = 255;
        let len = module.len().saturating_add(name.len());
        if len > MAX_NAME_BYTES {
            return Err(format!("a name of {len} bytes; at most {MAX_NAME_BYTES} are read").into());
        }
        let global = self.builder.global(module, name);
        let node = Node::Global(global.map_err(Fault::unsupported)?.into());
        self.count(&node)?;
        self.push(node)
    }

    fn call(&mut self, function: Id, arguments: &[Id]) -> Result<(), Fault> {
        let Node::Global(function) = self.graph.node(function).clone() else {
            let what = kind(self.graph.node(function));
            return Err(format!("a call of {what}").into());
        };
        let node = self.builder.call(self.graph, &function, arguments)?;
        self.count(&node)?;
        self.push(node)
    }

    /// Limits the size of function results: repeated calls with one large argument must not fill the memory.
    fn count(&mut self, result_bytes: &Node) -> Result<(), Fault> {
        let bytes = match result_bytes {
            Node::Bytes(bytes) => bytes.len(),
            Node::Array(array) => array.len(),
            Node::Tuple(all) | Node::List(all) => size_of_val(&all[..]),
            Node::Dict(entries) => size_of_val(&entries[..]),
            Node::Str(text) => text.len(),
            Node::Tensor(view) => size_of_val(&view.shape[..]) + size_of_val(&view.strides[..]),
            Node::Global(global) => match &**global {
                Global::Refused(why) => why.len(),
                _ => 0,
            },
            _ => 0,
        };
        self.graph
            .budget
            .spend(bytes as u64, "what the pickle makes")?;
        self.result_bytes = self.result_bytes.saturating_add(bytes as u64);
        // An entry of a dict takes a few bytes in the file and eight in memory.
        match self.result_bytes <= self.at.saturating_mul(16) {
            true => Ok(()),
            false => {
                let message = "the pickle makes far more of its contents than there is";
                Err(Fault::unsupported(message))
            }
        }
    }

    fn persistent(&mut self, id: Id) -> Result<(), Fault> {
        let node = self.builder.persistent(self.graph, id)?;
        self.count(&node)?;
        self.push(node)
    }
}

/// The kind of an object, for messages.
pub(super) fn kind(node: &Node) -> &'static str {
    match node {
        Node::None => "None",
        Node::Bool(_) => "a bool",
        Node::Int(_) => "an integer",
        Node::Float(_) => "a float",
        Node::Str(_) => "a text",
        Node::Bytes(_) => "bytes",
        Node::Tuple(_) => "a tuple",
        Node::List(_) => "a list",
        Node::Dict(_) => "a dict",
        Node::Global(_) => "a function or a class",
        Node::Storage(..) => "a storage",
        Node::Tensor(_) => "a tensor",
        Node::Array(_) => "an array",
        Node::Refused(_) => "a value that Kiln does not have",
    }
}
