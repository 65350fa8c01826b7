//! Rare combinations that few rules expect: constants, products and scatters in the bodies of loops and branches; a
//! scatter whose source is its operand after a barrier; work on values without elements; and transposed convolutions
//! with a filter for each channel.

use super::generate::{Generator, Meta};
use crate::{Builder, Fact, GraphBuilder, Op, Pw, Role, Shape, Value, ops};
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_base::{DType, Dim};

/// The probability that a program has some.
const OFTEN: f64 = 0.2;

impl Generator {
    /// Adds these combinations to some programs and leaves the others as they are.
    pub fn corners(&mut self, seed: u64) {
        let own_rng = super::Rng::new(seed ^ 0x636f_726e_6572_7321);
        let program_rng = std::mem::replace(&mut self.rng, own_rng);
        if self.rng.chance(OFTEN) {
            for _ in 0..1 + self.rng.below(2) {
                match self.rng.below(4) {
                    0 if self.config.control_flow => self.work_in_branches(),
                    1 if self.config.control_flow => self.work_in_steps(),
                    2 => self.scatter_after_barrier(),
                    _ if self.config.empty => self.empty_work(),
                    _ => None,
                };
            }
        }
        if self.rng.chance(OFTEN / 2.0) {
            self.transposed_filters();
        }
        self.rng = program_rng;
    }

    /// The transpose of a depthwise convolution by a parameter.
    fn transposed_filters(&mut self) -> Option<Value> {
        let dtype = self.rng.one([DType::F16, DType::BF16, DType::F32]);
        let channels = self.rng.one([1, 3, 8, 17]);
        let [size, stride] = [self.rng.one([4, 5, 7]), self.rng.one([1, 2])];
        let conv = ops::Conv {
            stride: [stride; 2].into_iter().collect(),
            padding: vec![(1, 1); 2],
            dilation: [1; 2].into_iter().collect(),
            groups: channels,
        };
        let output = (size - 1) / stride + 1;
        let y = self.input(
            dtype,
            &[2, channels, output, output].map(Dim::from),
            Role::Data,
        );
        let w = self.input(dtype, &[channels, 1, 3, 3].map(Dim::from), Role::Parameter);
        let op = ops::ConvTranspose {
            conv,
            input: [size; 2].map(Dim::from).into_iter().collect(),
        };
        let meta = Meta::inexact(self.meta(y).size * self.meta(w).size * 9.0);
        let x = self.emit(op, &[y, w], meta)?;
        self.tame(x)
    }

    /// A matrix of eighths.
    fn matrix(&mut self, shape: &[usize]) -> ops::Constant {
        let n = shape.iter().product::<usize>();
        let values = (0..n).map(|_| self.rng.range(-4, 4) as f32 / 8.0);
        ops::Constant {
            dtype: DType::F32,
            bytes: values.flat_map(f32::to_le_bytes).collect(),
            shape: shape.to_vec(),
        }
    }

    /// The work of a body on f32 `[n, k]`, and the shape of its result.
    fn work(&mut self, n: usize, k: usize) -> (Work, Shape) {
        let columns = self.rng.one([1, 7, 33, 40, 64]);
        let (weights, shape) = match self.rng.chance(0.3) {
            // An image of two channels, and filters.
            true => {
                let taps = self.rng.one([1, 3]);
                let channels = self.rng.one([1, 4, 17]);
                let shape = [1, channels, n + 3 - taps, k + 3 - taps];
                (self.matrix(&[channels, 2, taps, taps]), shape.to_vec())
            }
            false => (self.matrix(&[k, columns]), vec![n, columns]),
        };
        let shape = shape.into_iter().map(Dim::from).collect();
        let scatters = self.rng.chance(0.5);
        let kind = self.rng.one([ScatterKind::Set, ScatterKind::Sum]);
        let scatter = scatters.then_some(kind);
        (Work { weights, scatter }, shape)
    }

    /// Sizes of the operands of bodies.
    fn sizes(&mut self) -> [usize; 2] {
        [self.rng.one([1, 2, 5]), self.rng.one([3, 5, 8])]
    }

    fn work_in_branches(&mut self) -> Option<Value> {
        let [n, k] = self.sizes();
        let (then_work, shape) = self.work(n, k);
        let mut else_work = then_work.clone();
        else_work.weights.bytes = then_work
            .weights
            .bytes
            .chunks_exact(4)
            .rev()
            .flatten()
            .copied()
            .collect();
        let role = self.role();
        let x = self.input(DType::F32, &[n, k].map(Dim::from), role);
        let condition = self.input(DType::Bool, &[], Role::Data);
        let fact = self.fact(x);
        let branch = |work: &Work| {
            self.body(|b| {
                let x = b.input(fact.clone(), Role::Data);
                Some(vec![work.record(b, x, &shape)?])
            })
        };
        let branches = [branch(&then_work)?, branch(&else_work)?];
        let y = self.emit(ops::If { branches }, &[condition, x], WORKED)?;
        self.tame(y)
    }

