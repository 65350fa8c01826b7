//! The generator: a growing graph, with the known magnitude and exactness of each value.

use super::inputs::min_size;
use super::{Config, Rng};
use crate::{
    Fact, Graph, GraphBuilder, Op, Output, Pw, Role, Shape, SymbolInfo, Target, Value, ops,
};
use kiln_base::{DType, Dim, Kind, Loc, Scalar, Sym};

/// The largest value that a symbol gets.
pub(super) const MAX_SYMBOL: i64 = 6;
/// The maximum number of elements of a tensor.
const MAX_ELEMENTS: i64 = 2000;
/// Float magnitudes above this are brought down.
const TAME: f64 = 64.0;

/// The known properties of a value's elements.
#[derive(Copy, Clone, Debug)]
pub(super) struct Meta {
    /// Floats are at most this large (unless the inputs have NaN or infinities).
    pub size: f64,
    /// True if every correct engine computes exactly the same.
    pub exact: bool,
}

impl Meta {
    /// Floats up to this size that engines may round differently.
    pub const fn inexact(size: f64) -> Meta {
        Meta { size, exact: false }
    }

    /// Numbers up to this size that every engine computes exactly.
    pub const fn exact(size: f64) -> Meta {
        Meta { size, exact: true }
    }

    /// Any numbers of an integer dtype.
    pub fn integer(dtype: DType) -> Meta {
        let (low, high) = dtype.int_range().unwrap_or((0, 0));
        Meta::exact(high.max(-low) as f64)
    }
}

pub(super) struct Generator {
    pub rng: Rng,
    pub graph: Graph,
    pub config: Config,
    /// Indexed by node; all outputs of a node share one entry.
    meta: Vec<Meta>,
}

impl Generator {
    pub fn new(config: Config, seed: u64) -> Generator {
        Generator {
            rng: Rng::new(seed),
            graph: Graph::default(),
            config,
            meta: vec![],
        }
    }

    pub fn run(mut self, seed: u64) -> Graph {
        self.start();
        let (min, max) = (self.config.min_nodes, self.config.max_nodes.max(1));
        let count = min + self.rng.below(max.saturating_sub(min) + 1);
        // Every step adds nodes with overwhelming probability; the bound is for odd configurations.
        for _ in 0..count * 50 {
            if self.graph.len() >= count {
                break;
            }
            match self.rng.below(20) {
                0..10 => self.random_pointwise(),
                10..18 => self.random_structured(),
                _ => self.random_pattern(),
            };
        }
        self.corners(seed);
        self.choose_outputs();
        self.graph
    }

    /// The first input, whose sizes are all the symbols.
    fn start(&mut self) {
        let mut shape = Shape::new();
        if self.config.symbolic && self.rng.chance(0.3) {
            for i in 0..1 + self.rng.below(2) as u32 {
                let name = ["batch", "length"][i as usize].to_string();
                let min = 2 + self.rng.below(2) as i64;
                self.graph.symbols.push(SymbolInfo { name, min });
                shape.push(Dim::symbol(Sym(i)));
            }
        }
        shape.push(Dim::Const(self.rng.one([1, 2, 3, 4, 5, 7, 8, 16])));
        self.input(DType::F32, &shape, Role::Data);
    }

    // ---- values ----

    pub fn meta(&self, v: Value) -> Meta {
        self.meta[v.node.index()]
    }

    pub fn fact(&self, v: Value) -> Fact {
        self.graph.fact(v).clone()
    }

    /// Appends an op if it applies and its results have a moderate size.
    pub fn emit(&mut self, op: impl Into<Op>, inputs: &[Value], meta: Meta) -> Option<Value> {
        let op = op.into();
        let facts: Vec<&Fact> = inputs.iter().map(|v| self.graph.fact(*v)).collect();
        let results = op.infer(&facts).ok()?;
        let max_symbols = vec![MAX_SYMBOL; self.graph.symbols.len()];
        let is_legal = |f: &Fact| {
            let n = f.numel().eval_checked(&max_symbols);
            // A window must fit under every binding.
            let is_nonempty = |d: &Dim| d.as_const().is_some() || min_size(&self.graph, d) >= 1;
            f.rank() <= 5 && n.is_some_and(|n| n <= MAX_ELEMENTS) && f.shape.iter().all(is_nonempty)
        };
        if !results.iter().all(is_legal) {
            return None;
        }
        let line = self.graph.len() as u32 + 1;
        let loc = Loc::new("fuzz.rs", line, 1);
        let id = self.graph.add(op, inputs, loc).ok()?;
        self.meta.push(meta);
        Some(id.value())
    }

    pub fn input(&mut self, dtype: DType, shape: &[Dim], role: Role) -> Value {
        let fact = Fact::new(dtype, shape.iter().cloned());
        let value = GraphBuilder::new(&mut self.graph, Loc::UNKNOWN).input(fact, role);
        self.meta.push(match dtype.is_float() {
            true => Meta::exact(4.0),
            false => Meta::integer(dtype),
        });
        value
    }

    /// A parameter or data.
    pub fn role(&mut self) -> Role {
        self.rng.one([Role::Data, Role::Parameter])
    }

