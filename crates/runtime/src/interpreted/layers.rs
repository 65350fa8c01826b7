//! Products and convolutions of any size, by every algorithm, whose machine code is interpreted. Their numbers are
//! whole and small, so that most sums are exact, in whatever order.

use super::programs::{all_are_right, run};
use kiln_base::{DType, Level};
use kiln_compiler::{Layout, Options};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value, ops};
use kiln_testkit::oracle::Engine;
use kiln_testkit::programs::differentiated;
use std::sync::Arc;

/// By how much Winograd's algorithms and transforms may be off, as a part of the largest result; and bf16, which is
/// rounded behind each layer.
const CLOSE: f64 = 1e-3;
const CLOSE_OF_BF16: f64 = 1.0 / 32.0;

struct Maker<'g> {
    b: GraphBuilder<'g>,
    rng: Rng,
    dtype: DType,
}

impl Maker<'_> {
    /// An input; where sums are i32, bytes that are cast to that.
    fn input(&mut self, shape: &[usize], role: Role) -> Value {
        let dtype = match self.dtype {
            DType::I32 => self.rng.one([DType::U8, DType::I8]),
            other => other,
        };
        let x = (self.b).input(Fact::new(dtype, shape.iter().copied()), role);
        match self.b.cast(&x, self.dtype) {
            Ok(x) => x,
            Err(_) => x,
        }
    }

    fn size(&mut self, most: usize) -> usize {
        1 + self.rng.below(most)
    }

    /// Data or parameters.
    fn either(&mut self, shape: &[usize]) -> Value {
        let role = self.rng.one([Role::Data, Role::Parameter]);
        self.input(shape, role)
    }

    /// Perhaps with a bias, something added, and no less than zero.
    fn finished(&mut self, mut y: Value, bias: &[usize]) -> Result<Value, OpError> {
        if self.rng.chance(0.5) {
            let bias = self.either(bias);
            y = self.b.pointwise(Pw::Add, &[y, bias])?;
        }
        let shape: Vec<usize> = (self.b.fact(&y).shape.iter())
            .map(|d| d.as_const().unwrap_or(1) as usize)
            .collect();
        if self.rng.chance(0.3) {
            let residual = self.input(&shape, Role::Data);
            y = self.b.pointwise(Pw::Add, &[y, residual])?;
        }
        if self.rng.chance(0.5) {
            y = self.b.pointwise(Pw::Relu, &[y])?;
        }
        Ok(y)
    }

    /// A product, or several, of matrices that may be transposed.
    fn product(&mut self) -> Result<Value, OpError> {
        let batch = self.rng.one([1, 1, 1, 3]);
        let most = self.rng.one([4, 40, 70]);
        let [m, n, mut k] = [0; 3].map(|_| self.size(most));
        if most == 4 && self.rng.chance(0.3) {
            // Longer than what is summed at a time.
            k += 512;
        }
        let mut matrix = |rows: usize, columns: usize| {
            let turned = self.rng.chance(0.3);
            let shape = if turned {
                [batch, columns, rows]
            } else {
                [batch, rows, columns]
            };
            let x = self.either(&shape);
            match turned {
                true => self.b.permute(&x, &[0, 2, 1]),
                false => Ok(x),
            }
        };
        let (a, b) = (matrix(m, k)?, matrix(k, n)?);
        let y = self.b.op(ops::MatMul {}, &[a, b])?;
        self.finished(y, &[1, 1, n])
    }

    /// A convolution, perhaps a filter a channel.
    fn convolution(&mut self, x: &Value, channels: usize) -> Result<Value, OpError> {
        let each = self.rng.chance(0.25);
        let groups = if each { channels } else { 1 };
        let filters = if each { channels } else { self.size(40) };
        let kernel = match self.rng.one([1, 3, 3, 0]) {
            0 => [self.size(5), self.size(5)],
            n => [n, n],
        };
        let steps = if self.rng.chance(0.75) { 1 } else { 2 };
        let around = self.rng.below(kernel[0] / 2 + 2);
        let apart = if self.rng.chance(0.8) { 1 } else { 2 };
        let w = self.either(&[filters, channels / groups, kernel[0], kernel[1]]);
        let conv = ops::Conv {
            stride: [steps; 2].into_iter().collect(),
            padding: vec![(around, around), (around, self.rng.below(3))],
            dilation: [apart; 2].into_iter().collect(),
            groups,
        };
        let y = self.b.op(conv, &[*x, w])?;
        self.finished(y, &[1, filters, 1, 1])
    }

    /// Convolutions one after the other, perhaps with something beside the result.
    fn convolutions(&mut self) -> Result<Value, OpError> {
        let channels = self.size(40);
        let shape = [self.size(2), channels, 5 + self.size(12), 5 + self.size(20)];
        let x = self.input(&shape, Role::Data);
        let mut y = self.convolution(&x, channels)?;
        for _ in 0..self.rng.one([0, 0, 2]) {
            let channels = self.b.fact(&y).shape[1].as_const().unwrap_or(1);
            y = self.convolution(&y, channels as usize)?;
        }
        if self.rng.chance(0.7) {
            return Ok(y);
        }
        let beside: Vec<usize> = (self.b.fact(&y).shape.iter())
            .map(|d| d.as_const().unwrap_or(1) as usize)
            .collect();
        let z = self.input(&beside, Role::Data);
        self.b.op(ops::Concat { axis: 1 }, &[y, z])
    }
}

