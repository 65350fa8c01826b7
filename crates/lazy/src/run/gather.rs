//! From handles to a flat recording: what a set of values needs, operands before users.

use crate::node::{About, Handle, Node, Operand, State, input_op, structure_hash};
use crate::{Device, Error, ErrorKind, Result};
use hashbrown::HashMap;
use kiln_base::Loc;
use kiln_compiler::{Recorded, Recording};
use kiln_ir::{NodeId, Op, Output, Role, Target, Value};
use kiln_runtime::Buffer;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// A flat program over shared nodes.
#[derive(Default)]
pub struct Gather {
    /// Its ops.
    pub entries: Vec<Entry>,
    operands: Vec<Value>,
    /// The inputs, in order.
    pub inputs: Vec<Source>,
    /// Where nodes are, by their addresses.
    known: HashMap<usize, Known>,
    /// Where the further inputs are that are outputs of a node among `known`.
    further: HashMap<(usize, u32), u32>,
}

/// One op of the program.
pub struct Entry {
    /// What was recorded.
    pub node: Arc<Node>,
    /// Set for values that are inputs although their node has another op.
    leaf: Option<Box<(Op, u64)>>,
    /// Where its operands stand.
    pub inputs: Range<usize>,
    /// Whether its value is given.
    pub is_input: bool,
}

/// Where an input's value comes from.
pub struct Source {
    /// Which output of the entry's node.
    pub entry: usize,
    /// See there.
    pub output: u32,
    /// `None` for placeholders of a program being compiled.
    pub buffer: Option<Buffer>,
}

/// Why a value can't be had.
pub enum Missing {
    /// A run of another thread is writing over its memory.
    Donated,
    /// For good.
    Error(Error),
}

impl From<Missing> for Error {
    fn from(missing: Missing) -> Error {
        match missing {
            Missing::Error(e) => e,
            Missing::Donated => Error::new(
                ErrorKind::Internal,
                "read",
                "another thread is replacing a value that this program needs; read again",
                Loc::UNKNOWN,
            ),
        }
    }
}

/// Where a node is in the program.
struct Known {
    entry: u32,
    /// The one output that the entry, an input, stands for; all of a lazy node.
    only: Option<u32>,
}

/// A lazy node whose operands are being added.
struct Frame {
    operand: Operand,
    values: SmallVec<[Value; 4]>,
}

/// What a frame waits for.
enum Next {
    Add(Operand),
    /// Nothing: all its operands are there.
    Close,
    /// Nothing: its node is an input.
    Given,
}

impl Gather {
    /// A program that gives these values.
    ///
    /// # Errors
    /// The error that one of them carries.
    pub fn of<T: AsRef<Handle>>(values: &[T]) -> Result<(Gather, Vec<Output>)> {
        let mut gather = Gather::default();
        let outputs = gather.ask(values)?;
        Ok((gather, outputs))
    }

    /// Adds what gives these values.
    ///
    /// # Errors
    /// The error that one of them carries.
    pub fn ask<T: AsRef<Handle>>(&mut self, values: &[T]) -> Result<Vec<Output>> {
        let asked = values.iter().map(|t| {
            let t = t.as_ref();
            t.check()?;
            Ok(Output {
                value: self.add(t)?,
                target: Target::Result,
            })
        });
        asked.collect()
    }

    /// Adds a value and everything it needs.
    pub fn add(&mut self, t: &Handle) -> Result<Value, Missing> {
        let root = t.operand();
        let mut stack = Vec::new();
        if self.find(&root).is_none() {
            self.open(&root, &mut stack)?;
        }
        while let Some(frame) = stack.last_mut() {
            match self.next(frame) {
                Next::Add(operand) => self.open(&operand, &mut stack)?,
                Next::Close => stack.pop().into_iter().for_each(|frame| self.close(frame)),
                Next::Given => drop(stack.pop()),
            }
        }
        self.find(&root).ok_or_else(|| lost(&root.node))
    }

    /// The value of an operand that was added before.
    pub fn find(&self, operand: &Operand) -> Option<Value> {
        let address = address(&operand.node);
        let known = self.known.get(&address)?;
        match known.only {
            None => Some(Value {
                node: NodeId(known.entry),
                output: operand.output,
            }),
            Some(only) if only == operand.output => Some(NodeId(known.entry).value()),
            Some(_) => {
                let at = self.further.get(&(address, operand.output))?;
                Some(NodeId(*at).value())
            }
        }
    }

    /// Goes on with the operands of a node.
    fn next(&self, frame: &mut Frame) -> Next {
        let state = frame.operand.node.state();
        let State::Lazy { inputs, .. } = &*state else {
            // Another run has computed it meanwhile.
            return match self.find(&frame.operand) {
                Some(_) => Next::Given,
                None => Next::Add(frame.operand.clone()),
            };
        };
        for operand in &inputs[frame.values.len()..] {
            match self.find(operand) {
                Some(value) => frame.values.push(value),
                None => return Next::Add(operand.clone()),
            }
        }
        Next::Close
    }

