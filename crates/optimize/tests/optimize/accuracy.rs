//! Rewrites introduce neither cancellation nor overflow: random programs with large offsets, shifts that cancel them,
//! numbers near the ends of f16 and f32, and values that are held or not, against f64.

use crate::bugs::wrong_pass;
use crate::compare::outputs_of;
use crate::random::seeds;
use crate::rng::{Rng, loc};
use kiln_base::Scalar;
use kiln_base::prim::Reduction;
use kiln_ir::eval::{Array, Mode};
use kiln_ir::ops::{BatchNorm, Concat, MatMul, Reduce};
use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, NodeId, OpError, Pw, Role, Value};
use kiln_ir::{Op, ops};
use kiln_optimize::{Options, Pass, Patch, Report, Run, View, optimize_with, passes};

type Made = Result<Value, OpError>;

/// Rows of data and a weight of `[K, C]`.
const N: usize = 12;
const K: usize = 5;
const C: usize = 3;

/// A program with its inputs, and the random numbers that it is made with.
struct Program {
    graph: Graph,
    inputs: Vec<Array>,
    rng: Rng,
    /// The value that the data are near.
    offset: f64,
}

impl Program {
    fn random(seed: u64) -> Program {
        let mut rng = Rng::new(seed);
        let mut p = Program {
            graph: Graph::default(),
            inputs: Vec::new(),
            offset: rng.pick(&[0.0, 300.0, -2e3, 1e5, 1e6]),
            rng,
        };
        let form = p.rng.pick(FORMS);
        let result = form(&mut p).expect("a legal program");
        p.graph.add_output(result);
        // A value that the user still holds.
        if p.rng.coin(40) {
            let ids: Vec<NodeId> = p.graph.ids().collect();
            let held = p.rng.pick(&ids).value();
            p.graph.add_output(held);
        }
        p
    }

    fn b(&mut self) -> GraphBuilder<'_> {
        GraphBuilder::new(&mut self.graph, loc(1))
    }

    /// An input of numbers around `centre`.
    fn input(&mut self, dtype: DType, shape: &[usize], role: Role, centre: f64, by: f64) -> Value {
        let n = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| centre + by * self.rng.plain()).collect();
        let array = Array::from_f64(dtype, shape, &values).expect("as many as the shape has");
        self.inputs.push(array);
        self.b()
            .input(Fact::new(dtype, shape.iter().copied()), role)
    }

    fn data(&mut self, shape: &[usize], centre: f64) -> Value {
        self.input(DType::F32, shape, Role::Data, centre, 1.0)
    }

    /// A vector along the columns.
    fn parameter(&mut self, n: usize, centre: f64, by: f64) -> Value {
        self.input(DType::F32, &[n], Role::Parameter, centre, by)
    }

    fn weight(&mut self) -> Value {
        self.input(DType::F32, &[K, C], Role::Parameter, 0.0, 1.0)
    }

    fn pw(&mut self, op: Pw, operands: &[Value]) -> Made {
        self.b().pointwise(op, operands)
    }

    fn matmul(&mut self, a: Value, b: Value) -> Made {
        self.b().op(MatMul {}, &[a, b])
    }

    /// `x + b` or `x − b`, near 0, where b is data, a parameter or a number.
    fn shifted(&mut self, x: Value, columns: usize) -> Made {
        let offset = self.offset;
        let (op, sign) = self.rng.pick(&[(Pw::Add, -1.0), (Pw::Sub, 1.0)]);
        if self.rng.coin(30) {
            return self.b().with(op, &x, sign * offset);
        }
        let role = self.rng.pick(&[Role::Parameter, Role::Data]);
        let by = self.input(DType::F32, &[columns], role, sign * offset, 0.5);
        self.pw(op, &[x, by])
    }

    /// A product near the offset, of which each term is as large.
    fn product(&mut self) -> Made {
        let offset = self.offset / K as f64;
        let (x, w) = (
            self.data(&[N, K], offset),
            self.input(DType::F32, &[K, C], Role::Parameter, 1.0, 0.01),
        );
        self.matmul(x, w)
    }

    fn mean(&mut self, x: Value) -> Made {
        let sum = self.b().reduce_keepdim(Reduction::Sum, &x, &[0])?;
        self.b().with(Pw::Div, &sum, N as f64)
    }

    fn normalised(&mut self, x: Value) -> Made {
        let mean = self.mean(x)?;
        let centred = self.pw(Pw::Sub, &[x, mean])?;
        let square = self.pw(Pw::Square, &[centred])?;
        let variance = self.mean(square)?;
        let spread = self.b().with(Pw::Add, &variance, 1e-5)?;
        let scale = self.pw(Pw::Rsqrt, &[spread])?;
        self.pw(Pw::Mul, &[centred, scale])
    }

    /// The batch norm of inference, whose mean is near `centre`.
    fn norm(&mut self, x: Value, columns: usize, centre: f64) -> Made {
        let mut operands = vec![x, self.parameter(columns, centre, 1.0)];
        let variance = self.parameter(columns, 0.0, 1.0);
        operands.push(self.pw(Pw::Square, &[variance])?);
        operands.extend([1.0, 0.0].map(|centre| self.parameter(columns, centre, 0.25)));
        let eps = Scalar::Float(0.1);
        self.b().op(BatchNorm { eps, affine: true }, &operands)
    }

    /// A number or parameters of a size at which products may leave the range.
    fn scaled(&mut self, x: Value, columns: usize) -> Made {
        let size = match self.rng.coin(40) {
            true => 0.3,
            false => 2f64.powi(self.rng.below(220) as i32 - 110),
        };
        match self.rng.coin(50) {
            true => self.b().with(Pw::Mul, &x, size),
            false => {
                let by = self.parameter(columns, size, size / 8.0);
                self.pw(Pw::Mul, &[x, by])
            }
        }
    }

    /// Numbers of one size, up to 2 to the power of ±`most`.
    fn any_size(&mut self, shape: &[usize], role: Role, most: usize) -> Value {
        let size = 2f64.powi(self.rng.below(2 * most + 1) as i32 - most as i32);
        self.input(DType::F32, shape, role, size, size / 8.0)
    }
}

