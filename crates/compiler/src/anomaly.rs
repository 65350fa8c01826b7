//! Finds the op that produces the first NaN or infinity.

use crate::Stages;
use crate::subgraph::subgraph;
use crate::verify::{array, value_in};
use hashbrown::{HashMap, HashSet};
use kiln_base::DType;
use kiln_codegen::{Launch, Origin};
use kiln_ir::eval::{Array, Mode, eval_bodies, evaluate, evaluate_all};
use kiln_ir::{Graph, Node, NodeId, Op, Value};
use kiln_runtime::{Buffer, Error, Executable, Traced, Tracer};

/// An op that produced a NaN from operands without one, or an infinity from finite operands.
#[derive(Clone, Debug, PartialEq)]
pub struct Anomaly {
    /// The position in a recording that the op's location names (see [`Loc::recorded`](kiln_ir::Loc::recorded)).
    pub at: usize,
    /// The NaN or infinity.
    pub value: f64,
    /// Its row-major position.
    pub element: usize,
    /// The shape of the result.
    pub shape: Vec<i64>,
    /// A description of each operand, one line each.
    pub operands: Vec<String>,
    /// The op in a body, if the anomaly is in the body of a loop or branch. The other fields but `at` then describe
    /// this inner op.
    pub inside: Option<Inside>,
}

/// An op in the body of a loop or branch.
#[derive(Clone, Debug, PartialEq)]
pub struct Inside {
    /// The position that its location marks.
    pub at: usize,
    /// The step of the loop, from 0 in the order of execution; of nested loops, the step of the inner one.
    pub step: usize,
}

/// Runs an executable step by step and returns the anomaly whose op has the lowest rank. The program should be
/// compiled without fusion and rewrites, so that each step is one recorded op. Every location should be a position in
/// a recording, which is the argument of `rank`. Infinities that are constants of the program are ignored.
///
/// # Errors
/// As [`Executable::run`], if there is no anomaly.
pub fn first_anomaly(
    stages: &Stages,
    executable: &Executable,
    inputs: &[Buffer],
    rank: &dyn Fn(usize) -> u64,
) -> Result<Option<Anomaly>, Error> {
    let mut watcher = Watcher {
        stages,
        rank,
        symbols: crate::verify::symbols(executable.plan(), inputs)?,
        read: Vec::new(),
        needed: needed_values(&stages.optimized),
        known: HashMap::new(),
        first: None,
    };
    let run = executable.trace(inputs, &mut watcher);
    match watcher.first {
        Some(anomaly) => Ok(Some(anomaly)),
        None => run.map(|_| None),
    }
}

struct Watcher<'a> {
    stages: &'a Stages,
    rank: &'a dyn Fn(usize) -> u64,
    symbols: Vec<i64>,
    /// The contents of the buffers that the running step reads.
    read: Vec<ElementSummary>,
    /// The values that loops and branches may be evaluated from: their operands and the program's inputs.
    needed: HashSet<Value>,
    /// The values among these that steps have read or written.
    known: HashMap<Value, Array>,
    first: Option<Anomaly>,
}

impl Tracer for Watcher<'_> {
    fn before(&mut self, step: &Traced) -> Result<(), Error> {
        self.read.clear();
        let launch = self.launch(step);
        for (i, id) in launch.args.iter().enumerate() {
            let dtype = self.stages.sequence.buffers[id.0 as usize].dtype;
            let needed = self.needed_values(id.0);
            if launch.written[i] || !dtype.is_float() && needed.is_none() {
                continue;
            }
            let bytes = step.bytes(i)?;
            if dtype.is_float() {
                self.read.push(ElementSummary::of(dtype, &bytes));
            }
            self.keep(needed, &bytes);
        }
        Ok(())
    }

    fn after(&mut self, step: &Traced) -> Result<(), Error> {
        let launch = self.launch(step);
        for (i, id) in launch.args.iter().enumerate() {
            let info = &self.stages.sequence.buffers[id.0 as usize];
            let needed = self.needed_values(id.0);
            let float = match info.origin {
                Origin::Value(v) | Origin::Derived(v) if info.dtype.is_float() => Some(v),
                _ => None,
            };
            if !launch.written[i] || float.is_none() && needed.is_none() {
                continue;
            }
            let bytes = step.bytes(i)?;
            self.keep(needed, &bytes);
            if let Some(value) = float {
                let summary = ElementSummary::of(info.dtype, &bytes);
                let shape = info.shape.iter().map(|d| d.eval(&self.symbols));
                self.record(launch, value, summary, shape.collect());
            }
        }
        Ok(())
    }
}

