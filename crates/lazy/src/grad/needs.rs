//! The values that a backward pass will need, which an earlier read can keep.

use super::walk::{GradEntry, Walk};
use crate::node::{Handle, Node, Operand};
use kiln_autodiff::StepOutput;
use kiln_ir::{Builder, Fact, Op, OpError, Pw};
use smallvec::SmallVec;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

/// A value that gradients are computed from.
pub struct Needed {
    /// The value.
    pub value: Operand,
    /// True if a derivative compares it with a value that was chosen from it. It must then be the same bit for bit,
    /// which is not guaranteed if another program computes it again.
    pub compared: bool,
}

/// Returns the uncomputed values that the gradients of `losses` need. The derivatives are only traversed: nothing is
/// recorded, and neither hooks nor the derivatives of users' functions run.
pub fn needed(losses: &[&Handle], loc: &'static Location<'static>) -> Vec<Needed> {
    let walk = Walk::of_pending(losses, loc);
    let seed = |t: &&Handle| Some((walk.source(&t.edge)?, Value::computed(t.fact().clone())));
    let seeds: Vec<(StepOutput, Value)> = losses.iter().filter_map(seed).collect();
    if seeds.is_empty() {
        return Vec::new();
    }
    let mut b = Probe::default();
    let users = RefCell::new(Vec::new());
    // A user's function may need all its operands and all its results.
    let opaque = |x: &[Value], y: &[Value], _: &[Option<Value>], _: &[bool]| {
        let handles = x.iter().chain(y);
        users
            .borrow_mut()
            .extend(handles.filter_map(|v| v.needed(false)));
        let computed = |x: &Value| Some(Value::computed(x.fact.clone()));
        Ok::<_, OpError>(x.iter().map(computed).collect())
    };
    let steps = walk.steps_of(|_| &opaque, |node, output, _| Value::of(node, output));
    let leaf = |(i, e): (usize, &GradEntry)| (!matches!(e, GradEntry::Node(..))).then_some((i, 0));
    let leaves: Vec<StepOutput> = walk.entries.iter().enumerate().filter_map(leaf).collect();
    // The backward pass itself reports an op without derivative.
    let _ = kiln_autodiff::backward(&mut b, &steps, seeds, &leaves, &mut ());
    drop(steps);
    b.needed.extend(users.into_inner());
    b.needed
}

/// A value of the forward pass, or of the backward pass.
#[derive(Clone)]
struct Value {
    fact: Fact,
    of: Option<Operand>,
}

impl Value {
    fn of(node: &Arc<Node>, output: u32) -> Value {
        Value {
            fact: node.facts[output as usize].clone(),
            of: Some(Operand {
                node: node.clone(),
                output,
            }),
        }
    }

    fn computed(fact: Fact) -> Value {
        Value { fact, of: None }
    }

    fn needed(&self, compared: bool) -> Option<Needed> {
        let value = self.of.clone()?;
        Some(Needed { value, compared })
    }
}

/// Collects the values of the forward pass that ops are emitted on.
#[derive(Default)]
struct Probe {
    needed: Vec<Needed>,
}

impl Builder for Probe {
    type Value = Value;

    fn emit(&mut self, op: Op, inputs: &[Value]) -> Result<SmallVec<[Value; 1]>, OpError> {
        let facts: SmallVec<[&Fact; 3]> = inputs.iter().map(|v| &v.fact).collect();
        let facts = op.infer(&facts)?;
        let compares = matches!(&op, Op::Pointwise(row) if row.0 == Pw::Eq);
        let needed = inputs
            .iter()
            .filter_map(|v| v.needed(compares && v.fact.dtype.is_float()));
        self.needed.extend(needed);
        Ok(facts.into_iter().map(Value::computed).collect())
    }

    fn fact(&self, value: &Value) -> Fact {
        value.fact.clone()
    }

    fn with_fact<R>(&self, value: &Value, f: impl FnOnce(&Fact) -> R) -> R {
        f(&value.fact)
    }
}
