//! Products and convolutions of any size, by every algorithm; the machine code is interpreted. Their numbers are
//! small integers, so that most sums are exact in any order.

use super::programs::{all_are_right, run};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Features};
use kiln_compiler::{Layout, Options};
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value, ops};
use kiln_testkit::oracle::Engine;
use kiln_testkit::programs::differentiated;
use std::sync::Arc;

/// The error that Winograd's algorithms and transforms may have, as a part of the largest result; and those of bf16 and
/// f16, which are rounded after each layer, to eight and eleven bits.
const CLOSE: f64 = 1e-3;
const CLOSE_OF_BF16: f64 = 1.0 / 32.0;
const CLOSE_OF_F16: f64 = 1.0 / 256.0;
/// The largest f16 of results that are compared, so that no earlier layer overflows.
const MOST_OF_F16: f64 = 8192.0;

struct Maker<'g> {
    b: GraphBuilder<'g>,
    rng: Rng,
    /// The dtype of sums, and those of operands, which are cast to it if they differ.
    dtype: DType,
    operands: [DType; 2],
    /// True if the sign of a result may differ from that of one that was rounded less often. Gradients would depend
    /// on it.
    rounds: bool,
}

impl Maker<'_> {
    fn input(&mut self, shape: &[usize], role: Role) -> Value {
        self.b
            .input(Fact::new(self.dtype, shape.iter().copied()), role)
    }

    fn size(&mut self, most: usize) -> usize {
        1 + self.rng.below(most)
    }

    /// An operand, on the left or the right.
    fn operand(&mut self, i: usize, shape: &[usize], role: Role) -> Result<Value, OpError> {
        let fact = Fact::new(self.operands[i], shape.iter().copied());
        let mut x = self.b.input(fact, role);
        if self.operands[i] == DType::U8 && self.rng.chance(0.5) {
            // Bytes up to 127: without VNNI, some of these are multiplied four at a time.
            x = self.b.with(Pw::Minimum, &x, 127i64)?;
        }
        self.b.cast(&x, self.dtype)
    }

    /// Data or parameters.
    fn either(&mut self, shape: &[usize]) -> Value {
        let role = self.rng.one([Role::Data, Role::Parameter]);
        self.input(shape, role)
    }

    /// Perhaps with a bias, a second addend, and a maximum with zero.
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
        if self.rng.chance(0.5) && !self.rounds {
            y = self.b.pointwise(Pw::Relu, &[y])?;
        }
        Ok(y)
    }

    /// A product, or several, of matrices that may be transposed.
    fn product(&mut self) -> Result<Value, OpError> {
        // In a single product of integers or f16, narrow operands are packed once, whatever the level.
        let once = matches!(self.dtype, DType::I32 | DType::F16);
        let batch = [self.rng.one([1, 1, 1, 3])];
        let batch = &batch[usize::from(once && batch == [1])..];
        let most = self.rng.one([4, 40, 70]);
        let [m, n, mut k] = [0; 3].map(|_| self.size(most));
        if most == 4 && self.rng.chance(0.3) {
            // Longer than a block of K.
            k += 512;
        }
        let mut matrix = |i: usize, rows: usize, columns: usize| {
            let transposed = self.rng.chance(0.3);
            let matrix = if transposed {
                [columns, rows]
            } else {
                [rows, columns]
            };
            let role = self.rng.one([Role::Data, Role::Parameter]);
            let x = self.operand(i, &[batch, &matrix].concat(), role)?;
            match (transposed, batch.len()) {
                (true, 0) => self.b.permute(&x, &[1, 0]),
                (true, _) => self.b.permute(&x, &[0, 2, 1]),
                (false, _) => Ok(x),
            }
        };
        let (a, b) = (matrix(0, m, k)?, matrix(1, k, n)?);
        let y = self.b.op(ops::MatMul {}, &[a, b])?;
        let y = self.finished(y, &[1, 1, n][2 - 2 * batch.len()..])?;
        if self.rounds || self.rng.chance(0.7) {
            return Ok(y);
        }
        // An epilogue over whole rows.
        let rank = self.b.fact(&y).shape.len();
        let most = self.b.reduce_keepdim(Reduction::Max, &y, &[rank - 1])?;
        self.b.pointwise(Pw::Sub, &[y, most])
    }

    /// A convolution, perhaps depthwise.
    fn convolution(&mut self, x: &Value, channels: usize) -> Result<Value, OpError> {
        let each = self.rng.chance(0.25);
        let groups = if each { channels } else { 1 };
        let filters = match each {
            true if self.dtype == DType::I32 => channels * self.rng.one([1, 1, 3]),
            true => channels,
            false => self.size(40),
        };
        let kernel = match self.rng.one([1, 3, 3, 0]) {
            0 => [self.size(5), self.size(5)],
            n => [n, n],
        };
        let steps = if self.rng.chance(0.75) { 1 } else { 2 };
        let around = self.rng.below(kernel[0] / 2 + 2);
        let apart = if self.rng.chance(0.8) { 1 } else { 2 };
        let role = self.rng.one([Role::Data, Role::Parameter]);
        let shape = [filters, channels / groups, kernel[0], kernel[1]];
        let w = self.operand(1, &shape, role)?;
        let conv = ops::Conv {
            stride: [steps; 2].into_iter().collect(),
            padding: vec![(around, around), (around, self.rng.below(3))],
            dilation: [apart; 2].into_iter().collect(),
            groups,
        };
        let y = self.b.op(conv, &[*x, w])?;
        self.finished(y, &[1, filters, 1, 1])
    }

    /// Convolutions one after the other, perhaps with a second reader of the result.
    fn convolutions(&mut self) -> Result<Value, OpError> {
        let channels = self.size(40);
        let shape = [self.size(2), channels, 5 + self.size(12), 5 + self.size(20)];
        let x = self.operand(0, &shape, Role::Data)?;
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

/// A random layer, or its gradients.
fn layer(seed: u64, dtypes: [DType; 4]) -> Option<Graph> {
    let mut rng = Rng::new(seed + 9);
    let (convolves, derived) = (rng.chance(0.7), rng.chance(0.3));
    let dtype = rng.one(dtypes);
    made(rng, (convolves, derived), dtype, [dtype; 2])
}

/// A random layer that sums products of bytes or of i16.
fn whole_layer(seed: u64) -> Option<Graph> {
    use DType::{I8, I16, I32, U8};
    let mut rng = Rng::new(seed + 19);
    let convolves = rng.chance(0.7);
    let operands = rng.one([[U8, I8], [I8, I8], [I8, I8], [I8, U8], [U8, U8], [I16, I16]]);
    made(rng, (convolves, false), I32, operands)
}

fn made(
    rng: Rng,
    (convolves, derived): (bool, bool),
    dtype: DType,
    operands: [DType; 2],
) -> Option<Graph> {
    let mut graph = Graph::default();
    let mut maker = Maker {
        b: GraphBuilder::new(&mut graph, Loc::UNKNOWN),
        rng,
        dtype,
        operands,
        rounds: derived && dtype.is_half(),
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

/// Integers for the inputs of a graph; for bytes and i16 any of their values.
fn numbers(graph: &Graph, rng: &mut Rng) -> Vec<Array> {
    let ids = graph.inputs().into_iter();
    let array = |id: kiln_ir::NodeId| {
        let fact = graph.fact(id.value());
        let size = |d: &kiln_base::Dim| d.as_const().expect("sizes are known") as usize;
        let shape: Vec<usize> = fact.shape.iter().map(size).collect();
        let n = shape.iter().product();
        let (least, most) = match fact.dtype {
            DType::U8 => (0, 255),
            DType::I8 => (-128, 127),
            DType::I16 => (-32768, 32767),
            DType::F16 => (-2, 2),
            _ => (-4, 4),
        };
        let mut number = || match rng.below(4) {
            0 if most > 4 => rng.one([least, most]),
            _ => rng.range(least, most),
        };
        let values: Vec<f64> = (0..n).map(|_| number() as f64).collect();
        Array::from_f64(fact.dtype, &shape, &values).expect("as many numbers")
    };
    ids.map(array).collect()
}

/// Runs a layer at a level, compiled in a random way, by random algorithms. Returns the number of calls of emitted
/// code.
pub(super) fn check(seed: u64, level: Features) -> Result<usize, String> {
    use DType::{F32, F64};
    check_layer(layer(seed, [F32, F32, F32, F64]), seed, level)
}

/// The same of f16.
pub(super) fn check_f16(seed: u64, level: Features) -> Result<usize, String> {
    check_layer(layer(seed, [DType::F16; 4]), seed, level)
}

/// The same of bf16.
pub(super) fn check_halves(seed: u64, level: Features) -> Result<usize, String> {
    check_layer(layer(seed, [DType::BF16; 4]), seed, level)
}

/// The same for integers.
pub(super) fn check_whole(seed: u64, level: Features) -> Result<usize, String> {
    check_layer(whole_layer(seed), seed, level)
}

fn check_layer(graph: Option<Graph>, seed: u64, level: Features) -> Result<usize, String> {
    let Some(graph) = graph else {
        return Ok(0);
    };
    let mut rng = Rng::new(seed);
    let inputs = numbers(&graph, &mut rng);
    let want = evaluate(&graph, &inputs, &[], Mode::Exact).map_err(|e| e.to_string())?;
    let is_large = |x: &f64| x.is_nan() || x.abs() > MOST_OF_F16;
    let overflows = |x: &Array| x.dtype() == DType::F16 && x.to_f64().iter().any(is_large);
    if want.iter().any(overflows) {
        return Ok(0);
    }
    let options = Options {
        layout: rng.one([Layout::Auto, Layout::ChannelsLast, Layout::ChannelsLast]),
        ..Options::default()
    };
    let engine = Engine::new(&graph, &options).map_err(|e| e.to_string())?;
    let mut plan = engine.executable.plan().clone();
    let mut by = vec![];
    let mut sizes = Rng::new(seed ^ 0x5eed);
    for kernel in &mut plan.kernels {
        // Few kernels can be transformed, so those that can often are.
        let (sums, others): (Vec<_>, Vec<_>) =
            (kernel.algorithms(&[]).into_iter()).partition(|a| a.only_sums());
        let transforms = !others.is_empty() && rng.chance(0.7);
        let among = if transforms { others } else { sums };
        if let Some(algorithm) = rng.pick(&among).copied() {
            let sized = kernel.schedules(algorithm, level, &[]);
            let is_sized = sizes.chance(0.7);
            let sized = sizes.pick(&sized).filter(|_| is_sized);
            let schedule = sized.map_or(algorithm.into(), |(schedule, _)| *schedule);
            Arc::make_mut(kernel).decide(schedule);
            by.push(schedule.to_string());
        }
    }
    run(plan, &inputs, level, &mut |outputs| {
        for (at, want) in engine.outputs.iter().zip(&want) {
            let Some(at) = at else { continue };
            let close = match want.dtype() {
                DType::BF16 => CLOSE_OF_BF16,
                DType::F16 => CLOSE_OF_F16,
                dtype if dtype.is_int() => 0.0,
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
    all_are_right(150, &[Features::AVX2, Features::AVX512], check);
}

#[test]
fn layers_of_bf16_are_right_interpreted() {
    let levels = [
        Features::AVX2,
        Features::AVX512_BF16,
        Features::AVX512_FP16,
        Features::AMX,
    ];
    all_are_right(60, &levels, check_halves);
}

#[test]
fn layers_of_f16_are_right_interpreted() {
    let levels = [Features::AVX512_FP16, Features::AMX_FP16];
    all_are_right(60, &levels, check_f16);
}

#[test]
fn layers_of_whole_numbers_are_right_interpreted() {
    let levels = [
        Features::AVX2,
        Features::AVX2_VNNI,
        Features::AVX512,
        Features::AVX512_VNNI,
        Features::AMX,
    ];
    all_are_right(100, &levels, check_whole);
}
