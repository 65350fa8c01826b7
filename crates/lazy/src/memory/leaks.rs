//! The leak finder: graphs that outlive the code that recorded them, and their holders.

use crate::grad::edge::{Edge, GradNode, WATCHED};
use hashbrown::HashSet;
use kiln_base::{Loc, Scoped};
use kiln_runtime::memory::Category;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A graph that outlives the code that recorded it.
#[derive(Clone, Debug, PartialEq)]
pub struct Leak {
    /// The function that returned the held result.
    pub called: &'static str,
    /// The line of that call.
    pub loc: Loc,
    /// The number of tensors that hold the result.
    pub tensors: usize,
    /// The operations that are kept for a backward pass.
    pub operations: usize,
    /// The bytes of values that these operations keep, without parameters.
    pub bytes: usize,
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leak {
            called,
            loc,
            tensors,
            operations,
            bytes,
        } = self;
        let holder = match tensors {
            0 => "a gradient or a function holds".to_string(),
            1 => "a tensor holds".to_string(),
            n => format!("{n} tensors hold"),
        };
        write!(
            f,
            "{holder} the result of {called} at {loc}, which keeps {operations} operations and {bytes} bytes for a \
             backward pass: keep detach() or a number of item() in its place"
        )
    }
}

/// Runs `f`, such as a step of training, and returns its result and the graphs that were recorded in it on this thread
/// and are still kept for a backward pass, the largest first.
///
/// ```
/// use kiln_tensor::{Tensor, Var, memory};
/// let w = Var::parameter(Tensor::from([1.0f32, 2.0]))?;
/// let mut losses = Vec::new();
/// let (done, leaks): (kiln_tensor::Result<()>, _) = memory::find_leaks(|| {
///     let loss = w.square().sum(());
///     losses.push(loss); // the graph stays alive; loss.detach() would not keep it
///     Ok(())
/// });
/// assert_eq!((leaks[0].called, leaks[0].operations), ("sum", 2));
/// # done?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
pub fn find_leaks<T>(f: impl FnOnce() -> T) -> (T, Vec<Leak>) {
    let guard = Scoped::new(&WATCHED, Some(Vec::new()));
    let value = f();
    let watched = WATCHED.take().unwrap_or_default();
    drop(guard);
    let alive: Vec<Arc<GradNode>> = watched.iter().filter_map(Weak::upgrade).collect();
    drop(watched);
    let mut leaks = leaks(&alive);
    leaks.sort_by_key(|leak| std::cmp::Reverse((leak.bytes, leak.operations)));
    (value, leaks)
}

/// The graphs of operations that are not released, by the results that no other operation uses.
fn leaks(alive: &[Arc<GradNode>]) -> Vec<Leak> {
    let watched: HashSet<*const GradNode> = alive.iter().map(Arc::as_ptr).collect();
    let mut used = HashSet::new();
    for node in alive {
        used.extend(sources(node).iter().map(Arc::as_ptr));
    }
    let is_held =
        |node: &&Arc<GradNode>| node.saved().is_some() && !used.contains(&Arc::as_ptr(node));
    let leak = |root: &Arc<GradNode>| {
        let (mut operations, mut storages) = (HashSet::new(), HashSet::new());
        let (mut bytes, mut stack) = (0, vec![root.clone()]);
        while let Some(node) = stack.pop() {
            if !watched.contains(&Arc::as_ptr(&node)) || !operations.insert(Arc::as_ptr(&node)) {
                continue;
            }
            let Some(saved) = node.saved() else { continue };
            let outputs = 0..saved.node.node().facts.len() as u32;
            let outputs = outputs.filter_map(|o| saved.node.node().ready(o));
            let inputs = saved
                .inputs
                .iter()
                .filter_map(|(x, _)| x.node.ready(x.output));
            for buffer in outputs.chain(inputs) {
                let storage = buffer.storage();
                let holder = storage.holder().map(|h| h.category());
                if holder != Some(Category::Parameters) && storages.insert(storage.id()) {
                    bytes += storage.len();
                }
            }
            stack.extend(sources(&node));
        }
        let saved = root.saved()?;
        Some(Leak {
            called: root.called,
            loc: Loc::from(root.loc),
            tensors: saved.node.node().handles.load(Ordering::Acquire),
            operations: operations.len(),
            bytes,
        })
    };
    alive.iter().filter(is_held).filter_map(leak).collect()
}

/// Returns the operations that produced the operands of an operation.
fn sources(node: &GradNode) -> Vec<Arc<GradNode>> {
    let saved = node.saved().into_iter();
    let edges = saved.flat_map(|saved| saved.inputs.into_iter().map(|(_, edge)| edge));
    let nodes = edges.filter_map(|edge| match edge {
        Edge::Node(node, _) => Some(node),
        _ => None,
    });
    nodes.collect()
}
