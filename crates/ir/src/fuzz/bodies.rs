//! Random ops that own graphs.

use super::generate::{Generator, Meta};
use crate::{Builder, Fact, Graph, GraphBuilder, Pw, Role, Value, ops};
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim, Loc};
use std::sync::Arc;

impl Generator {
    /// A graph of the program's symbols.
    pub fn body(
        &self,
        build: impl FnOnce(&mut GraphBuilder<'_>) -> Option<Vec<Value>>,
    ) -> Option<Arc<Graph>> {
        let mut graph = Graph::default();
        graph.symbols = self.graph.symbols.clone();
        let outputs = build(&mut GraphBuilder::new(&mut graph, Loc::UNKNOWN))?;
        outputs.into_iter().for_each(|v| graph.add_output(v));
        Some(Arc::new(graph))
    }

    pub fn random_if(&mut self) -> Option<Value> {
        let x = self.any(|f, _| f.dtype.computes() && f.dtype != DType::Bool)?;
        let fact = self.fact(x);
        let y = self.like(fact.dtype, &fact.shape, false)?;
        let y = match self.fact(y) == fact {
            true => y,
            false => {
                let shape = fact.shape.clone();
                self.emit(ops::Broadcast { shape }, &[y], self.meta(y))?
            }
        };
        let condition = match self.any(|f, _| f.dtype == DType::Bool) {
            Some(v) if self.rng.chance(0.7) => {
                let axes = (0..self.fact(v).rank()).collect();
                self.reduce(v, Reduction::Max, axes, DType::Bool)?
            }
            _ => self.input(DType::Bool, &[], Role::Data),
        };
        let rows = [
            self.rng.one([Pw::Add, Pw::Maximum]),
            self.rng.one([Pw::Sub, Pw::Minimum]),
        ];
        let mut branches = vec![];
        for row in rows {
            branches.push(self.body(|b| {
                let x = b.input(fact.clone(), Role::Data);
                let y = b.input(fact.clone(), Role::Data);
                let z = b.pointwise(row, &[x, y]).ok()?;
                Some(vec![z, if row == Pw::Add { x } else { y }])
            })?);
        }
        let branches: [Arc<Graph>; 2] = branches.try_into().ok()?;
        let (a, b) = (self.meta(x), self.meta(y));
        let meta = Meta {
            size: a.size + b.size,
            exact: !fact.dtype.is_float(),
        };
        self.emit(ops::If { branches }, &[condition, x, y], meta)
    }

    pub fn random_loop(&mut self) -> Option<Value> {
        match self.rng.chance(0.5) {
            true => self.carrying_loop(),
            false => self.scanning_loop(),
        }
    }

    /// A loop along the first axis of a value: a running mean, and a product of each step.
    fn scanning_loop(&mut self) -> Option<Value> {
        let x = self.any(|f, _| f.dtype.computes() && f.dtype != DType::Bool && f.rank() > 0)?;
        let x = self.tame(x)?;
        let fact = self.fact(x);
        let row = Fact::new(fact.dtype, fact.shape[1..].iter().cloned());
        let first = self.full(1.0, fact.dtype, &row.shape)?;
        let weight = self.like(fact.dtype, &row.shape, true)?;
        let weight = self.tame(weight)?;
        let weight_fact = self.fact(weight);
        let detach = self.rng.chance(0.2);
        let body = self.body(|b| {
            b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
            let mean = b.input(row.clone(), Role::Data);
            let x = b.input(row.clone(), Role::Data);
            let weight = b.input(weight_fact, Role::Data);
            let mean = b.op(ops::Barrier { detach }, &[mean]).ok()?;
            let half = b
                .scalar_like(if row.dtype.is_float() { 0.5 } else { 3.0 }, &x)
                .ok()?;
            let sum = b.pointwise(Pw::Add, &[mean, x]).ok()?;
            let next = b.pointwise(Pw::Mul, &[sum, half]).ok()?;
            let weight = b.broadcast_to(&weight, &row.shape).ok()?;
            let y = b.pointwise(Pw::Mul, &[next, weight]).ok()?;
            Some(vec![next, y, mean])
        })?;
        let (size, weight_size) = (self.meta(x).size.max(1.0), self.meta(weight).size.max(1.0));
        let meta = Meta {
            size: size * weight_size,
            exact: !fact.dtype.is_float(),
        };
        let op = ops::Loop {
            trips: fact.shape[0].clone(),
            carried: 1,
            scanned: 1,
            reverse: self.rng.chance(0.5),
            conditional: false,
            body,
        };
        let results = self.emit(op, &[first, x, weight], meta)?;
        // A stacked value or a carried one.
        let output = self.rng.below(3) as u32;
        let output_value = Value { output, ..results };
        let fact = self.fact(output_value);
        let barrier_operand = self.like(fact.dtype, &fact.shape, true)?;
        let results = self.emit(
            ops::Barrier { detach: false },
            &[output_value, barrier_operand],
            self.meta(results),
        )?;
        Some(results)
    }

    /// A loop that carries everything; some end early.
    fn carrying_loop(&mut self) -> Option<Value> {
        let x = self.any(|f, _| f.dtype.computes() && f.dtype != DType::Bool)?;
        let x = self.tame(x)?;
        let fact = self.fact(x);
        let total = self.full(0.0, fact.dtype, &fact.shape)?;
        // The number of steps after which the condition is false.
        let end = self.rng.chance(0.3).then(|| self.rng.range(0, 4));
        let body = self.body(|b| {
            let step = b.input(Fact::new(DType::I64, [0i64; 0]), Role::Data);
            end.map(|_| b.input(Fact::new(DType::Bool, [0i64; 0]), Role::Data));
            let x = b.input(fact.clone(), Role::Data);
            let total = b.input(fact.clone(), Role::Data);
            let half = b
                .scalar_like(if fact.dtype.is_float() { 0.5 } else { 3.0 }, &x)
                .ok()?;
            let next = b.pointwise(Pw::Mul, &[x, half]).ok()?;
            let goes_on = match end {
                Some(end) => Some(b.with(Pw::Lt, &step, end - 1).ok()?),
                None => None,
            };
            let step = b.cast(&step, fact.dtype).ok()?;
            let shifted = b.pointwise(Pw::Add, &[next, step]).ok()?;
            let total = b.pointwise(Pw::Add, &[total, x]).ok()?;
            Some(goes_on.into_iter().chain([shifted, total]).collect())
        })?;
        let trips = match self.graph.symbols.is_empty() {
            false if self.rng.chance(0.5) => Dim::symbol(kiln_base::Sym(0)),
            _ => Dim::Const(self.rng.range(0, 4)),
        };
        let meta = Meta {
            size: 8.0 * self.meta(x).size + 64.0,
            exact: !fact.dtype.is_float(),
        };
        let Some(end) = end else {
            return self.emit(ops::Loop::repeat(trips, body), &[x, total], meta);
        };
        let condition = self.full(end > 0, DType::Bool, &[])?;
        let op = ops::Loop {
            conditional: true,
            ..ops::Loop::repeat(trips, body)
        };
        let output = self.rng.below(3) as u32;
        let results = self.emit(op, &[condition, x, total], meta)?;
        Some(Value { output, ..results })
    }
}