/// A random layer of one of these dtypes, or its gradients.
fn layer(seed: u64, dtypes: [DType; 4]) -> Option<Graph> {
    let mut graph = Graph::default();
    let mut rng = Rng::new(seed + 9);
    let (convolves, derived) = (rng.chance(0.7), rng.chance(0.3));
    let dtype = rng.one(dtypes);
    let derived = derived && dtype.is_float();
    let mut maker = Maker {
        b: GraphBuilder::new(&mut graph, Loc::UNKNOWN),
        rng,
        dtype,
    };
    // Some windows are larger than their images.
    let y = match convolves {
        true => maker.convolutions(),
        false => maker.product(),
    };
    graph.add_output(y.ok()?);
    if derived {
        differentiated(graph)
    } else {
        Some(graph)
    }
}

/// Whole numbers for the inputs of a graph.
fn numbers(graph: &Graph, rng: &mut Rng) -> Vec<Array> {
    let ids = graph.inputs().into_iter();
    let array = |id: kiln_ir::NodeId| {
        let fact = graph.fact(id.value());
        let size = |d: &kiln_base::Dim| d.as_const().expect("sizes are known") as usize;
        let shape: Vec<usize> = fact.shape.iter().map(size).collect();
        let n = shape.iter().product();
        let least = if fact.dtype == DType::U8 { 0 } else { -4 };
        let values: Vec<f64> = (0..n).map(|_| rng.range(least, 4) as f64).collect();
        Array::from_f64(fact.dtype, &shape, &values).expect("as many numbers")
    };
    ids.map(array).collect()
}

/// Runs a layer compiled in a random way, by random algorithms, at a level; gives how many calls of printed code it
/// took.
pub(super) fn check(seed: u64, level: Level) -> Result<usize, String> {
    use DType::{F32, F64};
    check_of(seed, level, [F32, F32, F32, F64])
}

/// The same of layers of bf16 and bytes.
pub(super) fn check_narrow(seed: u64, level: Level) -> Result<usize, String> {
    use DType::{BF16, I32};
    check_of(seed, level, [BF16, BF16, I32, I32])
}

fn check_of(seed: u64, level: Level, dtypes: [DType; 4]) -> Result<usize, String> {
    let Some(graph) = layer(seed, dtypes) else {
        return Ok(0);
    };
    let mut rng = Rng::new(seed);
    let inputs = numbers(&graph, &mut rng);
    let want = evaluate(&graph, &inputs, &[], Mode::Exact).map_err(|e| e.to_string())?;
    let options = Options {
        layout: rng.one([Layout::Auto, Layout::ChannelsLast, Layout::ChannelsLast]),
        ..Options::default()
    };
    let engine = Engine::new(&graph, &options).map_err(|e| e.to_string())?;
    let mut plan = engine.executable.plan().clone();
    let mut by = vec![];
    for kernel in &mut plan.kernels {
        // Few can be transformed: where one can, it often is.
        let (sums, others): (Vec<_>, Vec<_>) =
            (kernel.algorithms(&[]).into_iter()).partition(|a| a.only_sums());
        let transforms = !others.is_empty() && rng.chance(0.7);
        let among = if transforms { others } else { sums };
        if let Some(algorithm) = rng.pick(&among).copied() {
            Arc::make_mut(kernel).decide(algorithm);
            by.push(algorithm);
        }
    }
    run(plan, &inputs, level, &mut |outputs| {
        for (at, want) in engine.outputs.iter().zip(&want) {
            let Some(at) = at else { continue };
            let close = match want.dtype() {
                DType::BF16 => CLOSE_OF_BF16,
                _ => CLOSE,
            };
            let (found, want) = (outputs[*at].to_f64(), want.to_f64());
            let most = want.iter().fold(1.0, |m: f64, x| m.max(x.abs()));
            for (i, (x, y)) in found.iter().zip(&want).enumerate() {
                if (x - y).abs() > close * most {
                    return Err(format!("by {by:?}: {x}, not {y}, at {i} of {}", want.len()));
                }
            }
        }
        Ok(())
    })
}

#[test]
fn layers_by_every_algorithm_are_right_interpreted() {
    all_are_right(150, &[Level::Avx2, Level::Avx512], check);
}

/// From the first level on that multiplies several terms at a time up to the tiles of AMX.
#[test]
fn layers_of_halves_and_bytes_are_right_interpreted() {
    let levels = [Level::Avx512Vnni, Level::Avx512Bf16, Level::Amx];
    all_are_right(60, &levels, check_narrow);
}
