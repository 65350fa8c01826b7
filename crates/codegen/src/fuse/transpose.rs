//! Reductions over rows and over columns in one launch.
//!
//! A group that reduces columns has an outer loop over columns and an inner one over rows. After the transposition, the
//! outer loop runs over rows. Some of them are walked in order ([`Space::ordered`]), with an accumulator for each
//! column. Columns are then the inner axes, as they are for reductions of rows.

use super::fuser::{Fuser, Group};
use super::join::{covers, keeps_parallel};
use crate::affine::{Ax, Map, Space, flatten};
use crate::flow::Op;
use crate::limits::Limits;
use kiln_base::{DType, Dim, numel};

impl Fuser<'_> {
    /// Returns a group's `space` with `columns`, some of its axes, as the inner ones. The group must only store its
    /// reductions, and not read them.
    pub(super) fn transposed(&self, group: &Group, space: &Space, columns: &[Ax]) -> Option<Space> {
        let Space { axes, inner, .. } = space;
        let reduces = !inner.is_empty() && space.ordered.is_empty();
        let is_parallel = !columns.is_empty() && columns.iter().all(|a| axes.contains(a));
        let is_known = |d: &Dim| d.as_const().is_some_and(|n| n > 0);
        if group.anchor.is_some()
            || !reduces
            || !is_parallel
            || !space.extents(inner).iter().all(is_known)
        {
            return None;
        }
        let combines = |n| {
            let node = self.node(n);
            let is_plain = [DType::F32, DType::F64, DType::I32, DType::I64].contains(&node.dtype);
            let is_read = group
                .members
                .iter()
                .any(|m| self.node(*m).inputs.contains(&n));
            is_plain && !is_read && matches!(node.op, Op::Reduce(..))
        };
        let covers_all = |map: &Map, n| {
            let flat = flatten(&space.resolve_map(map), &self.node(n).shape);
            match group.reduced.contains_key(&n) {
                true => covers(&flat, axes, &[]),
                false => covers(&flat, axes, inner),
            }
        };
        let is_root = |n| group.roots.iter().any(|(r, _)| *r == n);
        if !group.reduced.keys().all(|n| combines(*n) && is_root(*n))
            || !group.roots.iter().all(|(n, map)| covers_all(map, *n))
        {
            return None;
        }
        let mut space = space.clone();
        space.axes.retain(|a| !columns.contains(a));
        space.ordered = std::mem::replace(&mut space.inner, columns.to_vec());
        space.axes.extend(&space.ordered);
        let limits = &self.limits;
        (keeps_parallel(&space, limits) && keeps_columns(&space, limits)).then_some(space)
    }
}

/// True if an accumulator for each column can be kept.
pub(super) fn keeps_columns(space: &Space, limits: &Limits) -> bool {
    let columns = numel(&space.extents(&space.inner)).as_const();
    columns.is_some_and(|n| n <= limits.max_columns)
}