    /// Adds an input, or starts on a lazy node.
    fn open(&mut self, operand: &Operand, stack: &mut Vec<Frame>) -> Result<(), Missing> {
        let node = &operand.node;
        let buffer = match &*node.state() {
            State::Ready(values) => values.get(operand.output as usize).cloned(),
            State::Placeholder => None,
            State::Lazy { kept, .. } => match kept.get(operand.output as usize) {
                Some(Some(buffer)) => Some(buffer.clone()),
                _ => {
                    stack.push(Frame {
                        operand: operand.clone(),
                        values: SmallVec::new(),
                    });
                    return Ok(());
                }
            },
            State::Donated => return Err(Missing::Donated),
            State::Poisoned => return Err(lost(node)),
        };
        let index = self.entries.len();
        let known = Known {
            entry: index as u32,
            only: Some(operand.output),
        };
        if self.known.contains_key(&address(node)) {
            let key = (address(node), operand.output);
            self.further.insert(key, known.entry);
        } else {
            self.known.insert(address(node), known);
        }
        self.inputs.push(Source {
            entry: index,
            output: operand.output,
            buffer,
        });
        let leaf = match node.op {
            Op::Input(_) => None,
            _ => Some(hashed(input_op(
                node.facts[operand.output as usize].clone(),
                Role::Data,
            ))),
        };
        let end = self.operands.len();
        self.entries.push(Entry {
            node: node.clone(),
            leaf,
            inputs: end..end,
            is_input: true,
        });
        Ok(())
    }

    /// Adds a lazy node whose operands are known.
    fn close(&mut self, frame: Frame) {
        let node = frame.operand.node;
        let known = Known {
            entry: self.entries.len() as u32,
            only: None,
        };
        self.known.insert(address(&node), known);
        let start = self.operands.len();
        self.operands.extend(frame.values);
        self.entries.push(Entry {
            node,
            leaf: None,
            inputs: start..self.operands.len(),
            is_input: false,
        });
    }

    /// Where the program runs: where its values are, if any of them is on a device.
    pub fn device(&self) -> Device {
        let placed = self.entries.iter().find_map(|e| e.node.device);
        placed.unwrap_or_default()
    }

    /// The program as the compiler takes it.
    pub fn recording(&self, outputs: Vec<Output>) -> Recording<'_> {
        Recording {
            nodes: self.entries.iter().map(Entry::recorded).collect(),
            operands: self.operands.clone(),
            outputs,
        }
    }

    /// Makes an input one that plans prepare for.
    pub fn make_parameter(&mut self, input: usize) {
        let source = &self.inputs[input];
        let (entry, output) = (source.entry, source.output);
        let fact = self.entries[entry].node.facts[output as usize].clone();
        self.entries[entry].leaf = Some(hashed(input_op(fact, Role::Parameter)));
    }

    /// The recorded ops alone, for messages.
    pub fn without_values(mut self) -> Gather {
        self.inputs.clear();
        self.known.clear();
        self.further.clear();
        self
    }

    /// The operands of an entry.
    pub fn operands(&self, entry: &Entry) -> &[Value] {
        &self.operands[entry.inputs.clone()]
    }

    /// The line of the user's call that recorded an entry; behind the entries stand the nodes in their
    /// bodies.
    pub fn loc(&self, entry: usize) -> Loc {
        match self.entries.get(entry) {
            Some(e) => Loc::from(e.node.loc),
            None => self
                .inner(entry)
                .map_or(Loc::UNKNOWN, |(_, n)| n.loc.clone()),
        }
    }

    /// The function that the user called for an entry.
    pub fn called(&self, entry: usize) -> &'static str {
        match self.entries.get(entry) {
            Some(e) => e.node.called,
            None => self.inner(entry).map_or("run", |(_, n)| n.op.name()),
        }
    }

    /// When an entry was recorded: later ones have larger numbers.
    pub fn serial(&self, entry: usize) -> u64 {
        let inner = || Some(self.inner(entry)?.0);
        let entry = self.entries.get(entry).or_else(inner);
        entry.map_or(u64::MAX, |e| e.node.serial)
    }

    /// How many nodes there are, in bodies too.
    pub fn len(&self) -> usize {
        let mut count = self.entries.len();
        for e in &self.entries {
            e.recorded().inner_nodes(&mut |_| count += 1);
        }
        count
    }

    /// What a data error of an entry says beside its line.
    pub fn about(&self, entry: usize) -> Option<&About> {
        self.entries.get(entry)?.node.about.as_deref()
    }

    /// The node of a body that stands at `entry` in [`Recording::locs`], and whose body it is.
    fn inner(&self, entry: usize) -> Option<(&Entry, &kiln_ir::Node)> {
        let mut at = self.entries.len();
        let mut found = None;
        for e in &self.entries {
            e.recorded().inner_nodes(&mut |n| {
                if at == entry {
                    found = Some((e, n));
                }
                at += 1;
            });
        }
        found
    }
}

impl Entry {
    /// The op as the compiler takes it.
    fn recorded(&self) -> Recorded<'_> {
        let (op, body, hash) = match &self.leaf {
            Some(leaf) => (&leaf.0, None, leaf.1),
            None => (&self.node.op, self.node.body.as_ref(), self.node.hash),
        };
        Recorded {
            op,
            body,
            hash,
            inputs: self.inputs.clone(),
            loc: Loc::from(self.node.loc),
        }
    }
}

fn hashed(op: Op) -> Box<(Op, u64)> {
    let hash = structure_hash(&op);
    Box::new((op, hash))
}

fn address(node: &Arc<Node>) -> usize {
    Arc::as_ptr(node) as usize
}

fn lost(node: &Node) -> Missing {
    Missing::Error(Error::new(
        ErrorKind::Internal,
        node.called,
        "the value of this tensor is gone although somebody still needs it",
        Loc::from(node.loc),
    ))
}