/// Patterns that rules match or once matched.
const FORMS: &[fn(&mut Program) -> Made] = &[
    |p| {
        let x = p.data(&[N, C], p.offset);
        let x = p.shifted(x, C)?;
        p.mean(x)
    },
    |p| {
        let x = p.data(&[N, C], p.offset);
        let x = p.shifted(x, C)?;
        p.normalised(x)
    },
    |p| {
        let y = p.product()?;
        let x = p.shifted(y, C)?;
        p.mean(x)
    },
    |p| {
        let y = p.product()?;
        let x = p.shifted(y, C)?;
        p.normalised(x)
    },
    |p| {
        // Mixed precision.
        let y = p.product()?;
        let x = p.shifted(y, C)?;
        let x = p.b().cast(&x, DType::F16)?;
        let x = p.b().cast(&x, DType::F32)?;
        p.normalised(x)
    },
    |p| {
        let x = p.data(&[N, K], p.offset);
        let (x, w) = (p.shifted(x, K)?, p.weight());
        p.matmul(x, w)
    },
    |p| {
        let x = p.data(&[N, K], p.offset);
        let (x, w) = (p.norm(x, K, p.offset)?, p.weight());
        p.matmul(x, w)
    },
    |p| {
        let x = p.data(&[N, C], p.offset);
        let by = p.parameter(C, 1.0, 0.25);
        let x = p.pw(Pw::Mul, &[x, by])?;
        p.norm(x, C, p.offset)
    },
    |p| {
        let dtype = p.rng.pick(&[DType::F16, DType::BF16]);
        let x = p.data(&[N, C], p.offset.min(3e4));
        let x = p.b().cast(&x, dtype)?;
        let mut norm = vec![x];
        for (centre, by) in [
            (p.offset.min(3e4), 1.0),
            (1.0, 0.25),
            (1.0, 0.25),
            (0.0, 0.25),
        ] {
            norm.push(p.input(dtype, &[C], Role::Parameter, centre, by));
        }
        let eps = Scalar::Float(0.1);
        p.b().op(BatchNorm { eps, affine: true }, &norm)
    },
    |p| {
        let y = p.product()?;
        let y = p.shifted(y, C)?;
        let y = p.shifted(y, C)?;
        p.norm(y, C, 0.0)
    },
    |p| {
        let y = p.product()?;
        let y = p.b().with(Pw::Mul, &y, 0.3)?;
        p.norm(y, C, 0.3 * p.offset)
    },
    |p| {
        let x = p.any_size(&[N, K], Role::Data, 50);
        let w = p.any_size(&[K, C], Role::Parameter, 50);
        let y = p.matmul(x, w)?;
        p.scaled(y, C)
    },
    |p| {
        let x = p.any_size(&[N, K], Role::Data, 50);
        let w = p.any_size(&[K, C], Role::Parameter, 50);
        let x = p.scaled(x, K)?;
        p.matmul(x, w)
    },
    |p| {
        // A factor near 1 may move, and change the magnitude of a product.
        let (by, most) = p
            .rng
            .pick(&[(0.125, 33), (3.0, 33), (1e-20, 44), (1e20, 44)]);
        let shapes = [[N, K], [K, C], [C, 4]];
        let [a, b, z] = shapes.map(|shape| p.any_size(&shape, Role::Data, most));
        let y = p.matmul(a, b)?;
        let y = p.b().with(Pw::Mul, &y, by)?;
        p.matmul(y, z)
    },
    |p| {
        // Scores that fit f16 because the query is scaled.
        let dtype = p.rng.pick(&[DType::F16, DType::BF16]);
        let x = p.input(dtype, &[2, 32], Role::Data, 1.25, 0.1);
        let w = p.input(dtype, &[32, 64], Role::Parameter, 1.0, 0.1);
        let k = p.input(dtype, &[64, 3], Role::Data, 40.0, 1.0);
        let y = p.matmul(x, w)?;
        let y = p.b().with(Pw::Mul, &y, 0.125)?;
        p.matmul(y, k)
    },
    |p| {
        let x = p.input(DType::F32, &[N, C], Role::Data, 3e38 / N as f64, 1e35);
        let mean = p.mean(x)?;
        let sum = p.b().sum(&mean, &[0, 1])?;
        p.b().with(Pw::Div, &sum, C as f64)
    },
    |p| {
        // The terms of each inner sum cancel.
        let (x, y) = (p.data(&[1, N], p.offset), p.data(&[1, N], -p.offset));
        let x = p.b().op(Concat { axis: 0 }, &[x, y])?;
        let sum = p.b().sum(&x, &[0])?;
        p.b().sum(&sum, &[0])
    },
];