/// The operands of loops and branches, and, if there are any, the inputs of the graph.
fn needed_values(graph: &Graph) -> HashSet<Value> {
    let nodes = graph.iter().filter(|(_, n)| has_bodies(&n.op));
    let mut wanted: HashSet<Value> = nodes.flat_map(|(_, n)| n.inputs.iter().copied()).collect();
    if !wanted.is_empty() {
        wanted.extend(graph.inputs().into_iter().map(NodeId::value));
    }
    wanted
}

fn has_bodies(op: &Op) -> bool {
    !op.bodies().is_empty()
}

impl<'a> Watcher<'a> {
    /// Returns the value that a buffer holds, if a loop or branch may need it.
    fn needed_values(&self, buffer: u32) -> Option<Value> {
        value_in(self.stages, buffer).filter(|v| self.needed.contains(v))
    }

    fn keep(&mut self, needed: Option<Value>, bytes: &[u8]) {
        let array = needed.and_then(|v| Some((v, array(self.stages, &self.symbols, v, bytes)?)));
        self.known.extend(array);
    }

    fn launch(&self, step: &Traced) -> &'a Launch {
        &self.stages.sequence.launches[self.stages.launch(step.prepare, step.step)]
    }

    fn record(&mut self, launch: &Launch, value: Value, summary: ElementSummary, shape: Vec<i64>) {
        let graph = &self.stages.optimized;
        let Some((element, x)) = summary.produced(&self.read, graph, &launch.nodes) else {
            return;
        };
        let Some(position) = graph.node(value.node).loc.position() else {
            return;
        };
        let rank = |position: usize| (self.rank)(position);
        if (self.first.as_ref()).is_none_or(|first| rank(position) < rank(first.at)) {
            let anomaly = Anomaly {
                at: position,
                value: x,
                element,
                shape,
                operands: self.read.iter().map(ElementSummary::text).collect(),
                inside: None,
            };
            self.first = Some(self.inside(value.node, position).unwrap_or(anomaly));
        }
    }

    /// Returns the op in the body of a loop or branch that first produces a NaN or infinity in the reference
    /// evaluation.
    fn inside(&self, id: NodeId, at: usize) -> Option<Anomaly> {
        let graph = &self.stages.optimized;
        let node = graph.node(id);
        if !has_bodies(&node.op) {
            return None;
        }
        // Values computed from constants or inputs alone may be in no buffer.
        let subgraph = subgraph(graph, &node.inputs, |v| self.known.contains_key(&v));
        let known = subgraph.inputs.iter().map(|v| self.known.get(v).cloned());
        let known: Vec<Array> = known.collect::<Option<_>>()?;
        let operands = evaluate(&subgraph.graph, &known, &self.symbols, Mode::Rounded).ok()?;
        let operands: Vec<&Array> = operands.iter().collect();
        inside(&node.op, &operands, &self.symbols, at)
    }
}

/// Returns the first op in the bodies of an op that produces a NaN or infinity from operands without one.
fn inside(op: &Op, operands: &[&Array], symbols: &[i64], at: usize) -> Option<Anomaly> {
    let (mut first, mut step) = (None, 0);
    let mut run = |body: &Graph, inputs: &[Array]| {
        let values = evaluate_all(body, inputs, symbols, Mode::Rounded)?;
        let value = |v: &Value| &values[v.node.index()][v.output as usize];
        let mut nodes = body.iter().filter(|(_, n)| !matches!(n.op, Op::Input(_)));
        let check_node = |(id, node): (NodeId, &Node)| {
            let read: Vec<&Array> = node.inputs.iter().map(value).collect();
            let anomaly = Anomaly {
                at,
                inside: node.loc.position().map(|at| Inside { at, step }),
                ..find_anomaly(body, id, &read, &values[id.index()])?
            };
            Some(inside(&node.op, &read, symbols, at).unwrap_or(anomaly))
        };
        first = first.take().or_else(|| nodes.find_map(check_node));
        step += 1;
        let outputs = body.outputs.iter().map(|o| value(&o.value).clone());
        Ok(outputs.collect())
    };
    // A data error ends the search: all ops before the error have been checked.
    let _ = eval_bodies(op, operands, symbols, &mut run)?;
    first
}

