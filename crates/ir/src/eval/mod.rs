//! The reference evaluation: the meaning of every op, in plain loops over wide numbers. It is the oracle of all
//! tests, so it shares nothing with the engines. Composites are evaluated directly and not through their
//! decomposition, pointwise rows through their scalar functions and not through their expressions.
//!
//! Floats are computed in f64, and sums and products of a reduction, matrix product or convolution are
//! accumulated there. Integers are computed in i64, which wraps into the dtype afterwards.
//!
//! ```
//! use kiln_ir::eval::{Array, Mode, evaluate};
//! use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, Loc, Pw, Role};
//!
//! let mut graph = Graph::default();
//! let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
//! let x = b.input(Fact::new(DType::F32, [3]), Role::Data);
//! let y = b.pointwise(Pw::Square, &[x]).unwrap();
//! graph.add_output(y);
//! let x = Array::from_f64(DType::F32, &[3], &[1.0, 2.0, 3.0]).unwrap();
//! let y = evaluate(&graph, &[x], &[], Mode::Rounded).unwrap();
//! assert_eq!(y[0].floats(), Some(&[1.0, 4.0, 9.0][..]));
//! ```

mod arg_reduce;
mod arg_sort;
mod array;
mod attention;
mod attention_grad;
mod batch_norm;
mod broadcast;
mod cast;
mod collective;
mod concat;
mod constant;
mod control;
mod conv;
mod conv_grad;
mod custom;
mod edges;
mod full;
mod gather;
mod index;
mod matmul;
mod oracle;
mod pad;
mod permute;
mod pointwise;
mod random;
mod reduce;
mod scan;
mod scatter;
mod slice;
mod softmax;
mod stochastic;
mod window_reduce;

pub use array::{Array, ArrayError, Data, MAX_ELEMENTS};
pub use control::Body;
pub use oracle::{Deviation, Oracle};

use crate::graph::write_path;
use crate::{Fact, Graph, Node, NodeId, Op, OpError, Value};
use kiln_base::{DType, Dim};
use smallvec::SmallVec;
use std::fmt;

/// The precision in which results are kept.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each node's result is rounded to its dtype.
    Rounded,
    /// Floats stay f64 for every dtype, to bound the error of the others. Integers are exact in both modes.
    Exact,
    /// Each node's result is rounded to its dtype, up or down at random: the nearer, the likelier (stochastic
    /// rounding). The terms of sums are rounded alike. Runs of several seeds show the effect of roundings on a
    /// result.
    Stochastic {
        /// The seed of the random choices.
        seed: u64,
    },
}

/// The reason that a program could not be evaluated.
#[derive(Clone, Debug, PartialEq)]
pub struct EvalError {
    /// The node, after the nodes whose bodies it is in; empty where no node is at fault.
    pub path: Vec<NodeId>,
    /// The op's name; empty where no op is at fault.
    pub op: &'static str,
    /// The problem found there.
    pub problem: Problem,
}

/// A problem in an evaluation.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    /// Inputs or symbols do not match those of the program.
    #[error("{0}")]
    Inputs(String),
    /// The op does not apply to its operands.
    #[error(transparent)]
    Op(#[from] OpError),
    /// More elements than [`MAX_ELEMENTS`].
    #[error(
        "{0} is too large for the reference: the product of sizes above 0 is at most {MAX_ELEMENTS}"
    )]
    TooLarge(String),
    /// A data error: an index outside its axis.
    #[error("index {index} at element {element} is outside 0..{bound}")]
    Index {
        /// The index.
        index: i64,
        /// The exclusive upper bound.
        bound: i64,
        /// The row-major position in the result.
        element: usize,
    },
    /// A data error: an integer divided by zero.
    #[error("integer division by zero at element {element}")]
    DivisionByZero {
        /// The row-major position in the result.
        element: usize,
    },
    /// The kernel of a custom op failed, or is not registered.
    #[error("{name}: {text}")]
    Custom {
        /// The op's name.
        name: String,
        /// The error that it reports.
        text: String,
    },
}

impl EvalError {
    /// True if the program is right and its data is wrong.
    pub fn is_data_error(&self) -> bool {
        matches!(
            self.problem,
            Problem::Index { .. } | Problem::DivisionByZero { .. } | Problem::Custom { .. }
        )
    }

    fn at(mut self, node: NodeId) -> EvalError {
        self.path.insert(0, node);
        self
    }
}

impl From<Problem> for EvalError {
    fn from(problem: Problem) -> EvalError {
        EvalError {
            path: vec![],
            op: "",
            problem,
        }
    }
}

