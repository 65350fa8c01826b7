//! The user's lines.

use kiln_ir::{Fact, Graph, Loc};

/// Resolves a location: a position of the recording becomes the user's line of the op there, any other stays as it
/// is.
pub(crate) fn resolved(loc: &Loc, locs: &[Loc]) -> Loc {
    match loc.position() {
        Some(at) => locs.get(at).cloned().unwrap_or(Loc::UNKNOWN),
        None => loc.clone(),
    }
}

/// Describes an op, its result, and the user's line if known.
pub(crate) fn describe_op(op: &str, fact: &Fact, loc: &Loc) -> String {
    match loc.is_known() {
        true => format!("{op} {fact} at {loc}"),
        false => format!("{op} {fact}"),
    }
}

/// Returns the graph with the user's lines instead of markers.
pub(crate) fn with_lines(mut graph: Graph, locs: &[Loc]) -> Graph {
    for id in graph.ids() {
        let node = graph.node_mut(id);
        node.loc = resolved(&node.loc, locs);
        node.op
            .inner_nodes_mut(&mut |n| n.loc = resolved(&n.loc, locs));
    }
    graph
}