/// Returns the NaN or infinity that a node produced from operands without one.
fn find_anomaly(graph: &Graph, id: NodeId, read: &[&Array], results: &[Array]) -> Option<Anomaly> {
    let contents = |a: &Array| ElementSummary::of(a.dtype(), &a.to_bytes());
    let floats = read.iter().filter(|a| a.dtype().is_float());
    let read: Vec<ElementSummary> = floats.map(|a| contents(a)).collect();
    results.iter().find_map(|array| {
        let (element, value) = contents(array).produced(&read, graph, &[id])?;
        Some(Anomaly {
            at: 0,
            value,
            element,
            shape: array.shape().iter().map(|n| *n as i64).collect(),
            operands: read.iter().map(ElementSummary::text).collect(),
            inside: None,
        })
    })
}

/// Returns the constant that a value is a view or cast of.
fn constant_value(graph: &Graph, value: Value) -> Option<f64> {
    let mut node = graph.node(value.node);
    while node.op.is_view() || matches!(node.op, Op::Cast(_)) {
        node = graph.node(node.inputs[0].node);
    }
    match &node.op {
        Op::Full(full) => Some(full.value.as_f64()),
        Op::Constant(constant) => {
            let summary = ElementSummary::of(constant.dtype, &constant.bytes);
            let infinity = summary.infinity.map(|(_, x)| x);
            summary.nan.map(|_| f64::NAN).or(infinity)
        }
        _ => None,
    }
}

/// True if a node is, or reads, a constant of this kind.
fn states(graph: &Graph, node: NodeId, kind: fn(f64) -> bool) -> bool {
    let inputs = graph.node(node).inputs.iter().copied();
    let mut values = inputs.chain([node.value()]);
    values.any(|v| constant_value(graph, v).is_some_and(kind))
}

/// A summary of a tensor's elements.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ElementSummary {
    /// The position of the first NaN.
    nan: Option<usize>,
    /// The position and the value of the first infinity.
    infinity: Option<(usize, f64)>,
    /// The smallest and the largest finite value.
    range: Option<[f64; 2]>,
}

impl ElementSummary {
    fn of(dtype: DType, bytes: &[u8]) -> ElementSummary {
        let mut summary = ElementSummary::default();
        for (i, x) in dtype.floats(bytes).into_iter().enumerate() {
            if x.is_nan() {
                summary.nan.get_or_insert(i);
            } else if x.is_infinite() {
                summary.infinity.get_or_insert((i, x));
            } else {
                let [low, high] = summary.range.unwrap_or([x, x]);
                summary.range = Some([low.min(x), high.max(x)]);
            }
        }
        summary
    }

    /// The NaN, or else the infinity, that nodes produced from operands without one.
    fn produced(&self, read: &[Self], graph: &Graph, nodes: &[NodeId]) -> Option<(usize, f64)> {
        let states = |kind| nodes.iter().any(|n| states(graph, *n, kind));
        let had_infinity = || read.iter().any(|r| r.infinity.is_some()) || states(f64::is_infinite);
        let had_nan = || read.iter().any(|r| r.nan.is_some()) || states(f64::is_nan);
        let nan = self.nan.filter(|_| !had_nan()).map(|i| (i, f64::NAN));
        nan.or_else(|| self.infinity.filter(|_| !had_infinity()))
    }

    fn text(&self) -> String {
        let mut text = match self.range {
            Some([low, high]) => format!("an operand from {low} to {high}"),
            None => "an operand without finite values".to_string(),
        };
        if let Some((_, x)) = self.infinity {
            text += &format!(", with {x}");
        }
        if self.nan.is_some() {
            text += ", with NaN";
        }
        text
    }
}