impl fmt::Display for EvalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_path(f, &self.path)?;
        let gap = if self.path.is_empty() { "" } else { " = " };
        match self.op {
            "" => write!(f, "{}", self.problem),
            op => write!(f, "{gap}{op}: {}", self.problem),
        }
    }
}

impl std::error::Error for EvalError {}

/// The values of a program's outputs, in order. Nodes that no output depends on are not evaluated.
/// `symbols` are the values of the graph's symbols; see [`symbol_values`].
///
/// # Errors
/// If inputs or symbols are not those that the graph takes, or on a data error.
pub fn evaluate(
    graph: &Graph,
    inputs: &[Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Array>, EvalError> {
    let mut uses = count_uses(graph)?;
    let mut values: Vec<Vec<Array>> = vec![vec![]; graph.len()];
    run(graph, inputs, symbols, mode, &mut values, Some(&mut uses))?;
    let outputs = graph.outputs.iter();
    outputs.map(|o| find(&values, o.value).cloned()).collect()
}

/// Counts how often each node is read or is an output; only readers that an output depends on count.
fn count_uses(graph: &Graph) -> Result<Vec<usize>, EvalError> {
    let mut uses = vec![0usize; graph.len()];
    let mut stack: Vec<Value> = graph.outputs.iter().map(|o| o.value).collect();
    while let Some(v) = stack.pop() {
        let node = v.node;
        if node.index() >= graph.len() {
            return Err(Problem::Inputs(format!("there is no node {node}")).into());
        }
        uses[node.index()] += 1;
        if uses[node.index()] == 1 {
            stack.extend(&graph.node(node).inputs);
        }
    }
    Ok(uses)
}

/// The values of every output of every node, indexed by node and output.
///
/// # Errors
/// If inputs or symbols are not those that the graph takes, or on a data error.
pub fn evaluate_all(
    graph: &Graph,
    inputs: &[Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Vec<Array>>, EvalError> {
    let mut values = vec![vec![]; graph.len()];
    run(graph, inputs, symbols, mode, &mut values, None)?;
    Ok(values)
}

/// Returns the values of the symbols from the shapes of the inputs: each symbol is a dim of some input.
///
/// # Errors
/// If inputs are missing or of another rank, or a symbol is not a dim of an input.
pub fn symbol_values(graph: &Graph, inputs: &[Array]) -> Result<Vec<i64>, EvalError> {
    let mut values = vec![None; graph.symbols.len()];
    for (i, id) in graph.inputs().into_iter().enumerate() {
        let input = inputs
            .get(i)
            .ok_or_else(|| Problem::Inputs(format!("input {i} is missing")))?;
        let dims = graph.node(id).facts.iter().flat_map(|f| &f.shape);
        for (d, n) in dims.zip(input.shape()) {
            let symbol = d.max_symbol().filter(|s| *d == Dim::symbol(*s));
            if let Some(value) = symbol.and_then(|s| values.get_mut(s.0 as usize)) {
                *value = Some(*n as i64);
            }
        }
    }
    let resolved = values.into_iter().enumerate().map(|(i, v)| {
        v.ok_or_else(|| Problem::Inputs(format!("symbol s{i} is not a dim of an input")).into())
    });
    resolved.collect()
}

/// The outputs of one op. Sizes among its attributes take the values of `symbols`.
///
/// # Errors
/// If the op does not apply to the operands, or on a data error.
pub fn eval_op(
    op: &Op,
    inputs: &[&Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Array>, EvalError> {
    let named = |problem| EvalError {
        path: vec![],
        op: op.name(),
        problem,
    };
    let mut body = |body: &Graph, inputs: &[Array]| evaluate(body, inputs, symbols, mode);
    if let Some(outputs) = eval_bodies(op, inputs, symbols, &mut body) {
        return outputs;
    }
    if let Op::Barrier(_) = op {
        return Ok(inputs.iter().map(|a| (*a).clone()).collect());
    }
    if let Op::Collective(op) = op {
        return collective::eval(op, inputs).map_err(named);
    }
    let bound = bind(op, symbols).map_err(named)?;
    let facts: SmallVec<[Fact; 3]> = inputs.iter().map(|a| fact_of(a)).collect();
    let facts: SmallVec<[&Fact; 3]> = facts.iter().collect();
    let results = bound.infer(&facts).map_err(|e| named(e.into()))?;
    let cx = Context {
        mode,
        dtype: results[0].dtype,
        shape: shape_of(&results[0], symbols).map_err(named)?,
    };
    let varied = match mode {
        Mode::Stochastic { seed } => stochastic::vary_operands(&bound, inputs, seed),
        Mode::Rounded | Mode::Exact => None,
    };
    let data = match varied {
        Some(varied) => dispatch(&bound, &varied.iter().collect::<Vec<_>>(), &cx),
        None => dispatch(&bound, inputs, &cx),
    };
    let data = data.map_err(named)?;
    Ok(vec![Array::with_mode(cx.dtype, cx.shape, data, mode)])
}

/// Returns the outputs of a loop or branch; `None` for other ops. `run` evaluates a body, once for each step.
///
/// # Errors
/// As [`eval_op`], and the errors of `run`.
pub fn eval_bodies(
    op: &Op,
    inputs: &[&Array],
    symbols: &[i64],
    run: Body<'_>,
) -> Option<Result<Vec<Array>, EvalError>> {
    match op {
        Op::If(op) => Some(control::branch(op, inputs, run)),
        Op::Loop(op) => Some(control::repeat(op, inputs, symbols, run)),
        _ => None,
    }
}

/// The properties of the result of an op, which inference has accepted.
struct Context {
    mode: Mode,
    /// The dtype of the result.
    dtype: DType,
    /// The shape of the result.
    shape: Vec<usize>,
}

impl Context {
    /// Returns an intermediate value that engines compute by different formulas. Stochastic rounding perturbs it by a
    /// few roundings.
    fn perturb(&self, x: f64, index: usize) -> f64 {
        match self.mode {
            Mode::Stochastic { seed } if self.dtype != DType::F64 => {
                stochastic::perturb_by(x, 4.0 * stochastic::unit(self.dtype), seed ^ index as u64)
            }
            _ => x,
        }
    }

    /// A partial sum. Engines keep it in f32 where the result is no wider, so it overflows there.
    fn partial(&self, sum: f64) -> f64 {
        match self.mode {
            Mode::Stochastic { .. } if self.dtype != DType::F64 => sum as f32 as f64,
            _ => sum,
        }
    }
}

fn dispatch(op: &Op, x: &[&Array], cx: &Context) -> Result<Data, Problem> {
    match op {
        Op::Input(op) => Err(Problem::Inputs(format!(
            "input {} has no value here",
            op.index
        ))),
        Op::Full(op) => Ok(full::eval(op, cx)),
        Op::Constant(op) => constant::eval(op),
        Op::Iota(_) => Ok(Data::Int((0..cx.shape[0] as i64).collect())),
        Op::Numel(op) => Ok(Data::Int(vec![kiln_base::numel(&op.shape).eval(&[])])),
        Op::Random(op) => Ok(random::eval(op, x[0], cx)),
        Op::Pointwise(op) => pointwise::eval(op, x, cx),
        Op::Cast(_) => Ok(cast::eval(x[0], cx)),
        Op::Broadcast(_) => Ok(broadcast::eval(x[0], cx)),
        Op::Reshape(_) => Ok(x[0].data().clone()),
        Op::Permute(op) => Ok(permute::eval(op, x[0], cx)),
        Op::Slice(op) => Ok(slice::eval(op, x[0], cx)),
        Op::Pad(op) => Ok(pad::eval(op, x[0], cx)),
        Op::Concat(op) => Ok(concat::eval(cx.dtype, op.axis, x)),
        Op::Reduce(op) => Ok(reduce::eval(op, x[0], cx)),
        Op::ArgReduce(op) => Ok(arg_reduce::eval(op, x[0])),
        Op::Scan(op) => Ok(scan::eval(op, x[0])),
        Op::ArgSort(op) => Ok(arg_sort::eval(op, x[0])),
        Op::Scatter(op) => scatter::eval(op, x[0], x[1], x[2]),
        Op::Gather(op) => gather::eval(op, x[0], x[1]),
        Op::MatMul(_) => Ok(matmul::eval(x[0], x[1], cx)),
        Op::Conv(op) => conv::eval(op, x[0], x[1], cx),
        Op::ConvTranspose(op) => conv_grad::input(op, x[0], x[1], cx),
        Op::ConvWeight(op) => conv_grad::weight(op, x[0], x[1], cx),
        Op::WindowReduce(op) => window_reduce::eval(op, x[0], cx),
        Op::Softmax(op) => Ok(softmax::eval(op, x[0])),
        Op::BatchNorm(op) => Ok(batch_norm::eval(op, x)),
        Op::Attention(op) => Ok(attention::eval(op, x)),
        Op::AttentionGrad(op) => Ok(attention_grad::eval(op, x, cx)),
        Op::Custom(op) => custom::eval(op, x, cx),
        Op::If(_) | Op::Loop(_) | Op::Barrier(_) | Op::Collective(_) => Err(Problem::Inputs(
            "ops of several outputs are run by eval_op".into(),
        )),
    }
}

/// The outputs of a node of a graph with these inputs.
fn eval_node(
    node: &Node,
    inputs: &[Array],
    operands: &[&Array],
    symbols: &[i64],
    mode: Mode,
) -> Result<Vec<Array>, EvalError> {
    let Op::Input(op) = &node.op else {
        return eval_op(&node.op, operands, symbols, mode);
    };
    let x = &inputs[op.index as usize];
    let (shape, data) = (x.shape().to_vec(), x.data().clone());
    Ok(vec![Array::with_mode(x.dtype(), shape, data, mode)])
}

/// Evaluates nodes in order. With `count_uses`, unused nodes are left out and values are dropped after their last use.
fn run(
    graph: &Graph,
    inputs: &[Array],
    symbols: &[i64],
    mode: Mode,
    values: &mut [Vec<Array>],
    mut uses: Option<&mut Vec<usize>>,
) -> Result<(), EvalError> {
    check_inputs(graph, inputs, symbols)?;
    for (id, node) in graph.iter() {
        if uses.as_ref().is_some_and(|u| u[id.index()] == 0) {
            continue;
        }
        let operands: Result<SmallVec<[&Array; 3]>, EvalError> =
            node.inputs.iter().map(|v| find(values, *v)).collect();
        let result = eval_node(node, inputs, &operands?, symbols, mode);
        let result = result.map_err(|e| e.at(id))?;
        values[id.index()] = result;
        if let Some(uses) = uses.as_deref_mut() {
            for v in &node.inputs {
                let remaining = &mut uses[v.node.index()];
                *remaining -= 1;
                if *remaining == 0 {
                    values[v.node.index()] = vec![];
                }
            }
        }
    }
    Ok(())
}

fn check_inputs(graph: &Graph, inputs: &[Array], symbols: &[i64]) -> Result<(), Problem> {
    let fail = |text: String| Err(Problem::Inputs(text));
    for (i, s) in graph.symbols.iter().enumerate() {
        match symbols.get(i) {
            Some(n) if *n >= s.min => {}
            Some(n) => return fail(format!("s{i} ({}) is {n}, less than {}", s.name, s.min)),
            None => return fail(format!("s{i} ({}) has no value", s.name)),
        }
    }
    let expected = graph.inputs();
    if expected.len() != inputs.len() {
        let (w, g) = (expected.len(), inputs.len());
        return fail(format!("the program takes {w} inputs, not {g}"));
    }
    for (i, (id, input)) in expected.into_iter().zip(inputs).enumerate() {
        let Op::Input(op) = &graph.node(id).op else {
            continue;
        };
        if op.index as usize != i {
            return fail(format!("the program has no input {i}"));
        }
        if op.fact.dtype != input.dtype() || shape_of(&op.fact, symbols)? != input.shape() {
            let (wants, gets) = (&op.fact, fact_of(input));
            return fail(format!("input {i} is {gets}, not {wants}"));
        }
    }
    Ok(())
}

fn find(values: &[Vec<Array>], v: Value) -> Result<&Array, EvalError> {
    let outputs = values.get(v.node.index());
    let value = outputs.and_then(|o| o.get(v.output as usize));
    value.ok_or_else(|| Problem::Inputs(format!("{v} is not computed before it is read")).into())
}

/// The op with symbols in its sizes replaced by their values.
fn bind(op: &Op, symbols: &[i64]) -> Result<Op, Problem> {
    let mut bound = op.clone();
    let mut unknown = None;
    bound.dims_mut(&mut |d| match d.eval_checked(symbols) {
        Some(n) => *d = Dim::Const(n),
        None => unknown = Some(d.clone()),
    });
    match unknown {
        Some(d) => Err(Problem::Inputs(format!("the size {d} has no value"))),
        None => Ok(bound),
    }
}

fn fact_of(a: &Array) -> Fact {
    Fact::new(a.dtype(), a.shape().iter().copied())
}

fn shape_of(fact: &Fact, symbols: &[i64]) -> Result<Vec<usize>, Problem> {
    let dims = fact.shape.iter().map(|d| {
        let n = d
            .eval_checked(symbols)
            .and_then(|n| usize::try_from(n).ok());
        n.ok_or_else(|| Problem::Inputs(format!("the size {d} has no legal value")))
    });
    let shape: Vec<usize> = dims.collect::<Result<_, _>>()?;
    match array::element_count(&shape) {
        Some(_) => Ok(shape),
        None => Err(Problem::TooLarge(fact.to_string())),
    }
}
