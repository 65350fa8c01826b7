//! From handles to a flat recording: everything that a set of values needs, operands before users.

use crate::node::{About, Handle, Node, NodeState, Operand, input_op, structure_hash};
use crate::postorder::{Key, postorder};
use crate::{Device, Error, ErrorKind, Result};
use hashbrown::HashMap;
use kiln_base::Loc;
use kiln_compiler::{Recorded, Recording};
use kiln_ir::{NodeId, Op, Output, Role, Target, Value};
use kiln_runtime::Buffer;
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// A flat program over shared nodes.
#[derive(Default)]
pub struct Gather {
    /// Its ops, operands before users.
    pub entries: Vec<GatheredNode>,
    operands: Vec<Value>,
    /// The inputs, in order.
    pub inputs: Vec<InputSource>,
    /// The positions of values.
    known: HashMap<Key, Value>,
}

/// One op of the program.
pub struct GatheredNode {
    /// The recorded node.
    pub node: Arc<Node>,
    /// The input op and its hash, for a value that is an input although its node has another op.
    leaf: Option<Box<(Op, u64)>>,
    /// The range of its operands.
    pub inputs: Range<usize>,
    /// True if its value is given.
    pub is_input: bool,
}

/// The source of an input's value.
pub struct InputSource {
    /// The entry of the input.
    pub entry: usize,
    /// The output of the entry's node.
    pub output: u32,
    /// `None` for placeholders of a program being compiled.
    pub buffer: Option<Buffer>,
}

/// The reason why a value is not available.
pub enum Missing {
    /// A run of another thread is writing over its memory.
    Donated,
    /// It is lost for good.
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

impl Gather {
    /// Gathers the program that computes these values.
    ///
    /// # Errors
    /// The error that one of them carries.
    pub fn of<T: AsRef<Handle>>(values: &[T]) -> Result<(Gather, Vec<Output>)> {
        let mut gather = Gather::default();
        let outputs = gather.add_outputs(values)?;
        Ok((gather, outputs))
    }

    /// Adds the program of these values; returns them as outputs.
    ///
    /// # Errors
    /// The error that one of them carries.
    pub fn add_outputs<T: AsRef<Handle>>(&mut self, values: &[T]) -> Result<Vec<Output>> {
        let outputs = values.iter().map(|t| {
            let t = t.as_ref();
            t.check()?;
            Ok(Output {
                value: self.add(t)?,
                target: Target::Result,
            })
        });
        outputs.collect()
    }

    /// Adds a value and everything it needs.
    pub fn add(&mut self, t: &Handle) -> Result<Value, Missing> {
        let root = t.operand();
        postorder(root.clone(), |operand, is_last, first| {
            if !is_last && self.find(operand).is_some() {
                return Ok(false);
            }
            // Another run may compute it between the first visit and the last.
            let buffer = match &*operand.node.state() {
                NodeState::Ready(values) => values.get(operand.output as usize).cloned(),
                NodeState::Placeholder => None,
                NodeState::Lazy { kept, inputs, .. } => match kept.get(operand.output as usize) {
                    Some(Some(buffer)) => Some(buffer.clone()),
                    _ if is_last => {
                        return self.compute(&operand.node, inputs).map(|()| false);
                    }
                    _ => {
                        first.extend(inputs.iter().cloned());
                        return Ok(true);
                    }
                },
                NodeState::Donated => return Err(Missing::Donated),
                NodeState::Poisoned => return Err(lost(&operand.node)),
            };
            self.add_input(operand, buffer);
            Ok(false)
        })?;
        self.find(&root).ok_or_else(|| lost(&root.node))
    }

    /// The value of an operand that was added before.
    #[inline]
    pub fn find(&self, operand: &Operand) -> Option<Value> {
        self.known.get(&operand.key()).copied()
    }

