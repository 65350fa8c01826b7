//! Threads that read and write the same cells: who waits for whom, and what a run may write over.
//!
//! A run takes the cells that it commits to, so that they are *busy*, and may mark old values of these as
//! *donated*: it writes over their memory, and until it has ended nobody can compute from them. Waiting
//! ends, because
//!
//! 1. cells are taken in the order of their ids, and who waits for a cell has taken only cells with
//!    smaller ids. A compiled run that has its cells and finds a pending value in one computes it first,
//!    and commits on the way to what further cells it gets without waiting;
//! 2. a run with donated values waits for nothing but its own kernels, so whoever needs such a value
//!    sleeps until the run has ended, and holds none himself;
//! 3. a value is donated only if nobody else can reach it, or only through values that the run computes:
//!    once it has ended, nobody needs the old value. If it fails, the old value is back.
//!
//! For 3 a run counts the references to all nodes that depend on an old value and compares them with the
//! operands of its own program. A node lets go of its operands when its values are there, so counts are
//! taken, and values given to nodes, under the lock of [`Turns`]; otherwise operands that another run
//! released in between would hide as many references of a third thread. References that are made meanwhile
//! start from a reference that was counted.

use crate::node::{Node, State};
use kiln_runtime::Buffer;
use smallvec::SmallVec;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The runs of all threads that have donated values.
static TURNS: Mutex<Turns> = Mutex::new(Turns { taken: 0, ended: 0 });
static ENDED: Condvar = Condvar::new();

/// Held while references are counted and while nodes are given their values.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Turns {
    /// Runs that have donated values now.
    taken: usize,
    /// Runs that had.
    ended: u64,
}

/// Nobody gives values to nodes until the guard is dropped.
pub(crate) fn still() -> MutexGuard<'static, Turns> {
    TURNS.lock().unwrap_or_else(|e| e.into_inner())
}

/// What there is to wait for; to be asked before a program is gathered.
pub(crate) fn now() -> Turns {
    still().clone()
}

impl Turns {
    /// Waits until one of the runs of that moment has ended. Gives whether there was any: otherwise nobody
    /// is going to give a donated value back.
    pub(crate) fn wait(&self) -> bool {
        let mut turns = still();
        // A run may also have begun and not ended since.
        let any = self.taken > 0 || *turns != *self;
        while turns.taken > 0 && turns.ended == self.ended {
            turns = ENDED.wait(turns).unwrap_or_else(|e| e.into_inner());
        }
        any
    }
}

/// The old values that a run writes over, by the input that each was; until this is dropped, whoever needs
/// one waits.
#[derive(Default)]
pub(crate) struct Donated(SmallVec<[(usize, Arc<Node>); 4]>);

impl Donated {
    /// Marks the leaf whose memory is input `input` from here on.
    pub(crate) fn mark(&mut self, input: usize, node: &Arc<Node>) {
        if self.0.is_empty() {
            still().taken += 1;
        }
        *node.state() = State::Donated;
        self.0.push((input, node.clone()));
    }

    /// The run failed: the leaves have their values again, which `inputs` still hold.
    pub(crate) fn give_back(self, inputs: &[Buffer]) {
        for (input, node) in &self.0 {
            *node.state() = State::Ready(SmallVec::from_elem(inputs[*input].clone(), 1));
        }
    }
}

impl Drop for Donated {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            let mut turns = still();
            turns.taken -= 1;
            turns.ended += 1;
            drop(turns);
            ENDED.notify_all();
        }
    }
}
