//! Nodes of ops with a kernel of their own.

use super::build::{FlowBuilder, broadcast, permute};
use super::ops::Library;
use super::{Nid, Op, Rounding};
use kiln_base::prim::ScatterKind;
use kiln_base::{DType, Dim};
use kiln_ir::{OpDef, ops};
use std::sync::Arc;

impl FlowBuilder {
    /// Appends a node that an op's own kernel computes.
    pub(super) fn own_kernel(
        &mut self,
        op: &(impl Library + OpDef + 'static),
        inputs: &[Nid],
        dtype: DType,
        shape: impl IntoIterator<Item = Dim>,
    ) -> Nid {
        let op = Op::Library(op.name(), Arc::new(op.clone()));
        self.helper(op, inputs, dtype, shape)
    }

    pub(super) fn scan(&mut self, scan: &ops::Scan, x: Nid) -> Nid {
        let (dtype, shape) = (self.dtype(x), self.shape(x));
        self.own_kernel(scan, &[x], dtype, shape)
    }

    /// Appends a sort. The kernel sorts along the last axis; another axis is swapped with it and back.
    pub(super) fn arg_sort(&mut self, sort: &ops::ArgSort, x: Nid, result: &[Dim]) -> Nid {
        let (dtype, mut shape) = (self.dtype(x), self.shape(x));
        let (axis, last) = (sort.axis, shape.len() - 1);
        let mut out = shape.clone();
        out[axis] = result[axis].clone();
        if axis == last {
            return self.own_kernel(sort, &[x], DType::I64, out);
        }
        let mut perm: Vec<usize> = (0..=last).collect();
        perm.swap(axis, last);
        shape.swap(axis, last);
        out.swap(axis, last);
        let moved = self.helper(permute(&perm), &[x], dtype, shape);
        let sort = ops::ArgSort {
            axis: last,
            ..sort.clone()
        };
        let sorted = self.own_kernel(&sort, &[moved], DType::I64, out);
        let inverse = permute(&perm);
        self.helper(inverse, &[sorted], DType::I64, result.iter().cloned())
    }

    pub(super) fn scatter(&mut self, scatter: &ops::Scatter, inputs: &[Nid]) -> Nid {
        let (x, index, mut src) = (inputs[0], inputs[1], inputs[2]);
        let (dtype, shape) = (self.dtype(x), self.shape(x));
        // A scalar for all elements is stored once and broadcast.
        if matches!(self.flow.nodes[src].op, Op::Scalar(_)) {
            let number = self.flow.nodes[src].op.clone();
            let scalar = self.helper(number, &[], dtype, []);
            let dims = self.shape(src);
            src = self.helper(broadcast(&[], &dims), &[scalar], dtype, dims);
        }
        let is_half = dtype.is_half();
        if !is_half || !matches!(scatter.kind, ScatterKind::Sum | ScatterKind::Prod) {
            return self.own_kernel(scatter, &[x, index, src], dtype, shape);
        }
        let widen = |b: &mut Self, n: Nid| {
            let shape = b.shape(n);
            b.helper(Op::Cast(Rounding::Here), &[n], DType::F32, shape)
        };
        let (x, src) = (widen(self, x), widen(self, src));
        let result = self.own_kernel(scatter, &[x, index, src], DType::F32, shape.clone());
        self.helper(Op::Cast(Rounding::Stored), &[result], dtype, shape)
    }
}
