//! Random structured ops.

use super::generate::{Generator, Meta};
use super::inputs::min_size;
use crate::ops::{self, Axes, SliceAxis};
use crate::{Fact, Pw, Role, Shape, Value};
use kiln_base::prim::{RandomKind, Reduction};
use kiln_base::{DType, Dim, Scalar};

impl Generator {
    pub fn random_structured(&mut self) -> Option<Value> {
        match self.rng.below(50) {
            0..4 => self.random_cast(),
            4..6 => self.random_broadcast(),
            6..9 => self.random_reshape(),
            9..11 => self.random_permute(),
            11..14 => self.random_slice(),
            14..16 => self.random_pad(),
            16..18 => self.random_concat(),
            18..22 => self.random_reduce(),
            22..24 => self.random_arg_reduce(),
            24..26 => self.random_gather(),
            26..28 => self.random_matmul(),
            28..30 => self.random_conv(),
            30..32 => self.random_window_reduce(),
            32 => self.random_softmax(),
            33 => self.random_batch_norm(),
            34 => self.random_numbers(),
            35..37 => self.random_constant(),
            37 => self.random_iota(),
            38..40 => self.random_input(),
            40 if self.config.control_flow => self.random_if(),
            41 if self.config.control_flow => self.random_loop(),
            42..44 => self.random_scan(),
            44..46 => self.random_arg_sort(),
            46..48 => self.random_scatter(),
            48..50 => self.random_attention(),
            _ => None,
        }
    }

    fn random_input(&mut self) -> Option<Value> {
        let dtype = self.rng.one(DType::ALL);
        let (shape, role) = (self.shape(), self.role());
        Some(self.input(dtype, &shape, role))
    }

    fn random_cast(&mut self) -> Option<Value> {
        let dtype = self.rng.one(DType::ALL);
        let v = self.any(|f, m| f.dtype != dtype && (m.exact || dtype.is_float()))?;
        self.cast(v, dtype)
    }

