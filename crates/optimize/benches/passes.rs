//! The time per node of the pass pipeline on graphs of growing size. It is CPU time, which other programs on the
//! machine disturb less; wall-clock time where that is not known.
//!
//! ```sh
//! cargo bench -p kiln-optimize --bench passes
//! ```

use kiln_base::Scalar;
use kiln_ir::ops::{BatchNorm, Conv};
use kiln_ir::{Builder, DType, Dim, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value};
use kiln_optimize::{Options, optimize};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nodes of the graphs.
const SIZES: [usize; 6] = [625, 1250, 2500, 5000, 10_000, 20_000];
const ROUNDS: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    measure("convolution and attention blocks", network)?;
    measure("readers of one value", readers)
}

/// Builds a graph of at least the given number of nodes.
type Make = fn(usize) -> Result<Graph, OpError>;

fn measure(name: &str, make: Make) -> Result<(), Box<dyn std::error::Error>> {
    println!("{name}");
    println!(
        "{:>7}  {:>8}  {:>9}  {:>9}",
        "nodes", "patches", "ms", "us/node"
    );
    let options = Options {
        verify: false,
        ..Options::default()
    };
    for size in SIZES {
        let graph = make(size)?;
        let mut best = Duration::MAX;
        let mut patches = 0;
        for _ in 0..ROUNDS {
            let copy = graph.clone();
            let start = now();
            let (_, report) = optimize(copy, &options)?;
            best = best.min(now() - start);
            patches = report.fired.len();
        }
        let ms = best.as_secs_f64() * 1e3;
        let each = ms * 1e3 / graph.len() as f64;
        println!("{:>7}  {patches:>8}  {ms:>9.2}  {each:>9.2}", graph.len());
    }
    Ok(())
}

/// The time that this thread has run.
fn now() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let on_processor = || {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        text.split(' ').next()?.parse().ok()
    };
    match on_processor() {
        Some(nanoseconds) => Duration::from_nanos(nanoseconds),
        None => START.get_or_init(Instant::now).elapsed(),
    }
}

/// Alternating convolution and attention blocks, with work for most rules, up to `size` nodes.
fn network(size: usize) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let mut x = b.input(Fact::new(DType::F32, [2, 8, 4, 4]), Role::Data);
    while b.graph().len() < size {
        x = convolution(&mut b, x)?;
        x = attention(&mut b, x)?;
    }
    graph.add_output(x);
    Ok(graph)
}

/// Sums of one value and numbers, each of them twice, and the sum of all. The value is a view that does nothing.
fn readers(size: usize) -> Result<Graph, OpError> {
    let mut graph = Graph::default();
    let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
    let x = b.input(Fact::new(DType::F32, [16, 8]), Role::Data);
    let shape = b.fact(&x).shape;
    let x = b.reshape(&x, &shape)?;
    let mut parts = Vec::new();
    while b.graph().len() < size {
        let y = b.with(Pw::Add, &x, 0.5 + (parts.len() / 2) as f64)?;
        parts.push(b.pointwise(Pw::Tanh, &[y])?);
    }
    while parts.len() > 1 {
        let pairs = parts.chunks(2).map(|p| match p {
            [a, c] => b.pointwise(Pw::Add, &[*a, *c]),
            _ => Ok(p[0]),
        });
        parts = pairs.collect::<Result<_, _>>()?;
    }
    graph.add_output(parts[0]);
    Ok(graph)
}

fn parameter(b: &mut GraphBuilder<'_>, shape: &[i64]) -> Value {
    b.input(
        Fact::new(DType::F32, shape.iter().copied()),
        Role::Parameter,
    )
}

/// A convolution with batch norm, scale and residual.
fn convolution(b: &mut GraphBuilder<'_>, x: Value) -> Result<Value, OpError> {
    let w = parameter(b, &[8, 8, 3, 3]);
    let padded = b.pad_axis_zero(&x, 2, 1i64, 1i64)?;
    let padded = b.pad_axis_zero(&padded, 3, 1i64, 1i64)?;
    let conv = Conv {
        stride: [1, 1].into_iter().collect(),
        padding: vec![(0, 0); 2],
        dilation: [1, 1].into_iter().collect(),
        groups: 1,
    };
    let y = b.op(conv, &[padded, w])?;
    let norm = BatchNorm {
        eps: Scalar::Float(1e-5),
        affine: true,
    };
    let mut operands = vec![y];
    operands.extend((0..4).map(|_| parameter(b, &[8])));
    let y = b.op(norm, &operands)?;
    let y = b.with(Pw::Mul, &y, 2.0)?;
    let minus = b.pointwise(Pw::Neg, &[x])?;
    let y = b.pointwise(Pw::Sub, &[y, minus])?;
    b.pointwise(Pw::Relu, &[y])
}

/// Attention without a softmax, with projections that can be merged.
fn attention(b: &mut GraphBuilder<'_>, x: Value) -> Result<Value, OpError> {
    let dims = |shape: [i64; 2]| shape.map(Dim::Const);
    let [mut q, mut k, mut v] = [x; 3];
    for y in [&mut q, &mut k, &mut v] {
        let rows = b.reshape(&x, &dims([32, 8]))?;
        let (w, bias) = (parameter(b, &[8, 8]), parameter(b, &[8]));
        let product = b.op(kiln_ir::ops::MatMul {}, &[rows, w])?;
        *y = b.pointwise(Pw::Add, &[product, bias])?;
    }
    let q = b.with(Pw::Mul, &q, 0.5)?;
    let k = b.permute(&k, &[1, 0])?;
    let scores = b.op(kiln_ir::ops::MatMul {}, &[q, k])?;
    let scores = b.pointwise(Pw::Exp, &[scores])?;
    let y = b.op(kiln_ir::ops::MatMul {}, &[scores, v])?;
    let shape = b.fact(&x).shape;
    let y = b.reshape(&y, &shape)?;
    b.pointwise(Pw::Add, &[y, x])
}
