//! Recording of graphs as operations of Kiln's.

use crate::call::{Call, Results};
use crate::fault::{invalid, unsupported};
use crate::nodes::{MAX_NESTED, node_name, plain_domain, version};
use crate::proto::{AttributeProto, FunctionProto, GraphProto, NodeProto};
use crate::scope::Scope;
use crate::value::Value;
use crate::{known, ops, tensor};
use kiln_base::numel;
use kiln_ir::Fact;
use kiln_tensor::{Error, Result, default_device};
use std::collections::HashMap;

/// The maximum bytes of a result whose shape is known.
const MAX_BYTES: u64 = 1 << 40;

impl Scope<'_> {
    /// Records a graph and returns its outputs. Its inputs have their values.
    pub fn graph(&mut self, graph: &GraphProto) -> Results {
        let folder = self.model.folder.as_deref();
        for t in &graph.initializer {
            if !self.values.contains_key(t.name()) {
                self.set(t.name(), tensor::constant(t, folder)?);
            }
        }
        for t in &graph.sparse_initializer {
            let name = t.values.as_ref().map_or("", |v| v.name());
            self.set(name, tensor::read_sparse(t)?.to(default_device()).into());
        }
        self.nodes(&graph.node)?;
        graph.output.iter().map(|o| self.get(o.name())).collect()
    }

    fn nodes(&mut self, nodes: &[NodeProto]) -> Result<()> {
        for node in nodes {
            let results = self.node(node).map_err(|e| name_node(node, e))?;
            let output_count = node.output.iter().rposition(|name| !name.is_empty());
            if output_count.is_some_and(|i| i >= results.len()) {
                let message = format!(
                    "{} results of {} are there",
                    results.len(),
                    node.output.len()
                );
                return Err(name_node(node, unsupported(message)));
            }
            for (name, value) in node.output.iter().zip(results) {
                if !name.is_empty() {
                    self.set(name, value);
                }
            }
        }
        Ok(())
    }

    fn node(&self, node: &NodeProto) -> Results {
        let input = |name: &String| match name.as_str() {
            "" => Ok(None),
            name => self.get(name).map(Some),
        };
        let inputs = node.input.iter().map(input).collect::<Result<_>>()?;
        let (domain, op) = (plain_domain(node.domain()), node.op_type());
        if let Some(function) = self.model.function(domain, op, node.overload()) {
            return self.function(function, node, inputs);
        }
        let version = version(self.opsets, domain)
            .ok_or_else(|| invalid(format!("the model imports no operators of {domain:?}")))?;
        let call = Call {
            node,
            version,
            inputs,
            scope: self,
        };
        if domain.is_empty()
            && let Some(results) = known::evaluate(&call)?
        {
            return Ok(results);
        }
        let is_text = |v: &Value| matches!(v, Value::Text(_) | Value::Chosen(..));
        let record = match call.inputs.iter().flatten().any(is_text) {
            true => ops::find_for_text(domain, op, version),
            false => ops::find(domain, op, version),
        };
        let record = record.ok_or_else(|| unsupported("there is no such operator"))?;
        let results = record(&call)?;
        for result in &results {
            let tensor = match result {
                Value::Tensor(t) if t.known().is_none() => t.tensor(),
                Value::Chosen(index, _) => index.clone(),
                Value::Maps(maps) => maps.values.clone(),
                Value::Tensor(_) | Value::Text(_) | Value::Sequence(_) | Value::Nothing => continue,
            };
            tensor.check()?;
            let numbers = numel(tensor.dims()).as_const().unwrap_or(0) as u64;
            if numbers > MAX_BYTES / tensor.dtype().size() as u64 {
                let fact = Fact::new(tensor.dtype(), tensor.dims().iter().cloned());
                return Err(invalid(format!("its result {fact} has more than 1 TiB")));
            }
        }
        Ok(results)
    }

    fn function(&self, f: &FunctionProto, node: &NodeProto, inputs: Vec<Option<Value>>) -> Results {
        if self.depth >= MAX_NESTED {
            return Err(invalid(format!(
                "functions call each other deeper than {MAX_NESTED}"
            )));
        }
        let mut attributes: HashMap<&str, &AttributeProto> =
            f.attribute_proto.iter().map(|a| (a.name(), a)).collect();
        for a in &node.attribute {
            let attribute = match a.ref_attr_name() {
                "" => Some(a),
                outer => self.attribute(outer),
            };
            if let Some(attribute) = attribute {
                attributes.insert(a.name(), attribute);
            }
        }
        let mut body = Scope {
            model: self.model,
            opsets: if f.opset_import.is_empty() {
                self.opsets
            } else {
                &f.opset_import
            },
            outer: None,
            attributes,
            values: HashMap::new(),
            depth: self.depth + 1,
        };
        for (i, name) in f.input.iter().enumerate() {
            let value = inputs.get(i).cloned().flatten();
            body.set(name, value.unwrap_or(Value::Nothing));
        }
        body.nodes(&f.node)?;
        f.output.iter().map(|name| body.get(name)).collect()
    }

    /// Records a graph of a node with values of its inputs, and returns its outputs.
    pub fn body(&self, graph: &GraphProto, inputs: Vec<Value>) -> Results {
        if self.depth >= MAX_NESTED {
            return Err(invalid(format!(
                "graphs are nested deeper than {MAX_NESTED}"
            )));
        }
        if inputs.len() < graph.input.len() {
            return Err(invalid(format!(
                "the body takes {} inputs, not {}",
                graph.input.len(),
                inputs.len()
            )));
        }
        let mut scope = Scope {
            model: self.model,
            opsets: self.opsets,
            outer: Some(self),
            attributes: HashMap::new(),
            values: HashMap::new(),
            depth: self.depth + 1,
        };
        for (port, value) in graph.input.iter().zip(inputs) {
            scope.set(port.name(), value);
        }
        scope.graph(graph)
    }
}

/// Puts the node in front of an error's message.
fn name_node(node: &NodeProto, e: Error) -> Error {
    let operator = match e.op() {
        "onnx" => e.message().to_string(),
        op => format!("{op}: {}", e.message()),
    };
    e.with_message(&format!("{}: {operator}", node_name(node)))
}
