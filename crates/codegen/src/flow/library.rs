//! Ops that a kernel of their own computes, of operands in memory: scans, sorts, scatters, users' operators.

use kiln_base::numel;
use kiln_ir::{OpDef, ops};
use kiln_plan::{self as plan, Array, Kernel, SiteKind, Strided};
use std::fmt::Debug;

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
