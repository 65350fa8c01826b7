//! The recorder that writes nodes.

use super::dtypes::operator_dtype;
use super::norm;
use super::pointwise::cast;
use super::refusals::needs_opset;
use crate::proto::{
    AttributeProto, Dimension, DimensionValue, GraphProto, NodeProto, TensorProto,
    TensorShapeProto, TensorType, TypeProto, TypeValue, ValueInfoProto,
};
use crate::tensor::number;
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, Op, OpError, Scalar, Shape, Sym, SymbolInfo, broadcast_shapes,
};
use smallvec::SmallVec;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// A name of a value in the model.
pub(super) type Name = Rc<str>;

/// A value. It may be stretched: the value of its name then has dims of 1, or lacks dims, that [`Value::fact`] has.
/// Operators that broadcast read it as it is; for others it is expanded.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub fact: Fact,
    pub name: Name,
    /// The shape of the value of this name.
    pub held: Shape,
}

impl Value {
    pub fn new(name: Name, fact: Fact) -> Value {
        let stored = fact.shape.clone();
        Value {
            fact,
            name,
            held: stored,
        }
    }

    /// Returns the value stretched to a shape.
    pub fn stretched(&self, shape: Shape) -> Value {
        let mut value = self.clone();
        value.fact.shape = shape;
        value
    }

    pub fn dtype(&self) -> DType {
        self.fact.dtype
    }

    pub fn rank(&self) -> usize {
        self.fact.rank()
    }
}

/// Values written before, which can be read again. A body sees those outside of it, and not the reverse.
#[derive(Clone, Default)]
pub(super) struct Seen {
    pub sizes: HashMap<Dim, Name>,
    expanded: HashMap<(Name, Shape), Name>,
}

/// A graph that is being written.
pub(super) struct Writer<'a> {
    pub opset: i64,
    pub nodes: Vec<NodeProto>,
    symbols: &'a [SymbolInfo],
    /// For each symbol, an input and its axis that have this size.
    pub sources: HashMap<Sym, (Name, usize)>,
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
    constants: HashMap<(DType, Vec<usize>, Vec<u8>), Name>,
    names: HashSet<String>,
    /// The dtypes of the values that nodes may read.
    dtypes: HashMap<Name, DType>,
    counts: HashMap<String, usize>,
    /// The paths of the modules that values belong to: of weights, and of what is a view of them.
    modules: HashMap<Name, Name>,
    /// The numbers among the constants.
    pub numbers: HashMap<Name, Scalar>,
    /// For a matrix of all rows of a tensor, that tensor.
    pub rows: HashMap<Name, Value>,
    /// The operands of products of two matrices.
    pub products: HashMap<Name, [Value; 2]>,
    pub seen: Seen,
    failures: Vec<String>,
    write_op: WriteOp,
}

/// The values of an op's outputs.
pub(super) type Values = SmallVec<[Value; 1]>;

/// The function that writes an op, whose facts are inferred. A pointer, since its module imports this one.
pub(super) type WriteOp =
    fn(&mut Writer, &Op, &[Value], &kiln_ir::Facts) -> Result<Values, OpError>;

