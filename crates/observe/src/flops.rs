//! The work of a function, counted from what it records, under the conventions of several libraries.

use crate::module_calls::{ModuleCall, innermost};
use crate::work::{Work, bytes, numel, size};
use kiln_base::Loc;
use kiln_ir::{Fact, Op};
use kiln_lazy::Handle;
use kiln_lazy::node::NodeState;
use kiln_lazy::watch::Recorded;
use kiln_tensor::{Flat, Nest, Recording, Result, Returned, Spec, record};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;

/// A convention by which work is counted. All of them count whole batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Convention {
    /// Multiply-adds of convolutions, matrix products and attention, each as one.
    #[default]
    MultAdds,
    /// Operations: two for each multiply-add, and one for each element that is computed or reduced otherwise.
    Arithmetic,
    /// torchinfo's `total_mult_adds`: each parameter of a layer, times the rows of the batch, and for a convolution
    /// times the positions. Work without parameters is left out. Recurrent layers are counted as the products in them.
    Torchinfo,
    /// fvcore's `FlopCountAnalysis`: multiply-adds of convolutions and products, each as one, and its estimates for
    /// norms, `adaptive_avg_pool2d`, `interpolate` and `grid_sample`. Attention is left out.
    Fvcore,
    /// PyTorch's `FlopCounterMode`: two for each multiply-add of convolutions, products and attention.
    FlopCounterMode,
}

/// The serial number of a node, and one of its outputs.
type ValueId = (u64, u32);

fn id(value: &Handle) -> ValueId {
    (value.node.serial, value.output)
}

/// A call that a function recorded, such as `conv2d`, with its work.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function that was called.
    pub name: &'static str,
    /// The user's line.
    pub loc: Loc,
    /// The path of the module in which it was called, if a model was watched.
    pub module: String,
    /// Dtypes and shapes of the values that it read, parameters included; the first is the input.
    pub inputs: Vec<Fact>,
    /// Dtype and shape of its result, the last one recorded.
    pub output: Fact,
    /// Dtypes and shapes of the parameters that it read.
    pub parameters: Vec<Fact>,
    pub(crate) serial: u64,
    pub(crate) reads: Vec<(ValueId, u64)>,
    /// The results of its operations, with their bytes.
    pub(crate) results: Vec<(ValueId, u64)>,
    work: Work,
    reduces: bool,
    is_affine: bool,
}

impl Call {
    /// Returns the call's work under a convention.
    pub fn flops(&self, by: Convention) -> u64 {
        let products = self.work.contraction.saturating_add(self.work.attention);
        let twice = products.saturating_mul(2);
        match by {
            Convention::MultAdds => products,
            Convention::Arithmetic => twice.saturating_add(self.work.elementwise),
            Convention::FlopCounterMode => twice,
            Convention::Torchinfo => self.by_torchinfo(),
            Convention::Fvcore => self.by_fvcore(),
        }
    }

    /// True if it is a layer's function, whose parameters torchinfo finds in a module of PyTorch.
    pub(crate) fn is_layer(&self) -> bool {
        const NAMES: [&str; 10] = [
            "linear",
            "bilinear",
            "prelu",
            "embedding",
            "embedding_bag",
            "batch_norm",
            "instance_norm",
            "group_norm",
            "layer_norm",
            "rms_norm",
        ];
        let is_layer = self.name.starts_with("conv") || NAMES.contains(&self.name);
        is_layer && !self.parameters.is_empty()
    }

    fn by_torchinfo(&self) -> u64 {
        if !self.is_layer() || self.output.rank() == 0 {
            return 0;
        }
        let mut rows = size(&self.output, 0);
        if self.name.starts_with("conv") {
            rows *= (2..self.output.rank())
                .map(|axis| size(&self.output, axis))
                .product::<u64>();
        }
        rows.saturating_mul(self.parameters.iter().map(numel).sum())
    }

