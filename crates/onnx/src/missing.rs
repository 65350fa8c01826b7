//! The operators of a model that Kiln lacks.

use crate::loaded::Loaded;
use crate::nodes::{node_name, plain_domain, version};
use crate::ops;
use crate::proto::{NodeProto, OperatorSetIdProto};
use std::collections::BTreeMap;

/// Returns the operators that Kiln lacks, each with its version and the nodes that apply it.
pub(crate) fn missing_operators(model: &Loaded) -> Vec<String> {
    let mut found: BTreeMap<(String, String, i64), Vec<String>> = BTreeMap::new();
    search(model, &model.opsets, &model.graph.node, &mut found);
    for f in model.functions() {
        let opsets = if f.opset_import.is_empty() {
            &model.opsets
        } else {
            &f.opset_import
        };
        search(model, opsets, &f.node, &mut found);
    }
    let line = |((domain, op, version), nodes): (&(String, String, i64), &Vec<String>)| {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        format!("{domain} {op}, version {version}: {}", nodes.join(", "))
    };
    found.iter().map(line).collect()
}

fn search(
    model: &Loaded,
    opsets: &[OperatorSetIdProto],
    nodes: &[NodeProto],
    found: &mut BTreeMap<(String, String, i64), Vec<String>>,
) {
    for node in nodes {
        let (domain, op) = (plain_domain(node.domain()), node.op_type());
        let version = version(opsets, domain).unwrap_or(0);
        let own = model.function(domain, op, node.overload()).is_some();
        if !own && ops::find(domain, op, version).is_none() {
            let key = (domain.to_string(), op.to_string(), version);
            found.entry(key).or_default().push(node_name(node));
        }
        for graph in node
            .attribute
            .iter()
            .flat_map(|a| a.g.iter().chain(&a.graphs))
        {
            search(model, opsets, &graph.node, found);
        }
    }
}
