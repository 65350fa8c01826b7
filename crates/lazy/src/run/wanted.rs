//! The values that a lazy read computes: those that were requested, those that cells were assigned, and others that
//! are kept.

use super::commit;
use super::errors::leaked;
use super::gather::{Gather, Missing};
use crate::Handle;
use crate::cell::Busy;
use crate::grad::needs::Needed;
use crate::node::NodeState;
use hashbrown::{HashMap, HashSet};
use kiln_ir::{Op, Output, Target, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// True for ops that sum products of their operands.
pub fn is_product(op: &Op) -> bool {
    matches!(
        op,
        Op::MatMul(_) | Op::Conv(_) | Op::ConvTranspose(_) | Op::ConvWeight(_)
    )
}

/// The program of a read and its outputs.
pub struct Wanted {
    /// The program.
    pub gather: Gather,
    /// Its outputs.
    pub outputs: Vec<Output>,
    /// The values among the outputs.
    requested: HashSet<Value>,
    /// For each assignment, the input that holds the cell's old value, if the run may write over it.
    pub donors: Vec<Option<usize>>,
}

impl Wanted {
    /// Gathers the program for the assigned values, which are its first outputs, and for the targets. `saved` are the
    /// values that a later backward pass needs.
    pub fn gather(
        assigned: &[(Busy, Handle)],
        targets: &[Handle],
        saved: Vec<Needed>,
    ) -> Result<Wanted, Missing> {
        let mut gather = Gather::default();
        let values = assigned.iter().map(|(_, t)| gather.add(t));
        let assigned_values = values.collect::<Result<Vec<Value>, Missing>>()?;
        let values = targets.iter().map(|t| gather.add(t));
        let target_values = values.collect::<Result<Vec<Value>, Missing>>()?;
        if let Some(source) = gather.inputs.iter().find(|s| s.buffer.is_none()) {
            return Err(Missing::Error(leaked(&gather.entries[source.entry].node)));
        }
        let mut wanted = Wanted {
            gather,
            outputs: Vec::new(),
            requested: HashSet::new(),
            donors: Vec::new(),
        };
        wanted.assignments(assigned, &assigned_values);
        for value in target_values {
            wanted.request(value, Target::Result);
        }
        wanted.keep_costly(saved);
        Ok(wanted)
    }

    /// Requests the costly values that these depend on, and those that are compared. A backward pass recomputes the
    /// others.
    fn keep_costly(&mut self, saved: Vec<Needed>) {
        let entries = &self.gather.entries;
        let mut is_read = vec![false; entries.len()];
        for entry in entries.iter().filter(|e| is_product(&e.node.op)) {
            for v in self.gather.operands(entry) {
                is_read[v.node.index()] = true;
            }
        }
        let mut visited = vec![false; entries.len()];
        let find = |n: &Needed| Some((self.gather.find(&n.value)?, n.compared));
        let saved: Vec<(Value, bool)> = saved.iter().filter_map(find).collect();
        let mut stack: Vec<Value> = saved.iter().map(|(v, _)| *v).collect();
        let compared = saved.iter().filter(|(_, compared)| *compared);
        let mut costly: Vec<Value> = compared
            .map(|(v, _)| *v)
            .filter(|v| !entries[v.node.index()].is_input)
            .collect();
        while let Some(v) = stack.pop() {
            let index = v.node.index();
            if entries[index].is_input {
                continue;
            }
            // The operands of products are materialised anyway.
            if is_read[index] || !entries[index].node.op.is_cheap() {
                costly.push(v);
            } else if !std::mem::replace(&mut visited[index], true) {
                stack.extend(self.gather.operands(&entries[index]));
            }
        }
        for v in costly {
            self.request(v, Target::Result);
        }
    }

    /// Requests a value, once.
    fn request(&mut self, value: Value, target: Target) {
        if self.requested.insert(value) {
            self.outputs.push(Output { value, target });
        }
    }

    /// Requests the values that cells were assigned.
    fn assignments(&mut self, cells: &[(Busy, Handle)], values: &[Value]) {
        let inputs = self.gather.inputs.iter().enumerate();
        let inputs: HashMap<usize, usize> = inputs.map(|(i, s)| (s.entry, i)).collect();
        for (i, value) in values.iter().enumerate() {
            let old = cells[i].0.state().realized.clone();
            let old = old.and_then(|old| self.gather.find(&old.operand()));
            let input = old.and_then(|old| inputs.get(&old.node.index()).copied());
            let target = input.map_or(Target::Result, |i| Target::Assign(i as u32));
            self.requested.insert(*value);
            self.outputs.push(Output {
                value: *value,
                target,
            });
            self.donors.push(input);
        }
    }

    /// Keeps intermediates that are still referenced. Those that depend on an old value of a cell that may be
    /// overwritten must be kept; the others are kept if the plan materialises them.
    pub fn keep_referenced(&mut self) {
        // References are counted while no other run releases operands; see [`commit`].
        let still = self.donors.iter().any(Option::is_some).then(commit::still);
        let mut from_donor = vec![false; self.gather.entries.len()];
        for input in self.donors.iter().flatten() {
            from_donor[self.gather.inputs[*input].entry] = true;
        }
        let mut edges = vec![0usize; self.gather.entries.len()];
        let mut referenced = Vec::new();
        for (i, entry) in self.gather.entries.iter().enumerate() {
            // A node that another run computed meanwhile has released its operands.
            let is_lazy = still.is_none() || matches!(*entry.node.state(), NodeState::Lazy { .. });
            for v in self.gather.operands(entry) {
                edges[v.node.index()] += is_lazy as usize;
                from_donor[i] |= from_donor[v.node.index()];
            }
            let used = |n: &AtomicUsize| n.load(Ordering::Acquire) > 0;
            if !entry.is_input && (used(&entry.node.handles) || used(&entry.node.saved)) {
                referenced.push((i, entry.node.facts.len(), from_donor[i]));
            }
        }
        for (i, facts, must) in referenced {
            for output in 0..facts as u32 {
                let value = Value {
                    node: kiln_ir::NodeId(i as u32),
                    output,
                };
                self.request(value, if must { Target::Result } else { Target::Kept });
            }
        }
        if still.is_some() {
            self.drop_reachable_donors(&from_donor, &edges);
        }
    }

    /// Removes the donors whose old values may still be needed elsewhere. `edges` counts the uses of each entry.
    fn drop_reachable_donors(&mut self, from_donor: &[bool], edges: &[usize]) {
        let entries = &self.gather.entries;
        // A node that depends on an old value, and whose outputs are not all computed now, must be unreachable:
        // referenced by nothing but this program.
        let reachable = (0..entries.len()).any(|i| {
            let (entry, node) = (&entries[i], kiln_ir::NodeId(i as u32));
            let outputs = 0..entry.node.facts.len() as u32;
            let computed = || outputs.map(|output| Value { node, output });
            from_donor[i]
                && !entry.is_input
                && Arc::strong_count(&entry.node) != edges[i] + 1
                && !computed().all(|value| self.requested.contains(&value))
        });
        for donor in &mut self.donors {
            let Some(input) = *donor else {
                continue;
            };
            let entry = self.gather.inputs[input].entry;
            let node = &self.gather.entries[entry].node;
            // The cell holds one handle; the recording holds its edges; this program one reference.
            let is_sole = node.handles.load(Ordering::Acquire) == 1
                && Arc::strong_count(node) == edges[entry] + 2;
            if reachable || !is_sole {
                *donor = None;
            }
        }
    }
}