impl<'a> Writer<'a> {
    /// An empty graph that has these symbols, and in which these names are taken.
    pub fn new(
        opset: i64,
        symbols: &'a [SymbolInfo],
        reserved: &[&String],
        write_op: WriteOp,
    ) -> Writer<'a> {
        Writer {
            opset,
            nodes: Vec::new(),
            symbols,
            sources: HashMap::new(),
            inputs: Vec::new(),
            initializers: Vec::new(),
            constants: HashMap::new(),
            names: reserved.iter().map(|n| n.to_string()).collect(),
            dtypes: HashMap::new(),
            counts: HashMap::new(),
            modules: HashMap::new(),
            numbers: HashMap::new(),
            rows: HashMap::new(),
            products: HashMap::new(),
            seen: Seen::default(),
            failures: Vec::new(),
            write_op,
        }
    }

    /// Adds an input.
    pub fn input(&mut self, name: &str, fact: Fact) -> Value {
        let value = self.value(name.into(), fact);
        self.inputs.push(self.info(&value));
        for (axis, d) in value.fact.shape.iter().enumerate() {
            if let Some(s) = d.symbols().find(|s| Dim::symbol(*s) == *d) {
                let source = (value.name.clone(), axis);
                self.sources.entry(s).or_insert(source);
            }
        }
        value
    }

    /// Names a weight: by its path in a model, or by a number.
    pub fn weight(&mut self, name: &str, is_path: bool, fact: Fact) -> Value {
        let name = self.unique(name);
        if let Some((module, _)) = name.rsplit_once('.').filter(|_| is_path) {
            self.modules.insert(name.clone(), module.into());
        }
        self.value(name, fact)
    }

    /// A value that nodes may read.
    fn value(&mut self, name: Name, fact: Fact) -> Value {
        self.dtypes.insert(name.clone(), fact.dtype);
        Value::new(name, fact)
    }

    /// Makes the initial value of a weight the default of an input.
    pub fn overridable(&mut self, weight: &Value) {
        self.inputs.push(self.info(weight));
    }

    /// Returns the name, with a suffix if it is taken.
    pub fn unique(&mut self, wanted: &str) -> Name {
        let mut name = wanted.to_string();
        while !self.names.insert(name.clone()) {
            let count = self.counts.entry(wanted.to_string()).or_insert(0);
            *count += 1;
            name = format!("{wanted}_{count}");
        }
        name.into()
    }

    /// Writes a node and returns the names of its outputs. Inputs whose dtype the operator lacks are widened.
    pub fn node(
        &mut self,
        op: &str,
        inputs: &[Name],
        outputs: usize,
        attribute: Vec<AttributeProto>,
    ) -> Vec<Name> {
        let inputs: Vec<Name> = inputs.iter().map(|n| self.widen(op, n)).collect();
        let module = inputs.iter().find_map(|n| self.modules.get(n)).cloned();
        let name = match &module {
            Some(module) => self.unique(&format!("{module}/{op}")),
            None => self.unique(op),
        };
        let outputs: Vec<Name> = (0..outputs).map(|i| format!("{name}:{i}").into()).collect();
        if let Some(module) = module
            && matches!(op, "Transpose" | "Reshape" | "Expand" | "Cast" | "Slice")
        {
            self.modules.insert(outputs[0].clone(), module);
        }
        self.nodes.push(NodeProto {
            input: inputs.iter().map(|n| n.to_string()).collect(),
            output: outputs.iter().map(|n| n.to_string()).collect(),
            name: Some(name.to_string()),
            op_type: Some(op.into()),
            attribute,
            ..NodeProto::default()
        });
        outputs
    }

    /// Returns the value in the dtype that the operator is written in.
    fn widen(&mut self, op: &str, name: &Name) -> Name {
        let Some(dtype) = self.dtypes.get(name).copied() else {
            return name.clone();
        };
        let value = Value::new(name.clone(), Fact::new(dtype, [0i64; 0]));
        cast(self, &value, operator_dtype(op, self.opset, dtype)).name
    }

    /// Writes a node with one output, of this fact.
    pub fn single(
        &mut self,
        op: &str,
        inputs: &[Name],
        attributes: Vec<AttributeProto>,
        fact: Fact,
    ) -> Value {
        let name = self.node(op, inputs, 1, attributes).swap_remove(0);
        let dtype = fact.dtype;
        let wide = fact.with_dtype(operator_dtype(op, self.opset, dtype));
        let value = self.value(name, wide);
        cast(self, &value, dtype)
    }

    /// Writes a node with outputs of these facts.
    pub fn several(
        &mut self,
        op: &str,
        inputs: &[Name],
        attributes: Vec<AttributeProto>,
        facts: &[Fact],
    ) -> Values {
        let names = self.node(op, inputs, facts.len(), attributes);
        let named = names.into_iter().zip(facts);
        named.map(|(name, f)| self.value(name, f.clone())).collect()
    }

    /// Returns the name of the value in its whole shape.
    pub fn name(&mut self, v: &Value) -> Name {
        if v.held == v.fact.shape {
            return v.name.clone();
        }
        // Runtimes differ in how they stretch to no elements.
        let known: Option<Vec<i64>> = v.fact.shape.iter().map(Dim::as_const).collect();
        if let Some(dims) = known.filter(|dims| dims.contains(&0)) {
            let dims: Vec<usize> = dims.iter().map(|d| *d as usize).collect();
            return self.constant(v.dtype(), &dims, &[]).name;
        }
        let key = (v.name.clone(), v.fact.shape.clone());
        if let Some(name) = self.seen.expanded.get(&key) {
            return name.clone();
        }
        let shape = self.sizes(&v.fact.shape);
        let inputs = [v.name.clone(), shape];
        let name = self.single("Expand", &inputs, vec![], v.fact.clone()).name;
        self.seen.expanded.insert(key, name.clone());
        name
    }

    /// Writes an operator that broadcasts its operands.
    pub fn broadcasting(
        &mut self,
        op: &str,
        operands: &[&Value],
        attributes: Vec<AttributeProto>,
        dtype: DType,
    ) -> Value {
        let joined = |shape: fn(&Value) -> &Shape| {
            broadcast_shapes(operands.iter().map(|v| &shape(v)[..])).unwrap_or_default()
        };
        let (shape, held) = (joined(|v| &v.fact.shape), joined(|v| &v.held));
        let names: Vec<Name> = operands.iter().map(|v| v.name.clone()).collect();
        let value = self.single(op, &names, attributes, Fact { dtype, shape: held });
        value.stretched(shape)
    }

    /// A tensor that is part of the program.
    pub fn constant(&mut self, dtype: DType, shape: &[usize], bytes: &[u8]) -> Value {
        let key = (dtype, shape.to_vec(), bytes.to_vec());
        let fact = Fact::new(dtype, shape.iter().copied());
        if let Some(name) = self.constants.get(&key) {
            return Value::new(name.clone(), fact);
        }
        let name = self.unique("constant");
        self.initializers.push(TensorProto {
            dims: shape.iter().map(|d| *d as i64).collect(),
            data_type: Some(number(dtype).into()),
            name: Some(name.to_string()),
            raw_data: Some(bytes.to_vec().into()),
            ..TensorProto::default()
        });
        self.constants.insert(key, name.clone());
        self.value(name, fact)
    }

    /// A number.
    pub fn scalar(&mut self, value: impl Into<Scalar>, dtype: DType) -> Value {
        let value = value.into();
        let constant = self.constant(dtype, &[], &value.to_bytes(dtype));
        self.numbers
            .insert(constant.name.clone(), value.cast(dtype));
        constant
    }

    /// A vector of i64.
    pub fn ints(&mut self, list: &[i64]) -> Name {
        let bytes = DType::I64.int_bytes(list);
        self.constant(DType::I64, &[list.len()], &bytes).name
    }

    /// Writes the nodes of a graph with these inputs. An op that can't be written is kept for the error.
    pub fn graph(&mut self, graph: &Graph, inputs: &[Option<Value>]) -> Vec<Value> {
        let mut values: Vec<Values> = Vec::with_capacity(graph.len());
        for (_, node) in graph.iter() {
            let operands = node.inputs.iter();
            let operands: Vec<Value> = operands
                .map(|v| values[v.node.index()][v.output as usize].clone())
                .collect();
            let input = match &node.op {
                Op::Input(i) => inputs.get(i.index as usize).cloned().flatten(),
                _ => None,
            };
            let full_name = input
                .or_else(|| norm::layer_norm(self, graph, node, &values))
                .or_else(|| norm::group_norm(self, graph, node, &values));
            let is_byte = |f: &Fact| f.dtype.float8().is_some();
            let results = match full_name {
                _ if self.opset < 19 && node.facts.iter().any(is_byte) => {
                    needs_opset("a float of 8 bits", 19)
                }
                Some(value) => Ok(SmallVec::from_elem(value, 1)),
                None => self.emit(node.op.clone(), &operands),
            };
            values.push(results.unwrap_or_else(|e| {
                let called = node.loc.called_function().unwrap_or(node.op.name().into());
                self.failures
                    .push(format!("{called}: {e}, at {}", node.loc));
                let facts = node.facts.iter().cloned();
                facts.map(|f| Value::new("".into(), f)).collect()
            }));
        }
        let outputs = graph.outputs.iter();
        outputs
            .map(|o| values[o.value.node.index()][o.value.output as usize].clone())
            .collect()
    }

    /// True if a node gives a value of this name.
    fn has_output(&self, name: &str) -> bool {
        self.nodes
            .iter()
            .any(|n| n.output.iter().any(|o| o == name))
    }

    /// Writes a body, and returns it with its nodes and outputs alone.
    pub fn body(&mut self, graph: &Graph, inputs: &[Value]) -> GraphProto {
        let (outer, outer_seen) = (std::mem::take(&mut self.nodes), self.seen.clone());
        let inputs: Vec<Option<Value>> = inputs.iter().cloned().map(Some).collect();
        let values = self.graph(&graph.compact(), &inputs);
        let mut output: Vec<ValueInfoProto> = Vec::new();
        for v in values {
            let mut name = self.name(&v);
            if !self.has_output(&name) || output.iter().any(|o| o.name() == &*name) {
                name = self.node("Identity", &[name], 1, vec![]).swap_remove(0);
            }
            output.push(self.info(&Value::new(name, v.fact)));
        }
        self.seen = outer_seen;
        GraphProto {
            name: Some(self.unique("body").to_string()),
            node: std::mem::replace(&mut self.nodes, outer),
            output,
            ..GraphProto::default()
        }
    }

    /// A value that a body takes.
    pub fn body_input(&mut self, fact: &Fact) -> (Value, ValueInfoProto) {
        let name = self.unique("slice");
        let value = self.value(name, fact.clone());
        let info = self.info(&value);
        (value, info)
    }

    /// Ends the graph, or returns the ops that can't be written.
    pub fn finish(
        mut self,
        values: Vec<Value>,
        names: &[String],
    ) -> Result<GraphProto, Vec<String>> {
        let mut renamed: HashMap<String, String> = HashMap::new();
        let mut output = Vec::new();
        for (v, new_name) in values.iter().zip(names) {
            let name = self.name(v);
            output.push(self.info(&Value::new(new_name.as_str().into(), v.fact.clone())));
            match self.has_output(&name) && !renamed.contains_key(&*name) {
                true => {
                    renamed.insert(name.to_string(), new_name.clone());
                }
                false => {
                    self.node("Identity", &[name], 1, vec![]);
                    if let Some(node) = self.nodes.last_mut() {
                        node.output = vec![new_name.clone()];
                    }
                }
            }
        }
        rename(&mut self.nodes, &renamed);
        let mut read: HashSet<String> = names.iter().cloned().collect();
        drop_unread(&mut self.nodes, &mut read);
        self.initializers.retain(|t| read.contains(t.name()));
        match self.failures.is_empty() {
            true => Ok(GraphProto {
                node: self.nodes,
                initializer: self.initializers,
                input: self.inputs,
                output,
                ..GraphProto::default()
            }),
            false => Err(self.failures),
        }
    }

    /// Name, dtype and shape of a value.
    fn info(&self, v: &Value) -> ValueInfoProto {
        let symbol = |s: Sym| self.symbols.get(s.0 as usize).map(|s| &s.name[..]);
        let dim = |d: &Dim| Dimension {
            value: Some(match d.as_const() {
                Some(n) => DimensionValue::Known(n),
                None => DimensionValue::Symbol(d.named(symbol)),
            }),
        };
        let tensor = TensorType {
            elem_type: Some(number(v.dtype()).into()),
            shape: Some(TensorShapeProto {
                dim: v.fact.shape.iter().map(dim).collect(),
            }),
        };
        ValueInfoProto {
            name: Some(v.name.to_string()),
            r#type: Some(TypeProto {
                value: Some(TypeValue::Tensor(tensor)),
            }),
        }
    }
}

