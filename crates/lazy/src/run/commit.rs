//! Commits: the assignment of a run's results to cells, for lazy reads and for compiled functions.
//!
//! A run [`take`]s the cells that it commits to, so that they are *busy*. [`Running`] is the run itself: it marks old
//! values whose memory it may write over as *donated*, and [`Running::finish`] gives all cells their new values. If a
//! run ends in any other way, by an error or a panic, its old values are restored when [`Running`] is dropped. The
//! following invariants hold at all times:
//!
//! 1. Cells are taken in the order of their ids, and a thread that waits for a cell has taken only cells with
//!    smaller ids. A compiled run that has its cells and finds a pending value in one computes it first. On the
//!    way it commits to those further cells that it gets without waiting.
//! 2. A run with donated values waits for nothing but its own kernels. A thread that needs such a value sleeps
//!    until the run has ended ([`Tickets`]), and has no donated values itself. With 1, every wait ends.
//! 3. A value is donated only if nothing else can reach it, or only through values that the run computes: once
//!    it has ended, the old value is not needed any more.
//! 4. From the mark on, the memory of a donated value is in the inputs of the run alone, and it is written
//!    over only by steps after all those that can fail.
//! 5. Cells are given their values while all of them are taken, all or none. If an error becomes known only
//!    later, [`outcome`](super::outcome) takes these values back, and nobody has seen them.
//!
//! For 3, a lazy run counts the references to all nodes that depend on an old value and compares them with the
//! operands of its own program. A node releases its operands when its values are there. So references are counted,
//! and values given to nodes, under the lock of [`Tickets`]: otherwise, operands that another run released in between
//! would hide the same number of references of a third thread. References that are made meanwhile start from a
//! reference that was counted.

use super::gather::Gather;
use super::outcome::{Storing, Watched};
use crate::cell::{Busy, Cell};
use crate::node::{Node, NodeState};
use kiln_plan::Site;
use kiln_runtime::lock::lock;
use kiln_runtime::{Buffer, Error as RunError};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The runs of all threads that have donated values.
static TICKETS: Mutex<Tickets> = Mutex::new(Tickets { taken: 0, ended: 0 });
static ENDED: Condvar = Condvar::new();

/// The lock that is held while references are counted and while nodes get their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Tickets {
    /// The number of runs that have donated values now.
    taken: usize,
    /// The number of runs that had donated values and have ended.
    ended: u64,
}

/// Locks the tickets: no values are given to nodes until the guard is dropped.
pub fn still() -> MutexGuard<'static, Tickets> {
    lock(&TICKETS)
}

/// The current tickets, to be taken before a program is gathered; see [`Tickets::wait`].
pub fn now() -> Tickets {
    still().clone()
}

impl Tickets {
    /// Waits until one of the runs counted by this ticket has ended. Returns false if there were none: no donated value
    /// will be restored.
    pub fn wait(&self) -> bool {
        let mut tickets = still();
        // A run may also have begun and not ended since.
        let is_pending = self.taken > 0 || *tickets != *self;
        while tickets.taken > 0 && tickets.ended == self.ended {
            tickets = ENDED.wait(tickets).unwrap_or_else(|e| e.into_inner());
        }
        is_pending
    }
}

/// Takes cells, each once. If the caller has already taken `held`, it does not wait, and gets only those that are free.
pub fn take(mut cells: Vec<Arc<Cell>>, held: &[Busy]) -> Vec<Busy> {
    cells.sort_by_key(|c| c.id);
    cells.dedup_by_key(|c| c.id);
    let take = |cell: &Arc<Cell>| match held.iter().find(|b| b.cell().id == cell.id) {
        Some(busy) => Some(busy.clone()),
        None if held.is_empty() => Some(cell.acquire()),
        None => cell.try_acquire(),
    };
    cells.iter().filter_map(take).collect()
}

/// The values that a run computes from.
pub type Inputs = SmallVec<[Buffer; 4]>;

/// An old value whose memory a run may write over.
pub struct Donor {
    /// The index of the input.
    pub input: usize,
    /// The leaf that holds it.
    pub leaf: Arc<Node>,
}

