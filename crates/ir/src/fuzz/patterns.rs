//! The patterns that rewrites and fusion look for.

use super::generate::{Generator, Meta};
use crate::ops::{self, Axes};
use crate::{Fact, Op, Pw, Role, Shape, Value};
use kiln_base::prim::{Reduction, ScanKind};
use kiln_base::{DType, Dim};

impl Generator {
    pub fn random_pattern(&mut self) -> Option<Value> {
        match self.rng.below(15) {
            0 | 12 => self.conv_batch_norm(),
            1 => self.conv_batch_statistics(),
            2 => self.repeated(),
            3 => self.foldable(),
            4 => self.normalised_row(),
            5 => self.views_that_cancel(),
            6 | 7 => self.identity(),
            8 => self.linear(),
            9 => self.one_hot(),
            10 => self.casts_back(),
            13 | 14 => self.extreme_behind_work(),
            _ => self.rejoined_slices(),
        }
    }

    /// Convolution, perhaps a bias, and the batch norm of inference.
    fn conv_batch_norm(&mut self) -> Option<Value> {
        if self.rng.chance(0.6) {
            // Directly after one another, as the folding rule requires.
            let dtype = self.rng.one([DType::F32, DType::F64]);
            let x = self.image(dtype);
            let y = self.raw_conv(x)?;
            return self.batch_norm(y, Role::Parameter);
        }
        let dtype = self.dtype(DType::is_float)?;
        let x = self.image(dtype);
        let mut y = self.conv(x)?;
        if self.rng.chance(0.5) {
            y = self.per_channel(Pw::Add, y, Role::Parameter)?;
        }
        if self.rng.chance(0.2) {
            y = self.per_channel(Pw::Mul, y, Role::Parameter)?;
        }
        let y = self.batch_norm(y, Role::Parameter)?;
        self.row(Pw::Relu, &[y], self.meta(y))
    }

    /// Convolution with a bias and the batch norm of training.
    fn conv_batch_statistics(&mut self) -> Option<Value> {
        let x = self.image(DType::F32);
        let y = self.conv(x)?;
        let y = self.per_channel(Pw::Add, y, Role::Parameter)?;
        let Fact { dtype, shape } = self.fact(y);
        let axes: Axes = (0..shape.len()).filter(|a| *a != 1).collect();
        let mean = self.mean(y, &axes)?;
        let centred = self.centre(y, mean, &axes)?;
        let square = self.row(Pw::Square, &[centred], self.loose(centred, 2))?;
        let variance = self.mean(square, &axes)?;
        let role = Role::Parameter;
        let weight = self.input(dtype, &shape[1..2], role);
        let bias = self.input(dtype, &shape[1..2], role);
        let op = ops::BatchNorm {
            eps: 1e-5.into(),
            affine: true,
        };
        let meta = Meta::inexact(64.0);
        self.emit(op, &[y, mean, variance, weight, bias], meta)
    }

    /// A value per channel onto `[n, c, ..]`.
    fn per_channel(&mut self, row: Pw, y: Value, role: Role) -> Option<Value> {
        let Fact { dtype, shape } = self.fact(y);
        let bias = self.input(dtype, &shape[1..2], role);
        let mut column = shape.clone();
        column.remove(0);
        column.iter_mut().skip(1).for_each(|d| *d = Dim::ONE);
        let op = ops::Reshape { shape: column };
        let bias = self.emit(op, &[bias], self.meta(bias))?;
        let power = if row == Pw::Mul { 2 } else { 1 };
        let mut meta = self.loose(y, power);
        meta.size += 4.0;
        let y = self.row(row, &[y, bias], meta)?;
        self.tame(y)
    }

    fn mean(&mut self, v: Value, axes: &Axes) -> Option<Value> {
        let shape = self.fact(v).shape;
        let count = axes.iter().fold(Dim::ONE, |n, a| &n * &shape[*a]);
        let count = count.as_const().unwrap_or(4).max(1);
        let op = ops::Reduce {
            kind: Reduction::Sum,
            axes: axes.clone(),
        };
        let meta = self.loose(v, 1);
        let sum = self.emit(op, &[v], meta)?;
        self.row_with(Pw::Mul, sum, 1.0 / count as f64, meta)
    }