/// Gives values other names, in bodies too.
fn rename(nodes: &mut [NodeProto], names: &HashMap<String, String>) {
    for node in nodes {
        for name in node.input.iter_mut().chain(&mut node.output) {
            if let Some(new) = names.get(name) {
                name.clone_from(new);
            }
        }
        for body in node.attribute.iter_mut().filter_map(|a| a.g.as_mut()) {
            rename(&mut body.node, names);
        }
    }
}

/// Drops nodes that nothing reads, and adds the names that others read.
fn drop_unread(nodes: &mut Vec<NodeProto>, read: &mut HashSet<String>) {
    let mut kept = Vec::new();
    while let Some(mut node) = nodes.pop() {
        if !node.output.iter().any(|o| read.contains(o)) {
            continue;
        }
        read.extend(node.input.iter().cloned());
        for body in node.attribute.iter_mut().filter_map(|a| a.g.as_mut()) {
            read.extend(body.output.iter().map(|o| o.name().to_string()));
            drop_unread(&mut body.node, read);
        }
        kept.push(node);
    }
    kept.reverse();
    *nodes = kept;
}

impl Builder for Writer<'_> {
    type Value = Value;

    fn emit(&mut self, op: Op, inputs: &[Value]) -> Result<SmallVec<[Value; 1]>, OpError> {
        let facts: SmallVec<[&Fact; 4]> = inputs.iter().map(|v| &v.fact).collect();
        let facts = op.infer(&facts)?;
        (self.write_op)(self, &op, inputs, &facts)
    }

    fn fact(&self, value: &Value) -> Fact {
        value.fact.clone()
    }
}
