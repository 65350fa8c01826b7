//! Recordings: sets of unrealised nodes that belong together.
//!
//! Every unrealised node belongs to a recording; an op on values of two recordings joins them. A
//! recording knows the cells that were assigned a value of it, so that realising any of its values
//! commits them too and no chain of pending assignments grows.

use hashbrown::HashSet;
use kiln_runtime::lock::lock;
use std::sync::{Arc, Mutex, Weak};

/// A recording: a node of a union-find forest.
pub struct Recording<C>(Arc<Inner<C>>);

struct Inner<C> {
    state: Mutex<RecordingState<C>>,
}

enum RecordingState<C> {
    Root {
        pending: Vec<Weak<C>>,
        /// The number of recordings that were joined into this one. The smaller joins the larger, which keeps chains
        /// short.
        size: usize,
    },
    Joined(Recording<C>),
}

/// A cell that is assigned values of a recording.
pub trait Assigned {
    /// A unique number.
    fn id(&self) -> u64;
}

impl<C> Clone for Recording<C> {
    fn clone(&self) -> Recording<C> {
        Recording(self.0.clone())
    }
}

impl<C: Assigned> Default for Recording<C> {
    fn default() -> Recording<C> {
        Recording::new()
    }
}

impl<C: Assigned> Recording<C> {
    /// Returns a new recording.
    pub fn new() -> Recording<C> {
        Recording(Arc::new(Inner {
            state: Mutex::new(RecordingState::Root {
                pending: Vec::new(),
                size: 1,
            }),
        }))
    }

    /// Returns the representative, and compresses the path to it.
    pub fn root(&self) -> Recording<C> {
        let mut root = self.clone();
        loop {
            let next = match &*root.lock() {
                RecordingState::Root { .. } => None,
                RecordingState::Joined(next) => Some(next.clone()),
            };
            match next {
                Some(next) => root = next,
                None => break,
            }
        }
        if !Arc::ptr_eq(&root.0, &self.0) {
            let mut state = self.lock();
            if matches!(*state, RecordingState::Joined(_)) {
                *state = RecordingState::Joined(root.clone());
            }
        }
        root
    }

    /// Joins two recordings.
    pub fn join(&self, other: &Recording<C>) {
        if self.is(other) {
            return;
        }
        loop {
            let (a, b) = (self.root(), other.root());
            if a.is(&b) {
                return;
            }
            // Lock in address order; another thread may have joined one of them meanwhile.
            let (low, high) = if Arc::as_ptr(&a.0) < Arc::as_ptr(&b.0) {
                (a, b)
            } else {
                (b, a)
            };
            let mut low_state = low.lock();
            let mut high_state = high.lock();
            let (RecordingState::Root { size: a, .. }, RecordingState::Root { size: b, .. }) =
                (&*low_state, &*high_state)
            else {
                continue;
            };
            let (kept_state, target, moved_state) = if a < b {
                (&mut *high_state, high.clone(), &mut *low_state)
            } else {
                (&mut *low_state, low.clone(), &mut *high_state)
            };
            let old = std::mem::replace(moved_state, RecordingState::Joined(target));
            if let (
                RecordingState::Root { pending, size },
                RecordingState::Root {
                    pending: other_pending,
                    size: other_size,
                },
            ) = (kept_state, old)
            {
                pending.extend(other_pending);
                *size += other_size;
            }
            return;
        }
    }

    /// True if both are the same object.
    pub fn is(&self, other: &Recording<C>) -> bool {
        self.address() == other.address()
    }

    /// An address that no other live recording has.
    pub fn address(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// Remembers that a cell was assigned a value of this recording.
    pub fn add_pending(&self, cell: &Arc<C>) {
        loop {
            if let RecordingState::Root { pending, .. } = &mut *self.root().lock() {
                if pending.len().is_power_of_two() {
                    pending.retain(|c| c.strong_count() > 0);
                }
                pending.push(Arc::downgrade(cell));
                return;
            }
        }
    }

    /// The live cells with pending assignments, each once, by id. They stay pending.
    pub fn pending(&self) -> Vec<Arc<C>> {
        let root = self.root();
        let mut cells: Vec<Arc<C>> = match &*root.lock() {
            RecordingState::Root { pending, .. } => {
                pending.iter().filter_map(Weak::upgrade).collect()
            }
            RecordingState::Joined(_) => Vec::new(),
        };
        cells.sort_by_key(|c| c.id());
        cells.dedup_by_key(|c| c.id());
        cells
    }

    /// Forgets cells whose assignment is committed, by their ids.
    pub fn committed(&self, cells: &HashSet<u64>) {
        if let RecordingState::Root { pending, .. } = &mut *self.root().lock() {
            pending.retain(|p| p.upgrade().is_some_and(|p| !cells.contains(&p.id())));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RecordingState<C>> {
        lock(&self.0.state)
    }
}