    pub fn full(&mut self, value: impl Into<Scalar>, dtype: DType, shape: &[Dim]) -> Option<Value> {
        let value = value.into().cast(dtype);
        let meta = Meta::exact(value.as_f64().abs());
        let shape = Shape::from(shape);
        self.emit(
            ops::Full {
                value,
                dtype,
                shape,
            },
            &[],
            meta,
        )
    }

    /// A dtype to compute in; f32 more often than others.
    pub fn dtype(&mut self, fits: impl Fn(DType) -> bool) -> Option<DType> {
        if fits(DType::F32) && self.rng.chance(0.25) {
            return Some(DType::F32);
        }
        let dtypes: Vec<DType> = DType::ALL.into_iter().filter(|d| fits(*d)).collect();
        self.rng.pick(&dtypes).copied()
    }

    /// A shape of known dims, or one with symbols.
    pub fn shape(&mut self) -> Shape {
        let rank = self.rng.one([0, 1, 1, 2, 2, 2, 3, 3, 4, 5]);
        let mut shape = Shape::new();
        for _ in 0..rank {
            let symbol = self.rng.below(8);
            let dim = match self.rng.below(30) {
                0 => 0,
                1..5 => 1,
                _ if rank > 3 => self.rng.one([1, 2, 2, 3, 4]),
                _ => self.rng.one([2, 3, 4, 5, 7, 8, 11, 13, 16, 17]),
            };
            shape.push(if symbol < self.graph.symbols.len() {
                Dim::symbol(Sym(symbol as u32))
            } else {
                Dim::Const(dim)
            });
        }
        let symbols = vec![MAX_SYMBOL; self.graph.symbols.len()];
        while kiln_base::numel(&shape)
            .eval_checked(&symbols)
            .is_none_or(|n| n > MAX_ELEMENTS)
        {
            shape.pop();
        }
        shape
    }

    /// Some value, later ones more often.
    pub fn any(&mut self, fits: impl Fn(&Fact, Meta) -> bool) -> Option<Value> {
        let candidates: Vec<Value> = self
            .graph
            .ids()
            .map(|id| id.value())
            .filter(|v| fits(self.graph.fact(*v), self.meta(*v)))
            .collect();
        let (a, b) = (
            self.rng.below(candidates.len()),
            self.rng.below(candidates.len()),
        );
        candidates.get(a.max(b)).copied()
    }

    /// A value of a dtype.
    pub fn of_dtype(&mut self, dtype: DType) -> Option<Value> {
        if self.rng.chance(0.9)
            && let Some(v) = self.any(|f, _| f.dtype == dtype)
        {
            return Some(v);
        }
        if self.rng.chance(0.5)
            && let Some(v) = self
                .any(|f, m| f.dtype.computes() && f.dtype != dtype && (m.exact || dtype.is_float()))
            && let Some(v) = self.cast(v, dtype)
        {
            return Some(v);
        }
        let (shape, role) = (self.shape(), self.role());
        Some(self.input(dtype, &shape, role))
    }

    /// A value of a dtype that is exactly known.
    pub fn exact(&mut self, dtype: DType) -> Option<Value> {
        let fits = |f: &Fact, m: Meta| f.dtype == dtype && m.exact && m.size <= 1e4;
        if self.rng.chance(0.9)
            && let Some(v) = self.any(fits)
        {
            return Some(v);
        }
        let (shape, role) = (self.shape(), self.role());
        Some(self.input(dtype, &shape, role))
    }

    /// A value that broadcasts with `shape` without growing it, exactly known if `exact`.
    pub fn like(&mut self, dtype: DType, shape: &[Dim], exact: bool) -> Option<Value> {
        let is_like = |f: &Fact, m: Meta| {
            f.dtype == dtype
                && (m.exact || !exact)
                && crate::broadcast_shapes([&f.shape[..], shape]).is_some_and(|s| s[..] == *shape)
        };
        match self.rng.below(10) {
            0..6 => {
                if let Some(v) = self.any(is_like) {
                    return Some(v);
                }
            }
            6 => {
                let value = self.rng.one([0.0, 1.0, -1.0, 2.0, 0.5, 3.0]);
                return self.full(value, dtype, &[]);
            }
            _ => {}
        }
        // A new input, with some dims of size 1.
        let mut new_shape = Shape::from(shape);
        for d in &mut new_shape {
            if self.rng.chance(0.2) {
                *d = Dim::ONE;
            }
        }
        while self.rng.chance(0.2) && new_shape.len() > 1 {
            new_shape.remove(0);
        }
        let role = self.role();
        Some(self.input(dtype, &new_shape, role))
    }

    // ---- steps that several generators take ----

    /// Stretches operands to one shape and applies a row.
    pub fn row(&mut self, row: Pw, inputs: &[Value], meta: Meta) -> Option<Value> {
        let facts: Vec<Fact> = inputs.iter().map(|v| self.fact(*v)).collect();
        let shape = crate::broadcast_shapes(facts.iter().map(|f| &f.shape[..]))?;
        let mut operands = vec![];
        for (v, f) in inputs.iter().zip(&facts) {
            operands.push(if f.shape == shape {
                *v
            } else {
                let op = ops::Broadcast {
                    shape: shape.clone(),
                };
                self.emit(op, &[*v], self.meta(*v))?
            });
        }
        self.emit(ops::Pointwise(row), &operands, meta)
    }

