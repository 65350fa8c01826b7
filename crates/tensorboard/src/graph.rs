//! The graph of a model: its modules, the ops that they record, and the kernels that these become.

use crate::messages::attr_value::Value as Attribute;
use crate::messages::event::What;
use crate::messages::{
    AttrValue, DeviceStepStats, GraphDef, ListValue, NodeDef, NodeExecStats, RunMetadata,
    StepStats, TaggedRunMetadata, VersionDef,
};
use crate::writer::{SummaryWriter, shape};
use kiln_lazy::Handle;
use kiln_lazy::node::{Node, NodeState, serial};
use kiln_nn::{Forward, Module, Output};
use kiln_observe::{ModuleCall, innermost, watch_modules};
use kiln_tensor::{
    Flat, MaybeInt, Nest, Result, Tensor, no_grad, on_behalf_of_caller, profiler, realize_first,
};
use prost::Message;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The folder of this crate's source.
const SOURCE: &str = {
    let this = file!();
    this.split_at(this.len() - "graph.rs".len()).0
};

/// The version of graphs that PyTorch writes.
const PRODUCER: i32 = 22;

impl SummaryWriter {
    /// Adds the graph of a model for some input: a scope for each module, in it the ops that its call records, and the
    /// kernels that compute them with their times, each a node of the scope `kernels`. The model is called in
    /// evaluation mode, without gradients.
    ///
    /// # Errors
    /// As all methods, or the error of the call.
    #[track_caller]
    pub fn add_graph<I: Nest<Owned = I> + 'static, O: Output + 'static>(
        &self,
        model: &impl Forward<I, O>,
        input_to_model: impl Nest<Owned = I>,
    ) -> Result<()> {
        let _modes = Evaluating::new(model.as_module());
        let input = Flat::of(&input_to_model);
        let record = || -> Result<_> {
            let first_serial = serial();
            let (result, calls) = watch_modules(model.as_module(), || model.call(&input_to_model));
            let outputs = Flat::of(&result);
            for t in outputs.tensors() {
                t.check()?;
            }
            let mut graph = Graph::new(model.as_module(), calls, first_serial, input.tensors());
            graph.add(outputs.tensors());
            // This run compiles the kernels, so that the next one measures them alone.
            realize_first(outputs.tensors())?;
            let outputs = model.call(&input_to_model);
            let (computed, profile) =
                profiler::profile(|| realize_first(Flat::of(&outputs).tensors()));
            computed?;
            let stats = graph.add_kernels(profile.events());
            Ok((graph.nodes, stats))
        };
        let (nodes, stats) = on_behalf_of_caller(SOURCE, || no_grad(record))?;
        let graph = GraphDef {
            node: nodes,
            versions: Some(VersionDef { producer: PRODUCER }),
        };
        let (op, folder, step) = ("add_graph", self.log_dir(), MaybeInt(None));
        self.add_event(op, folder, step, What::GraphDef(graph.encode_to_vec()))?;
        let run = TaggedRunMetadata {
            tag: "step1".into(),
            run_metadata: stats.encode_to_vec(),
        };
        self.add_event(op, folder, step, What::TaggedRunMetadata(run))
    }
}

/// The modules in evaluation mode, until this is dropped.
struct Evaluating<'a>(Vec<(&'a dyn Module, bool)>);

impl Evaluating<'_> {
    fn new(model: &dyn Module) -> Evaluating<'_> {
        let modes = model.modules().into_iter().map(|m| (m, m.is_training()));
        let modes = modes.collect();
        model.eval();
        Evaluating(modes)
    }
}

impl Drop for Evaluating<'_> {
    fn drop(&mut self) {
        // Each module sets those within it, which follow it.
        self.0
            .iter()
            .for_each(|(module, training)| module.set_training(*training));
    }
}

/// A graph under construction.
struct Graph {
    nodes: Vec<NodeDef>,
    /// The name of each node by its serial number.
    names: HashMap<u64, String>,
    /// The number of uses of each name.
    uses: HashMap<String, usize>,
    /// The scope of each module by its path.
    scopes: BTreeMap<String, String>,
    calls: Vec<ModuleCall>,
    /// The serial number of the first node of the call.
    first_serial: u64,
}

impl Graph {
    fn new(
        model: &dyn Module,
        calls: Vec<ModuleCall>,
        first_serial: u64,
        inputs: &[Tensor],
    ) -> Graph {
        let mut scopes: BTreeMap<String, String> = BTreeMap::new();
        for (path, module) in model.named_modules() {
            let (parent, last) = path.rsplit_once('.').unwrap_or(("", &path));
            let scope = match scopes.get(parent) {
                Some(parent) if !path.is_empty() => format!("{parent}/{}[{last}]", module.name()),
                _ => module.name().to_string(),
            };
            scopes.insert(path, scope);
        }
        let mut graph = Graph {
            nodes: Vec::new(),
            names: HashMap::new(),
            uses: HashMap::new(),
            scopes,
            calls,
            first_serial,
        };
        for (i, t) in inputs.iter().enumerate() {
            graph.leaf(t, format!("input/{i}"), "IO Node");
        }
        let cells = model
            .named_parameters()
            .into_iter()
            .chain(model.named_buffers());
        for (path, var) in cells {
            let (module, last) = path.rsplit_once('.').unwrap_or(("", &path));
            let scope = graph.scopes.get(module).cloned().unwrap_or_default();
            graph.leaf(&var.get(), format!("{scope}/{last}"), "Parameter");
        }
        graph
    }