/// The loss of accuracy by a list of passes in a program. A result is flawed if it is further from the f64 result
/// than some multiple of the effect of the recorded program's roundings, plus a few units of the result.
fn flaw(seed: u64, list: &[Pass]) -> Result<Report, String> {
    let Program { graph, inputs, .. } = Program::random(seed);
    let options = Options {
        verify: true,
        ..Options::default()
    };
    let (after, report) =
        optimize_with(graph.clone(), list, &options).map_err(|e| e.to_string())?;
    let exact = outputs_of(&graph, &inputs, Mode::Exact);
    let stochastic = (0..4).map(|seed| Mode::Stochastic { seed });
    let old: Vec<Vec<Array>> = std::iter::once(Mode::Rounded)
        .chain(stochastic)
        .map(|mode| outputs_of(&graph, &inputs, mode))
        .collect();
    let new = outputs_of(&after, &inputs, Mode::Rounded);
    for (i, (exact, new)) in exact.iter().zip(&new).enumerate() {
        let unit = match new.dtype() {
            DType::F16 => 2f64.powi(-11),
            DType::BF16 => 2f64.powi(-8),
            _ => 2f64.powi(-24),
        };
        let (exact, new) = (exact.to_f64(), new.to_f64());
        let off = |run: &Vec<Array>| {
            let pairs = run[i].to_f64().into_iter().zip(exact.clone());
            pairs.map(|(a, x)| (a - x).abs()).fold(0.0, f64::max)
        };
        // Results are not compared where the program itself leaves the range.
        let lost = old
            .iter()
            .map(off)
            .fold(0.0, |m: f64, x| if x.is_nan() { x } else { m.max(x) });
        if !lost.is_finite() {
            continue;
        }
        for (x, y) in exact.iter().zip(&new) {
            let within = (x - y).abs() <= 8.0 * lost + 16.0 * unit * x.abs() + 2f64.powi(-140);
            if !within {
                return Err(format!(
                    "output {i}: {y}, not {x} +-{lost}\n{report}\n{graph}\n{after}"
                ));
            }
        }
    }
    Ok(report)
}

