//! Recording a function for `compile`: the cells, random keys and gradients that it touches while it runs once.

use crate::cell::Cell;
use crate::grad::edge::Leaf;
use crate::node::{Handle, Node, NodeState, input_op};
use crate::{Device, Error, ErrorKind, Result, symbols};
use hashbrown::HashMap;
use kiln_base::{DType, Dim};
use kiln_ir::{Fact, Facts, Role};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The cells, random keys and gradients that a function being compiled has touched.
#[derive(Default)]
pub struct Scope {
    /// The cells it read or assigned.
    pub cells: Vec<ScopeCell>,
    /// Their positions, by the cells' ids.
    known: HashMap<u64, usize>,
    /// For each use of a generator, its key and the number of random numbers that it draws.
    pub keys: Vec<(Handle, Dim)>,
    /// Gradients of leaves, by their ids.
    grads: HashMap<u64, Option<Handle>>,
}

/// A cell that a function being compiled has touched.
pub struct ScopeCell {
    /// The cell.
    pub cell: Arc<Cell>,
    /// The placeholder for its value at the beginning of a run.
    pub placeholder: Handle,
    /// Its current value.
    pub current: Handle,
    /// True if it was assigned.
    pub written: bool,
}

/// True if this thread is recording a function for `compile`.
pub fn is_recording() -> bool {
    SCOPE.with_borrow(Option::is_some)
}

/// The recorded value of a cell, while recording.
pub fn get(cell: &Arc<Cell>, loc: &'static Location<'static>) -> Option<Handle> {
    SCOPE.with_borrow_mut(|s| s.as_mut().map(|s| s.cell(cell, loc).current.clone()))
}

/// Records an assignment, while recording.
pub fn assign(cell: &Arc<Cell>, value: &Handle) {
    SCOPE.with_borrow_mut(|s| {
        if let Some(s) = s.as_mut() {
            let entry = s.cell(cell, value.node.loc);
            entry.current = value.plain();
            entry.written = true;
        }
    });
}

impl Leaf {
    /// The gradient. While recording, the one of the recording, which is empty at first.
    pub fn grad(&self) -> Option<Handle> {
        let recorded = SCOPE.with_borrow(|s| {
            let grads = s.as_ref().map(|s| &s.grads);
            grads.map(|grads| grads.get(&self.id).cloned().flatten())
        });
        recorded.unwrap_or_else(|| self.kept())
    }

    /// Replaces the gradient; while recording, the one of the recording.
    pub fn set_grad(&self, grad: Option<Handle>) {
        let outside = SCOPE.with_borrow_mut(|s| match s {
            Some(s) => {
                s.grads.insert(self.id, grad);
                None
            }
            None => Some(grad),
        });
        if let Some(grad) = outside {
            self.keep(grad);
        }
    }
}

/// True if a cell was assigned by the function being recorded.
pub fn is_written(cell: &Cell) -> bool {
    SCOPE.with_borrow(|s| {
        let cell = s
            .as_ref()
            .and_then(|s| s.known.get(&cell.id).map(|index| &s.cells[*index]));
        cell.is_some_and(|c| c.written)
    })
}

/// The key of `count` random numbers, while recording. Each run reserves new ones.
pub fn random_key(count: &Dim) -> Option<Handle> {
    SCOPE.with_borrow_mut(|s| {
        let s = s.as_mut()?;
        let fact = Fact::new(DType::I64, [2i64]);
        let loc = Location::caller();
        let key = placeholder(fact, Role::RandomKey, None, loc, "random key");
        s.keys.push((key.clone(), count.clone()));
        Some(key)
    })
}

impl Scope {
    fn cell(&mut self, cell: &Arc<Cell>, loc: &'static Location<'static>) -> &mut ScopeCell {
        let index = *self.known.entry(cell.id).or_insert_with(|| {
            let device = Some(cell.leaf.device.get());
            let t = placeholder(cell.fact(), cell.role(), device, loc, "Var");
            self.cells.push(ScopeCell {
                cell: cell.clone(),
                placeholder: t.clone(),
                current: t,
                written: false,
            });
            self.cells.len() - 1
        });
        &mut self.cells[index]
    }
}

/// A tensor that stands for an input of the program.
pub fn placeholder(
    fact: Fact,
    role: Role,
    device: Option<Device>,
    loc: &'static Location<'static>,
    called: &'static str,
) -> Handle {
    let op = input_op(fact.clone(), role);
    let (facts, state) = (Facts::from_buf([fact]), NodeState::Placeholder);
    Handle::from_node(Node::new(op, facts, device, loc, called, state))
}

/// Ends the recording even if the user's function panics.
pub struct RecordingGuard;

impl RecordingGuard {
    /// Begins a recording with these names of symbols.
    ///
    /// # Errors
    /// If this thread is recording a function already.
    pub fn start(names: Vec<String>, loc: &'static Location<'static>) -> Result<RecordingGuard> {
        if is_recording() {
            let (kind, message) = (
                ErrorKind::ReadWhileCompiling,
                "a function is already being recorded on this thread",
            );
            return Err(Error::new(kind, "compile", message, loc));
        }
        SCOPE.set(Some(Scope::default()));
        symbols::set(names);
        Ok(RecordingGuard)
    }

    /// Ends the recording; returns everything that was touched.
    pub fn finish(self) -> Scope {
        SCOPE.take().unwrap_or_default()
    }
}

impl Drop for RecordingGuard {
    fn drop(&mut self) {
        SCOPE.set(None);
        symbols::set(Vec::new());
    }
}
