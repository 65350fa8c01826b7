//! Tuning of fusion, and of the number of parts into which reductions are split. A fused launch is lowered as a program
//! of its own, once for each candidate.

use super::alone;
use super::choose::{Choice, Chooser};
use super::key::{self, bucket, stamp};
use super::search::CandidateInfo;
use super::subject::KernelSubject;
use crate::CompileError;
use crate::lowered::Lowered;
use crate::subgraph::{Subgraph, subgraph};
use hashbrown::{HashMap, HashSet};
use kiln_base::{Dim, numel};
use kiln_codegen::{Body, Hint, Hints, Options, Origin, Program, Task, Work};
use kiln_ir::{Graph, NodeId, Op, Value};
use kiln_plan::Plan;
use kiln_runtime::cuda;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3Default;

/// The minimum number of bytes of a region that is tuned.
const MIN_BYTES: i64 = 1 << 20;
/// The minimum number of elements of a value that gets a launch of its own, and of a reduction that is split.
const MIN_ELEMENTS: i64 = 1 << 15;
/// The numbers of parts that are tried for reductions.
const PARTS: [i64; 4] = [1, 8, 32, 128];
/// The minimum number of elements of a part.
const MIN_PART: i64 = 8;
/// The maximum number of values of a region that are tried with a separate launch.
const MAX_APART: usize = 3;

/// The tasks that compute some values, and the candidates that divide them into launches.
pub(super) struct Region {
    name: String,
    subgraph: Subgraph,
    /// Its results, as values of the whole graph.
    pub values: Vec<Value>,
    /// The candidates by name, that of the rules first. Several may be lowered to the same launches.
    candidates: Vec<(String, Hints)>,
}

impl Region {
    /// Returns the region of a task; `None` if there is no choice.
    pub fn of(graph: &Graph, program: &Program, task: usize) -> Option<Region> {
        let (values, arguments) = boundary(program, task)?;
        let inputs = graph.inputs();
        let value = |origin: &Origin| match origin {
            Origin::Value(v) => Some(*v),
            Origin::Input(i) => inputs.get(*i as usize).map(|id| id.value()),
            _ => None,
        };
        let arguments: HashSet<Value> = arguments.iter().filter_map(value).collect();
        let values: Vec<Value> = values.iter().filter_map(value).collect();
        let subgraph = subgraph(graph, &values, |v| arguments.contains(&v));
        let region = Region {
            name: program.tasks[task].work.name().to_string(),
            candidates: candidates(&subgraph.graph),
            subgraph,
            values,
        };
        (region.candidates.len() > 1).then_some(region)
    }

    /// The key of the region in the store: its ops with their sizes by quarter octaves.
    fn key(&self, device: &str) -> String {
        let sizes = self
            .subgraph
            .inputs
            .iter()
            .zip(self.subgraph.graph.inputs());
        let sizes = sizes.map(|(_, id)| {
            let fact = self.subgraph.graph.node(id).fact();
            let dims: Vec<String> = fact.shape.iter().map(|d| bucketed(d).to_string()).collect();
            format!("{}[{}]", fact.dtype, dims.join("x"))
        });
        let (name, sizes) = (key::escape(&self.name), sizes.collect::<Vec<_>>().join(" "));
        let hash = structure(&self.subgraph.graph) as u32;
        format!("fusion {name} {sizes} {hash:08x} | {}", stamp(device))
    }

    /// Returns the distinct programs of the candidates, that of the rules first.
    fn candidates(&self, options: &Options) -> Result<Vec<(CandidateInfo, Plan)>, CompileError> {
        let mut list: Vec<(CandidateInfo, Plan)> = Vec::new();
        for (name, hints) in &self.candidates {
            let lowered = Lowered::hinted(self.subgraph.graph.clone(), options, hints)?;
            add(&mut list, name, lowered);
        }
        Ok(list)
    }

    /// Returns the maximum number of terms of a sum.
    fn terms(&self) -> i64 {
        let graph = &self.subgraph.graph;
        let size = |v: Value| numel(&graph.fact(v).shape).as_const().unwrap_or(0);
        let nodes = graph.iter().map(|(id, node)| match &node.op {
            Op::Reduce(_) => size(node.inputs[0]) / size(id.value()).max(1),
            Op::MatMul(_) => graph
                .fact(node.inputs[0])
                .shape
                .last()
                .and_then(Dim::as_const)
                .unwrap_or(0),
            _ => 0,
        });
        nodes.max().unwrap_or(0)
    }