    /// A row with a number on its right.
    pub fn row_with(&mut self, row: Pw, v: Value, number: f64, meta: Meta) -> Option<Value> {
        let dtype = self.fact(v).dtype;
        let number = self.full(number, dtype, &[])?;
        self.row(row, &[v, number], meta)
    }

    /// The value within ±limit.
    pub fn clamp(&mut self, v: Value, limit: f64) -> Option<Value> {
        let Meta { size, exact } = self.meta(v);
        if size <= limit {
            return Some(v);
        }
        let dtype = self.fact(v).dtype;
        let low = if matches!(dtype, DType::U8) {
            0.0
        } else {
            -limit
        };
        let (low, high) = (self.full(low, dtype, &[])?, self.full(limit, dtype, &[])?);
        let meta = Meta { size: limit, exact };
        self.row(Pw::Clamp, &[v, low, high], meta)
    }

    /// A float brought down to a moderate magnitude.
    pub fn tame(&mut self, v: Value) -> Option<Value> {
        let size = self.meta(v).size;
        if size <= TAME || !self.fact(v).dtype.is_float() {
            return Some(v);
        }
        match self.rng.below(4) {
            0 if size < 1e3 => {
                let meta = Meta::inexact(1.0);
                self.row(Pw::Tanh, &[v], meta)
            }
            1 if size < 1e3 => {
                let meta = Meta::inexact(size / 64.0);
                self.row_with(Pw::Mul, v, 1.0 / 64.0, meta)
            }
            _ => self.clamp(v, 4.0),
        }
    }

    /// A cast; floats that are not exact can't become integers.
    pub fn cast(&mut self, v: Value, dtype: DType) -> Option<Value> {
        let from = self.fact(v).dtype;
        let mut v = v;
        let large = self.meta(v).size > 255.0 && (from.is_int() || dtype.float8().is_some());
        if dtype.is_float() && large && from.computes() {
            v = self.clamp(v, 100.0)?;
        }
        let Meta { size, exact } = self.meta(v);
        let meta = match (from.kind(), dtype.kind()) {
            (Kind::Float, Kind::Float) => Meta {
                size,
                exact: exact
                    && (dtype == DType::F64 || (dtype == DType::F32 && from != DType::F64)),
            },
            (_, Kind::Float) => Meta {
                size,
                exact: size < dtype.float().map_or(0.0, |f| 2f64.powi(f.digits.min(8))),
            },
            (Kind::Float, _) if !exact => return None,
            _ => Meta::integer(dtype),
        };
        let cast = self.emit(ops::Cast::to(dtype), &[v], meta)?;
        self.tame(cast)
    }

    // ---- outputs ----

    fn choose_outputs(&mut self) {
        let cells: Vec<(u32, Value)> = self
            .graph
            .iter()
            .filter_map(|(id, n)| match &n.op {
                Op::Input(op) if op.role == Role::Parameter && op.fact.dtype.is_float() => {
                    Some((op.index, id.value()))
                }
                _ => None,
            })
            .collect();
        let mut outputs = vec![];
        if self.rng.chance(0.3)
            && let Some((index, cell)) = self.rng.pick(&cells).copied()
            && let Some(value) = self.update(cell)
        {
            let target = Target::Assign(index);
            outputs.push(Output { value, target });
        }
        let mut leaves: Vec<Value> = vec![];
        for (id, users) in self.graph.users().iter().enumerate() {
            let id = crate::NodeId(id as u32);
            let is_input = matches!(self.graph.node(id).op, Op::Input(_));
            if users.is_empty() && !is_input && !outputs.iter().any(|o| o.value.node == id) {
                let count = self.graph.node(id).facts.len() as u32;
                leaves.extend((0..count).map(|output| Value { node: id, output }));
            }
        }
        let max_leaves = 1 + self.rng.below(8);
        while leaves.len() > max_leaves {
            leaves.remove(self.rng.below(leaves.len()));
        }
        let results = leaves.into_iter().map(|value| Output {
            value,
            target: Target::Result,
        });
        outputs.extend(results);
        for target in [Target::Result, Target::Kept] {
            if outputs.is_empty() || self.rng.chance(0.5) {
                let value = self.any(|_, _| true);
                outputs.extend(value.map(|value| Output { value, target }));
            }
        }
        self.graph.outputs = outputs;
    }

    /// The new value that an optimiser would assign to a cell.
    fn update(&mut self, cell: Value) -> Option<Value> {
        let meta = self.meta(cell);
        let fact = self.fact(cell);
        let step = self.like(fact.dtype, &fact.shape, false)?;
        let inexact = Meta::inexact(meta.size + self.meta(step).size);
        let step = self.row_with(Pw::Mul, step, 0.0625, inexact)?;
        self.row(Pw::Sub, &[cell, step], inexact)
    }
}