    /// Adds an input, a parameter or a buffer.
    fn leaf(&mut self, t: &Tensor, name: String, op: &str) {
        let handle: &Handle = t.as_ref();
        let name = self.unique(name);
        self.names.insert(handle.node.serial, name.clone());
        self.nodes.push(node(name, op, Vec::new(), &handle.node));
    }

    /// Adds these values as outputs, and the nodes that compute them.
    fn add(&mut self, outputs: &[Tensor]) {
        for (i, t) in outputs.iter().enumerate() {
            let handle: &Handle = t.as_ref();
            self.add_node(&handle.node);
            let input = self.input(&handle.node, handle.output);
            let name = format!("output/{i}");
            self.nodes
                .push(node(name, "IO Node", vec![input], &handle.node));
        }
    }

    /// Adds a node after its operands.
    fn add_node(&mut self, root: &Arc<Node>) {
        let mut stack = vec![(root.clone(), false)];
        while let Some((node_, expanded)) = stack.pop() {
            if self.names.contains_key(&node_.serial) {
                continue;
            }
            let operands = match &*node_.state() {
                NodeState::Lazy { inputs, .. } if node_.serial >= self.first_serial => {
                    inputs.clone()
                }
                _ => Default::default(),
            };
            if !expanded && !operands.is_empty() {
                stack.push((node_, true));
                stack.extend(operands.iter().rev().map(|o| (o.node.clone(), false)));
                continue;
            }
            let inputs = operands
                .iter()
                .map(|o| self.input(&o.node, o.output))
                .collect();
            let path = innermost(&self.calls, node_.serial).map_or("", |call| &call.path);
            let scope = self.scopes.get(path).cloned().unwrap_or_default();
            let name = self.unique(format!("{scope}/{}", node_.op.name()));
            self.names.insert(node_.serial, name.clone());
            self.nodes.push(node(name, node_.op.name(), inputs, &node_));
        }
    }

    fn input(&self, node: &Node, output: u32) -> String {
        let name = self.names.get(&node.serial).cloned().unwrap_or_default();
        match output {
            0 => name,
            n => format!("{name}:{n}"),
        }
    }

    /// The name, with a number appended if it is taken.
    fn unique(&mut self, name: String) -> String {
        let count = self.uses.entry(name.clone()).or_default();
        *count += 1;
        match *count {
            1 => name,
            n => format!("{name}_{}", n - 1),
        }
    }

    /// Adds kernels in the order in which they ran, and returns their times.
    fn add_kernels(&mut self, kernels: &[profiler::KernelEvent]) -> RunMetadata {
        let mut stats = Vec::new();
        let mut previous = Vec::new();
        for (i, kernel) in kernels.iter().enumerate() {
            let name = format!("kernels/{i}_{}", kernel.name);
            let text = |text: String| AttrValue {
                value: Some(Attribute::S(text.into_bytes())),
            };
            let attr = [
                ("ops", text(kernel.ops.join("\n"))),
                ("flops", text(kernel.flops.to_string())),
                ("bytes", text(kernel.bytes.to_string())),
            ];
            self.nodes.push(NodeDef {
                name: name.clone(),
                op: "Kernel".into(),
                input: std::mem::replace(&mut previous, vec![name.clone()]),
                device: DEVICE.into(),
                attr: attr.map(|(name, value)| (name.to_string(), value)).into(),
            });
            // Times of less than a microsecond are rounded up: 0 is not shown.
            let micros = kernel.time.as_nanos().div_ceil(1000) as i64;
            stats.push(NodeExecStats {
                node_name: name,
                all_start_micros: kernel.start.as_micros() as i64,
                op_end_rel_micros: micros,
                all_end_rel_micros: micros,
            });
        }
        let device = DeviceStepStats {
            device: DEVICE.into(),
            node_stats: stats,
        };
        RunMetadata {
            step_stats: Some(StepStats {
                dev_stats: vec![device],
            }),
        }
    }
}

/// TensorFlow's name of the device.
const DEVICE: &str = "/device:CPU:0";

fn node(name: String, op: &str, input: Vec<String>, source: &Node) -> NodeDef {
    let shapes = source.facts.iter().map(|fact| {
        let sizes = fact.shape.iter().map(|d| d.as_const().unwrap_or(-1));
        shape(&sizes.collect::<Vec<_>>())
    });
    let shapes = ListValue {
        shape: shapes.collect(),
    };
    let dtypes: Vec<String> = source.facts.iter().map(|f| f.dtype.to_string()).collect();
    let text = |text: &str| Attribute::S(text.as_bytes().to_vec());
    let attr = [
        ("_output_shapes", Attribute::List(shapes)),
        ("called", text(source.called)),
        ("dtype", text(&dtypes.join(", "))),
        ("line", text(&source.loc.to_string())),
    ];
    let attr = attr.map(|(name, value)| (name.to_string(), AttrValue { value: Some(value) }));
    NodeDef {
        name,
        op: op.into(),
        input,
        device: DEVICE.into(),
        attr: attr.into(),
    }
}
