//! Runs that a GPU was given and that may still turn out to have had a data error.
//!
//! Their values are stored as if all went well. Whoever depends on one calls [`settle`] first, which waits
//! and in case of an error takes the stored state of cells back, once, and gives the error at the user's
//! line. So a step that depends on a failed one gives that one's error, and cells hold what they held
//! before it.

use crate::node::Node;
use crate::var::Cell;
use crate::{Device, Error, ErrorKind, Result, Tensor};
use kiln_base::Loc;
use kiln_base::plan::Site;
use kiln_runtime::cuda::Outcome;
use kiln_runtime::{Buffer, Error as RunError};
use std::sync::{Arc, Mutex, Weak};

/// What is kept of a run until it is known how it ended.
pub(crate) struct Blame {
    /// For each site its node, the function that the user called, and the line.
    sites: Vec<(u32, &'static str, Loc)>,
    cells: Mutex<Vec<Stored>>,
}

/// A cell that was given a value of the run.
pub(crate) struct Stored {
    cell: Weak<Cell>,
    /// The value's leaf.
    new: Weak<Node>,
    /// The last computed value before.
    old: Option<Tensor>,
}

impl Stored {
    /// What to keep of storing a value as `new` in a cell, whose last computed value was `old`; nothing
    /// if the value is sure. `left` is what the run has left of the old value's buffer, if that was
    /// donated: all, or nothing.
    pub(crate) fn new(
        cell: &Arc<Cell>,
        value: &Buffer,
        new: &Tensor,
        old: Option<Tensor>,
        left: Option<&Buffer>,
    ) -> Option<Stored> {
        value.outcome()?;
        // Memory that the run took still holds the old value if it fails.
        let given = left.map(|left| if left.is_empty() { value } else { left });
        let given = given.map(|b| cell.leaf(b.clone().after_failure(), new.node.loc));
        Some(Stored {
            cell: Arc::downgrade(cell),
            new: Arc::downgrade(&new.node),
            old: given.or(old),
        })
    }
}

/// A value that a run gives to a cell: it is taken back with the others if the run fails, so whoever
/// depends on it waits too.
pub(crate) fn assigned(value: &Buffer, values: &[Buffer]) -> Buffer {
    match values.iter().find_map(Buffer::outcome) {
        Some(outcome) => value.clone().depending_on(outcome),
        None => value.clone(),
    }
}

impl Blame {
    /// Keeps what is needed with the outcome of the run that gave these values, if it may still have a
    /// data error. `called` gives the function and the line of a node.
    pub(crate) fn keep(
        values: &[Buffer],
        sites: &[Site],
        called: impl Fn(u32) -> (&'static str, Loc),
        cells: Vec<Stored>,
    ) {
        let Some(outcome) = values.iter().find_map(Buffer::outcome) else {
            return;
        };
        let site = |s: &Site| {
            let (called, loc) = called(s.node);
            (s.node, called, loc)
        };
        outcome.keep(Arc::new(Blame {
            sites: sites.iter().map(site).collect(),
            cells: Mutex::new(cells),
        }));
    }

    /// Cells return to their last computed values.
    fn roll_back(&self) {
        let cells = std::mem::take(&mut *self.cells.lock().unwrap_or_else(|e| e.into_inner()));
        for stored in cells {
            if let Some(cell) = stored.cell.upgrade() {
                cell.roll_back(&stored.new, stored.old);
            }
        }
    }

    fn error(&self, e: RunError) -> Error {
        let node = match &e {
            RunError::Data { node, .. } => Some(*node),
            _ => None,
        };
        let site = self.sites.iter().find(|s| Some(s.0) == node);
        let (_, called, loc) = site.cloned().unwrap_or((0, "run", Loc::UNKNOWN));
        data_error(e, called, loc)
    }
}

/// A data error at the user's line; anything else is the device's failure.
pub(crate) fn data_error(e: RunError, called: &str, loc: Loc) -> Error {
    let text = e.to_string();
    match e {
        RunError::Data { op, .. } => {
            let message = text.strip_prefix(&format!("{op}: ")).unwrap_or(&text);
            Error::new(ErrorKind::Data, called, message, loc)
        }
        _ => Error::new(ErrorKind::Device, called, text, loc),
    }
}

/// Waits until it is known that the run which computes a value has no data error.
///
/// # Errors
/// Its data error, at the user's line.
pub(crate) fn settle(buffer: &Buffer) -> Result<()> {
    buffer.outcome().map_or(Ok(()), wait)
}

fn wait(outcome: &Arc<Outcome>) -> Result<()> {
    let note = outcome.note();
    outcome
        .wait()
        .map_err(|e| match note.and_then(|n| n.downcast::<Blame>().ok()) {
            Some(blame) => {
                blame.roll_back();
                blame.error(e)
            }
            None => data_error(e, "run", Loc::UNKNOWN),
        })
}

/// Waits for every run of a device and gives the first data error of which nobody was told yet.
///
/// # Errors
/// That error.
pub(crate) fn settle_all(device: Device) -> Result<()> {
    let outcomes = device.gpu().map_or(Vec::new(), |gpu| gpu.outcomes());
    let ended: Vec<Result<()>> = outcomes.iter().map(wait).collect();
    ended.into_iter().collect()
}
