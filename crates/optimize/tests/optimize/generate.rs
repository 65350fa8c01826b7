//! Random graphs with the patterns that the rules look for planted in them.

use crate::planted;
use crate::rng::{Rng, loc, shape_of};
use kiln_base::prim::{RandomKind, Reduction};
use kiln_ir::eval::Array;
use kiln_ir::ops::{self, SliceAxis};
use kiln_ir::{
    Builder, DType, Dim, Fact, Graph, GraphBuilder, Op, Output, Pw, Role, Target, Value,
};

/// A step: adds nodes, and returns a value that others may read.
pub type Step = fn(&mut Generator) -> Option<Value>;

/// A graph of up to some twenty nodes.
pub fn random_graph(seed: u64) -> Graph {
    let steps: Vec<Step> = STEPS.iter().chain(planted::STEPS).copied().collect();
    random_graph_of(seed, &steps)
}

/// A graph of these steps.
pub fn random_graph_of(seed: u64, steps: &[Step]) -> Graph {
    let mut rng = Rng::new(seed);
    let mut g = Generator {
        graph: Graph::default(),
        values: vec![],
        rng: Rng::new(seed ^ 0xABCD),
    };
    g.inputs();
    for _ in 0..4 + rng.below(10) {
        g.step(steps);
    }
    g.outputs();
    g.graph
}

/// A graph in the making.
pub struct Generator {
    pub graph: Graph,
    pub values: Vec<Value>,
    pub rng: Rng,
}

/// The ops that a step draws from.
const STEPS: &[Step] = &[
    Generator::unary,
    Generator::binary,
    Generator::binary,
    Generator::select,
    Generator::with_number,
    Generator::with_number,
    Generator::cast,
    Generator::cast,
    Generator::reshape,
    Generator::reshape,
    Generator::permute,
    Generator::permute,
    Generator::broadcast,
    Generator::broadcast,
    Generator::slice,
    Generator::pad,
    Generator::concat,
    Generator::reduce,
    Generator::reduce_twice,
    Generator::numbers,
    Generator::numbers,
    Generator::gather,
    Generator::repeat_node,
    Generator::repeat_node,
    Generator::full,
    Generator::full,
    Generator::constant,
    Generator::random_numbers,
    Generator::repeat_body,
];