#[test]
fn rewrites_introduce_neither_cancellation_nor_overflow() {
    let mut fired_in = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..seeds() {
        let report = flaw(seed, passes()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        for (rule, _) in report.counts() {
            *fired_in.entry(rule).or_default() += 1;
        }
    }
    println!("seeds in which each rule fired: {fired_in:?}");
    for rule in [
        "bias_before_norm",
        "sum_of_shift",
        "linear_batch_norm",
        "norm_of_scaled",
        "shifted_product",
        "scaled_product",
        "scaled_data",
        "factor_behind_product",
    ] {
        assert!(fired_in.contains_key(rule), "{rule} fired nowhere");
    }
}

/// Σ (y + b) = Σ y + n · b, for any y.
fn sum_of_any_shift(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let Op::Reduce(Reduce { axes, .. }) = &node.op else {
        return None;
    };
    let shift = view.producer(node.inputs[0]);
    let Op::Pointwise(ops::Pointwise(Pw::Add)) = shift.op else {
        return None;
    };
    let mut patch = view.patch(id);
    let sums = [0, 1].map(|i| patch.sum(&shift.inputs[i], axes));
    let [y, b] = sums.map(Result::ok);
    let new = patch.pointwise(Pw::Add, &[y?, b?]).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// (x ± b) · w = x · w ± b · w.
fn product_of_any_shift(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let shift = view.producer(*node.inputs.first()?);
    let (Op::MatMul(_), Op::Pointwise(op)) = (&node.op, &shift.op) else {
        return None;
    };
    let mut patch = view.patch(id);
    let sides = [0, 1].map(|i| {
        patch
            .op(MatMul {}, &[*shift.inputs.get(i)?, node.inputs[1]])
            .ok()
    });
    let [x, b] = sides;
    let sum = matches!(op.0, Pw::Add | Pw::Sub);
    let new = patch.pointwise(op.0, &[x?, b?]).ok().filter(|_| sum)?;
    Some(patch.replacing(id.value(), new))
}

/// (x · c) · w = (x · w) · c, for any number c.
fn any_factor_behind_a_product(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let scaled = view.producer(*node.inputs.first()?);
    let (Op::MatMul(_), Op::Pointwise(ops::Pointwise(Pw::Mul))) = (&node.op, &scaled.op) else {
        return None;
    };
    let below = view.producer(scaled.inputs[1]);
    let number = view.as_full(*below.inputs.first().unwrap_or(&scaled.inputs[1]))?;
    let mut patch = view.patch(id);
    let product = patch
        .op(MatMul {}, &[scaled.inputs[0], node.inputs[1]])
        .ok()?;
    let new = patch.with(Pw::Mul, &product, number.value).ok()?;
    Some(patch.replacing(id.value(), new))
}

/// Σ (Σ x / n) = ΣΣ x / n.
fn mean_of_means(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let div = view.producer(*node.inputs.first()?);
    let (Op::Reduce(outer), Op::Pointwise(ops::Pointwise(Pw::Div))) = (&node.op, &div.op) else {
        return None;
    };
    let below = view.producer(div.inputs[1]);
    let number = view.as_full(*below.inputs.first().unwrap_or(&div.inputs[1]))?;
    let mut patch = view.patch(id);
    let sum = patch.op(outer.clone(), &div.inputs[..1]).ok()?;
    let new = patch.with(Pw::Div, &sum, number.value).ok()?;
    Some(patch.replacing(id.value(), new))
}

#[test]
fn rewrites_that_introduce_them_are_flagged() {
    for pass in [
        wrong_pass!(sum_of_any_shift),
        wrong_pass!(product_of_any_shift),
        wrong_pass!(any_factor_behind_a_product),
        wrong_pass!(mean_of_means),
    ] {
        let found = (0..2000).find(|seed| flaw(*seed, &[pass]).is_err());
        println!("{}: seed {found:?}", pass.name);
        assert!(found.is_some(), "{} is not flagged", pass.name);
    }
}
