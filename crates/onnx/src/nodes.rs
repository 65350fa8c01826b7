//! Nodes: their names, domains, versions and bodies.

use crate::proto::{GraphProto, NodeProto, OperatorSetIdProto};

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

/// The graphs in the attributes of a node.
pub(crate) fn bodies(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    let attributes = node.attribute.iter();
    attributes.flat_map(|a| a.g.iter().chain(&a.graphs))
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
