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

/// The number of unrealised nodes at which a thread realises them. Views of computed values don't count.
const LIMIT: usize = 1 << 13;
/// The maximum length of a chain of views that [`is_view_of_computed`] follows.
const MAX_VIEWS: usize = 8;

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
        let mut counted = 0;
        r.nodes.retain(|n| {
            let lazy = n.upgrade().filter(|n| is_lazy(n));
            counted += usize::from(lazy.as_ref().is_some_and(|n| !is_view_of_computed(n)));
            lazy.is_some()
        });
        r.limit = r.nodes.len() + LIMIT;
        counted >= LIMIT
    });
    if full {
        // A failing value stays unrealised and reports its error when it is read.
        let _ = realize_held(&[], |n| !is_view_of_computed(n), node.loc);
    }
}

/// Realises every unrealised tensor that this thread has recorded and still holds. Does nothing inside `compile`.
///
/// # Errors
/// The first error of a run, once: a tensor whose error was returned, here or by reading it, is skipped
/// from then on. Values that don't depend on it may be unrealised too, and are computed when they are read.
#[track_caller]
pub fn realize_all() -> Result<()> {
    match realize_held(&[], |_| true, Location::caller()).1 {
        Some((failed, e)) => {
            failed.tell(&e);
            Err(e)
        }
        None => Ok(()),
    }
}

/// Realises tensors together with those of [`realize_all`], in one program.
///
/// # Errors
/// Those of `first` alone; cells that are assigned one of these keep their values. Any other tensor returns its error
/// when it is read.
pub fn realize_first(first: &[&Handle], loc: &'static Location<'static>) -> Result<()> {
    realize_held(first, |_| true, loc).0
}

/// Realises `first` and the other tensors that this thread holds whose nodes are `is_wanted`. Returns the result of
/// `first`, and the first other tensor that fails, with its error.
fn realize_held(
    first: &[&Handle],
    is_wanted: impl Fn(&Arc<Node>) -> bool,
    loc: &'static Location<'static>,
) -> (Result<()>, Option<(Handle, Error)>) {
    if scope::is_recording() || body::is_tracing() {
        return (Ok(()), None);
    }
    let mut nodes = RECORDED.with_borrow_mut(|r| std::mem::take(&mut r.nodes));
    let mut held: Vec<Handle> = Vec::new();
    let requested: HashSet<Key> = first.iter().map(|t| t.key()).collect();
    // Nodes without handles are kept for derivatives alone.
    nodes.retain(|n| match n.upgrade().filter(|n| is_held(n) && is_lazy(n)) {
        Some(n) => {
            let reported = n.reported.load(Ordering::Relaxed);
            if !reported && is_wanted(&n) && !requested.contains(&Key::of(&n, 0)) {
                held.push(Handle::output_of(&n, 0));
            }
            true
        }
        None => false,
    });
    let tensors: Vec<&Handle> = first.iter().copied().chain(&held).collect();
    let mut results = (Ok(()), None);
    if realize_with(&tensors, OnFailure::Keep, &[], loc).is_err() {
        // One value failed; the others must not wait for it.
        results.0 = realize_with(first, OnFailure::RollBack, &[], loc);
        // A cell that was rolled back has let go of its new value.
        held.retain(|t| t.node.handles.load(Ordering::Relaxed) > 1);
        for t in &held {
            let result = realize_with(&[t], OnFailure::Keep, &[], loc);
            results.1 = results.1.or_else(|| Some((t.plain(), result.err()?)));
        }
    }
    drop(held);
    RECORDED.with_borrow_mut(|r| {
        let is_pending = |n: &Weak<Node>| n.upgrade().is_some_and(|n| is_held(&n) && is_lazy(&n));
        r.nodes.extend(nodes.into_iter().filter(is_pending));
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

/// True for a view of a computed value. It keeps no earlier operation alive, and as a result of a program it would take
/// a kernel and memory. A tensor that is split may have thousands.
fn is_view_of_computed(node: &Arc<Node>) -> bool {
    let mut node = node.clone();
    for _ in 0..MAX_VIEWS {
        let operand = match &*node.state() {
            NodeState::Lazy { inputs, .. } if node.body.is_none() && node.op.is_view() => {
                inputs[0].node.clone()
            }
            _ => return false,
        };
        if matches!(*operand.state(), NodeState::Ready(_)) {
            return true;
        }
        node = operand;
    }
    false
}
