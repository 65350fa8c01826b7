//! Bounding what a thread holds unrealised.

use super::read::{OnFailure, realize_with};
use crate::node::{Node, State};
use crate::{Handle, Result, body, scope};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A thread that holds this many unrealised nodes realises what it holds.
const LIMIT: usize = 1 << 13;

thread_local! {
    static RECORDED: RefCell<Recorded> = const { RefCell::new(Recorded { nodes: Vec::new(), limit: LIMIT }) };
}

struct Recorded {
    nodes: Vec<Weak<Node>>,
    /// When to look next.
    limit: usize,
}

/// Notes a newly recorded node; realises what this thread holds when that has become much.
pub fn recorded(node: &Arc<Node>) {
    if scope::is_recording() || body::is_tracing() {
        return;
    }
    let full = RECORDED.with_borrow_mut(|r| {
        r.nodes.push(Arc::downgrade(node));
        if r.nodes.len() < r.limit {
            return false;
        }
        r.nodes.retain(|n| n.upgrade().is_some_and(|n| is_lazy(&n)));
        let full = r.nodes.len() >= LIMIT;
        r.limit = r.nodes.len() + LIMIT;
        full
    });
    if full {
        // A failing value stays unrealised and reports its error when it is read.
        let _ = realize_all();
    }
}

/// Realises every unrealised tensor that this thread has recorded and somebody still holds. Inside
/// `compile` there is nothing to realise.
///
/// # Errors
/// The first error of a run; values that don't depend on it may be unrealised too, and are computed
/// when they are read.
#[track_caller]
pub fn realize_all() -> Result<()> {
    if scope::is_recording() || body::is_tracing() {
        return Ok(());
    }
    let mut nodes = RECORDED.with_borrow_mut(|r| std::mem::take(&mut r.nodes));
    let mut held: Vec<Handle> = Vec::new();
    // What nobody holds is kept for derivatives alone.
    nodes.retain(|n| match n.upgrade().filter(|n| is_held(n) && is_lazy(n)) {
        Some(n) => {
            held.push(Handle::output_of(&n, 0));
            true
        }
        None => false,
    });
    let loc = Location::caller();
    let mut result = realize_with(&held.iter().collect::<Vec<_>>(), OnFailure::Keep, &[], loc);
    if result.is_err() {
        // One value failed; the others must not wait for it.
        for t in &held {
            let one = realize_with(&[t], OnFailure::Keep, &[], loc);
            result = result.and(one);
        }
    }
    drop(held);
    RECORDED.with_borrow_mut(|r| {
        let waits = |n: &Weak<Node>| n.upgrade().is_some_and(|n| is_held(&n) && is_lazy(&n));
        r.nodes.extend(nodes.into_iter().filter(waits));
        r.limit = r.nodes.len() + LIMIT;
    });
    result
}

fn is_held(node: &Node) -> bool {
    node.handles.load(Ordering::Relaxed) > 0
}

fn is_lazy(node: &Node) -> bool {
    matches!(*node.state(), State::Lazy { .. })
}
