//! Committing: the one way in which a run gives cells new values, be it of what is read lazily or of a
//! compiled function.
//!
//! A run [`take`]s the cells that it commits to, so that they are *busy*. [`Running`] is the run itself: it
//! marks old values whose memory it may write over as *donated*, and [`Running::finish`] gives all cells
//! their new values. A run that ends in any other way, an error or a panic, has its old values back when
//! [`Running`] is dropped. These hold at all times:
//!
//! 1. Cells are taken in the order of their ids, and who waits for a cell has taken only cells with
//!    smaller ids. A compiled run that has its cells and finds a pending value in one computes it first,
//!    and commits on the way to what further cells it gets without waiting.
//! 2. A run with donated values waits for nothing but its own kernels. Whoever needs such a value sleeps
//!    until the run has ended ([`Turns`]), and holds none himself. With 1, every wait ends.
//! 3. A value is donated only if nobody else can reach it, or only through values that the run computes:
//!    once it has ended, nobody needs the old value.
//! 4. From the mark on, the memory of a donated value is in the inputs of the run alone, and it is written
//!    over only by steps behind all those that can fail.
//! 5. Cells are given their values while all of them are taken, all or none. Where an error is known only
//!    later, [`outcome`](super::outcome) takes back what was given, and nobody has seen it.
//!
//! For 3 a lazy run counts the references to all nodes that depend on an old value and compares them with
//! the operands of its own program. A node lets go of its operands when its values are there, so counts
//! are taken, and values given to nodes, under the lock of [`Turns`]; otherwise operands that another run
//! released in between would hide as many references of a third thread. References that are made meanwhile
//! start from a reference that was counted.

use super::gather::Gather;
use super::outcome::Storing;
use crate::cell::{Busy, Cell};
use crate::node::{Node, State};
use kiln_plan::Site;
use kiln_runtime::{Buffer, Error as RunError};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The runs of all threads that have donated values.
static TURNS: Mutex<Turns> = Mutex::new(Turns { taken: 0, ended: 0 });
static ENDED: Condvar = Condvar::new();

/// Held while references are counted and while nodes are given their values.
#[derive(Clone, Debug, PartialEq)]
pub struct Turns {
    /// Runs that have donated values now.
    taken: usize,
    /// Runs that had.
    ended: u64,
}

/// Nobody gives values to nodes until the guard is dropped.
pub fn still() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(|e| e.into_inner())
}

/// What there is to wait for; to be asked before a program is gathered.
pub fn now() -> Turns {
    still().clone()
}

impl Turns {
    /// Waits until one of the runs of that moment has ended. Gives whether there was any: otherwise nobody
    /// is going to give a donated value back.
    pub fn wait(&self) -> bool {
        let mut turns = still();
        // A run may also have begun and not ended since.
        let any = self.taken > 0 || *turns != *self;
        while turns.taken > 0 && turns.ended == self.ended {
            turns = ENDED.wait(turns).unwrap_or_else(|e| e.into_inner());
        }
        any
    }
}

/// Takes cells, each once. Who has taken some before, `held`, does not wait for the others, and gets those
/// that are free.
pub fn take(mut cells: Vec<Arc<Cell>>, held: &[Busy]) -> Vec<Busy> {
    cells.sort_by_key(|c| c.id);
    cells.dedup_by_key(|c| c.id);
    let take = |cell: &Arc<Cell>| match held.iter().find(|b| b.cell().id == cell.id) {
        Some(ours) => Some(ours.clone()),
        None if held.is_empty() => Some(cell.acquire()),
        None => cell.try_acquire(),
    };
    cells.iter().filter_map(take).collect()
}

/// The values that a run computes from.
pub type Inputs = SmallVec<[Buffer; 4]>;

/// An old value whose memory a run may write over.
pub struct Donor {
    /// Which input it is.
    pub input: usize,
    /// The leaf that holds it.
    pub leaf: Arc<Node>,
}

/// A run between its beginning and the moment when its values are known.
pub struct Running {
    inputs: Inputs,
    donors: SmallVec<[Donor; 4]>,
    /// By input, whether its memory may be written over.
    donate: SmallVec<[bool; 8]>,
    /// Whether old values are still whole.
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
            *donor.leaf.state() = State::Donated;
            donate[donor.input] = true;
        }
        Running {
            inputs,
            donors,
            donate,
            is_whole: true,
        }
    }

    /// What `run` gives for the inputs, of which it may write over those that its second argument says.
    pub fn run(
        &mut self,
        run: impl FnOnce(&mut [Buffer], &[bool]) -> Result<Vec<Buffer>, RunError>,
    ) -> Result<Vec<Buffer>, RunError> {
        let values = run(&mut self.inputs, &self.donate)?;
        self.is_whole = false;
        Ok(values)
    }

    /// The inputs; those whose memory was taken are without elements.
    pub fn inputs(&self) -> &[Buffer] {
        &self.inputs
    }

    /// Ends the run: gives each cell its value. Functions and lines of what may still fail are those of
    /// `gather`.
    pub fn finish<'a>(
        self,
        values: &[Buffer],
        given: impl IntoIterator<Item = Given<'a>>,
        sites: &[Site],
        gather: &Gather,
    ) {
        let mut storing = Storing::new(values);
        for Given {
            cell,
            position,
            old,
            loc,
        } in given
        {
            let old = old.filter(|old| self.donate[*old]);
            storing.give(cell, position, old.map(|old| &self.inputs[old]), loc);
        }
        storing.finish(sites, gather);
    }
}

/// What a cell is given.
pub struct Given<'a> {
    /// The cell.
    pub cell: &'a Busy,
    /// Where its value is among those of the run.
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
                *leaf.state() = State::Ready(old);
            }
        }
        let mut turns = still();
        turns.taken -= 1;
        turns.ended += 1;
        drop(turns);
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
