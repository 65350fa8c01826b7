//! Gradients that are sums over the steps of a loop.

use super::LoopStep;
use crate::erased::{Erased, Id};
use kiln_base::prim::Reduction;
use kiln_ir::{Builder, Op, OpError, Value, ops};

/// The method by which a loop-invariant operand's gradient sums the terms of the steps.
pub(super) enum Sum {
    /// As an additional carried value.
    Carried,
    /// After the loop: the product of the stacked factors, then these views.
    Product {
        left: Value,
        /// True if the factor is `left` with its axes swapped.
        swapped: bool,
        right: Value,
        views: Vec<ops::Permute>,
    },
    /// After the loop: a reduction of a stacked value, then a reshape.
    Reduced { term: Value, axes: ops::Axes },
}

impl Sum {
    /// Returns the values that must be stacked.
    pub(super) fn stacked(&self) -> Vec<Value> {
        match self {
            Sum::Carried => vec![],
            Sum::Product { left, right, .. } => vec![*left, *right],
            Sum::Reduced { term, .. } => vec![*term],
        }
    }
}

impl LoopStep<'_> {
    /// Returns the sums for the gradients of the loop-invariant operands.
    pub(super) fn sums(&self) -> Vec<Sum> {
        let mut sums: Vec<Sum> = self.shared.iter().map(|(_, g)| self.classify(*g)).collect();
        let stacked: Vec<Value> = sums.iter().flat_map(Sum::stacked).collect();
        for (sum, (_, g)) in sums.iter_mut().zip(&self.shared) {
            let mut node = self.joint.node(g.node);
            while let Op::Reshape(_) = node.op {
                node = self.joint.node(node.inputs[0].node);
            }
            if let Op::Reduce(r) = &node.op
                && r.kind == Reduction::Sum
                && stacked.contains(&node.inputs[0])
            {
                *sum = Sum::Reduced {
                    term: node.inputs[0],
                    axes: r.axes.clone(),
                };
            }
        }
        sums
    }

    /// Returns `Sum::Product` for a permuted matrix product, else `Carried`.
    fn classify(&self, g: Value) -> Sum {
        let mut views = Vec::new();
        let mut node = self.joint.node(g.node);
        while let Op::Permute(p) = &node.op {
            views.push(p.clone());
            node = self.joint.node(node.inputs[0].node);
        }
        if !matches!(node.op, Op::MatMul(_)) || node.fact().rank() != 2 {
            return Sum::Carried;
        }
        views.reverse();
        let factor = self.joint.node(node.inputs[0].node);
        let (left, swapped) = match factor.op {
            Op::Permute(_) => (factor.inputs[0], true),
            _ => (node.inputs[0], false),
        };
        Sum::Product {
            left,
            swapped,
            right: node.inputs[1],
            views,
        }
    }
}

/// Returns `Σ left[t] · right[t]`, permuted, for `[t, m, k]` (or `[t, k, m]`, swapped) and `[t, k, n]`.
pub(super) fn product(
    b: &mut Erased<'_>,
    (left, swapped): (Id, bool),
    right: Id,
    views: &[ops::Permute],
) -> Result<Id, OpError> {
    let left = match swapped {
        true => left,
        false => b.permute(&left, &[0, 2, 1])?,
    };
    let flatten_rows = |b: &mut Erased<'_>, v: &Id| {
        let shape = b.fact(v).shape;
        let flat = [&shape[0] * &shape[1], shape[2].clone()];
        b.reshape(v, &flat)
    };
    let (left, right) = (flatten_rows(b, &left)?, flatten_rows(b, &right)?);
    let left = b.permute(&left, &[1, 0])?;
    let mut sum = b.op(ops::MatMul {}, &[left, right])?;
    for view in views {
        sum = b.permute(&sum, &view.perm)?;
    }
    Ok(sum)
}
