//! Names of nodes, domains and versions.

use crate::proto::{NodeProto, OperatorSetIdProto};

/// The deepest nesting of functions and of graphs in nodes.
pub(crate) const MAX_NESTED: usize = 64;

/// Returns the operator set version of a domain.
pub(crate) fn version(opsets: &[OperatorSetIdProto], domain: &str) -> Option<i64> {
    let same = |o: &&OperatorSetIdProto| plain_domain(o.domain()) == plain_domain(domain);
    opsets.iter().find(same).map(|o| o.version())
}

/// Returns the name of a domain; ONNX's own has two.
pub(crate) fn plain_domain(domain: &str) -> &str {
    match domain {
        "ai.onnx" => "",
        other => other,
    }
}

/// Returns the name of a node in messages.
pub(crate) fn node_name(node: &NodeProto) -> String {
    let op = node.op_type();
    match (node.name(), node.output.first()) {
        ("", Some(output)) => format!("{op}, which gives {output:?}"),
        ("", None) => op.to_string(),
        (name, _) => format!("{op} {name:?}"),
    }
}