/// A run between its beginning and the moment when its values are known.
pub struct Running {
    inputs: Inputs,
    donors: SmallVec<[Donor; 4]>,
    /// For each input, true if its memory may be written over.
    donate: SmallVec<[bool; 8]>,
    /// True while the old values are intact.
    is_whole: bool,
}

impl Running {
    /// Begins a run: from here on the donated memory is in `inputs` alone.
    pub fn new(inputs: Inputs, donors: impl IntoIterator<Item = Donor>) -> Running {
        let donors: SmallVec<[Donor; 4]> = donors.into_iter().collect();
        let mut donate = SmallVec::from_elem(false, inputs.len());
        if !donors.is_empty() {
            still().taken += 1;
        }
        for donor in &donors {
            *donor.leaf.state() = NodeState::Donated;
            donate[donor.input] = true;
        }
        Running {
            inputs,
            donors,
            donate,
            is_whole: true,
        }
    }

    /// Runs `run` on the inputs; it may write over those that its second argument marks.
    pub fn run(
        &mut self,
        run: impl FnOnce(&mut [Buffer], &[bool]) -> Result<Vec<Buffer>, RunError>,
    ) -> Result<Vec<Buffer>, RunError> {
        let values = run(&mut self.inputs, &self.donate)?;
        self.is_whole = false;
        Ok(values)
    }

    /// Returns the inputs; donated inputs have no elements.
    pub fn inputs(&self) -> &[Buffer] {
        &self.inputs
    }

    /// Ends the run: assigns each cell its value. `gather` has the functions and lines of operations that may still
    /// fail.
    pub fn finish<'a>(
        self,
        values: &[Buffer],
        updates: impl IntoIterator<Item = CellUpdate<'a>>,
        sites: &[Site],
        gather: &Gather,
    ) -> Watched {
        let mut storing = Storing::new(values);
        for CellUpdate {
            cell,
            position,
            old,
            loc,
        } in updates
        {
            let old = old.filter(|old| self.donate[*old]);
            storing.assign(cell, position, old.map(|old| &self.inputs[old]), loc);
        }
        storing.finish(sites, gather)
    }
}

/// A value that a cell is given.
pub struct CellUpdate<'a> {
    /// The cell.
    pub cell: &'a Busy,
    /// The position of the value among those of the run.
    pub position: usize,
    /// The input that holds the old value, if one does.
    pub old: Option<usize>,
    /// The user's line.
    pub loc: &'static Location<'static>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.donors.is_empty() {
            return;
        }
        if self.is_whole {
            for Donor { input, leaf } in &self.donors {
                let old = SmallVec::from_elem(self.inputs[*input].clone(), 1);
                *leaf.state() = NodeState::Ready(old);
            }
        }
        let mut tickets = still();
        tickets.taken -= 1;
        tickets.ended += 1;
        drop(tickets);
        ENDED.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{values, vector, with};
    use crate::{ErrorKind, Handle};
    use kiln_ir::Pw;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn begun(t: &Handle) -> Running {
        let inputs = SmallVec::from_elem(t.node.ready(0).unwrap(), 1);
        let leaf = t.node.clone();
        Running::new(inputs, [Donor { input: 0, leaf }])
    }

    #[test]
    fn a_run_that_fails_or_panics_gives_old_values_back() {
        let v = vector(&[1.0, 2.0]);
        let mut running = begun(&v);
        assert!(!v.is_realized());
        let failed = running.run(|_, donate| {
            assert_eq!(donate, [true]);
            Err(RunError::Cancelled)
        });
        assert!(failed.is_err());
        drop(running);
        assert_eq!(values(&v).unwrap(), [1.0, 2.0]);
        let mut running = begun(&v);
        let panicked = AssertUnwindSafe(|| running.run(|_, _| panic!("in the middle")));
        assert!(catch_unwind(panicked).is_err());
        drop(running);
        assert_eq!(values(&v).unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_value_that_is_lost_is_an_error() {
        let v = vector(&[1.0, 2.0]);
        let y = with(&v, Pw::Mul, 2.0);
        let mut running = begun(&v);
        running.run(|_, _| Ok(Vec::new())).unwrap();
        drop(running);
        let e = values(&y).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Internal, "{e}");
    }
}