    fn by_fvcore(&self) -> u64 {
        let input = || self.inputs.first().map_or(0, numel);
        let output = numel(&self.output);
        match self.name {
            "batch_norm" if !self.reduces => input().saturating_mul(1 + u64::from(self.is_affine)),
            "batch_norm" | "instance_norm" | "group_norm" | "layer_norm" => {
                input().saturating_mul(4 + u64::from(self.is_affine))
            }
            "adaptive_avg_pool2d" => input(),
            "interpolate" if self.output.rank() == 4 => {
                output.saturating_mul(if self.work.elementwise > 0 { 4 } else { 1 })
            }
            "grid_sample" => output.saturating_mul(4),
            "linear" | "matmul" | "mm" | "bmm" | "addmm" | "einsum" => self.work.contraction,
            name if name.starts_with("conv") => self.work.contraction,
            _ => 0,
        }
    }
}

/// The calls of a function with their work; see [`flops`].
///
/// It prints as a table of the functions that were called.
#[derive(Clone, Debug)]
pub struct Flops {
    /// In the order of their serial numbers.
    calls: Vec<Call>,
    outputs: HashSet<ValueId>,
    /// The number of calls that read each value.
    readers: HashMap<ValueId, usize>,
    by: Convention,
}

/// Counts the work of a function for inputs of these specs, from the operations that it records. Nothing is computed
/// or compiled, and cells that it assigns keep their values. A backward pass in it is counted too; operations that
/// nothing depends on are not, since a run would not compute them.
///
/// ```
/// use kiln_observe::{Convention, flops};
/// use kiln_tensor::{DType, Spec, Var, Tensor};
///
/// let weight = Var::parameter(Tensor::zeros([10, 64], DType::F32))?;
/// let counted = flops(Spec::new(DType::F32, [32, 64]), |x| x.linear(&weight).relu())?;
/// assert_eq!(counted.total(Convention::MultAdds), 32 * 64 * 10);
/// assert_eq!(counted.total(Convention::FlopCounterMode), 2 * 32 * 64 * 10);
/// assert_eq!(counted.calls()[0].name, "linear");
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the function fails or reads a value, or a size is a name: figures need numbers.
#[track_caller]
pub fn flops<S: Nest<Spec>, R: Returned>(specs: S, f: impl FnOnce(S::Owned) -> R) -> Result<Flops> {
    Ok(Flops::new(&record(specs, f)?, &[]))
}

impl Flops {
    pub(crate) fn new<R: Nest>(recording: &Recording<R>, modules: &[ModuleCall]) -> Flops {
        let mut by_call: BTreeMap<u32, Vec<&Recorded>> = BTreeMap::new();
        for op in &recording.operations {
            by_call.entry(op.call).or_default().push(op);
        }
        let parameters = &recording.parameters;
        let calls = by_call
            .values()
            .filter_map(|nodes| call(nodes, parameters, modules));
        let mut calls: Vec<Call> = calls.collect();
        calls.sort_by_key(|call| call.serial);
        let mut readers = HashMap::new();
        for (value, _) in calls.iter().flat_map(|call| &call.reads) {
            *readers.entry(*value).or_default() += 1;
        }
        let results = Flat::of(&recording.results);
        Flops {
            calls,
            outputs: results.tensors().iter().map(|t| id(t.as_ref())).collect(),
            readers,
            by: Convention::default(),
        }
    }

    /// The calls, in order.
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Returns the work of all calls.
    pub fn total(&self, by: Convention) -> u64 {
        let work = self.calls.iter().map(|call| call.flops(by));
        work.fold(0, u64::saturating_add)
    }

    /// Returns the work of each function, if any, by name, in descending order.
    pub fn by_operator(&self, by: Convention) -> Vec<(&'static str, u64)> {
        let mut totals: Vec<(&str, u64)> = Vec::new();
        for call in &self.calls {
            match totals.iter_mut().find(|(name, _)| *name == call.name) {
                Some((_, total)) => *total = total.saturating_add(call.flops(by)),
                None => totals.push((call.name, call.flops(by))),
            }
        }
        totals.retain(|(_, total)| *total > 0);
        totals.sort_by_key(|(_, total)| std::cmp::Reverse(*total));
        totals
    }

    /// Prints by another convention than [`Convention::MultAdds`].
    pub fn convention(mut self, by: Convention) -> Flops {
        self.by = by;
        self
    }

    /// The calls whose serial numbers are in a range.
    pub(crate) fn within(&self, serials: Range<u64>) -> &[Call] {
        let [begin, end] = [serials.start, serials.end]
            .map(|serial| self.calls.partition_point(|call| call.serial < serial));
        &self.calls[begin..end]
    }