    /// v minus a reduction of it.
    fn centre(&mut self, v: Value, reduced: Value, axes: &Axes) -> Option<Value> {
        let mut shape = self.fact(v).shape;
        axes.iter().for_each(|a| shape[*a] = Dim::ONE);
        let op = ops::Reshape { shape };
        let reshaped = self.emit(op, &[reduced], self.meta(reduced))?;
        let mut meta = self.loose(v, 1);
        meta.size *= 2.0;
        self.row(Pw::Sub, &[v, reshaped], meta)
    }

    /// An inexact value of the magnitude of a power of v.
    fn loose(&self, v: Value, power: i32) -> Meta {
        Meta {
            size: self.meta(v).size.powi(power),
            exact: false,
        }
    }

    /// A repeated node.
    fn repeated(&mut self) -> Option<Value> {
        let is_computed = |op: &Op| !matches!(op, Op::Input(_) | Op::If(_) | Op::Loop(_));
        let nodes: Vec<_> = self.graph.ids().collect();
        let id = *self.rng.pick(&nodes)?;
        let node = self.graph.node(id).clone();
        if !is_computed(&node.op) {
            return None;
        }
        let twin = self.emit(node.op, &node.inputs, self.meta(id.value()))?;
        let computes = node.facts[0].dtype.computes();
        if computes && self.rng.chance(0.5) {
            return self.row(Pw::Maximum, &[id.value(), twin], self.meta(twin));
        }
        Some(twin)
    }

    /// Constants only.
    fn foldable(&mut self) -> Option<Value> {
        let dtype = self.dtype(|d| d.computes() && d != DType::Bool)?;
        let shape = self.shape();
        let a = self.full(1.5, dtype, &shape)?;
        let b = self.full(2.0, dtype, &[])?;
        let meta = Meta {
            size: if dtype.is_float() {
                4.0
            } else {
                self.meta(a).size
            },
            exact: !dtype.is_float(),
        };
        let row = self.rng.one([Pw::Add, Pw::Mul, Pw::Sub, Pw::Maximum]);
        let c = self.row(row, &[a, b], meta)?;
        let d = self.like(dtype, &shape, false)?;
        let mut meta = self.meta(d);
        meta.size += 4.0;
        meta.exact = !dtype.is_float();
        self.row(Pw::Add, &[d, c], meta)
    }

    /// Softmax, layer norm, or a reduction that is broadcast back.
    fn normalised_row(&mut self) -> Option<Value> {
        if self.rng.chance(0.4) {
            return self.random_softmax();
        }
        let v = self.any(|f, m| {
            f.dtype.is_float() && f.dtype.computes() && f.rank() >= 1 && m.size <= 64.0
        })?;
        let Fact { dtype, shape } = self.fact(v);
        let rank = shape.len();
        let tail = 1 + self.rng.below(rank.min(2));
        let axes: Axes = (rank - tail..rank).collect();
        let mean = self.mean(v, &axes)?;
        let centred = self.centre(v, mean, &axes)?;
        let square = self.row(Pw::Square, &[centred], self.loose(centred, 2))?;
        let variance = self.mean(square, &axes)?;
        let bounded = |size| Meta::inexact(size);
        let spread = self.row_with(Pw::Add, variance, 0.5, self.loose(variance, 1))?;
        let scale = self.row(Pw::Rsqrt, &[spread], bounded(1.5))?;
        let mut shape = shape;
        axes.iter().for_each(|a| shape[*a] = Dim::ONE);
        let scale = self.emit(ops::Reshape { shape }, &[scale], bounded(1.5))?;
        let normalised = self.row(Pw::Mul, &[centred, scale], bounded(16.0))?;
        // And over columns, as in the derivative of a norm.
        self.reduce(centred, Reduction::Sum, (0..rank - tail).collect(), dtype);
        Some(normalised)
    }