    /// Adds an input.
    fn add_input(&mut self, operand: &Operand, buffer: Option<Buffer>) {
        let node = &operand.node;
        let entry = self.entries.len();
        let value = NodeId(entry as u32).value();
        self.known.insert(operand.key(), value);
        self.inputs.push(InputSource {
            entry,
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
        self.entries.push(GatheredNode {
            node: node.clone(),
            leaf,
            inputs: end..end,
            is_input: true,
        });
    }

    /// Adds a node whose operands are known.
    fn compute(&mut self, node: &Arc<Node>, inputs: &[Operand]) -> Result<(), Missing> {
        let start = self.operands.len();
        for operand in inputs {
            let value = self.find(operand).ok_or_else(|| lost(&operand.node))?;
            self.operands.push(value);
        }
        let id = NodeId(self.entries.len() as u32);
        for output in 0..node.facts.len() as u32 {
            let value = Value { node: id, output };
            self.known.insert(Key::of(node, output), value);
        }
        self.entries.push(GatheredNode {
            node: node.clone(),
            leaf: None,
            inputs: start..self.operands.len(),
            is_input: false,
        });
        Ok(())
    }

    /// The device of the program: that of its values, if any of them is on a device.
    pub fn device(&self) -> Device {
        let placed = self.entries.iter().find_map(|e| e.node.device);
        placed.unwrap_or_default()
    }

    /// The program in the form that the compiler takes.
    pub fn recording(&self, outputs: Vec<Output>) -> Recording<'_> {
        Recording {
            nodes: self.entries.iter().map(GatheredNode::recorded).collect(),
            operands: self.operands.clone(),
            outputs,
        }
    }

    /// Makes an input a parameter, so plans prepare what depends on it.
    pub fn make_parameter(&mut self, input: usize) {
        let source = &self.inputs[input];
        let (entry, output) = (source.entry, source.output);
        let fact = self.entries[entry].node.facts[output as usize].clone();
        self.entries[entry].leaf = Some(hashed(input_op(fact, Role::Parameter)));
    }

    /// [`Gather::make_parameter`] for the inputs with these values.
    pub fn make_parameters(&mut self, values: &[Handle]) {
        for value in values {
            let Some(found) = self.find(&value.operand()) else {
                continue;
            };
            let input = |s: &InputSource| (s.entry, s.output) == (found.node.index(), value.output);
            if let Some(at) = self.inputs.iter().position(input) {
                self.make_parameter(at);
            }
        }
    }

    /// The program without input values, for messages.
    pub fn without_values(mut self) -> Gather {
        self.inputs.clear();
        self.known.clear();
        self
    }

    /// The operands of an entry.
    pub fn operands(&self, entry: &GatheredNode) -> &[Value] {
        &self.operands[entry.inputs.clone()]
    }

    /// The line of the user's call that recorded an entry. The positions after the entries are those of the nodes in
    /// their bodies.
    pub fn loc(&self, entry: usize) -> Loc {
        match self.entries.get(entry) {
            Some(e) => Loc::from(e.node.loc),
            None => self
                .inner(entry)
                .map_or(Loc::UNKNOWN, |(_, n)| n.loc.clone()),
        }
    }

    /// Returns the function that the user called for an entry.
    pub fn called_function(&self, entry: usize) -> Cow<'static, str> {
        if let Some(e) = self.entries.get(entry) {
            return e.node.called.into();
        }
        let inner = self.inner(entry).map(|(_, n)| n);
        let called_function = inner.and_then(|n| n.loc.called_function());
        called_function.unwrap_or_else(|| inner.map_or("run", |n| n.op.name()).into())
    }

    /// Returns the serial number of an entry; later entries have larger numbers.
    pub fn serial(&self, entry: usize) -> u64 {
        let inner = || Some(self.inner(entry)?.0);
        let entry = self.entries.get(entry).or_else(inner);
        entry.map_or(u64::MAX, |e| e.node.serial)
    }

    /// The number of nodes, including those in bodies.
    pub fn positions(&self) -> usize {
        let mut count = self.entries.len();
        for e in &self.entries {
            e.recorded().inner_nodes(&mut |_| count += 1);
        }
        count
    }

    /// Returns further information for a data error of an entry.
    pub fn about(&self, entry: usize) -> Option<About> {
        if let Some(e) = self.entries.get(entry) {
            return e.node.about.as_deref().cloned();
        }
        let owner = &self.inner(entry)?.0.node;
        let note = format!("in {} at {}", owner.called, owner.loc);
        owner.body.is_none().then(|| About {
            note: Some(note.into()),
            ..About::default()
        })
    }

    /// Returns the node of a body at position `entry` in [`Recording::locs`], and the entry that owns the body.
    fn inner(&self, entry: usize) -> Option<(&GatheredNode, &kiln_ir::Node)> {
        let mut position = self.entries.len();
        let mut node_found = None;
        for e in &self.entries {
            e.recorded().inner_nodes(&mut |n| {
                if position == entry {
                    node_found = Some((e, n));
                }
                position += 1;
            });
        }
        node_found
    }
}

impl GatheredNode {
    /// The op in the form that the compiler takes.
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

fn lost(node: &Node) -> Missing {
    Missing::Error(Error::new(
        ErrorKind::Internal,
        node.called,
        "the value of this tensor is gone although somebody still needs it",
        Loc::from(node.loc),
    ))
}
