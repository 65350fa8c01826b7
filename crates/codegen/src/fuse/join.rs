//! Legality and profit of computing a node in a group that reads it.

use super::cost::{MIN_COSTLY, own_cost};
use super::fuser::{Anchor, Fuser, Group, Use};
use crate::affine::{Affine, Ax, Map, Space, estimate};
use crate::flow::{Nid, Op};
use crate::limits::{Limits, MultiplyAdds};
use kiln_base::{Dim, numel};

/// The maximum number of values that a group stores.
pub(super) const MAX_ROOTS: usize = 6;
/// A buffer of at most this many elements stays in the first-level cache.
const MAX_CACHED_ELEMENTS: i64 = 1024;
/// The weight of a larger buffer, relative to a cached one.
pub(super) const LARGE_BUFFER_WEIGHT: usize = 4;

/// The maximum length of a row of a product that a group may reduce, in elements: a block of some such rows stays in
/// the second-level cache.
const MAX_ROW: i64 = 4096;

/// The form in which a node joins a group.
pub(super) enum Join {
    /// As an expression.
    Inline,
    /// As a reduction over the group's inner axes.
    Reduce {
        /// The index of the reduced dims over the inner axes.
        inner: Box<Map>,
        /// The group's space with these inner axes.
        space: Box<Space>,
    },
    /// As the library kernel whose result the group reads.
    Anchor {
        /// The group's space, its axes in the order of the result.
        space: Box<Space>,
    },
}

/// True if enough rows run in parallel, and they are not too long. Small spaces are exempt.
pub(super) fn keeps_parallel(space: &Space, limits: &Limits) -> bool {
    let parallel = space.axes.iter().filter(|a| !space.ordered.contains(a));
    let points = |n: i64, a: &Ax| n.saturating_mul(estimate(space.extent(*a)));
    let (rows, row) = (parallel.fold(1, points), space.inner.iter().fold(1, points));
    space.points() <= limits.max_serial_points || (rows >= limits.min_rows && row <= limits.max_row)
}