    /// Views that cancel.
    fn views_that_cancel(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() >= 2)?;
        let meta = self.meta(v);
        let shape = self.fact(v).shape;
        let perm: Axes = (0..shape.len()).rev().collect();
        let reverse = ops::Permute { perm };
        let moved = self.emit(reverse.clone(), &[v], meta)?;
        let moved = match self.rng.below(3) {
            0 if self.fact(moved).dtype.computes() && self.fact(moved).dtype != DType::Bool => {
                self.row(Pw::Neg, &[moved], meta)?
            }
            1 => {
                let flat = ops::Reshape {
                    shape: [self.fact(moved).numel()].into_iter().collect(),
                };
                let flat = self.emit(flat, &[moved], meta)?;
                let shape = self.fact(moved).shape;
                self.emit(ops::Reshape { shape }, &[flat], meta)?
            }
            _ => moved,
        };
        let v = self.emit(reverse, &[moved], meta)?;
        let v = self.slice(v)?;
        let v = self.slice(v)?;
        if self.rng.chance(0.4) {
            let front = |n: i64, shape: &Shape| [Dim::Const(n)].into_iter().chain(shape.clone());
            let shape: Shape = front(1, &self.fact(v).shape).collect();
            let once = self.emit(ops::Broadcast { shape }, &[v], meta)?;
            let shape: Shape = front(2, &self.fact(v).shape).collect();
            return self.emit(ops::Broadcast { shape }, &[once], meta);
        }
        Some(v)
    }

    /// An op that looks like an identity or a constant, and is one only without NaN, infinities and −0.
    fn identity(&mut self) -> Option<Value> {
        let dtype = self.dtype(|d| d.computes() && d != DType::Bool)?;
        let x = self.of_dtype(dtype)?;
        let Meta { size, exact } = self.meta(x);
        let meta = Meta {
            size: size + 1.0,
            exact,
        };
        let with = |row, number| (row, Some(number));
        let (row, number) = self.rng.one([
            with(Pw::Mul, 0.0),
            with(Pw::Mul, 1.0),
            with(Pw::Mul, -1.0),
            with(Pw::Mul, 2.0),
            with(Pw::Add, 0.0),
            with(Pw::Add, -0.0),
            with(Pw::Sub, 0.0),
            with(Pw::Div, 1.0),
            with(Pw::Pow, 1.0),
            with(Pw::Pow, 2.0),
            with(Pw::Maximum, 0.0),
            (Pw::Sub, None),
            (Pw::Maximum, None),
            (Pw::Add, None),
        ]);
        let meta = match (row, number) {
            (Pw::Pow, Some(2.0)) => self.loose(x, 2),
            (Pw::Mul | Pw::Add, Some(2.0) | None) => Meta::inexact(2.0 * size),
            (Pw::Sub, None) => Meta::inexact(size),
            _ => meta,
        };
        let meta = Meta {
            exact: meta.exact || !dtype.is_float(),
            ..meta
        };
        let operand = match number {
            Some(n) => self.full(n, dtype, &[])?,
            None => x,
        };
        let y = if self.rng.chance(0.2) && matches!(row, Pw::Mul | Pw::Add) {
            self.row(row, &[operand, x], meta)?
        } else {
            self.row(row, &[x, operand], meta)?
        };
        let y = match self.rng.below(3) {
            0 => {
                let negated = self.row(Pw::Neg, &[y], self.meta(y))?;
                self.row(Pw::Neg, &[negated], self.meta(y))?
            }
            _ => y,
        };
        self.tame(y)
    }

    /// Matrix product, bias, activation.
    fn linear(&mut self) -> Option<Value> {
        let dtype = self.dtype(DType::is_float)?;
        let shape = [self.rng.range(1, 5), self.rng.range(1, 9)].map(Dim::Const);
        let x = self.input(dtype, &shape, Role::Data);
        let y = self.matmul(x)?;
        let last = self.fact(y).shape[1..].to_vec();
        let bias = self.input(dtype, &last, Role::Parameter);
        let mut meta = self.loose(y, 1);
        meta.size += 4.0;
        let y = self.row(Pw::Add, &[y, bias], meta)?;
        let y = self.tame(y)?;
        let row = self.rng.one([Pw::Relu, Pw::Gelu, Pw::Silu, Pw::Tanh]);
        self.row(row, &[y], self.loose(y, 1))
    }

    /// Labels compared with 0, 1, 2, …, as numbers.
    fn one_hot(&mut self) -> Option<Value> {
        let classes = Dim::Const(self.rng.range(2, 7));
        let count = Dim::Const(self.rng.range(1, 6));
        let labels = self.input(DType::I64, &[count, Dim::ONE], Role::Data);
        let meta = self.meta(labels);
        let numbers = self.emit(ops::Iota { len: classes }, &[], meta)?;
        let meta = Meta::exact(1.0);
        let hits = self.row(Pw::Eq, &[labels, numbers], meta)?;
        self.cast(hits, DType::F32)
    }

    /// The extremes of a scaled and shifted value, by value or by index. The value may also have another reader.
    /// Their derivatives search all elements for the chosen ones.
    fn extreme_behind_work(&mut self) -> Option<Value> {
        let v = self.any(|f, m| {
            f.dtype.is_float() && f.dtype.computes() && f.rank() >= 1 && m.size <= 64.0
        })?;
        let scaled = self.row_with(Pw::Mul, v, 1.7, self.loose(v, 1))?;
        let mut meta = self.loose(v, 1);
        meta.size = 2.0 * meta.size + 1.0;
        let y = self.row_with(Pw::Add, scaled, 0.3, meta)?;
        let y = if self.rng.chance(0.3) {
            self.row(Pw::Abs, &[y], meta)?
        } else {
            y
        };
        if self.rng.chance(0.2) {
            self.row(Pw::Exp, &[scaled], meta)?;
        }
        let shape = self.fact(y).shape;
        let axis = self.rng.below(shape.len());
        let kind = self.rng.one([Reduction::Max, Reduction::Min]);
        if shape[axis].is(0) {
            return None;
        }
        let extreme = match self.rng.below(4) {
            0 => {
                let kind = match kind {
                    Reduction::Max => ScanKind::Max,
                    _ => ScanKind::Min,
                };
                let reverse = self.rng.chance(0.3);
                let scan = ops::Scan {
                    kind,
                    axis,
                    reverse,
                };
                return self.emit(scan, &[y], meta);
            }
            1 if shape.len() > 1 => (0..shape.len()).collect(),
            2 => return self.extreme_by_index(y, kind, axis),
            _ => Axes::from_elem(axis, 1),
        };
        let op = ops::Reduce {
            kind,
            axes: extreme.clone(),
        };
        let best = self.emit(op, &[y], meta)?;
        // f16 and bf16 may be rounded on one side of the difference only.
        let wide = self.fact(y).dtype.size() >= 4;
        if self.rng.chance(0.5) || !wide {
            return Some(best);
        }
        self.centre(y, best, &extreme)
    }

    /// The element at the index of the first extreme along an axis.
    fn extreme_by_index(&mut self, v: Value, kind: Reduction, axis: usize) -> Option<Value> {
        let meta = self.meta(v);
        let mut index_shape = self.fact(v).shape;
        index_shape[axis] = Dim::ONE;
        let index = self.emit(ops::ArgReduce { kind, axis }, &[v], meta)?;
        let index = self.emit(ops::Reshape { shape: index_shape }, &[index], meta)?;
        self.emit(ops::Gather { axis }, &[v, index], meta)
    }

    /// A cast to another dtype and back, which does not cancel.
    fn casts_back(&mut self) -> Option<Value> {
        let v = self.any(|f, m| f.dtype.computes() && m.size <= 255.0)?;
        let dtype = self.fact(v).dtype;
        let other_dtype = self.dtype(|d| d != dtype)?;
        let converted = self.cast(v, other_dtype)?;
        self.cast(converted, dtype)
    }

    /// Slices of one value, concatenated again.
    fn rejoined_slices(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() >= 1 && f.shape[0].as_const().is_some_and(|n| n >= 2))?;
        let shape = self.fact(v).shape;
        let n = shape[0].as_const()?;
        let split = self.rng.range(1, n - 1);
        let mut slices = vec![];
        for (start, len) in [(0, split), (split, n - split)] {
            let mut axes: Vec<_> = shape.iter().map(ops::SliceAxis::all).collect();
            axes[0].start = Dim::Const(start);
            axes[0].len = Dim::Const(len);
            slices.push(self.emit(ops::Slice { axes }, &[v], self.meta(v))?);
        }
        if self.rng.chance(0.5) {
            slices.reverse();
        }
        self.emit(ops::Concat { axis: 0 }, &slices, self.meta(v))
    }
}
