//! Every rewrite rule on the engine: programs made for a rule fire it, and give what the reference gives.

use crate::oracle::{Engine, Oracle};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_base::{DType, Dim, Scalar};
use kiln_compiler::Options;
use kiln_ir::fuzz::{Rng, random_inputs};
use kiln_ir::ops;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value};

type Made = Result<Value, OpError>;

/// Data, parameters and sizes for a program.
struct Maker<'g> {
    b: GraphBuilder<'g>,
    rng: Rng,
}

impl Maker<'_> {
    fn size(&mut self) -> usize {
        [1, 2, 3, 5, 7, 11, 13][self.rng.below(7)]
    }

    fn input(&mut self, shape: &[usize], role: Role) -> Value {
        self.b
            .input(Fact::new(DType::F32, shape.iter().copied()), role)
    }

    fn data(&mut self, shape: &[usize]) -> Value {
        self.input(shape, Role::Data)
    }

    fn parameter(&mut self, shape: &[usize]) -> Value {
        self.input(shape, Role::Parameter)
    }

    /// Data of `[n, m]`.
    fn matrix(&mut self) -> (Value, usize, usize) {
        let (n, m) = (self.size(), self.size());
        (self.data(&[n, m]), n, m)
    }

    fn pw(&mut self, op: Pw, operands: &[Value]) -> Made {
        self.b.pointwise(op, operands)
    }

    fn pad(&mut self, x: Value, border: [usize; 2], value: f64) -> Made {
        let rank = self.b.fact(&x).rank();
        let last = |n: usize| {
            let mut sizes = vec![Dim::ZERO; rank];
            sizes[rank - 1] = Dim::from(n);
            sizes.into_iter().collect()
        };
        let (low, high) = (last(border[0]), last(border[1]));
        let value = Scalar::Float(value);
        self.b.op(ops::Pad { low, high, value }, &[x])
    }

    fn part(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Made {
        self.b.narrow(&x, axis, start, len)
    }

    /// A convolution of a random size along one axis: data, weight and attributes.
    fn conv(&mut self) -> (Value, Value, ops::Conv, usize) {
        let groups = 1 + self.rng.below(2);
        let (c, o, kernel) = (
            1 + self.rng.below(3),
            1 + self.rng.below(3),
            1 + self.rng.below(3),
        );
        let extent = 4 + self.size();
        let x = self.data(&[2, groups * c, extent]);
        let w = self.parameter(&[groups * o, c, kernel]);
        let conv = ops::Conv {
            stride: [1 + self.rng.below(2)].into_iter().collect(),
            padding: vec![(self.rng.below(2), self.rng.below(2))],
            dilation: [1].into_iter().collect(),
            groups,
        };
        (x, w, conv, groups * o)
    }
}

/// A program for a rule.
type Case = (&'static str, fn(&mut Maker<'_>) -> Made);