    /// The bytes that some of the calls read from others or from outside, and that they write for others, each value
    /// once.
    pub(crate) fn traffic(&self, calls: &[Call]) -> (u64, u64) {
        let written: HashMap<ValueId, u64> = calls.iter().flat_map(|c| c.results.clone()).collect();
        // The bytes of each value that they read, and the number of them that do.
        let mut read: HashMap<ValueId, (u64, usize)> = HashMap::new();
        for (value, bytes) in calls.iter().flat_map(|call| &call.reads) {
            read.entry(*value).or_insert((*bytes, 0)).1 += 1;
        }
        let is_read_outside = |value: &ValueId| {
            let inside = read.get(value).map_or(0, |(_, readers)| *readers);
            self.readers.get(value).is_some_and(|n| *n > inside)
        };
        let escaping = written
            .iter()
            .filter(|(value, _)| self.outputs.contains(*value) || is_read_outside(value));
        let external = read
            .iter()
            .filter(|(value, _)| !written.contains_key(*value));
        (
            external.map(|(_, (bytes, _))| bytes).sum(),
            escaping.map(|(_, bytes)| bytes).sum(),
        )
    }
}

impl fmt::Display for Flops {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total(self.by);
        let rows = self.by_operator(self.by);
        let width = rows.iter().map(|(name, _)| name.len()).fold(8, usize::max);
        writeln!(
            f,
            "{:width$}  {:>18}  {:>6}",
            "function",
            format!("{:?}", self.by),
            "share"
        )?;
        for (name, sum) in &rows {
            let share = *sum as f64 / total as f64 * 100.0;
            writeln!(f, "{name:width$}  {:>18}  {share:>5.1}%", grouped(*sum))?;
        }
        write!(f, "{:width$}  {:>18}", "total", grouped(total))
    }
}

/// A number with its digits in groups of three.
pub(crate) fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns the call that recorded these nodes; `None` if it has no inputs, such as `zeros`.
fn call(nodes: &[&Recorded], parameter_ids: &HashSet<u64>, modules: &[ModuleCall]) -> Option<Call> {
    let ours: HashSet<u64> = nodes.iter().map(|n| n.node().serial).collect();
    let mut visited = HashSet::new();
    let (mut inputs, mut parameters) = (Vec::new(), Vec::new());
    let (mut reads, mut results) = (Vec::new(), Vec::new());
    let (mut work, mut reduces, mut is_affine) = (Work::default(), false, false);
    for recorded in nodes {
        let node = recorded.node();
        let operands = match &*node.state() {
            NodeState::Lazy { inputs, .. } => inputs.clone(),
            _ => Default::default(),
        };
        let fact = |o: &kiln_lazy::node::Operand| o.node.facts[o.output as usize].clone();
        for operand in operands.iter().filter(|o| !ours.contains(&o.node.serial)) {
            let id = (operand.node.serial, operand.output);
            if visited.insert(id) {
                let fact = fact(operand);
                reads.push((id, bytes(&fact)));
                if parameter_ids.contains(&operand.node.serial) {
                    parameters.push(fact.clone());
                }
                inputs.push(fact);
            }
        }
        let facts: Vec<Fact> = operands.iter().map(fact).collect();
        work.add(Work::of(
            &node.op,
            &facts.iter().collect::<Vec<_>>(),
            &node.facts,
        ));
        reduces |= matches!(node.op, Op::Reduce(_));
        is_affine |= matches!(&node.op, Op::BatchNorm(norm) if norm.affine);
        results.extend(recorded.outputs.iter().map(|t| (id(t), bytes(t.fact()))));
    }
    let last = nodes.last()?;
    let (head, output) = (nodes[0].node(), last.outputs[0].fact().clone());
    is_affine |= !parameters.is_empty() || head.called == "layer_norm" && inputs.len() > 1;
    let module = innermost(modules, head.serial);
    (!inputs.is_empty()).then(|| Call {
        name: head.called,
        loc: head.loc.into(),
        module: module.map(|m| m.path.clone()).unwrap_or_default(),
        inputs,
        output,
        parameters,
        serial: head.serial,
        reads,
        results,
        work,
        reduces,
        is_affine,
    })
}
