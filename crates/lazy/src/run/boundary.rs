//! Bounds the number of unrealised nodes that a thread holds.

use super::read::{OnFailure, realize_with};
use crate::node::{Node, NodeState};
use crate::postorder::Key;
use crate::{Error, Handle, Result, body, scope};
use hashbrown::HashSet;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// The number of unrealised nodes at which a thread realises them.
const LIMIT: usize = 1 << 13;

thread_local! {
    static RECORDED: RefCell<Unrealised> = const { RefCell::new(Unrealised { nodes: Vec::new(), limit: LIMIT }) };
}

struct Unrealised {
    nodes: Vec<Weak<Node>>,
    /// The number of nodes at which to count again.
    limit: usize,
}

/// Registers a newly recorded node; realises the tensors that this thread holds once there are too many.
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
        let _ = realize_held(&[], Location::caller());
    }
}

/// Realises every unrealised tensor that this thread has recorded and that is still held. Inside `compile` there is
/// nothing to realise.
///
/// # Errors
/// The first error of a run, once: a tensor whose error was returned, here or by reading it, is left out
/// from then on. Values that don't depend on it may be unrealised too, and are computed when they are read.
#[track_caller]
pub fn realize_all() -> Result<()> {
    match realize_held(&[], Location::caller()).1 {
        Some((failed, e)) => {
            failed.tell(&e);
            Err(e)
        }
        None => Ok(()),
    }
}

/// Realises tensors in one program together with those that [`realize_all`] realises.
///
/// # Errors
/// Those of `first` alone; cells that were to be assigned one of these then keep their values. Any other tensor
/// returns its error when it is read.
pub fn realize_first(first: &[&Handle], loc: &'static Location<'static>) -> Result<()> {
    realize_held(first, loc).0
}

/// The result of `first`, and the first other tensor that this thread holds and that fails, with its error.
fn realize_held(
    first: &[&Handle],
    loc: &'static Location<'static>,
) -> (Result<()>, Option<(Handle, Error)>) {
    if scope::is_recording() || body::is_tracing() {
        return (Ok(()), None);
    }
    let mut nodes = RECORDED.with_borrow_mut(|r| std::mem::take(&mut r.nodes));
    let mut held: Vec<Handle> = Vec::new();
    let apart: HashSet<Key> = first.iter().map(|t| t.key()).collect();
    // Nodes without handles are kept for derivatives alone.
    nodes.retain(|n| match n.upgrade().filter(|n| is_held(n) && is_lazy(n)) {
        Some(n) => {
            let reported = n.reported.load(Ordering::Relaxed);
            if !reported && !apart.contains(&Key::of(&n, 0)) {
                held.push(Handle::output_of(&n, 0));
            }
            true
        }
        None => false,
    });
    let all: Vec<&Handle> = first.iter().copied().chain(&held).collect();
    let mut results = (Ok(()), None);
    if realize_with(&all, OnFailure::Keep, &[], loc).is_err() {
        // One value failed; the others must not wait for it.
        results.0 = realize_with(first, OnFailure::RollBack, &[], loc);
        // A cell that was rolled back has let go of its new value.
        held.retain(|t| t.node.handles.load(Ordering::Relaxed) > 1);
        for t in &held {
            let one = realize_with(&[t], OnFailure::Keep, &[], loc);
            results.1 = results.1.or_else(|| Some((t.plain(), one.err()?)));
        }
    }
    drop(held);
    RECORDED.with_borrow_mut(|r| {
        let waits = |n: &Weak<Node>| n.upgrade().is_some_and(|n| is_held(&n) && is_lazy(&n));
        r.nodes.extend(nodes.into_iter().filter(waits));
        r.limit = r.nodes.len() + LIMIT;
    });
    results
}

fn is_held(node: &Node) -> bool {
    node.handles.load(Ordering::Relaxed) > 0
}

fn is_lazy(node: &Node) -> bool {
    matches!(*node.state(), NodeState::Lazy { .. })
}