    fn random_broadcast(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() < 5)?;
        let mut shape = self.fact(v).shape;
        for d in &mut shape {
            if d.is(1) && self.rng.chance(0.7) {
                *d = Dim::Const(self.rng.range(0, 4));
            }
        }
        if self.rng.chance(0.6) {
            shape.insert(0, Dim::Const(self.rng.range(1, 3)));
        }
        self.emit(ops::Broadcast { shape }, &[v], self.meta(v))
    }

    fn random_reshape(&mut self) -> Option<Value> {
        let v = self.any(|_, _| true)?;
        let mut shape = self.fact(v).shape;
        for _ in 0..1 + self.rng.below(3) {
            let axis = self.rng.below(shape.len());
            match self.rng.below(3) {
                0 if shape.len() > 1 && axis > 0 => {
                    let d = shape.remove(axis);
                    shape[axis - 1] = &shape[axis - 1] * &d;
                }
                1 if !shape.is_empty() => {
                    let factor = Dim::Const(self.rng.one([2, 3, 4]));
                    if let Ok(quotient) = shape[axis].div_exact(&factor) {
                        shape[axis] = factor;
                        shape.insert(axis, quotient);
                    }
                }
                _ => shape.insert(axis, Dim::ONE),
            }
        }
        self.emit(ops::Reshape { shape }, &[v], self.meta(v))
    }

    fn random_permute(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() >= 2)?;
        let mut perm: Axes = (0..self.fact(v).rank()).collect();
        for i in (1..perm.len()).rev() {
            perm.swap(i, self.rng.below(i + 1));
        }
        self.emit(ops::Permute { perm }, &[v], self.meta(v))
    }

    pub fn random_slice(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() >= 1)?;
        self.slice(v)
    }

    pub fn slice(&mut self, v: Value) -> Option<Value> {
        let shape = self.fact(v).shape;
        let mut axes = vec![];
        for d in &shape {
            let taken = match d.as_const() {
                Some(n) if n > 0 && self.rng.chance(0.7) => {
                    let step = self.rng.one([1, 1, 2, 3]);
                    let backwards = self.rng.chance(0.25);
                    let start = self.rng.range(0, n - 1);
                    let room = if backwards { start } else { n - 1 - start };
                    let min_len = self.rng.chance(0.9) as i64;
                    let len = self.rng.range(min_len, room / step + 1);
                    SliceAxis {
                        start: Dim::Const(start),
                        len: Dim::Const(len),
                        step: if backwards { -step } else { step },
                    }
                }
                None if self.rng.chance(0.3) => {
                    let step = self.rng.one([1, 1, 2, 3]);
                    SliceAxis {
                        start: Dim::ONE,
                        len: (d + &Dim::Const(step - 2)).div_floor(step),
                        step,
                    }
                }
                _ => SliceAxis::all(d),
            };
            axes.push(taken);
        }
        self.emit(ops::Slice { axes }, &[v], self.meta(v))
    }

    fn random_pad(&mut self) -> Option<Value> {
        let v = self.any(|_, _| true)?;
        let Fact { dtype, shape } = self.fact(v);
        let mut border = || -> Shape {
            let draw = |_| Dim::Const(self.rng.one([0, 0, 1, 2]));
            shape.iter().map(draw).collect()
        };
        let (low, high) = (border(), border());
        let number = self.rng.one([0.0, 0.0, 1.0, 3.0]);
        let value = Scalar::Float(number).cast(dtype);
        let Meta { size, exact } = self.meta(v);
        let size = size.max(number);
        self.emit(ops::Pad { low, high, value }, &[v], Meta { size, exact })
    }

    fn random_concat(&mut self) -> Option<Value> {
        let first = self.any(|f, _| f.rank() >= 1)?;
        let Fact { dtype, shape } = self.fact(first);
        let axis = self.rng.below(shape.len());
        let mut operands = vec![first];
        for _ in 0..self.rng.below(3) {
            let is_joinable = |f: &Fact, _| {
                f.dtype == dtype
                    && f.rank() == shape.len()
                    && (0..f.rank()).all(|a| a == axis || f.shape[a] == shape[a])
            };
            if self.rng.chance(0.7) {
                operands.extend(self.any(is_joinable));
            } else {
                let mut other_shape = shape.clone();
                other_shape[axis] = Dim::Const(self.rng.range(0, 3));
                let role = self.role();
                operands.push(self.input(dtype, &other_shape, role));
            }
        }
        let metas = operands.iter().map(|v| self.meta(*v));
        let meta = metas.reduce(|a, b| Meta {
            size: a.size.max(b.size),
            exact: a.exact && b.exact,
        })?;
        self.emit(ops::Concat { axis }, &operands, meta)
    }

    fn random_reduce(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.dtype.computes())?;
        let Fact { dtype, shape } = self.fact(v);
        let kind = self.rng.one([
            Reduction::Sum,
            Reduction::Sum,
            Reduction::Prod,
            Reduction::Max,
            Reduction::Min,
        ]);
        let axes: Axes = (0..shape.len()).filter(|_| self.rng.chance(0.5)).collect();
        self.reduce(v, kind, axes, dtype)
    }

    pub fn reduce(&mut self, v: Value, kind: Reduction, axes: Axes, dtype: DType) -> Option<Value> {
        let mut v = v;
        if kind == Reduction::Prod && dtype.is_float() {
            v = self.clamp(v, 1.0)?;
        }
        let count = self.count(v, &axes);
        let Meta { size, exact } = self.meta(v);
        let meta = match kind {
            _ if !dtype.is_float() => Meta::exact(size),
            Reduction::Sum => Meta::inexact(size * count.max(1.0)),
            Reduction::Prod => Meta::inexact(1.0),
            _ => Meta { size, exact },
        };
        let reduced = self.emit(ops::Reduce { kind, axes }, &[v], meta)?;
        self.tame(reduced)
    }

    /// The largest number of elements that these axes span.
    pub fn count(&self, v: Value, axes: &[usize]) -> f64 {
        let symbols = vec![super::generate::MAX_SYMBOL; self.graph.symbols.len()];
        let shape = &self.graph.fact(v).shape;
        let size = |a: &usize| shape[*a].eval_checked(&symbols).unwrap_or(1) as f64;
        axes.iter().map(size).product()
    }

    fn random_arg_reduce(&mut self) -> Option<Value> {
        let v = self.any(|f, m| f.dtype.computes() && f.rank() >= 1 && m.exact)?;
        let op = ops::ArgReduce {
            kind: self.rng.one([Reduction::Max, Reduction::Min]),
            axis: self.rng.below(self.fact(v).rank()),
        };
        self.emit(op, &[v], Meta::integer(DType::I64))
    }

    /// The shape of an index into a value of a shape.
    pub fn index_shape(&mut self, shape: Shape, axis: usize) -> Shape {
        let mut index_shape = shape;
        index_shape[axis] = Dim::Const(self.rng.range(0, 6));
        for (a, d) in index_shape.iter_mut().enumerate() {
            if let Some(n) = d.as_const()
                && a != axis
                && n > 1
                && self.rng.chance(0.3)
            {
                *d = Dim::Const(self.rng.range(1, n));
            }
        }
        index_shape
    }

    /// Indices below `bound`.
    pub fn index(&mut self, shape: &[Dim], bound: i64) -> Option<Value> {
        Some(match self.rng.below(4) {
            0 => {
                let number = |d: &Dim| d.as_const().map(|n| n as usize);
                let shape: Vec<usize> = shape.iter().map(number).collect::<Option<_>>()?;
                let n: usize = shape.iter().product();
                let draw = |_| self.rng.below(bound as usize) as i64;
                let bytes = (0..n).map(draw).flat_map(i64::to_le_bytes).collect();
                let op = ops::Constant {
                    dtype: DType::I64,
                    shape,
                    bytes,
                };
                self.emit(op, &[], Meta::integer(DType::I64))?
            }
            1 => {
                let unbounded = self.like(DType::I64, shape, true)?;
                let bounded = self.row_with(
                    Pw::Remainder,
                    unbounded,
                    bound as f64,
                    Meta::integer(DType::I64),
                )?;
                let op = ops::Broadcast {
                    shape: shape.into(),
                };
                self.emit(op, &[bounded], Meta::integer(DType::I64))?
            }
            _ => self.input(DType::I64, shape, Role::Data),
        })
    }

    fn random_gather(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.rank() >= 1)?;
        let shape = self.fact(v).shape;
        let axis = self.rng.below(shape.len());
        let bound = min_size(&self.graph, &shape[axis]);
        if bound == 0 {
            return None;
        }
        let index_shape = self.index_shape(shape, axis);
        let index = self.index(&index_shape, bound)?;
        self.emit(ops::Gather { axis }, &[v, index], self.meta(v))
    }

    fn random_matmul(&mut self) -> Option<Value> {
        let a = self.any(|f, _| f.dtype.computes() && f.dtype != DType::Bool && f.rank() >= 2)?;
        self.matmul(a)
    }

    pub fn matmul(&mut self, a: Value) -> Option<Value> {
        let a = self.tame(a)?;
        let Fact { dtype, shape } = self.fact(a);
        let r = shape.len();
        let k = shape[r - 1].clone();
        let is_right_operand = |f: &Fact, m: Meta| {
            f.dtype == dtype
                && f.rank() == r
                && f.shape[..r - 2] == shape[..r - 2]
                && f.shape[r - 2] == k
                && m.size <= 64.0
        };
        let b = match self.any(is_right_operand) {
            Some(b) if self.rng.chance(0.5) => b,
            _ => {
                let mut b_shape = shape.clone();
                b_shape[r - 2] = k;
                b_shape[r - 1] = Dim::Const(self.rng.range(1, 7));
                let role = self.role();
                if self.rng.chance(0.5) {
                    self.input(dtype, &b_shape, role)
                } else {
                    b_shape.swap(r - 2, r - 1);
                    let transposed = self.input(dtype, &b_shape, role);
                    let mut perm: Axes = (0..r).collect();
                    perm.swap(r - 2, r - 1);
                    self.emit(ops::Permute { perm }, &[transposed], self.meta(transposed))?
                }
            }
        };
        let size = self.meta(a).size * self.meta(b).size * self.count(a, &[r - 1]).max(1.0);
        let meta = product_meta(dtype, size);
        let product = self.emit(ops::MatMul {}, &[a, b], meta)?;
        self.tame(product)
    }

    fn random_conv(&mut self) -> Option<Value> {
        let dtype = self.dtype(|d| d.computes() && d != DType::Bool)?;
        let is_image = |f: &Fact, _| {
            f.dtype == dtype
                && (2..=5).contains(&f.rank())
                && f.shape[1].as_const().is_some_and(|c| (1..=8).contains(&c))
        };
        let x = match self.any(is_image) {
            Some(x) if self.rng.chance(0.5) => x,
            _ => self.image(dtype),
        };
        self.conv(x)
    }

    /// A new input `[n, c, spatial..]`.
    pub fn image(&mut self, dtype: DType) -> Value {
        let mut shape: Shape = [self.rng.range(1, 3), self.rng.range(1, 4)]
            .map(Dim::Const)
            .into_iter()
            .collect();
        if self.rng.chance(0.3) && !self.graph.symbols.is_empty() {
            shape[0] = Dim::symbol(kiln_base::Sym(0));
        }
        for _ in 0..self.rng.one([1, 2, 2, 2, 3]) {
            shape.push(match self.graph.symbols.len() {
                n if n > 0 && self.rng.chance(0.3) => {
                    Dim::symbol(kiln_base::Sym(self.rng.below(n) as u32))
                }
                _ => Dim::Const(self.rng.range(2, 6)),
            });
        }
        self.input(dtype, &shape, Role::Data)
    }

    pub fn conv(&mut self, x: Value) -> Option<Value> {
        let y = self.raw_conv(x)?;
        self.tame(y)
    }

    /// A convolution whose result may be large.
    pub fn raw_conv(&mut self, x: Value) -> Option<Value> {
        let x = self.tame(x)?;
        let Fact { dtype, shape } = self.fact(x);
        let spatial = shape.len().checked_sub(2)?;
        let channels = shape[1].as_const()?;
        let groups = if self.rng.chance(0.3) {
            let divisors: Vec<i64> = (1..=channels).filter(|g| channels % g == 0).collect();
            *self.rng.pick(&divisors)?
        } else {
            1
        };
        let mut weight = vec![groups * self.rng.range(1, 3), channels / groups];
        let mut op = ops::Conv {
            stride: Axes::new(),
            padding: vec![],
            dilation: Axes::new(),
            groups: groups as usize,
        };
        for _ in &shape[2..] {
            weight.push(self.rng.one([1, 2, 3, 3]));
            op.stride.push(self.rng.one([1, 1, 2, 3]));
            op.padding
                .push(self.rng.one([(0, 0), (1, 1), (1, 1), (0, 2)]));
            op.dilation.push(self.rng.one([1, 1, 1, 2]));
        }
        debug_assert_eq!(op.stride.len(), spatial);
        let taps: i64 = weight[1..].iter().product();
        let dims: Shape = weight.into_iter().map(Dim::Const).collect();
        let w = self.input(dtype, &dims, Role::Parameter);
        let size = self.meta(x).size * self.meta(w).size * taps as f64;
        self.emit(op, &[x, w], product_meta(dtype, size))
    }

    fn random_window_reduce(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.dtype.computes() && f.dtype != DType::Bool && f.rank() >= 1)?;
        let kind = *self.rng.pick(Reduction::ALL)?;
        let v = match kind {
            Reduction::Prod if self.fact(v).dtype.is_float() => self.clamp(v, 1.0)?,
            _ => v,
        };
        let Fact { dtype, shape } = self.fact(v);
        let spatial = 1 + self.rng.below(shape.len().min(3));
        let mut op = ops::WindowReduce {
            kind,
            kernel: Axes::new(),
            stride: Axes::new(),
            padding: vec![],
            dilation: Axes::new(),
        };
        for _ in &shape[shape.len() - spatial..] {
            let kernel = self.rng.one([1, 2, 2, 3]);
            op.kernel.push(kernel);
            op.stride.push(1 + self.rng.below(3));
            // Every window has an element that is not padding.
            op.padding.push((self.rng.below(kernel), 0));
            op.dilation.push(self.rng.one([1, 1, 2]));
        }
        let taps: usize = op.kernel.iter().product();
        let Meta { size, exact } = self.meta(v);
        let meta = match kind {
            _ if !dtype.is_float() => Meta::exact(size),
            Reduction::Sum => Meta::inexact(size * taps as f64),
            Reduction::Prod => Meta::inexact(size),
            _ => Meta { size, exact },
        };
        let y = self.emit(op, &[v], meta)?;
        self.tame(y)
    }

    pub fn random_softmax(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.dtype.is_float() && f.dtype.computes() && f.rank() >= 1)?;
        let log = self.rng.chance(0.5);
        let op = ops::Softmax {
            axis: self.rng.below(self.fact(v).rank()),
            log,
        };
        let meta = Meta::inexact(match log {
            true => 2.0 * self.meta(v).size + 8.0,
            false => 1.0,
        });
        self.emit(op, &[v], meta)
    }

    fn random_batch_norm(&mut self) -> Option<Value> {
        let v = self.any(|f, _| f.dtype.is_float() && f.dtype.computes() && f.rank() >= 2)?;
        self.batch_norm(v, Role::Parameter)
    }

    /// Normalisation with statistics that are inputs.
    pub fn batch_norm(&mut self, v: Value, role: Role) -> Option<Value> {
        let Fact { dtype, shape } = self.fact(v);
        let affine = self.rng.chance(0.7);
        let mut operands = vec![v];
        for _ in 0..if affine { 4 } else { 2 } {
            operands.push(self.input(dtype, &shape[1..2], role));
        }
        let eps = Scalar::Float(1e-5);
        let meta = Meta::inexact((self.meta(v).size + 4.0) * 3.0 * 4.0 + 4.0);
        let y = self.emit(ops::BatchNorm { eps, affine }, &operands, meta)?;
        self.tame(y)
    }

    fn random_numbers(&mut self) -> Option<Value> {
        let key = match self.any(|f, _| f.dtype == DType::I64 && f.shape[..] == [Dim::Const(2)]) {
            Some(key) if self.rng.chance(0.3) => key,
            _ => self.input(DType::I64, &[Dim::Const(2)], Role::RandomKey),
        };
        let kind = *self.rng.pick(RandomKind::ALL)?;
        let (dtype, meta) = match kind {
            RandomKind::Bits => (DType::I64, Meta::integer(DType::I64)),
            _ => {
                let dtype = self.dtype(|d| d.is_float() && d.computes())?;
                let uniform = kind == RandomKind::Uniform;
                let exact = uniform && dtype.size() >= 4;
                let size = if uniform { 1.0 } else { 9.0 };
                (dtype, Meta { size, exact })
            }
        };
        let shape = self.shape();
        self.emit(ops::Random { kind, dtype, shape }, &[key], meta)
    }

    fn random_constant(&mut self) -> Option<Value> {
        let dtype = self.rng.one(DType::ALL);
        if self.rng.chance(0.5) {
            let shape = self.shape();
            let value = self.rng.range(-4, 4) as f64 / 2.0;
            return self.full(value, dtype, &shape);
        }
        let dims = [self.rng.range(1, 3) as usize, self.rng.range(1, 5) as usize];
        let shape = &dims[self.rng.below(3)..];
        let n: usize = shape.iter().product();
        let values: Vec<f64> = (0..n).map(|_| self.rng.range(-8, 8) as f64 / 4.0).collect();
        let bytes = crate::eval::Array::from_f64(dtype, shape, &values).ok()?;
        let op = ops::Constant {
            dtype,
            shape: shape.to_vec(),
            bytes: bytes.to_bytes().into(),
        };
        let meta = match dtype.is_float() {
            true => Meta::exact(2.0),
            false => Meta::integer(dtype),
        };
        self.emit(op, &[], meta)
    }

    fn random_iota(&mut self) -> Option<Value> {
        let len = match self.shape().into_iter().next() {
            Some(d) => d,
            None => Dim::Const(self.rng.range(0, 20)),
        };
        self.emit(ops::Iota { len }, &[], Meta::integer(DType::I64))
    }
}

fn product_meta(dtype: DType, size: f64) -> Meta {
    match dtype.is_float() {
        true => Meta { size, exact: false },
        false => Meta::integer(dtype),
    }
}
