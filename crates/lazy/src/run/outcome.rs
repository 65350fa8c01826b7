//! Runs that were submitted to a GPU and may still fail with a data error.
//!
//! Their values are stored as if there were no error. Code that depends on one calls [`settle`] first, which waits.
//! In case of an error, [`settle`] takes the stored values of cells back, once, and returns the error at the user's
//! line. So a step that depends on a failed one returns that one's error, and cells hold their values from before the
//! failed step.

use super::gather::Gather;
use crate::cell::{Busy, Cell};
use crate::device::device_error;
use crate::node::{About, Node, Operand};
use crate::{Device, Error, ErrorKind, Handle, Result};
use kiln_base::Loc;
use kiln_plan::Site;
use kiln_runtime::cuda::Outcome;
use kiln_runtime::lock::lock;
use kiln_runtime::{Buffer, Error as RunError};
use std::borrow::Cow;
use std::panic::Location;
use std::sync::{Arc, Mutex, Weak};

/// The data of a run that is kept until its outcome is known.
struct Blame {
    device: Device,
    sites: Vec<Suspect>,
    cells: Mutex<Vec<Stored>>,
}

/// An operation that may have had a data error.
struct Suspect {
    node: u32,
    /// The function that the user called.
    called: Cow<'static, str>,
    loc: Loc,
    about: Option<About>,
    /// The argument of indices, which is kept until it is known that they are right.
    argument: Option<Operand>,
}

/// A cell that was given a value of the run.
struct Stored {
    cell: Weak<Cell>,
    /// The value's leaf.
    new: Weak<Node>,
    /// The last computed value before.
    old: Option<Handle>,
}

/// Gives cells the values of a run, and keeps the data to take them back if it may still fail.
pub struct Storing<'a> {
    values: &'a [Buffer],
    outcome: Option<&'a Arc<Outcome>>,
    cells: Vec<Stored>,
    watched: Watched,
}

/// Cells with watchers, and the values that a run gave them.
#[must_use]
#[derive(Default)]
pub struct Watched(Vec<(Arc<Cell>, Handle)>);

impl Watched {
    /// Calls the watchers. The caller has released the cells, since a watcher may read them.
    pub fn see(self) {
        for (cell, value) in &self.0 {
            if let Some(see) = cell.watcher() {
                see(value);
            }
        }
    }
}

impl<'a> Storing<'a> {
    /// Begins to store these values of a run.
    pub fn new(values: &'a [Buffer]) -> Storing<'a> {
        Storing {
            values,
            outcome: values.iter().find_map(Buffer::outcome),
            cells: Vec::new(),
            watched: Watched::default(),
        }
    }

    /// Gives a cell the value at this position. It is taken back with the others if the run fails, so everything that
    /// depends on it waits too. If the old value's buffer was donated, `donated` is that buffer after the run: whole,
    /// or empty if the run took its memory.
    pub fn assign(
        &mut self,
        busy: &Busy,
        position: usize,
        donated: Option<&Buffer>,
        loc: &'static Location<'static>,
    ) {
        let (cell, mut value) = (busy.cell(), self.values[position].clone());
        if let Some(outcome) = self.outcome {
            value = value.depending_on(outcome);
        }
        let mut state = busy.state();
        let new = cell.leaf(value.clone(), Some(&state), loc);
        if self.outcome.is_some() {
            // Memory that the run took still holds the old value if the run fails.
            let restored = donated.map(|donated| if donated.is_empty() { &value } else { donated });
            let restored = restored.map(|b| cell.leaf(b.clone().after_failure(), None, loc));
            self.cells.push(Stored {
                cell: Arc::downgrade(cell),
                new: Arc::downgrade(&new.node),
                old: restored.or(state.realized.clone()),
            });
        }
        if cell.watcher().is_some() {
            self.watched.0.push((cell.clone(), new.clone()));
        }
        state.set(new);
    }

    /// Ends the storing; `gather` gives the functions and lines of the sites.
    pub fn finish(self, sites: &[Site], gather: &Gather) -> Watched {
        if let Some(outcome) = self.outcome {
            let cells = Mutex::new(self.cells);
            outcome.keep(Arc::new(Blame {
                device: gather.device(),
                sites: suspects(sites, gather),
                cells,
            }));
        }
        self.watched
    }
}

fn suspects(sites: &[Site], gather: &Gather) -> Vec<Suspect> {
    let site = |s: &Site| {
        let node = s.node as usize;
        let about = gather.about(node);
        Suspect {
            node: s.node,
            called: gather.called_function(node),
            loc: gather.loc(node),
            argument: about.as_ref().and_then(About::argument),
            about,
        }
    };
    sites.iter().map(site).collect()
}

impl Blame {
    /// Returns the cells to their last computed values.
    fn roll_back(&self) {
        let cells = std::mem::take(&mut *lock(&self.cells));
        for stored in cells {
            if let Some(cell) = stored.cell.upgrade() {
                cell.roll_back(&stored.new, stored.old);
            }
        }
    }

    fn error(&self, e: RunError) -> Error {
        self.device.named_in(self.error_of(e))
    }

    fn error_of(&self, e: RunError) -> Error {
        let node = match &e {
            RunError::Data { node, .. } | RunError::Custom { node, .. } => Some(*node),
            _ => None,
        };
        let Some(site) = self.sites.iter().find(|s| Some(s.node) == node) else {
            return data_error(&e, "run", Loc::UNKNOWN);
        };
        let error = data_error(&e, &site.called, site.loc.clone());
        match &site.about {
            Some(about) if matches!(e, RunError::Data { .. }) => {
                about.complete(error, &e, site.argument.clone(), &|_| None)
            }
            _ => error,
        }
    }
}

/// A data error, or one of other ranks, at the user's line; anything else is the device's failure.
pub fn data_error(e: &RunError, called: &str, loc: Loc) -> Error {
    let text = e.to_string();
    match e {
        RunError::Data { op, .. } => {
            let message = text.strip_prefix(&format!("{op}: ")).unwrap_or(&text);
            Error::new(ErrorKind::Data, called, message, loc)
        }
        RunError::Custom { text, .. } => Error::new(ErrorKind::Data, called, text, loc),
        _ => Error::new(ErrorKind::Device, called, text, loc),
    }
}

/// Waits until it is known that the run which computes a value has no data error.
///
/// # Errors
/// Its data error, at the user's line.
pub fn settle(buffer: &Buffer) -> Result<()> {
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
            None => data_error(&e, "run", Loc::UNKNOWN),
        })
}

/// Waits for every run of a device and returns the first data error that has not been reported yet.
///
/// # Errors
/// That error.
pub fn settle_all(device: Device) -> Result<()> {
    let outcomes = device.gpu().map_or(Vec::new(), |gpu| gpu.outcomes());
    let ended: Vec<Result<()>> = outcomes.iter().map(wait).collect();
    ended.into_iter().collect()
}

impl Device {
    /// Waits until all work submitted to the device is done.
    ///
    /// # Errors
    /// If the device failed, or a program had a data error (such as an index out of range) that no read has reported:
    /// that error, at the line of the operation.
    #[track_caller]
    pub fn synchronize(self) -> Result<()> {
        let result = self.gpu().map_or(Ok(()), |gpu| gpu.synchronize());
        result.map_err(|e| device_error("Device::synchronize", e, Location::caller()))?;
        settle_all(self)
    }
}