impl Fuser<'_> {
    /// Returns the form in which `v` may join the group of `u`, or the reason why it may not.
    pub(super) fn can_join(&self, v: Nid, u: &Use) -> Result<Join, String> {
        let node = self.node(v);
        let facts = &self.facts;
        if u.in_memory {
            return Err(self.describe_reader(v, u.group));
        }
        let group = &self.groups[u.group];
        if node.parameter_only
            && !group.parameter_only
            && facts.sources[v] > 0
            && (self.is_structured(v) || facts.numel[v] <= 2 * facts.sources[v])
        {
            return Err("it depends on parameters only and is computed once".into());
        }
        let cost = own_cost(&node.op) as usize * u.maps.len();
        if group.ops + cost.min(8) > self.options.max_ops {
            return Err(format!("the group already holds {} operations", group.ops));
        }
        let is_new = |i: &&Nid| !group.pending.contains(*i) && !group.loaded.contains(*i);
        let new_buffers = self.weigh(node.inputs.iter().filter(is_new));
        let old_buffers = self.buffer_weight(group);
        if old_buffers + new_buffers > self.options.max_buffers * LARGE_BUFFER_WEIGHT
            && new_buffers > LARGE_BUFFER_WEIGHT
        {
            let buffers = old_buffers / LARGE_BUFFER_WEIGHT;
            return Err(format!("the group already touches {buffers} buffers"));
        }
        match &node.op {
            Op::Reduce(..) | Op::ArgReduce(..) => self.can_reduce(v, u),
            _ if node.is_product() => self.can_anchor(v, u),
            _ if node.is_alone() => Err(format!("{} is a kernel of its own", node.name())),
            _ => self.can_inline(v, u),
        }
    }

    /// Describes the node of a group that reads a value from memory.
    fn describe_reader(&self, v: Nid, group: usize) -> String {
        let group = &self.groups[group];
        let reads = |a: &&Anchor| a.operands.iter().any(|o| o.held == v);
        let anchor = group.anchor.as_ref().filter(reads).map(|a| a.node);
        let mut members = group.members.iter().copied();
        let reader = anchor.or_else(|| members.find(|m| self.node(*m).inputs.contains(&v)));
        match reader.map(|r| self.node(r)) {
            Some(r) => format!("{} ({}) reads it from memory", r.source, r.name()),
            None => "a library kernel or a gather reads it from memory".into(),
        }
    }

    /// Returns the total weight of the buffers that a group touches.
    pub(super) fn buffer_weight(&self, group: &Group) -> usize {
        let roots = group.roots.iter().map(|(v, _)| v);
        self.weigh(group.pending.iter().chain(&group.loaded).chain(roots))
    }

    fn weigh<'v>(&self, values: impl Iterator<Item = &'v Nid>) -> usize {
        let weight = |v: &Nid| match self.facts.numel[*v].min(self.facts.sources[*v]) {
            0 => 0,
            1..=MAX_CACHED_ELEMENTS => 1,
            _ => LARGE_BUFFER_WEIGHT,
        };
        values.map(weight).sum()
    }

    fn is_structured(&self, v: Nid) -> bool {
        let node = self.node(v);
        node.has_library() || matches!(node.op, Op::Reduce(..) | Op::ArgReduce(..))
    }

    fn can_inline(&self, v: Nid, u: &Use) -> Result<Join, String> {
        let group = &self.groups[u.group];
        let cost = self.facts.cost[v];
        let holds_product = || {
            let flat = self.flat(v, u.group, &u.maps[0]);
            group.anchor.is_none() && group.space.is_bijection(&flat, &self.flow.numel(v))
        };
        if self.narrows_product(v) && !holds_product() {
            return Err(
                "it is computed from a product of a wider dtype, which would be stored".into(),
            );
        }
        if !group.space.inner.is_empty() && self.finishes_product(v) && !holds_product() {
            return Err("the product that it finishes writes it".into());
        }
        if u.maps.len() > 1 && cost as usize * u.maps.len() > 4 {
            return Err(format!(
                "it is read under {} index maps of one group",
                u.maps.len()
            ));
        }
        let points = group.space.points();
        let factor = points / self.facts.numel[v].max(1);
        if factor < 2 || points <= 2048 || cost < MIN_COSTLY {
            return Ok(Join::Inline);
        }
        let flat = self.flat(v, u.group, &u.maps[0]);
        let space = &group.space;
        let uses = |a: &Ax| !flat.coefficient(*a).is(0);
        let once_per_row =
            !space.inner.is_empty() && !space.inner.iter().any(uses) && space.axes.iter().all(uses);
        let free = free_axes(&flat, &space.axes);
        let becomes_row = space.inner.is_empty()
            && group.anchor.is_none()
            && self.leads_to_reduction(v, &numel(&space.extents(&free)));
        if once_per_row || becomes_row {
            return Ok(Join::Inline);
        }
        Err(format!(
            "it is costly and would be computed {factor} times for each element"
        ))
    }

    /// True if a value is the end of an epilogue of a product: pointwise work on its result, which nothing else reads.
    fn finishes_product(&self, v: Nid) -> bool {
        let mut worklist = vec![v];
        while let Some(n) = worklist.pop() {
            let node = self.node(n);
            if n != v && self.facts.readers[n] > 1 {
                continue;
            }
            if node.is_product() {
                return node.dtype.size() >= self.node(v).dtype.size();
            }
            if let Op::Pw(_) | Op::Cast(_) | Op::Reshape = node.op {
                let has_same_size = |i: &&Nid| self.facts.numel[**i] == self.facts.numel[v];
                worklist.extend(node.inputs.iter().filter(has_same_size));
            }
        }
        false
    }

    /// True if a value is a cast to fewer bits of pointwise work on a product's result.
    fn narrows_product(&self, v: Nid) -> bool {
        let (node, numel) = (self.node(v), self.facts.numel[v]);
        let is_wide = |p: Nid| {
            let product = self.node(p);
            product.is_product()
                && product.dtype.size() > node.dtype.size()
                && self.facts.numel[p] == numel
        };
        matches!(node.op, Op::Cast(_)) && self.leads_to(v, is_wide)
    }

    /// True if pointwise work leads from a reduction over `extent` elements to this value.
    fn leads_to_reduction(&self, v: Nid, extent: &Dim) -> bool {
        let reduces = |v: Nid| {
            let is_reduction = matches!(self.node(v).op, Op::Reduce(..));
            is_reduction && numel(&self.reduced_dims(v)) == *extent
        };
        self.leads_to(v, reduces)
    }

    /// True if pointwise work leads from a node that satisfies `is_goal` to this value.
    fn leads_to(&self, v: Nid, is_goal: impl Fn(Nid) -> bool) -> bool {
        const MAX_VISITED: usize = 48;
        let mut worklist = vec![v];
        let mut next = 0;
        while next < worklist.len().min(MAX_VISITED) {
            let v = worklist[next];
            if is_goal(v) {
                return true;
            }
            let node = self.node(v);
            if let Op::Pw(_) | Op::Cast(_) | Op::View(_) | Op::Reshape = node.op {
                for i in &node.inputs {
                    if !worklist.contains(i) {
                        worklist.push(*i);
                    }
                }
            }
            next += 1;
        }
        false
    }

    fn can_reduce(&self, v: Nid, u: &Use) -> Result<Join, String> {
        let dims = self.reduced_dims(v);
        let [map] = &u.maps[..] else {
            return Err("the reduction is read under several index maps".into());
        };
        let group = &self.groups[u.group];
        if group.anchor.is_some() {
            return Err("the group works on the result of a library kernel".into());
        }
        let flat = self.flat(v, u.group, map);
        let uses = |a: &Ax| !flat.coefficient(*a).is(0);
        if !group.space.is_bijection(&flat, &self.flow.numel(v)) {
            return Err("the group would run the reduction more than once per element".into());
        }
        let free = free_axes(&flat, &group.space.axes);
        if group.space.inner.iter().any(uses) {
            let nested = || String::from("the reduction would run inside another one");
            let mut space = self
                .transposed(group, &group.space, &free)
                .ok_or_else(nested)?;
            let inner = match_inner(&mut space, &dims).ok_or_else(nested)?;
            return Ok(Join::Reduce {
                inner: Box::new(inner),
                space: Box::new(space),
            });
        }
        let mut space = group.space.clone();
        let other_extents = || String::from("the group reduces over other extents");
        let inner = match (free.is_empty(), space.inner.is_empty()) {
            (true, true) => space.append(&dims, true),
            (true, false) => match_inner(&mut space, &dims).ok_or_else(other_extents)?,
            (false, true) => {
                space.axes.retain(|a| !free.contains(a));
                space.inner = free;
                if numel(&space.extents(&space.inner)) != numel(&dims) {
                    return Err(
                        "the group runs over an axis that the reduction does not have".into(),
                    );
                }
                match_inner(&mut space, &dims).ok_or_else(other_extents)?
            }
            (false, false) => return Err(other_extents()),
        };
        if group.space.inner.is_empty() && !keeps_parallel(&space, &self.limits) {
            return Err("too few rows to run in parallel, or too long ones".into());
        }
        Ok(Join::Reduce {
            inner: Box::new(inner),
            space: Box::new(space),
        })
    }

    fn can_anchor(&self, v: Nid, u: &Use) -> Result<Join, String> {
        let group = &self.groups[u.group];
        let [map] = &u.maps[..] else {
            return Err("the product is read under several index maps".into());
        };
        if group.anchor.is_some() {
            return Err("the group already works on a library kernel's result".into());
        }
        if !group.space.ordered.is_empty() {
            return Err("the group walks over rows and combines columns".into());
        }
        let flat = self.flat(v, u.group, map);
        let numel = self.flow.numel(v);
        let Space { axes, inner, .. } = &group.space;
        if !group.space.is_bijection(&flat, &numel) || !covers(&flat, axes, inner) {
            return Err("the group reads the product more than once or in part".into());
        }
        let mut space = group.space.clone();
        space.sort_axes(&flat);
        let rows = space.axes.len() - inner.len();
        if !inner.is_empty() {
            self.can_reduce_rows(v, &space, rows)?;
        } else if space.axes.last() != axes.last() {
            return Err("the group walks it in another order than it is computed in".into());
        }
        space.axes.truncate(rows);
        Ok(Join::Anchor {
            space: Box::new(space),
        })
    }

    /// Checks that a group that reduces may be the epilogue of product `v`, whose blocks must then hold whole rows. The
    /// axes of `sorted` after the first `rows` run over a row.
    fn can_reduce_rows(&self, v: Nid, sorted: &Space, rows: usize) -> Result<(), String> {
        let node = self.node(v);
        let columns = &node.shape[node.shape.len() - 1];
        let limits = &self.limits.held_rows;
        let is_short = |limit| columns.as_const().is_some_and(|n| n <= limit);
        if !matches!(node.op, Op::MatMul) || !limits.max_row.is_none_or(is_short) {
            return Err("no block of it holds a whole row that is reduced".into());
        }
        if sorted.axes[rows..] != sorted.inner || numel(&sorted.extents(&sorted.inner)) != *columns
        {
            return Err("the group reduces over other axes than the product's columns".into());
        }
        let (columns, points) = (estimate(columns), self.facts.numel[v]);
        let terms = self.node(node.inputs[0]).shape.last().map_or(1, estimate);
        let is_small = match limits.max_small {
            MultiplyAdds::Total(limit) => points.saturating_mul(terms) <= limit,
            MultiplyAdds::PerRow(limit) => columns.saturating_mul(terms) <= limit,
        };
        let is_parallel = points >= limits.min_rows.saturating_mul(columns) || is_small;
        match is_parallel && (2..=MAX_ROW).contains(&columns) {
            true => Ok(()),
            false => Err("too few rows of the product to run in parallel, or too long ones".into()),
        }
    }

    /// Makes the axes that a group does not need for `v` its inner ones, if `v` depends on a reduction over these that
    /// will join. The group then stores `v` once per row.
    pub(super) fn commit_rows(&mut self, v: Nid, u: &Use) {
        let group = &self.groups[u.group];
        let [map] = &u.maps[..] else { return };
        if u.in_memory
            || !group.space.inner.is_empty()
            || group.anchor.is_some()
            || group.parameter_only != self.node(v).parameter_only
        {
            return;
        }
        let flat = self.flat(v, u.group, map);
        let mut space = group.space.clone();
        let free = free_axes(&flat, &space.axes);
        if free.is_empty() || !space.is_bijection(&flat, &self.flow.numel(v)) {
            return;
        }
        let row = numel(&space.extents(&free));
        space.axes.retain(|a| !free.contains(a));
        space.inner = free;
        if keeps_parallel(&space, &self.limits) && self.leads_to_reduction(v, &row) {
            self.groups[u.group].space = space;
        }
    }

    /// True if the group of `u` may store `v`: it visits every element exactly once, once per row or once per point.
    pub(super) fn can_store(&self, v: Nid, u: &Use) -> bool {
        let group = &self.groups[u.group];
        let [map] = &u.maps[..] else {
            return false;
        };
        if group.roots.len() >= MAX_ROOTS || group.parameter_only != self.node(v).parameter_only {
            return false;
        }
        let flat = self.flat(v, u.group, map);
        let numel = self.flow.numel(v);
        group.space.is_bijection(&flat, &numel)
            && (covers(&flat, &group.space.axes, &group.space.inner)
                || (group.space.inner.iter().all(|a| flat.coefficient(*a).is(0))
                    && covers(&flat, &group.space.axes, &[])))
    }

    pub(super) fn join(&mut self, v: Nid, u: &Use, plan: Join) {
        let node = self.node(v);
        let group = &mut self.groups[u.group];
        group.members.push(v);
        group.ops += own_cost(&node.op).min(8) as usize * u.maps.len();
        match plan {
            Join::Anchor { space } => {
                group.space = *space;
                self.set_anchor(v, u.group, &u.maps[0]);
            }
            Join::Reduce { inner, space } => {
                group.space = *space;
                group.reduced.insert(v, Map::clone(&inner));
                self.propagate(v, u.group, &u.maps[0], Some(&inner));
            }
            Join::Inline => {
                for m in &u.maps {
                    self.propagate(v, u.group, m, None);
                }
            }
        }
    }
}

/// Returns the index of `dims` over the inner axes, if both have the same points in the same order.
fn match_inner(space: &mut Space, dims: &[Dim]) -> Option<Map> {
    let extents = space.extents(&space.inner);
    if numel(&extents) != numel(dims) {
        return None;
    }
    let map: Map = space.inner.iter().map(|a| Affine::axis(*a)).collect();
    space.through_reshape(&map, dims, &extents, true)
}

/// Returns the axes that an index does not move along.
pub(super) fn free_axes<'a>(flat: &Affine, axes: impl IntoIterator<Item = &'a Ax>) -> Vec<Ax> {
    let axes = axes.into_iter().copied();
    axes.filter(|a| flat.coefficient(*a).is(0)).collect()
}

/// True if an index moves along every axis of both lists.
pub(super) fn covers(flat: &Affine, axes: &[Ax], inner: &[Ax]) -> bool {
    axes.iter()
        .chain(inner)
        .all(|a| !flat.coefficient(*a).is(0))
}
