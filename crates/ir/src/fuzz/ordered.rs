//! Random scans, sorts, scatters and attention.

use super::generate::{Generator, Meta};
use super::inputs::min_size;
use crate::ops;
use crate::{Fact, Role, Shape, Value};
use kiln_base::prim::{ScanKind, ScatterKind};
use kiln_base::{DType, Dim, Scalar};

impl Generator {
    pub fn random_scan(&mut self) -> Option<Value> {
        let is_scannable =
            |f: &Fact, _| f.dtype.computes() && f.dtype != DType::Bool && f.rank() >= 1;
        let mut v = self.any(is_scannable)?;
        let Fact { dtype, shape } = self.fact(v);
        let is_float = dtype.is_float();
        let kind = *self.rng.pick(ScanKind::ALL)?;
        if kind == ScanKind::LogSumExp && !is_float {
            return None;
        }
        if kind == ScanKind::Prod && is_float {
            v = self.clamp(v, 1.0)?;
        }
        let axis = self.rng.below(shape.len());
        let Meta { size, exact } = self.meta(v);
        let size = match kind {
            ScanKind::Sum if is_float => size * self.count(v, &[axis]).max(1.0),
            ScanKind::LogSumExp => size + 8.0,
            _ => size,
        };
        let selects = matches!(kind, ScanKind::Max | ScanKind::Min);
        let meta = Meta {
            size,
            exact: !is_float || exact && selects,
        };
        let reverse = self.rng.chance(0.4);
        let op = ops::Scan {
            kind,
            axis,
            reverse,
        };
        let y = self.emit(op, &[v], meta)?;
        self.tame(y)
    }

    pub fn random_arg_sort(&mut self) -> Option<Value> {
        let v = self.any(|f, m| f.dtype.computes() && f.rank() >= 1 && m.exact)?;
        let shape = self.fact(v).shape;
        let axis = self.rng.below(shape.len());
        let max_first = min_size(&self.graph, &shape[axis]);
        let has_first = self.rng.chance(0.5);
        let op = ops::ArgSort {
            axis,
            descending: self.rng.chance(0.5),
            first: has_first.then(|| Dim::Const(self.rng.range(0, max_first))),
        };
        let order = self.emit(op, &[v], Meta::integer(DType::I64))?;
        if self.rng.chance(0.5) && max_first > 0 {
            self.emit(ops::Gather { axis }, &[v, order], self.meta(v))?;
        }
        Some(order)
    }

    pub fn random_scatter(&mut self) -> Option<Value> {
        let mut x = self.any(|f, _| f.rank() >= 1)?;
        let Fact { dtype, shape } = self.fact(x);
        let axis = self.rng.below(shape.len());
        let bound = min_size(&self.graph, &shape[axis]);
        if bound == 0 {
            return None;
        }
        let kind = match *self.rng.pick(ScatterKind::ALL)? {
            _ if !dtype.computes() => ScatterKind::Set,
            ScatterKind::Sum | ScatterKind::Prod if dtype == DType::Bool => ScatterKind::Max,
            kind => kind,
        };
        let is_float = dtype.is_float();
        let index_shape = self.index_shape(shape, axis);
        let index = self.index(&index_shape, bound)?;
        let mut src = self.like(dtype, &index_shape, false)?;
        if self.fact(src).shape != index_shape {
            let op = ops::Broadcast {
                shape: index_shape.clone(),
            };
            src = self.emit(op, &[src], self.meta(src))?;
        }
        if kind == ScatterKind::Prod && is_float {
            (x, src) = (self.clamp(x, 1.0)?, self.clamp(src, 1.0)?);
        }
        let (a, b) = (self.meta(x), self.meta(src));
        let size = match kind {
            ScatterKind::Sum if is_float => a.size + b.size * self.count(src, &[axis]).max(1.0),
            _ => a.size.max(b.size),
        };
        let selects = !matches!(kind, ScatterKind::Sum | ScatterKind::Prod);
        let meta = Meta {
            size,
            exact: !is_float || a.exact && b.exact && selects,
        };
        let y = self.emit(ops::Scatter { axis, kind }, &[x, index, src], meta)?;
        self.tame(y)
    }

    pub fn random_attention(&mut self) -> Option<Value> {
        let query = self.any(|f, m| {
            f.dtype.is_float() && f.dtype.computes() && f.rank() >= 2 && m.size <= 64.0
        })?;
        let Fact { dtype, shape } = self.fact(query);
        let r = shape.len();
        let (l, e) = (shape[r - 2].clone(), shape[r - 1].clone());
        let s = match self.rng.below(3) {
            0 => l.clone(),
            _ => Dim::Const(self.rng.range(1, 6)),
        };
        let operand_like = |this: &mut Generator, rows: &Dim, columns: &Dim, dtype| {
            let mut shape_of = Shape::from(&shape[..r - 2]);
            shape_of.extend([rows.clone(), columns.clone()]);
            let v = this.like(dtype, &shape_of, true)?;
            if this.fact(v).shape == shape_of {
                return Some(v);
            }
            let op = ops::Broadcast { shape: shape_of };
            this.emit(op, &[v], this.meta(v))
        };
        // A steep softmax would blow rounding errors up.
        let query = self.clamp(query, 2.0)?;
        let key = operand_like(self, &s, &e, dtype)?;
        let key = self.clamp(key, 2.0)?;
        let width = Dim::Const(self.rng.range(1, 5));
        let value = operand_like(self, &s, &width, dtype)?;
        let mut operands = vec![query, key, value];
        if self.rng.chance(0.5) {
            let dtype = self.rng.one([DType::Bool, dtype]);
            let mask = operand_like(self, &l, &s, dtype)?;
            operands.push(if dtype == DType::Bool {
                mask
            } else {
                self.clamp(mask, 4.0)?
            });
        }
        let drops = self.rng.chance(0.3);
        if drops {
            operands.push(self.input(DType::I64, &[Dim::Const(2)], Role::RandomKey));
        }
        let size = self.meta(value).size;
        let p = self.rng.one([0.1, 0.5, 1.0]);
        let op = ops::Attention {
            scale: Scalar::Float(self.rng.one([1.0, 0.5, -0.25])),
            causal: self.rng.chance(0.4),
            dropout: drops.then_some(Scalar::Float(p)),
        };
        let size = if drops { size * 2.0 } else { size };
        if self.rng.chance(0.6) {
            return self.emit(op, &operands, Meta::inexact(size));
        }
        let gradient = operand_like(self, &l, &width, dtype)?;
        operands.insert(3, self.clamp(gradient, 2.0)?);
        let op = ops::AttentionGrad { of: op };
        let size = size.max(1.0) * 64.0;
        let packed = self.emit(op, &operands, Meta::inexact(size))?;
        self.tame(packed)
    }
}
