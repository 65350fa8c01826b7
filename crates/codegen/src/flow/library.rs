//! Ops that a kernel of their own computes, of operands in memory: scans, sorts, scatters, users' operators.

use super::build::{FlowBuilder, broadcast, permute};
use super::{Nid, Op};
use kiln_base::prim::ScatterKind;
use kiln_base::{DType, Dim, numel};
use kiln_ir::{OpDef, ops};
use kiln_plan::{self as plan, Array, Kernel, SiteKind, Strided};
use std::fmt::Debug;
use std::sync::Arc;

/// What all that goes on from here knows of such an op.
pub(crate) trait Library: Debug + Send + Sync {
    /// Whether the kernel reads an operand through strides, or wants it contiguous.
    fn is_strided(&self, operand: usize) -> bool {
        let _ = operand;
        false
    }

    /// Its kernel.
    fn kernel(&self, call: &Call) -> Kernel;

    /// What can go wrong, and in what.
    fn site(&self) -> Option<(&str, SiteKind)> {
        None
    }
}

/// What such a kernel is called with.
pub(crate) struct Call {
    /// The operands, ...
    pub operands: Vec<Array>,
    /// ... and where the elements lie of those that are strided.
    pub strided: Vec<Strided>,
    /// The contiguous result.
    pub out: Array,
}

impl Library for ops::Scan {
    fn kernel(&self, call: &Call) -> Kernel {
        let Array { dtype, shape, arg } = &call.out;
        Kernel::Scan(plan::Scan {
            dtype: *dtype,
            kind: self.kind,
            reverse: self.reverse,
            outer: numel(&shape[..self.axis]),
            len: shape[self.axis].clone(),
            inner: numel(&shape[self.axis + 1..]),
            x: call.operands[0].arg,
            out: *arg,
        })
    }
}

/// Along the last axis.
impl Library for ops::ArgSort {
    fn kernel(&self, call: &Call) -> Kernel {
        let (x, last) = (&call.operands[0], self.axis);
        Kernel::ArgSort(plan::ArgSort {
            dtype: x.dtype,
            descending: self.descending,
            lanes: numel(&x.shape[..last]),
            len: x.shape[last].clone(),
            kept: call.out.shape[last].clone(),
            x: x.arg,
            out: call.out.arg,
        })
    }
}

impl Library for ops::Scatter {
    fn is_strided(&self, operand: usize) -> bool {
        operand > 0
    }

    fn kernel(&self, call: &Call) -> Kernel {
        Kernel::Scatter(plan::Scatter {
            dtype: call.out.dtype,
            kind: self.kind,
            axis: self.axis as u16,
            shape: call.out.shape.clone(),
            index_shape: call.operands[1].shape.clone(),
            x: call.operands[0].arg,
            index: call.strided[1].clone(),
            src: call.strided[2].clone(),
            out: call.out.arg,
        })
    }

    fn site(&self) -> Option<(&str, SiteKind)> {
        Some((self.name(), SiteKind::IndexOutOfRange))
    }
}

impl Library for ops::Custom {
    fn kernel(&self, call: &Call) -> Kernel {
        Kernel::Custom(plan::Custom {
            name: self.name.to_string(),
            kernel: None,
            operands: call.operands.clone(),
            out: call.out.clone(),
        })
    }

    fn site(&self) -> Option<(&str, SiteKind)> {
        Some((&self.name, SiteKind::Custom))
    }
}

impl FlowBuilder {
    /// A node that an op's own kernel computes.
    pub(super) fn own_kernel(
        &mut self,
        op: &(impl Library + OpDef + Clone + 'static),
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

    /// The kernel sorts contiguous lanes, so another axis than the last is moved there and back.
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
        let moved = self.helper(Op::View(permute(&perm)), &[x], dtype, shape);
        let sort = ops::ArgSort {
            axis: last,
            ..sort.clone()
        };
        let sorted = self.own_kernel(&sort, &[moved], DType::I64, out);
        let back = Op::View(permute(&perm));
        self.helper(back, &[sorted], DType::I64, result.iter().cloned())
    }

    pub(super) fn scatter(&mut self, scatter: &ops::Scatter, inputs: &[Nid]) -> Nid {
        let (x, index, mut src) = (inputs[0], inputs[1], inputs[2]);
        let (dtype, shape) = (self.dtype(x), self.shape(x));
        // One number for all is read from one place.
        if matches!(self.flow.nodes[src].op, Op::Scalar(_)) {
            let number = self.flow.nodes[src].op.clone();
            let one = self.helper(number, &[], dtype, []);
            let whole = self.shape(src);
            src = self.helper(Op::View(broadcast(&[], &whole)), &[one], dtype, whole);
        }
        let half = matches!(dtype, DType::F16 | DType::BF16);
        if !half || !matches!(scatter.kind, ScatterKind::Sum | ScatterKind::Prod) {
            return self.own_kernel(scatter, &[x, index, src], dtype, shape);
        }
        let wide = |b: &mut Self, n: Nid| {
            let shape = b.shape(n);
            b.helper(Op::Cast, &[n], DType::F32, shape)
        };
        let (x, src) = (wide(self, x), wide(self, src));
        let sums = self.own_kernel(scatter, &[x, index, src], DType::F32, shape.clone());
        self.helper(Op::Cast, &[sums], dtype, shape)
    }
}
