//! What errors say beside their line: what the data must be, which element is wrong, in which layer, what
//! the user calls a parameter.

use crate::autograd::edge::Edge;
use crate::node::{Node, Operand, State};
use crate::run::gather::Gather;
use crate::run::is_cheap;
use crate::verify::array;
use crate::{DType, Error, Tensor, evaluate_reference};
use kiln_ir::Op;
use kiln_runtime::{Buffer, Error as RunError};
use std::cell::RefCell;
use std::sync::{Arc, Mutex, Weak};

/// What is known of a node for messages.
#[derive(Clone, Default)]
pub(crate) struct About {
    /// What the data must be, in place of the range of an index.
    pub(crate) requirement: Option<&'static str>,
    /// The user's argument that holds the indices: its name and place. Not kept alive: labels are freed
    /// once a loss is computed.
    pub(crate) index: Option<(&'static str, Weak<Node>, u32)>,
    note: Option<Arc<str>>,
    /// The name of the cell whose value the node is.
    label: Option<Arc<Label>>,
}

/// What the user calls a cell, such as `fc.weight`, once that is known.
#[derive(Default)]
pub(crate) struct Label(Mutex<Option<Arc<str>>>);

impl Label {
    pub(crate) fn get(&self) -> Option<Arc<str>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    pub(crate) fn set(&self, name: &str) {
        *self.0.lock().unwrap_or_else(|e| e.into_inner()) = Some(name.into());
    }
}

impl Tensor {
    /// The name of the cell whose value this is, which may become known later.
    pub(crate) fn label(&self) -> Option<Arc<Label>> {
        match &self.edge {
            Edge::Leaf(leaf) => Some(leaf.label.clone()),
            _ => self.node.about.as_ref()?.label.clone(),
        }
    }
}

thread_local! {
    static NOTE: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `f`. Data errors of what is recorded in it, such as an index out of range, carry this note
/// whenever they come up: for layers, which name themselves so.
pub fn with_error_note<T>(note: impl Into<Arc<str>>, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Arc<str>>);
    impl Drop for Restore {
        fn drop(&mut self) {
            NOTE.set(self.0.take());
        }
    }
    let _restore = Restore(NOTE.replace(Some(note.into())));
    f()
}

impl About {
    /// What is kept with the node of an op.
    pub(crate) fn of(
        op: &Op,
        requirement: Option<&'static str>,
        index: Option<&(&'static str, Weak<Node>, u32)>,
    ) -> Option<Arc<About>> {
        if !matches!(op, Op::Gather(_) | Op::Scatter(_)) {
            return None;
        }
        let about = About {
            requirement,
            index: index.cloned(),
            note: NOTE.with_borrow(Clone::clone),
            label: None,
        };
        let says = about.requirement.is_some() || about.index.is_some() || about.note.is_some();
        says.then(|| Arc::new(about))
    }

    /// What is kept with the values of a cell.
    pub(crate) fn of_cell(label: &Arc<Label>) -> Arc<About> {
        Arc::new(About {
            label: Some(label.clone()),
            ..About::default()
        })
    }

    /// The argument that holds the indices, if it is still there.
    pub(crate) fn argument(&self) -> Option<Operand> {
        let (_, node, output) = self.index.as_ref()?;
        Some(Operand {
            node: node.upgrade()?,
            output: *output,
        })
    }

    /// The error of a run with what is known: `given` are values of placeholders.
    pub(crate) fn complete(
        &self,
        error: Error,
        run: &RunError,
        argument: Option<Operand>,
        given: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
    ) -> Error {
        let mut error = match self.requirement {
            Some(text) => error.with_message(text),
            None => error,
        };
        if let (Some((name, ..)), Some(argument), RunError::Data { index, bound, .. }) =
            (&self.index, argument, run)
            && let Some(place) = place(name, &argument, *index, *bound, given)
        {
            error = error.with_note(place);
        }
        match &self.note {
            Some(note) => error.with_note(&**note),
            None => error,
        }
    }
}

/// `target[1, 5] is 99`: the first element that was found to be wrong.
fn place(
    name: &str,
    argument: &Operand,
    index: i64,
    bound: i64,
    given: &dyn Fn(&Arc<Node>) -> Option<Buffer>,
) -> Option<String> {
    let values = values(argument, given)?;
    let shape: Vec<usize> = values.shape().iter().map(|d| *d as usize).collect();
    let array = array(&values).ok()?;
    let elements = array.ints()?;
    // A negative index may have been counted from the end before it was looked at.
    let at = elements.iter().position(|e| *e == index);
    let at = at.or_else(|| {
        elements
            .iter()
            .position(|e| e.checked_add(bound) == Some(index))
    })?;
    let value = elements[at];
    let mut rest = at;
    let mut position: Vec<String> = Vec::new();
    for size in shape.iter().rev() {
        position.push((rest % size).to_string());
        rest /= size;
    }
    position.reverse();
    Some(match position.is_empty() {
        true => format!("{name} is {value}"),
        false => format!("{name}[{}] is {value}", position.join(", ")),
    })
}

/// The integers of an argument: known ones, or those that little work gives.
fn values(argument: &Operand, given: &dyn Fn(&Arc<Node>) -> Option<Buffer>) -> Option<Buffer> {
    /// An error is worth as much work as this many elements.
    const MOST: i64 = 1 << 20;
    if let Some(known) = argument
        .node
        .ready(argument.output)
        .or_else(|| given(&argument.node))
    {
        return Some(known);
    }
    let t = Tensor::output_of(&argument.node, argument.output);
    let mut gather = Gather::default();
    gather.add(&t).ok()?;
    let little = gather.entries.iter().all(|e| {
        let sizes = e.node.facts.iter().map(|f| f.numel().as_const());
        let small = sizes.sum::<Option<i64>>().is_some_and(|n| n <= MOST);
        let known = !matches!(*e.node.state(), State::Placeholder);
        small && known && (e.is_input || is_cheap(&e.node.op))
    });
    let t = (little && t.dtype() != DType::Bool).then_some(t)?;
    let found = evaluate_reference(&[&t]).ok()?;
    found.first()?.node.ready(0)
}
