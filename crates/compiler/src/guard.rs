//! Steps that a flag leaves out.
//!
//! An update that may be skipped is recorded as a choice: a cell's new value is `select(flag, old, new)`, where
//! `flag` has one element and `old` is the cell's old value. A launch gets the flag as its step's guard if it writes
//! only such choices by one flag, each over the old value that it would keep. If the guard is set, nothing is
//! computed and nothing written. The choice stays in the kernel, so a guard changes no value.

use crate::uses::{Uses, ix, written};
use hashbrown::HashMap;
use kiln_codegen::{BufId, Launch, Origin, Sequence};
use kiln_ir::{Graph, NodeId, Op, Pw, Target, Value};

/// Finds the flags of a program's launches.
pub(crate) struct Guards<'a> {
    graph: &'a Graph,
    uses: &'a Uses,
    inputs: Vec<NodeId>,
    /// The buffers that hold values.
    stored: HashMap<Value, BufId>,
    /// For each buffer of an output that is written over an input: the output's value and the node of that input;
    /// `None` where several outputs share the buffer.
    kept: HashMap<BufId, Option<(Value, NodeId)>>,
}

impl<'a> Guards<'a> {
    /// `donors` are the inputs that the graph's outputs may be written over.
    pub(crate) fn new(
        graph: &'a Graph,
        sequence: &'a Sequence,
        uses: &'a Uses,
        donors: &[Option<u32>],
    ) -> Guards<'a> {
        let inputs = graph.inputs();
        let stored = sequence.buffers.iter().enumerate().filter_map(|(i, b)| {
            let value = match b.origin {
                Origin::Value(value) => value,
                Origin::Input(index) => Value {
                    node: *inputs.get(index as usize)?,
                    output: 0,
                },
                _ => return None,
            };
            Some((value, BufId(i as u32)))
        });
        let mut kept = HashMap::new();
        for ((output, buffer), donor) in graph.outputs.iter().zip(&sequence.outputs).zip(donors) {
            let Some(buffer) = *buffer else { continue };
            let over =
                donor.filter(|d| matches!(output.target, Target::Assign(input) if input == *d));
            let over = over.and_then(|d| Some((output.value, *inputs.get(d as usize)?)));
            kept.entry(buffer).and_modify(|k| *k = None).or_insert(over);
        }
        Guards {
            graph,
            uses,
            stored: stored.collect(),
            inputs,
            kept,
        }
    }

    /// Returns the flag that skips a launch, if there is one.
    pub(crate) fn of(&self, launch: &Launch) -> Option<BufId> {
        if !launch.sites.is_empty() {
            return None;
        }
        let mut flags = written(launch).map(|b| self.flag(b));
        let flag = flags.next()??;
        let writes_flag = written(launch).any(|b| b == flag);
        (!writes_flag && flags.all(|other| other == Some(flag))).then_some(flag)
    }

    /// Returns the flag by which a buffer keeps the values that it overwrites.
    fn flag(&self, buffer: BufId) -> Option<BufId> {
        let (value, overwritten) = (*self.kept.get(&buffer)?)?;
        if self.uses.writers[ix(buffer)].len() != 1 {
            return None;
        }
        let node = self.graph.node(value.node);
        let Op::Pointwise(row) = &node.op else {
            return None;
        };
        let [flag, old, _] = node.inputs[..] else {
            return None;
        };
        let keeps_old = row.0 == Pw::Select
            && old.node == overwritten
            && self.graph.node(old.node).facts[0] == node.facts[0];
        keeps_old.then(|| self.stored(flag)).flatten()
    }

    /// Returns the buffer of one element that a value is a view of.
    fn stored(&self, mut value: Value) -> Option<BufId> {
        loop {
            let node = self.graph.node(value.node);
            let is_scalar = node.facts[value.output as usize].numel().is(1);
            if let Some(buffer) = self.stored.get(&value).filter(|_| is_scalar) {
                return Some(*buffer);
            }
            if !node.op.is_view() || self.inputs.contains(&value.node) {
                return None;
            }
            value = *node.inputs.first()?;
        }
    }
}
