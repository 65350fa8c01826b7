//! The operators of a model that Kiln lacks, or evaluates on the host.

use crate::loaded::Loaded;
use crate::nodes::{bodies, node_name, plain_domain, version};
use crate::ops;
use crate::proto::{NodeProto, OperatorSetIdProto};
use std::collections::BTreeMap;

/// Returns the operators that Kiln lacks, each with its version and the nodes that apply it.
pub(crate) fn missing_operators(model: &Loaded) -> Vec<String> {
    list_operators(model, |domain, node, version| {
        ops::find(domain, node.op_type(), version).is_none()
    })
}

/// Returns the operators that are evaluated on the host, each with its version and the nodes that apply it.
pub(crate) fn host_operators(model: &Loaded) -> Vec<String> {
    list_operators(model, |domain, node, _| ops::is_on_host(domain, node))
}

type Predicate = fn(&str, &NodeProto, i64) -> bool;

fn list_operators(model: &Loaded, is_wanted: Predicate) -> Vec<String> {
    let mut by_op: BTreeMap<(String, String, i64), Vec<String>> = BTreeMap::new();
    let mut search = |opsets: &[OperatorSetIdProto], nodes: &[NodeProto]| {
        search(model, opsets, nodes, is_wanted, &mut by_op);
    };
    search(&model.opsets, &model.graph.node);
    for f in model.functions() {
        let opsets = if f.opset_import.is_empty() {
            &model.opsets
        } else {
            &f.opset_import
        };
        search(opsets, &f.node);
    }
    let line = |((domain, op, version), nodes): (&(String, String, i64), &Vec<String>)| {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        format!("{domain} {op}, version {version}: {}", nodes.join(", "))
    };
    by_op.iter().map(line).collect()
}

fn search(
    model: &Loaded,
    opsets: &[OperatorSetIdProto],
    nodes: &[NodeProto],
    is_wanted: Predicate,
    by_op: &mut BTreeMap<(String, String, i64), Vec<String>>,
) {
    for node in nodes {
        let (domain, op) = (plain_domain(node.domain()), node.op_type());
        let version = version(opsets, domain).unwrap_or(0);
        let own = model.function(domain, op, node.overload()).is_some();
        if !own && is_wanted(domain, node, version) {
            let key = (domain.to_string(), op.to_string(), version);
            by_op.entry(key).or_default().push(node_name(node));
        }
        for graph in bodies(node) {
            search(model, opsets, &graph.node, is_wanted, by_op);
        }
    }
}
