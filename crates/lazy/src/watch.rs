//! The operations that a function records on its thread.

use crate::node::{Node, NodeState};
use crate::{Handle, body};
use hashbrown::HashSet;
use kiln_base::Scoped;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    static IS_WATCHED: Cell<bool> = const { Cell::new(false) };
    static SEEN: RefCell<Seen> = const { RefCell::new(Seen { calls: 0, recorded: Vec::new() }) };
}

#[derive(Default)]
struct Seen {
    calls: u32,
    recorded: Vec<Recorded>,
}

/// An operation that was recorded.
pub struct Recorded {
    /// The number of the user's call that recorded it. Later calls have larger numbers; other operations may lie
    /// between those of one call.
    pub call: u32,
    /// Its results, which can be read.
    pub outputs: Vec<Handle>,
}

impl Recorded {
    /// The operation's node.
    pub fn node(&self) -> &Arc<Node> {
        &self.outputs[0].node
    }
}

/// Returns the operations that a handle elsewhere or another live operation depends on.
pub fn live(recorded: Vec<Recorded>) -> Vec<Recorded> {
    let mut used: HashSet<u64> = HashSet::new();
    let mut live: Vec<Recorded> = Vec::new();
    for recorded_op in recorded.into_iter().rev() {
        let node = recorded_op.node();
        let is_held = node.handles.load(Ordering::Relaxed) > recorded_op.outputs.len();
        if is_held || used.contains(&node.serial) {
            if let NodeState::Lazy { inputs, .. } = &*node.state() {
                used.extend(inputs.iter().map(|o| o.node.serial));
            }
            live.push(recorded_op);
        }
    }
    live.reverse();
    live
}

/// Runs `f`, and returns the operations that it recorded on this thread, in order. The body of a loop or branch is part
/// of its operation.
pub fn watch<T>(f: impl FnOnce() -> T) -> (T, Vec<Recorded>) {
    let slot = Scoped::new(&SEEN, Seen::default());
    let watched = Scoped::new(&IS_WATCHED, true);
    let result = f();
    drop(watched);
    let recorded = SEEN.take().recorded;
    drop(slot);
    (result, recorded)
}

/// Returns the number of a call that begins now; 0 while nothing is watched.
#[inline]
pub(crate) fn call() -> u32 {
    if !IS_WATCHED.get() {
        return 0;
    }
    SEEN.with_borrow_mut(|seen| {
        seen.calls += 1;
        seen.calls
    })
}

/// Keeps an operation that was recorded in a call, while operations are watched.
#[inline]
pub(crate) fn recorded(node: &Arc<Node>, call: u32) {
    if IS_WATCHED.get() && !body::is_tracing() {
        let outputs = 0..node.facts.len() as u32;
        let outputs = outputs.map(|o| Handle::output_of(node, o)).collect();
        SEEN.with_borrow_mut(|seen| seen.recorded.push(Recorded { call, outputs }));
    }
}