    fn work_in_steps(&mut self) -> Option<Value> {
        let [n, k] = self.sizes();
        let trips = self.rng.below(4);
        let (work, shape) = self.work(n, k);
        let role = self.role();
        let x = self.input(DType::F32, &[trips, n, k].map(Dim::from), role);
        let step_fact = Fact::new(DType::F32, [n, k]);
        let body = self.body(|b| {
            b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
            let x = b.input(step_fact, Role::Data);
            Some(vec![work.record(b, x, &shape)?])
        })?;
        let op = ops::Loop {
            trips: Dim::from(trips),
            carried: 0,
            scanned: 1,
            reverse: self.rng.chance(0.5),
            conditional: false,
            body,
        };
        let y = self.emit(op, &[x], WORKED)?;
        self.tame(y)
    }

    /// `scatter(x', index, x)` where x' is x after a barrier, or the other way around.
    fn scatter_after_barrier(&mut self) -> Option<Value> {
        let x = self.any(|f, _| f.rank() >= 1 && f.shape.iter().all(|d| !d.is(0)))?;
        let fact = self.fact(x);
        // A computed value, so that its memory may be reused.
        let x = match fact.dtype.is_float() && self.rng.chance(0.7) {
            true => self.row(Pw::Abs, &[x], self.meta(x))?,
            false => x,
        };
        let other = self.like(fact.dtype, &fact.shape, false)?;
        let meta = self.meta(x);
        let barrier = self.emit(ops::Barrier { detach: false }, &[x, other], meta)?;
        let axis = self.rng.below(fact.rank());
        let index = self.input(DType::I64, &fact.shape, Role::Data);
        let operands = match self.rng.chance(0.7) {
            true => [x, index, barrier],
            false => [barrier, index, x],
        };
        let kind = ScatterKind::Set;
        self.emit(ops::Scatter { axis, kind }, &operands, meta)
    }

    /// Sums and products without terms, whose operands are empty and must not be divided or looked up.
    fn empty_work(&mut self) -> Option<Value> {
        let meta = Meta::exact(0.0);
        let [n, k] = self.sizes().map(Dim::from);
        let empty = self.input(DType::I64, &[n.clone(), Dim::ZERO], Role::Data);
        let zeros = self.full(0, DType::I64, &[n.clone(), Dim::ONE])?;
        let op = self.rng.one([Pw::FloorDivide, Pw::Remainder, Pw::Fmod]);
        let divided = self.row(op, &[empty, zeros], meta)?;
        if self.rng.chance(0.3) {
            return self.reduce(
                divided,
                Reduction::Sum,
                [1].into_iter().collect(),
                DType::I64,
            );
        }
        // Indices outside the axis, in an empty index.
        let out_of_range = self.full(1000, DType::I64, &[n.clone(), Dim::ZERO])?;
        let table = self.input(DType::F32, &[n.clone(), k.clone()], Role::Data);
        let a = self.emit(ops::Gather { axis: 1 }, &[table, out_of_range], meta)?;
        if self.rng.chance(0.5) {
            return self.reduce(a, Reduction::Sum, [1].into_iter().collect(), DType::F32);
        }
        let b = self.full(0, DType::I64, &[Dim::ZERO, k])?;
        let b = self.row_with(Pw::FloorDivide, b, 0.0, meta)?;
        let b = self.emit(ops::Cast::to(DType::F32), &[b], meta)?;
        let product = Op::from(ops::MatMul {});
        let y = self.emit(product, &[a, b], meta)?;
        self.row_with(Pw::Add, y, 0.5, Meta { size: 1.0, ..meta })
    }
}

/// The bound for nine products of a half and an input in two channels, of which all columns may be added up.
const WORKED: Meta = Meta::inexact(2340.0);

/// A product with a constant or a convolution by it, and perhaps a scatter of the result.
#[derive(Clone)]
struct Work {
    weights: ops::Constant,
    scatter: Option<ScatterKind>,
}

impl Work {
    fn record(&self, b: &mut GraphBuilder<'_>, x: Value, shape: &Shape) -> Option<Value> {
        let weights = b.op(self.weights.clone(), &[]).ok()?;
        let y = match self.weights.shape[..] {
            [_, _] => b.op(ops::MatMul {}, &[x, weights]).ok()?,
            _ => {
                let mut image = b.fact(&x).shape;
                let [n, k] = [image[0].clone(), image[1].clone()];
                image = [Dim::ONE, Dim::from(2), n, k].into_iter().collect();
                let image_shape = [Dim::ONE, Dim::ONE, image[2].clone(), image[3].clone()];
                let x = b.reshape(&x, &image_shape).ok()?;
                let x = b.op(ops::Broadcast { shape: image }, &[x]).ok()?;
                let conv = ops::Conv {
                    stride: [1, 1].into_iter().collect(),
                    padding: vec![(1, 1), (1, 1)],
                    dilation: [1, 1].into_iter().collect(),
                    groups: 1,
                };
                b.op(conv, &[x, weights]).ok()?
            }
        };
        let Some(kind) = self.scatter else {
            return Some(y);
        };
        let index = b.full(0, DType::I64, shape).ok()?;
        b.op(ops::Scatter { axis: 1, kind }, &[y, index, y]).ok()
    }
}
