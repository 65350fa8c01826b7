//! The building blocks of programs for rules.

use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Fact, Graph, GraphBuilder, Loc, OpError, Pw, Role, Value, ops};

pub(super) type Made = Result<Value, OpError>;

/// Data, parameters and sizes for a program.
pub(super) struct Maker<'g> {
    pub(super) b: GraphBuilder<'g>,
    pub(super) rng: Rng,
}

impl Maker<'_> {
    pub(super) fn size(&mut self) -> usize {
        [1, 2, 3, 5, 7, 11, 13][self.rng.below(7)]
    }

    pub(super) fn input(&mut self, shape: &[usize], role: Role) -> Value {
        self.b
            .input(Fact::new(DType::F32, shape.iter().copied()), role)
    }

    pub(super) fn data(&mut self, shape: &[usize]) -> Value {
        self.input(shape, Role::Data)
    }

    pub(super) fn parameter(&mut self, shape: &[usize]) -> Value {
        self.input(shape, Role::Parameter)
    }

    /// Data of `[n, m]`.
    pub(super) fn matrix(&mut self) -> (Value, usize, usize) {
        let (n, m) = (self.size(), self.size());
        (self.data(&[n, m]), n, m)
    }

    pub(super) fn pw(&mut self, op: Pw, operands: &[Value]) -> Made {
        self.b.pointwise(op, operands)
    }

    pub(super) fn pad(&mut self, x: Value, border: [usize; 2], value: f64) -> Made {
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

    /// Data without infinities or NaN.
    pub(super) fn finite(&mut self, shape: &[usize]) -> Made {
        let x = self.data(shape);
        let y = self.pw(Pw::Tanh, &[x])?;
        let nan = self.pw(Pw::IsNan, &[x])?;
        let zero = self.b.scalar_like(0.0, &y)?;
        self.pw(Pw::Select, &[nan, zero, y])
    }

    /// A product of at least three rows with a parameter, and its number of columns.
    pub(super) fn product(&mut self) -> Result<(Value, usize), OpError> {
        let (n, k, c) = (2 + self.size(), self.size(), self.size());
        let (x, w) = (self.data(&[n, k]), self.parameter(&[k, c]));
        Ok((self.b.op(ops::MatMul {}, &[x, w])?, c))
    }

    /// A batch norm with known statistics.
    pub(super) fn norm(&mut self, x: Value) -> Made {
        let channels = self.b.fact(&x).shape[1].as_const().unwrap_or(1) as usize;
        let mut operands = vec![x];
        operands.extend((0..4).map(|_| self.parameter(&[channels])));
        operands[2] = self.pw(Pw::Square, &operands[2..3])?;
        let dtype = self.b.fact(&x).dtype;
        for v in &mut operands[1..] {
            *v = self.b.cast(v, dtype)?;
        }
        let eps = Scalar::Float(0.25);
        self.b.op(ops::BatchNorm { eps, affine: true }, &operands)
    }

    /// A product in i32 of u8 numbers, less their zero point, with i8 numbers.
    pub(super) fn product_of_bytes(&mut self) -> Made {
        let (n, k, c) = (self.size(), self.size(), self.size());
        let x = self.b.input(Fact::new(DType::U8, [n, k]), Role::Data);
        let w = self.b.input(Fact::new(DType::I8, [k, c]), Role::Parameter);
        let [x, w] = [self.b.cast(&x, DType::I32)?, self.b.cast(&w, DType::I32)?];
        let x = self.b.with(Pw::Sub, &x, 128)?;
        self.b.op(ops::MatMul {}, &[x, w])
    }

    /// A product with a bias, its mean `[1, c]`, and the product without it.
    pub(super) fn centred(&mut self) -> Result<[Value; 2], OpError> {
        let (n, k, c) = (1 + self.size(), self.size(), self.size());
        let (x, w) = (self.finite(&[n, k])?, self.finite(&[k, c])?);
        let (y, bias) = (self.b.op(ops::MatMul {}, &[x, w])?, self.parameter(&[1, c]));
        let x = self.pw(Pw::Add, &[y, bias])?;
        let sum = self.b.reduce_keepdim(Reduction::Sum, &x, &[0])?;
        let mean = self.b.with(Pw::Div, &sum, n as f64)?;
        Ok([mean, self.pw(Pw::Sub, &[x, mean])?])
    }

    /// A body on two values of `[n]`, where each output needs one of them.
    pub(super) fn body(&mut self, n: usize, ops: [Pw; 2], counted: bool) -> Result<Graph, OpError> {
        let mut body = Graph::default();
        let mut b = GraphBuilder::new(&mut body, Loc::UNKNOWN);
        if counted {
            b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
        }
        let x = [0; 2].map(|_| b.input(Fact::new(DType::F32, [n]), Role::Data));
        let y = [b.pointwise(ops[0], &x[..1])?, b.pointwise(ops[1], &x[1..])?];
        y.into_iter().for_each(|y| body.add_output(y));
        Ok(body)
    }

    pub(super) fn part(&mut self, x: Value, axis: usize, start: usize, len: usize) -> Made {
        self.b.narrow(&x, axis, start, len)
    }

    /// A convolution of a random size along one axis: data, weight and attributes.
    pub(super) fn conv(&mut self) -> (Value, Value, ops::Conv, usize) {
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