impl Generator {
    pub fn b(&mut self) -> GraphBuilder<'_> {
        let line = self.graph.len() as u32 + 1;
        GraphBuilder::new(&mut self.graph, loc(line))
    }

    pub fn emit(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Option<Value> {
        self.b().op(op, inputs).ok()
    }

    fn inputs(&mut self) {
        for (dtype, shape, role) in [
            (DType::F32, vec![2, 3], Role::Data),
            (DType::F32, vec![2, 2, 3], Role::Data),
            (DType::F32, vec![3], Role::Parameter),
            (DType::I64, vec![2, 3], Role::Data),
            (DType::I64, vec![2], Role::RandomKey),
        ] {
            let v = self.b().input(Fact::new(dtype, shape), role);
            self.values.push(v);
        }
    }

    fn step(&mut self, steps: &[Step]) {
        let step = self.rng.pick(steps);
        if let Some(v) = step(self) {
            let n: usize = shape_of(&self.graph, v).iter().product();
            if n <= 256 {
                self.values.push(v);
            }
        }
    }

    fn outputs(&mut self) {
        let wanted = 1 + self.rng.below(4);
        for i in 0..wanted {
            // The last values more often, so that more of the graph is alive.
            let recent = self.values.len() - self.rng.below(self.values.len().min(4)) - 1;
            let value = if self.rng.coin(70) {
                self.values[recent]
            } else {
                self.any()
            };
            let same_fact = (self.graph.inputs().into_iter().enumerate())
                .find(|(_, id)| self.graph.fact(id.value()) == self.graph.fact(value));
            let taken = |t: Target| self.graph.outputs.iter().any(|o| o.target == t);
            let target = match same_fact {
                Some((index, _)) if i > 0 && !taken(Target::Assign(index as u32)) => {
                    Target::Assign(index as u32)
                }
                _ if i > 0 && self.rng.coin(40) => Target::Kept,
                _ => Target::Result,
            };
            self.graph.outputs.push(Output { value, target });
        }
    }

    pub fn any(&mut self) -> Value {
        let at = self.rng.below(self.values.len());
        self.values[at]
    }

    pub fn any_of(&mut self, dtype: DType) -> Value {
        let of: Vec<Value> = (self.values.iter().copied())
            .filter(|v| self.graph.fact(*v).dtype == dtype)
            .collect();
        self.rng.pick(&of)
    }

    /// A value with the dtype of `like` that broadcasts with it.
    pub fn partner(&mut self, like: Value) -> Value {
        let fact = self.graph.fact(like).clone();
        let fits: Vec<Value> = (self.values.iter().copied())
            .filter(|v| {
                let other = self.graph.fact(*v);
                other.dtype == fact.dtype
                    && kiln_ir::broadcast_shapes([&other.shape[..], &fact.shape[..]]).is_some()
            })
            .collect();
        self.rng.pick(&fits)
    }

    fn unary(&mut self) -> Option<Value> {
        let x = self.any();
        let op = self
            .rng
            .pick(&[Pw::Neg, Pw::Exp, Pw::Relu, Pw::Abs, Pw::Sigmoid, Pw::Floor]);
        self.b().pointwise(op, &[x]).ok()
    }

    fn binary(&mut self) -> Option<Value> {
        let a = self.any();
        let b = self.partner(a);
        let op = self.rng.pick(&[
            Pw::Add,
            Pw::Sub,
            Pw::Mul,
            Pw::Mul,
            Pw::Div,
            Pw::Maximum,
            Pw::Lt,
            Pw::Eq,
        ]);
        let v = self.b().pointwise(op, &[a, b]).ok()?;
        if self.rng.coin(30) {
            self.values.push(v);
            return self.b().pointwise(op, &[b, a]).ok();
        }
        Some(v)
    }

    /// Arithmetic with one of the numbers of algebraic identities.
    fn with_number(&mut self) -> Option<Value> {
        let x = self.any_of(DType::F32);
        let number = self.rng.pick(&[0.0, -0.0, 1.0, 2.0, f64::INFINITY]);
        let number = self.b().scalar_like(number, &x).ok()?;
        let op = self
            .rng
            .pick(&[Pw::Add, Pw::Mul, Pw::Mul, Pw::Div, Pw::Pow, Pw::Maximum]);
        self.b().pointwise(op, &[x, number]).ok()
    }

    fn select(&mut self) -> Option<Value> {
        let a = self.any_of(DType::F32);
        let b = self.partner(a);
        let mask = self.b().pointwise(Pw::Lt, &[a, b]).ok()?;
        self.b().pointwise(Pw::Select, &[mask, a, b]).ok()
    }

    fn cast(&mut self) -> Option<Value> {
        let x = self.any();
        let same = self.graph.fact(x).dtype;
        let dtype = self.rng.pick(&[
            same,
            DType::F32,
            DType::I64,
            DType::U8,
            DType::BF16,
            DType::F64,
            DType::U64,
        ]);
        let v = self.emit(ops::Cast::to(dtype), &[x])?;
        if self.rng.coin(30) {
            self.values.push(v);
            return self.emit(ops::Cast::to(same), &[v]);
        }
        Some(v)
    }

    pub fn reshape(&mut self) -> Option<Value> {
        let x = self.any();
        let n: usize = shape_of(&self.graph, x).iter().product();
        let shapes = [
            vec![n],
            vec![1, n],
            vec![n, 1],
            vec![2, n / 2],
            vec![n / 3, 3],
        ];
        let to = self.rng.pick(&shapes);
        let shape = to.into_iter().map(Dim::from).collect();
        let v = self.emit(ops::Reshape { shape }, &[x])?;
        if self.rng.coin(40) {
            self.values.push(v);
            return self.b().reshape(&v, &[Dim::ONE, n.into(), Dim::ONE]).ok();
        }
        Some(v)
    }

    pub fn permute(&mut self) -> Option<Value> {
        let mut x = self.any();
        for _ in 0..1 + self.rng.below(2) {
            let mut perm: Vec<usize> = (0..self.graph.fact(x).rank()).collect();
            for i in (1..perm.len()).rev() {
                perm.swap(i, self.rng.below(i + 1));
            }
            let perm = perm.into_iter().collect();
            x = self.emit(ops::Permute { perm }, &[x])?;
        }
        Some(x)
    }

    pub fn broadcast(&mut self) -> Option<Value> {
        let mut x = self.any();
        for _ in 0..1 + self.rng.below(2) {
            let mut shape = self.graph.fact(x).shape.clone();
            for d in shape.iter_mut().filter(|d| d.is(1)) {
                *d = Dim::from(1 + self.rng.below(2));
            }
            if self.rng.coin(60) && shape.len() < 4 {
                shape.insert(0, Dim::from(1 + self.rng.below(2)));
            }
            x = self.emit(ops::Broadcast { shape }, &[x])?;
        }
        Some(x)
    }

    pub fn slice(&mut self) -> Option<Value> {
        let x = self.any();
        let extents = shape_of(&self.graph, x);
        let style = self.rng.below(3);
        let axes = extents.iter().map(|&e| match style {
            0 => SliceAxis::all(&e.into()),
            1 if e > 0 => SliceAxis {
                start: Dim::from(e - 1),
                len: e.into(),
                step: -1,
            },
            _ if e > 1 => SliceAxis {
                start: Dim::ONE,
                len: Dim::from(e - 1),
                step: 1,
            },
            _ => SliceAxis::all(&e.into()),
        });
        let axes = axes.collect();
        let v = self.emit(ops::Slice { axes }, &[x])?;
        if self.rng.coin(50) {
            self.values.push(v);
            let n: usize = shape_of(&self.graph, v).iter().product();
            return self.b().reshape(&v, &[Dim::from(n)]).ok();
        }
        Some(v)
    }

    fn pad(&mut self) -> Option<Value> {
        let x = self.any();
        let most = self.rng.below(2) + 1;
        let rank = self.graph.fact(x).rank();
        let low = (0..rank).map(|_| Dim::from(self.rng.below(most))).collect();
        let high = (0..rank).map(|_| Dim::from(self.rng.below(most))).collect();
        let value = match self.graph.node(x.node).op {
            Op::Full(ref f) if self.rng.coin(50) => f.value,
            _ => kiln_base::Scalar::Int(1).cast(self.graph.fact(x).dtype),
        };
        self.emit(ops::Pad { low, high, value }, &[x])
    }

    fn concat(&mut self) -> Option<Value> {
        let x = self.any();
        let times = 1 + self.rng.below(2);
        self.emit(ops::Concat { axis: 0 }, &vec![x; times])
    }

    pub fn reduce(&mut self) -> Option<Value> {
        let x = self.any();
        let rank = self.graph.fact(x).rank();
        let kind = self
            .rng
            .pick(&[Reduction::Sum, Reduction::Max, Reduction::Min]);
        let axes = (0..rank).filter(|_| self.rng.coin(50)).collect();
        self.emit(ops::Reduce { kind, axes }, &[x])
    }

    /// The same reduction of the same operand, but of another kind.
    fn reduce_twice(&mut self) -> Option<Value> {
        let x = self.any();
        let axes: ops::Axes = (0..self.graph.fact(x).rank()).collect();
        let kind = Reduction::Max;
        let v = self.emit(
            ops::Reduce {
                kind,
                axes: axes.clone(),
            },
            &[x],
        )?;
        self.values.push(v);
        let kind = Reduction::Min;
        self.emit(ops::Reduce { kind, axes }, &[x])
    }

    /// Arithmetic on two numbers.
    fn numbers(&mut self) -> Option<Value> {
        let dtype = self
            .rng
            .pick(&[DType::F32, DType::F32, DType::BF16, DType::F16]);
        let (x, y) = (self.rng.float(), self.rng.float());
        let x = self.b().full(x, dtype, &[]).ok()?;
        let y = self.b().full(y, dtype, &[]).ok()?;
        let op = self.rng.pick(&[Pw::Add, Pw::Mul, Pw::Div, Pw::Pow]);
        let z = self.b().pointwise(op, &[x, y]).ok()?;
        self.values.push(z);
        let x = self.any_of(DType::F32);
        let z = self.b().cast(&z, DType::F32).ok()?;
        self.b().pointwise(Pw::Add, &[x, z]).ok()
    }

    /// Indices come from data, from iota (in range) or from a constant (sometimes out of range).
    fn gather(&mut self) -> Option<Value> {
        let x = self.any_of(DType::F32);
        let extents = shape_of(&self.graph, x);
        if extents.len() != 1 || extents[0] == 0 {
            return None;
        }
        let index = match self.rng.below(3) {
            0 => self
                .b()
                .op(
                    ops::Iota {
                        len: Dim::from(extents[0]),
                    },
                    &[],
                )
                .ok()?,
            1 => self
                .b()
                .full(extents[0] as i64 - 1, DType::I64, &[Dim::from(2)])
                .ok()?,
            _ => self
                .b()
                .full(extents[0] as i64, DType::I64, &[Dim::from(2)])
                .ok()?,
        };
        self.emit(ops::Gather { axis: 0 }, &[x, index])
    }

    /// An existing node, repeated.
    pub fn repeat_node(&mut self) -> Option<Value> {
        let at = kiln_ir::NodeId(self.rng.below(self.graph.len()) as u32);
        let node = self.graph.node(at).clone();
        if matches!(node.op, Op::Input(_)) {
            return None;
        }
        self.emit(node.op, &node.inputs)
    }

    fn full(&mut self) -> Option<Value> {
        let dtype = self
            .rng
            .pick(&[DType::F32, DType::F32, DType::I64, DType::BF16, DType::Bool]);
        let value = if dtype.is_float() {
            kiln_base::Scalar::Float(self.rng.float())
        } else {
            kiln_base::Scalar::Int(self.rng.below(5) as i64 - 1)
        };
        let shapes = [vec![], vec![3], vec![2, 3], vec![2, 1]];
        let shape: Vec<Dim> = (self.rng.pick(&shapes).into_iter())
            .map(Dim::from)
            .collect();
        self.b().full(value, dtype, &shape).ok()
    }

    fn constant(&mut self) -> Option<Value> {
        let (n, dtype) = (
            2 + self.rng.below(2),
            self.rng.pick(&[DType::F32, DType::I64]),
        );
        if self.rng.coin(30) {
            return self.emit(ops::Iota { len: Dim::from(n) }, &[]);
        }
        let values: Vec<f64> = (0..n).map(|_| self.rng.float()).collect();
        let array = Array::from_f64(dtype, &[n], &values).ok()?;
        let op = ops::Constant {
            dtype,
            shape: vec![n],
            bytes: array.to_bytes().into(),
        };
        self.emit(op, &[])
    }

    fn random_numbers(&mut self) -> Option<Value> {
        let key = self.graph.inputs()[4].value();
        let op = ops::Random {
            kind: RandomKind::Uniform,
            dtype: DType::F32,
            shape: [Dim::from(2), Dim::from(3)].into_iter().collect(),
        };
        self.emit(op, &[key])
    }

    /// A loop whose body holds work for the rules.
    fn repeat_body(&mut self) -> Option<Value> {
        let x = self.any_of(DType::F32);
        let mut body = Graph::default();
        let mut b = GraphBuilder::new(&mut body, loc(1000));
        b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
        let carried = b.input(self.graph.fact(x).clone(), Role::Data);
        let one = b.pointwise(Pw::Tanh, &[carried]).ok()?;
        let two = b.pointwise(Pw::Tanh, &[carried]).ok()?;
        let sum = b.pointwise(Pw::Add, &[one, two]).ok()?;
        let half = b.scalar_like(0.5, &sum).ok()?;
        let quarter = b.pointwise(Pw::Mul, &[half, half]).ok()?;
        let next = b.pointwise(Pw::Mul, &[sum, quarter]).ok()?;
        // Carried and, by some loops, stacked twice.
        let stacked = self.rng.below(2);
        (0..1 + 2 * stacked).for_each(|_| body.add_output(next));
        let trips = self.rng.below(3).max(stacked);
        let op = ops::Loop {
            carried: 1,
            ..ops::Loop::repeat(Dim::from(trips), body)
        };
        let outputs = self.b().emit(op.into(), &[x]).ok()?;
        match outputs[..] {
            [last] => Some(last),
            [_, one, two] => self.b().pointwise(Pw::Add, &[one, two]).ok(),
            _ => None,
        }
    }
}