const CASES: &[Case] = &[
    ("neutral_number", |m| {
        let (x, ..) = m.matrix();
        let x = m.b.with(Pw::Mul, &x, 1.0)?;
        m.b.with(Pw::Sub, &x, 0.0)
    }),
    ("signs", |m| {
        let (x, ..) = m.matrix();
        let minus = m.pw(Pw::Neg, &[x])?;
        let y = m.pw(Pw::Exp, &[x])?;
        m.pw(Pw::Sub, &[y, minus])
    }),
    ("idempotent", |m| {
        let (x, ..) = m.matrix();
        let y = m.pw(Pw::Relu, &[x])?;
        m.pw(Pw::Relu, &[y])
    }),
    ("choice", |m| {
        let (x, ..) = m.matrix();
        let mask = m.pw(Pw::IsNan, &[x])?;
        let not = m.pw(Pw::Not, &[mask])?;
        let y = m.pw(Pw::Exp, &[x])?;
        m.pw(Pw::Select, &[not, x, y])
    }),
    ("power", |m| {
        let (x, ..) = m.matrix();
        let x = m.b.with(Pw::Pow, &x, 2.0)?;
        m.b.with(Pw::Div, &x, -8.0)
    }),
    ("exact_cast", |m| {
        let (x, ..) = m.matrix();
        let half = m.b.cast(&x, DType::BF16)?;
        let wide = m.b.cast(&half, DType::F32)?;
        m.b.cast(&wide, DType::F64)
    }),
    ("slice_of_slice", |m| {
        let n = 6 + m.size();
        let x = m.data(&[n, 2]);
        let back = m.b.reversed(&x, 0)?;
        m.part(back, 0, 2, n - 3)
    }),
    ("slice_of_pad", |m| {
        let (x, _, c) = m.matrix();
        let y = m.pad(x, [2, 3], 1.5)?;
        m.part(y, 1, 1, c + 2)
    }),
    ("slice_of_concat", |m| {
        let (x, _, c) = m.matrix();
        let y = m.pw(Pw::Neg, &[x])?;
        let all = m.b.op(ops::Concat { axis: 1 }, &[x, y, x])?;
        m.part(all, 1, 1, 2 * c - 1)
    }),
    ("slice_of_broadcast", |m| {
        let (n, c) = (m.size(), 2 + m.size());
        let x = m.data(&[c]);
        let shape = [Dim::from(n + 1), Dim::from(c)];
        let wide = m.b.broadcast_to(&x, &shape)?;
        let part = m.part(wide, 0, 1, n)?;
        m.part(part, 1, 1, c - 1)
    }),
    ("slice_of_product", |m| {
        let (n, k, c) = (2 + m.size(), m.size(), m.size());
        let (a, b) = (m.data(&[n, k]), m.data(&[k, c]));
        let y = m.b.op(ops::MatMul {}, &[a, b])?;
        m.part(y, 0, n - 1, 1)
    }),
    ("concat_of_concat", |m| {
        let (x, ..) = m.matrix();
        let y = m.b.op(ops::Concat { axis: 0 }, &[x, x])?;
        m.b.op(ops::Concat { axis: 0 }, &[x, y])
    }),
    ("concat_of_slices", |m| {
        let n = 3 + m.size();
        let x = m.data(&[2, n]);
        let (a, b) = (m.part(x, 1, 0, 2)?, m.part(x, 1, 2, n - 2)?);
        let y = m.b.op(ops::Concat { axis: 1 }, &[a, b])?;
        m.pw(Pw::Exp, &[y])
    }),
    ("pad_of_pad", |m| {
        let (x, ..) = m.matrix();
        let y = m.pad(x, [1, 2], -0.5)?;
        m.pad(y, [2, 0], -0.5)
    }),
    ("pad_in_conv", |m| {
        let (x, w, conv, _) = m.conv();
        let x = m.pad(x, [2, 1], 0.0)?;
        m.b.op(conv, &[x, w])
    }),
    ("pad_in_window", |m| {
        let (x, ..) = m.matrix();
        let x = m.pad(x, [1, 2], f64::NEG_INFINITY)?;
        let window = ops::WindowReduce {
            kind: Reduction::Max,
            kernel: [3].into_iter().collect(),
            stride: [2].into_iter().collect(),
            padding: vec![(0, 0)],
            dilation: [1].into_iter().collect(),
        };
        m.b.op(window, &[x])
    }),
    ("crop_in_conv", |m| {
        let n = m.size();
        let (y, w) = (m.data(&[2, 3, n]), m.parameter(&[3, 2, 3]));
        let conv = ops::Conv {
            stride: [2].into_iter().collect(),
            padding: vec![(0, 0)],
            dilation: [1].into_iter().collect(),
            groups: 1,
        };
        let input = [Dim::from(2 * n + 1)].into_iter().collect();
        let x = m.b.op(ops::ConvTranspose { conv, input }, &[y, w])?;
        m.part(x, 2, 1, 2 * n - 1)
    }),
    ("pointwise_of_broadcast", |m| {
        let (n, c) = (1 + m.size(), m.size());
        let (x, y) = (m.data(&[c]), m.data(&[c]));
        let shape = [Dim::from(n), Dim::from(c)];
        let (x, y) = (m.b.broadcast_to(&x, &shape)?, m.b.broadcast_to(&y, &shape)?);
        m.pw(Pw::Mul, &[x, y])
    }),
    ("extreme_of_broadcast", |m| {
        let c = m.size();
        let x = m.data(&[c]);
        let wide = m.b.broadcast_to(&x, &[Dim::from(3usize), Dim::from(c)])?;
        let y = m.b.reduce_keepdim(Reduction::Max, &wide, &[0])?;
        m.pw(Pw::Exp, &[y])
    }),
    ("scatter_of_one", |m| {
        let (n, c) = (m.size(), m.size());
        let x = m.data(&[n, c]);
        let index =
            m.b.full(c as i64 - 1, DType::I64, &[Dim::from(n), Dim::ONE])?;
        let read = m.b.op(ops::Gather { axis: 1 }, &[x, index])?;
        let kind = ScatterKind::Sum;
        let zeros = m.b.full(0.0, DType::F32, &[Dim::from(n), Dim::from(c)])?;
        let y =
            m.b.op(ops::Scatter { axis: 1, kind }, &[zeros, index, read])?;
        m.pw(Pw::Mul, &[y, read])
    }),
    ("scaled_product", |m| {
        let (x, w, conv, o) = m.conv();
        let (c, d) = (m.parameter(&[o, 1]), m.parameter(&[o, 1]));
        let y = m.b.op(conv, &[x, w])?;
        let y = m.pw(Pw::Sub, &[d, y])?;
        m.pw(Pw::Mul, &[c, y])
    }),
    ("shifted_product", |m| {
        let (n, k, c) = (m.size(), m.size(), m.size());
        let (x, w) = (m.data(&[n, k]), m.parameter(&[k, c]));
        let (a, b) = (m.parameter(&[c]), m.parameter(&[c]));
        let y = m.b.op(ops::MatMul {}, &[x, w])?;
        let y = m.pw(Pw::Add, &[a, y])?;
        m.pw(Pw::Sub, &[y, b])
    }),
    ("scaled_data", |m| {
        let (n, k, c) = (m.size(), m.size(), m.size());
        let (x, w, s) = (m.data(&[n, k]), m.parameter(&[k, c]), m.parameter(&[k]));
        let x = m.pw(Pw::Mul, &[s, x])?;
        m.b.op(ops::MatMul {}, &[x, w])
    }),
    ("shifted_data", |m| {
        let (x, w, mut conv, _) = m.conv();
        conv.padding = vec![(0, 0)];
        let channels = m.b.fact(&x).shape[1].as_const().unwrap_or(1) as usize;
        let s = m.parameter(&[channels, 1]);
        let x = m.pw(Pw::Sub, &[x, s])?;
        m.b.op(conv, &[x, w])
    }),
    ("shared_operand", |m| {
        let (n, k) = (m.size(), m.size());
        let x = m.data(&[n, k]);
        let mut results = Vec::new();
        for _ in 0..3 {
            let w = m.parameter(&[k, 5]);
            let bias = m.parameter(&[5]);
            let y = m.b.op(ops::MatMul {}, &[x, w])?;
            results.push(m.pw(Pw::Add, &[y, bias])?);
        }
        let q = m.b.with(Pw::Mul, &results[0], 0.3)?;
        let k = m.b.permute(&results[1], &[1, 0])?;
        let scores = m.b.op(ops::MatMul {}, &[q, k])?;
        let scores = m.pw(Pw::Tanh, &[scores])?;
        m.b.op(ops::MatMul {}, &[scores, results[2]])
    }),
    ("pads_side_by_side", |m| {
        let (n, k) = (m.size(), m.size());
        let parts = [m.data(&[3, n]), m.data(&[3, k])];
        let first = m.pad(parts[0], [0, k], 0.0)?;
        let second = m.pad(parts[1], [n, 0], 0.0)?;
        let whole = m.pw(Pw::Add, &[second, first])?;
        m.pw(Pw::Exp, &[whole])
    }),
    ("stacked_products", |m| {
        let (n, k) = (m.size(), m.size());
        let x = m.data(&[k, 13]);
        let parts = [m.data(&[k, n]), m.data(&[k, 2])];
        let mut results = Vec::new();
        for g in parts {
            let g = m.b.permute(&g, &[1, 0])?;
            results.push(m.b.op(ops::MatMul {}, &[g, x])?);
        }
        let whole = m.b.op(ops::Concat { axis: 0 }, &results)?;
        m.pw(Pw::Tanh, &[whole])
    }),
    ("stacked_sums", |m| {
        let (n, k) = (m.size(), m.size());
        let parts = [m.data(&[2, k, n]), m.data(&[2, k, 3])];
        let mut sums = Vec::new();
        for x in parts {
            sums.push(m.b.sum(&x, &[0, 1])?);
        }
        let whole = m.b.op(ops::Concat { axis: 0 }, &sums)?;
        m.pw(Pw::Tanh, &[whole])
    }),
    ("reduce_of_reduce", |m| {
        let sizes = [m.size(), m.size(), m.size()];
        let x = m.data(&sizes);
        let y = m.b.reduce_keepdim(Reduction::Sum, &x, &[2])?;
        let y = m.b.with(Pw::Div, &y, 3.0)?;
        m.b.sum(&y, &[0, 1])
    }),
];

#[test]
fn each_rule_fires_and_is_right_on_the_engine() {
    for seed in 0..20 {
        for (rule, make) in CASES {
            let mut graph = Graph::default();
            let b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
            let mut maker = Maker {
                b,
                rng: Rng::new(seed),
            };
            let y = make(&mut maker).unwrap_or_else(|e| panic!("{rule}, seed {seed}: {e}"));
            graph.add_output(y);
            let oracle = Oracle::new(&graph, random_inputs(&graph, seed));
            let engine = Engine::new(&graph, &Options::default());
            let engine = engine.unwrap_or_else(|e| panic!("{rule}, seed {seed}: {e}\n{graph}"));
            assert!(
                engine.explain.count(rule) > 0,
                "{rule}, seed {seed}: {graph}"
            );
            // The second run meets prepared values and a used arena.
            for _ in 0..2 {
                let outputs = engine.run(&oracle.inputs).map_err(|e| e.to_string());
                let checked = outputs.and_then(|o| oracle.check(&o));
                checked.unwrap_or_else(|e| panic!("{rule}, seed {seed}: {e}\n{graph}"));
            }
        }
    }
}