    /// Chooses a candidate; also returns hints for the nodes of the whole graph that the rules would lower
    /// differently.
    ///
    /// # Errors
    /// If the region can't be lowered, which is a bug.
    pub fn choose(
        &self,
        chooser: &mut Chooser,
        options: &Options,
        device: &str,
        gpu: Option<&Arc<cuda::Device>>,
    ) -> Result<(Arc<Choice>, Hints), CompileError> {
        let key = self.key(device);
        let choice = match chooser.known(&key) {
            Some(choice) => choice,
            None => {
                let list = self.candidates(options)?;
                let names: Vec<CandidateInfo> = list.iter().map(|(c, _)| c.clone()).collect();
                chooser.choose(key, &names, || {
                    let args = list
                        .first()
                        .map_or_else(Vec::new, |(_, plan)| alone::args(plan));
                    let (terms, gpu) = (self.terms(), gpu.cloned());
                    Arc::new(KernelSubject::of_plans(list, terms, args, Vec::new(), gpu))
                })
            }
        };
        // Regions with one key may have different candidates.
        let choice = choice.among(self.candidates.iter().map(|(name, _)| name));
        let candidate = self
            .candidates
            .iter()
            .find(|(name, _)| *name == choice.chosen);
        let to_graph: HashMap<NodeId, NodeId> = (self
            .subgraph
            .map
            .iter()
            .map(|(to_graph, local)| (local.node, to_graph.node)))
        .collect();
        let hints = candidate.into_iter().flat_map(|(_, hints)| hints);
        let hints = hints.filter_map(|(id, hint)| Some((*to_graph.get(id)?, *hint)));
        Ok((choice, hints.collect()))
    }
}

/// Returns a size rounded to quarter octaves.
fn bucketed(d: &Dim) -> Dim {
    d.as_const().map_or_else(|| d.clone(), |n| bucket(n).into())
}

