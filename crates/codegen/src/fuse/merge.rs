//! Merging groups that read the same value over the same space.

use super::fuser::{Fuser, Group, Merged, Names, Use, rename_axis, rename_map};
use super::join::{LARGE_BUFFER_WEIGHT, MAX_ROOTS, free_axes, keeps_parallel};
use super::transpose::keeps_columns;
use crate::affine::{Affine, Ax, Map, Space};
use crate::flow::Nid;

/// The maximum number of groups reading one value that are considered for merging.
const MAX_READERS: usize = 8;

impl Fuser<'_> {
    /// Merges groups that read `v` over the same space, if neither depends on the other.
    pub(super) fn merge_readers(&mut self, v: Nid, uses: &mut Vec<Use>) {
        let mut i = 0;
        while i < uses.len().min(MAX_READERS) {
            let mut j = i + 1;
            while j < uses.len().min(MAX_READERS) {
                match self.try_merge(v, &uses[i], &uses[j]) {
                    Some(merged) => {
                        uses[i] = merged;
                        uses.remove(j);
                    }
                    None => j += 1,
                }
            }
            i += 1;
        }
    }

    fn try_merge(&mut self, v: Nid, a: &Use, b: &Use) -> Option<Use> {
        if a.in_memory || b.in_memory || a.maps.len() != 1 || b.maps.len() != 1 {
            return None;
        }
        let (ga, gb) = (&self.groups[a.group], &self.groups[b.group]);
        if ga.parameter_only != gb.parameter_only
            || (ga.anchor.is_some() && gb.anchor.is_some())
            || ga.roots.len() + gb.roots.len() > MAX_ROOTS
            || ga.ops + gb.ops > self.options.max_ops
        {
            return None;
        }
        if self.buffer_weight(ga) + self.buffer_weight(gb)
            > (self.options.max_buffers + 1) * LARGE_BUFFER_WEIGHT
        {
            return None;
        }
        // Keep the space of the group with stronger constraints.
        let has_constraints = |g: &Group| g.anchor.is_some() || !g.space.inner.is_empty();
        let (keep, gone) = if has_constraints(gb) && !has_constraints(ga) {
            (b, a)
        } else {
            (a, b)
        };
        let (rename, mut spaces) = self.match_axes(v, keep, gone)?;
        let (gk, gg) = (&self.groups[keep.group], &self.groups[gone.group]);
        if gg.anchor.is_some() {
            return None;
        }
        let rename_axes =
            |list: &[Ax]| -> Vec<Ax> { list.iter().map(|x| rename_axis(&rename, *x)).collect() };
        if gg.space.inner.is_empty() {
            if !gk.space.inner.is_empty() && !keeps_parallel(&gk.space, &self.limits) {
                return None;
            }
        } else if gk.anchor.is_some() {
            return None;
        } else if rename_axes(&spaces[1].inner) != spaces[0].inner {
            self.transpose_either(keep, gone, &rename, &mut spaces)?;
        }
        let ordered = rename_axes(&spaces[1].ordered);
        if spaces[0].ordered != ordered {
            if spaces[0].ordered.is_empty() {
                spaces[0].ordered = ordered;
            } else if !ordered.is_empty() {
                return None;
            }
            if !keeps_parallel(&spaces[0], &self.limits) {
                return None;
            }
        }
        if self.depends(keep.group, gone.group) || self.depends(gone.group, keep.group) {
            return None;
        }
        let [space, old] = spaces;
        self.groups[keep.group].space = space;
        self.groups[gone.group].space = old;
        self.merge(keep.group, gone.group, &rename);
        Some(Use {
            group: keep.group,
            maps: keep.maps.clone(),
            in_memory: false,
        })
    }

    /// Transposes a group that reduces columns to match the space of the other, which reduces rows. `rename` maps axes
    /// of `gone` to those of `keep`.
    fn transpose_either(
        &self,
        keep: &Use,
        gone: &Use,
        rename: &[(Ax, Ax)],
        spaces: &mut [Space; 2],
    ) -> Option<()> {
        let [keep, gone] = [keep, gone].map(|u| &self.groups[u.group]);
        let inverse: Vec<(Ax, Ax)> = rename.iter().map(|(a, k)| (*k, *a)).collect();
        let rename_axes = |list: &[Ax], names: &[(Ax, Ax)]| -> Vec<Ax> {
            list.iter().map(|x| rename_axis(names, *x)).collect()
        };
        let columns = rename_axes(&spaces[0].inner, &inverse);
        if let Some(transposed) = self.transposed(gone, &spaces[1], &columns) {
            spaces[1] = transposed;
            return keeps_columns(&spaces[0], &self.limits).then_some(());
        }
        let columns = rename_axes(&spaces[1].inner, rename);
        spaces[0] = self.transposed(keep, &spaces[0], &columns)?;
        Some(())
    }

    /// Returns the names of `gone`'s axes in `keep`, and both spaces. Both groups must visit every element of `v` once,
    /// in corresponding axes; or every row in which `v` has one element, and all elements of another value. If both
    /// reduce, their axes are split to correspond.
    fn match_axes(&self, v: Nid, keep: &Use, gone: &Use) -> Option<(Names, [Space; 2])> {
        let numel = self.flow.numel(v);
        let [sk, sg] = [keep, gone].map(|u| &self.groups[u.group].space);
        let [mut fk, mut fg] = [keep, gone].map(|u| self.flat(v, u.group, &u.maps[0]));
        if !sk.is_bijection(&fk, &numel) || !sg.is_bijection(&fg, &numel) {
            return None;
        }
        let [mut sk, mut sg] = [sk.clone(), sg.clone()];
        if !sk.inner.is_empty() && !sg.inner.is_empty() {
            fk = split_like(&mut sk, fk, &sg, &fg);
            fg = split_like(&mut sg, fg, &sk, &fk);
        }
        let [rows, other_rows] = [(&fk, &sk), (&fg, &sg)].map(|(flat, space)| {
            let axes = space.axes.iter().chain(&space.inner);
            free_axes(flat, axes)
        });
        let extents = (sk.extents(&rows), sg.extents(&other_rows));
        if fk.terms.len() != fg.terms.len() || extents.0 != extents.1 {
            return None;
        }
        if !rows.is_empty() && !self.share_full_value(keep, gone) {
            return None;
        }
        let mut rename: Names = other_rows.into_iter().zip(rows).collect();
        for (a, c) in &fg.terms {
            let (k, _) = fk.terms.iter().find(|t| t.1 == *c)?;
            if sk.extent(*k) != sg.extent(*a) {
                return None;
            }
            rename.push((*a, *k));
        }
        Some((rename, [sk, sg]))
    }

    /// True if two groups that reduce will both read a value that has an element for each of their points.
    fn share_full_value(&self, a: &Use, b: &Use) -> bool {
        let [a, b] = [a, b].map(|u| &self.groups[u.group]);
        let points = a.space.points();
        let mut shared = a.pending.intersection(&b.pending);
        !a.space.inner.is_empty()
            && !b.space.inner.is_empty()
            && shared.any(|n| self.facts.numel[*n] == points)
    }

    fn merge(&mut self, keep: usize, gone: usize, rename: &[(Ax, Ax)]) {
        let old = std::mem::take(&mut self.groups[gone]);
        let rename_old = |m: &Map| rename_map(&old.space, rename, m);
        let roots: Vec<(Nid, Map)> = old.roots.iter().map(|(n, m)| (*n, rename_old(m))).collect();
        let reduced: Vec<(Nid, Map)> = old
            .members
            .iter()
            .filter_map(|n| Some((*n, rename_old(old.reduced.get(n)?))))
            .collect();
        // The demands of the old group are renamed when they are read.
        self.groups[gone].merged = Some(Box::new(Merged {
            into: keep,
            space: old.space,
            names: rename.into(),
        }));
        let group = &mut self.groups[keep];
        group.roots.extend(roots);
        group.reduced.extend(reduced);
        group.loaded.extend(old.loaded.iter().copied());
        group.pending.extend(old.pending.iter().copied());
        let known: hashbrown::HashSet<Nid> = group.members.iter().copied().collect();
        let new_members = old.members.iter().copied().filter(|m| !known.contains(m));
        group.members.extend(new_members);
        group.why_not.extend(old.why_not);
        group.ops += old.ops;
        group.deps.extend(old.deps);
    }
}

/// Splits the axes of an index where another index walks the same elements in more axes, and returns the new index.
fn split_like(space: &mut Space, mut flat: Affine, other: &Space, finer: &Affine) -> Affine {
    for (b, c) in &finer.terms {
        let term = flat.terms.iter().find(|t| t.1 == *c);
        if let Some((a, _)) = term.filter(|t| space.extent(t.0) != other.extent(*b)) {
            space.split(*a, other.extent(*b));
            flat = space.resolve(&flat);
        }
    }
    flat
}
