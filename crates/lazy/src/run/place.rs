//! Finds the element of the user's argument that caused a data error.

use super::gather::Gather;
use super::reference::{array, evaluate_reference};
use crate::Error;
use crate::node::{About, Handle, Node, NodeState, Operand};
use kiln_base::DType;
use kiln_runtime::{Buffer, Error as RunError};
use std::sync::Arc;

impl About {
    /// The argument that holds the indices, if it is still there.
    pub fn argument(&self) -> Option<Operand> {
        let (_, node, output) = self.index.as_ref()?;
        Some(Operand {
            node: node.upgrade()?,
            output: *output,
        })
    }

    /// The error of a run, completed with everything known; `placeholder_value` returns the values of placeholders.
    pub fn complete(
        &self,
        error: Error,
        run: &RunError,
        argument: Option<Operand>,
        placeholder_value: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
    ) -> Error {
        let mut error = match self.requirement {
            Some(text) => error.with_message(text),
            None => error,
        };
        if let (Some((name, ..)), Some(argument), RunError::Data { index, bound, .. }) =
            (&self.index, argument, run)
            && let Some(place) =
                describe_element(name, &argument, *index, *bound, placeholder_value)
        {
            error = error.with_note(place);
        }
        match &self.note {
            Some(note) => error.with_note(&**note),
            None => error,
        }
    }
}

/// `target[1, 5] is 99`: the first wrong element.
fn describe_element(
    name: &str,
    argument: &Operand,
    index: i64,
    bound: i64,
    placeholder_value: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
) -> Option<String> {
    let values = values(argument, placeholder_value)?;
    let array = array(&values).ok()?;
    let elements = array.ints()?;
    // A negative index may have been counted from the end before it was checked.
    let i = elements.iter().position(|e| *e == index);
    let i = i.or_else(|| {
        elements
            .iter()
            .position(|e| e.checked_add(bound) == Some(index))
    })?;
    let (value, position) = (elements[i], index_of(i as i64, values.shape()));
    Some(match position.is_empty() {
        true => format!("{name} is {value}"),
        false => format!("{name}{position:?} is {value}"),
    })
}

/// Returns the index of an element from its row-major position.
pub(super) fn index_of(element: i64, shape: &[i64]) -> Vec<i64> {
    let (mut index, mut remaining) = (vec![0; shape.len()], element);
    for (i, n) in index.iter_mut().zip(shape).rev() {
        (*i, remaining) = (remaining % n, remaining / n);
    }
    index
}

/// Returns the integers of an argument, if they are known or cheap to compute.
fn values(
    argument: &Operand,
    placeholder_value: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
) -> Option<Buffer> {
    /// The maximum number of elements that are computed for an error.
    const MAX_ELEMENTS: i64 = 1 << 20;
    if let Some(is_known) = argument
        .node
        .ready(argument.output)
        .or_else(|| placeholder_value(&argument.node))
    {
        return Some(is_known);
    }
    let t = Handle::output_of(&argument.node, argument.output);
    let mut gather = Gather::default();
    gather.add(&t).ok()?;
    let is_cheap = gather.entries.iter().all(|e| {
        let sizes = e.node.facts.iter().map(|f| f.numel().as_const());
        let is_small = sizes
            .sum::<Option<i64>>()
            .is_some_and(|n| n <= MAX_ELEMENTS);
        let is_known = !matches!(*e.node.state(), NodeState::Placeholder);
        is_small && is_known && (e.is_input || e.node.op.is_cheap())
    });
    let t = (is_cheap && t.dtype() != DType::Bool).then_some(t)?;
    let evaluated = evaluate_reference(&[&t], t.node.loc).ok()?;
    evaluated.first()?.node.ready(0)
}