/// Returns a hash of a graph's ops and sizes, independent of lines. Sizes count by quarter octaves, so another batch
/// size rarely changes the hash.
pub(super) fn structure(graph: &Graph) -> u64 {
    let mut graph = graph.clone();
    graph.dims_mut(&mut |d| *d = bucketed(d));
    let mut hasher = Xxh3Default::new();
    for (_, node) in graph.iter() {
        (&node.op, &node.inputs).hash(&mut hasher);
        for fact in &node.facts {
            let sizes: Vec<Dim> = fact.shape.iter().map(bucketed).collect();
            (fact.dtype, sizes).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Returns the results and the operands of a task's region. Tasks that compute intermediates, such as partial sums,
/// belong to the same region. `None` if the region is too small, or not all of it is fused work of known size.
fn boundary(program: &Program, task: usize) -> Option<(Vec<Origin>, Vec<Origin>)> {
    let mut members = vec![task];
    let (mut values, mut arguments, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut next = 0;
    while let Some(&t) = members.get(next) {
        let member = &program.tasks[t];
        if !is_fused(&member.work) {
            return None;
        }
        bytes += member.work.cost().bytes.as_const()?;
        for (b, arg) in member.args.iter().zip(&member.work.args) {
            let info = &program.buffers[b.0 as usize];
            if info.channels_last || info.parameter_only && arg.written {
                return None;
            }
            let is_derived = matches!(info.origin, Origin::Derived(_));
            match (&info.origin, arg.written) {
                (_, true) if is_derived => {}
                (origin, true) => values.push(origin.clone()),
                (_, false) if is_derived => {
                    let writes = |t: &Task| t.written().any(|x| x == *b);
                    let writer = program.tasks.iter().position(writes)?;
                    if !members.contains(&writer) {
                        members.push(writer);
                    }
                }
                (origin, false) => arguments.push(origin.clone()),
            }
        }
        next += 1;
    }
    (bytes >= MIN_BYTES && !values.is_empty()).then_some((values, arguments))
}

/// True if work is described by Kernel IR, except perhaps for a product.
fn is_fused(work: &Work) -> bool {
    match work.body {
        Body::Fused(_) => true,
        Body::MatMul(_) => work.kernels().next().is_some(),
        _ => false,
    }
}

/// Returns the candidates of a region by name, that of the rules first.
fn candidates(graph: &Graph) -> Vec<(String, Hints)> {
    let mut candidates = vec![("by rule".to_string(), Hints::default())];
    let users = graph.users();
    let size = |v: Value| numel(&graph.fact(v).shape).as_const().unwrap_or(0);
    let is_output = |id: NodeId| graph.outputs.iter().any(|o| o.value.node == id);
    let mut separate = Vec::new();
    for (id, node) in graph.iter() {
        let name = |change: &str| format!("{} {} {change}", node.op.name(), id.index());
        if let Op::Reduce(_) = &node.op {
            let (elements, results) = (size(node.inputs[0]), size(id.value()));
            let row = elements / results.max(1);
            for part_count in PARTS {
                if elements >= MIN_ELEMENTS && row >= MIN_PART * part_count {
                    let hints = [(id, Hint::Parts(part_count))].into_iter().collect();
                    candidates.push((name(&format!("in {part_count}")), hints));
                }
            }
        }
        let computes = matches!(
            node.op,
            Op::Pointwise(_) | Op::Cast(_) | Op::Gather(_) | Op::MatMul(_) | Op::Random(_)
        );
        // A value that is read once, element by element, gains nothing from being materialised.
        let readers = &users[id.index()];
        let reduces = |r: &NodeId| matches!(graph.node(*r).op, Op::Reduce(_) | Op::WindowReduce(_));
        let is_reread = readers.len() > 1 || readers.iter().any(reduces);
        let is_product = |id: NodeId| matches!(graph.node(id).op, Op::MatMul(_));
        // A product may be separated from its epilogue, and from its prologue.
        let product = is_product(id) || readers.iter().any(|r| is_product(*r));
        if computes && (is_reread || product) && !is_output(id) && size(id.value()) >= MIN_ELEMENTS
        {
            let hints = [(id, Hint::Apart)].into_iter().collect();
            separate.push((name("apart"), hints));
        }
    }
    let first = separate.len().saturating_sub(MAX_APART);
    candidates.extend(separate.drain(first..));
    candidates
}

/// Adds a program to the candidates, unless one of them has the same plan.
pub(super) fn add(list: &mut Vec<(CandidateInfo, Plan)>, name: &str, lowered: Lowered) {
    let candidate = CandidateInfo::new(name, lowered.peak().unwrap_or(0) as u64);
    let plan = flattened(lowered.placed.plan);
    if list.iter().all(|(_, known)| *known != plan) {
        list.push((candidate, plan));
    }
}

/// Returns the plan with flat inputs and outputs, as trials allocate them.
fn flattened(mut plan: Plan) -> Plan {
    for input in &mut plan.inputs {
        input.shape = vec![numel(&input.shape)];
    }
    for output in &mut plan.outputs {
        output.shape = vec![numel(&output.shape)];
        output.donor = None;
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, compile};
    use kiln_base::{DType, Loc};
    use kiln_ir::eval::{Array, Oracle};
    use kiln_ir::{Builder, Fact, GraphBuilder, Pw, Role, ops};
    use kiln_runtime::{Buffer, Executable};

    type Built = Result<Value, kiln_ir::OpError>;

    fn graph(shapes: &[[i64; 2]], build: fn(&mut GraphBuilder, &[Value]) -> Built) -> Graph {
        let mut graph = Graph::default();
        let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
        let inputs = shapes
            .iter()
            .map(|s| b.input(Fact::new(DType::F32, *s), Role::Data));
        let inputs: Vec<Value> = inputs.collect();
        let y = build(&mut b, &inputs).unwrap();
        graph.add_output(y);
        graph
    }

    /// The names of the candidates to lower the regions of a graph, all of which give the results of the reference.
    fn tried(graph: &Graph) -> Vec<String> {
        let compiled = compile(graph, &[], &Options::default()).unwrap();
        let (optimized, program) = (&compiled.stages.optimized, &compiled.stages.program);
        let options = Options::default().codegen(&kiln_runtime::machine(None).unwrap());
        let regions = (0..program.tasks.len()).filter_map(|l| Region::of(optimized, program, l));
        let mut names = Vec::new();
        for region in regions {
            let mut random = super::super::alone::Numbers(7);
            let facts = region.subgraph.inputs.iter().map(|v| optimized.fact(*v));
            let inputs: Vec<Buffer> = facts
                .map(|f| {
                    let len = numel(&f.shape).as_const().unwrap();
                    random.elements(f.dtype, len, true, true).unwrap()
                })
                .collect();
            let arrays = inputs.iter().zip(&region.subgraph.inputs).map(|(b, v)| {
                let shape = optimized
                    .fact(*v)
                    .shape
                    .iter()
                    .map(|d| d.as_const().unwrap() as usize);
                let shape: Vec<usize> = shape.collect();
                Array::from_bytes(b.dtype(), &shape, b.bytes().unwrap()).unwrap()
            });
            let arrays: Vec<Array> = arrays.collect();
            let oracle = Oracle::new(&region.subgraph.graph, &arrays, 1.0).unwrap();
            for (candidate, plan) in region.candidates(&options).unwrap() {
                let kernels = plan.kernels.len();
                let got = Executable::new(plan).unwrap().run_shared(&inputs).unwrap();
                for (i, got) in got.iter().enumerate() {
                    let value = region.subgraph.graph.outputs[i].value;
                    let shape = region.subgraph.graph.fact(value).shape.iter();
                    let shape: Vec<usize> = shape.map(|d| d.as_const().unwrap() as usize).collect();
                    let got = Array::from_bytes(got.dtype(), &shape, got.bytes().unwrap()).unwrap();
                    let error = oracle.compare(i, &got).unwrap();
                    assert!(error.is_right(), "{}: {error:?}", candidate.name);
                }
                names.push(format!("{} ({kernels})", candidate.name));
            }
        }
        names
    }

    #[test]
    fn every_candidate_of_a_region_gives_the_results_of_the_reference() {
        let columns = graph(&[[1040, 263]], |b, x| {
            let y = b.pointwise(Pw::Exp, x)?;
            b.sum(&y, &[0])
        });
        let split = [
            "reduce 2 in 8 (2)",
            "reduce 2 in 32 (2)",
            "reduce 2 in 128 (2)",
        ];
        let first = |name: &'static str| [[name].as_slice(), &split].concat();
        let apart = |name: &'static str| [name].as_slice().to_vec();
        assert_eq!(
            tried(&columns),
            [
                apart("by rule (2)"),
                first("reduce 2 in 1 (1)"),
                apart("exp 1 apart (3)")
            ]
            .concat()
        );
        let all = graph(&[[1040, 263]], |b, x| {
            let y = b.pointwise(Pw::Tanh, x)?;
            b.sum(&y, &[0, 1])
        });
        let rows = graph(&[[1040, 263]], |b, x| {
            let y = b.pointwise(Pw::Exp, x)?;
            let total = b.reduce_keepdim(kiln_base::prim::Reduction::Sum, &y, &[1])?;
            let total = b.broadcast_to(&total, &[1040.into(), 263.into()])?;
            b.pointwise(Pw::Div, &[y, total])
        });
        let product = graph(&[[1031, 131], [131, 263]], |b, x| {
            let y = b.op(ops::MatMul {}, x)?;
            b.pointwise(Pw::Tanh, &[y])
        });
        let prologue = graph(&[[1031, 131], [131, 263]], |b, x| {
            let y = b.pointwise(Pw::Tanh, &x[..1])?;
            b.op(ops::MatMul {}, &[y, x[1]])
        });
        assert_eq!(
            tried(&all),
            [
                apart("by rule (2)"),
                first("reduce 2 in 1 (1)"),
                apart("tanh 1 apart (3)")
            ]
            .concat()
        );
        assert_eq!(tried(&rows), ["by rule (1)", "exp 1 apart (2)"]);
        assert_eq!(tried(&product), ["by rule (1)", "matmul 2 apart (2)"]);
        assert_eq!(tried(&prologue), ["by rule (1)", "tanh 2 apart (2)"]);
    }
}
