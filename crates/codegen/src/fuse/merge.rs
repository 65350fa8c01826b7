//! Merging groups that read the same value over the same space.

use super::join::{LARGE, MAX_ROOTS, covers, keeps_parallel};
use super::{Fuser, Use};
use crate::affine::{Affine, Ax, Map};
use crate::flow::Nid;
use smallvec::SmallVec;

/// How many groups that read one value are looked at.
const MAX_READERS: usize = 8;

impl Fuser<'_> {
    /// Merges the groups that read `v` where they run over the same space and none needs another's
    /// results.
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
        if self.touched(ga) + self.touched(gb) > (self.options.max_buffers + 1) * LARGE {
            return None;
        }
        // The group whose space stays is the one with the stronger wishes.
        let wishes = |g: &super::Group| g.anchor.is_some() || !g.space.inner.is_empty();
        let (keep, gone) = if wishes(gb) && !wishes(ga) {
            (b, a)
        } else {
            (a, b)
        };
        let rename = self.renaming(v, keep, gone)?;
        let (gk, gg) = (&self.groups[keep.group], &self.groups[gone.group]);
        if gg.anchor.is_some() {
            return None;
        }
        if !gg.space.inner.is_empty() {
            let renamed: Vec<Ax> = gg.space.inner.iter().map(|x| to(&rename, *x)).collect();
            if gk.anchor.is_some() || renamed != gk.space.inner {
                return None;
            }
        } else if !gk.space.inner.is_empty() && !keeps_parallel(&gk.space, self.options.target) {
            return None;
        }
        if self.depends(keep.group, gone.group) || self.depends(gone.group, keep.group) {
            return None;
        }
        self.merge(keep.group, gone.group, &rename);
        Some(Use {
            group: keep.group,
            maps: keep.maps.clone(),
            in_memory: false,
        })
    }

    /// How the axes of `gone` are called in `keep`, if both visit every element of `v` once and in
    /// corresponding axes.
    fn renaming(&self, v: Nid, keep: &Use, gone: &Use) -> Option<SmallVec<[(Ax, Ax); 4]>> {
        let numel = self.flow.numel(v);
        let sorted = |u: &Use| -> Option<Affine> {
            let space = &self.groups[u.group].space;
            let flat = self.flat(v, u.group, &u.maps[0]);
            (space.is_bijection(&flat, &numel) && covers(&flat, &space.axes, &space.inner))
                .then_some(flat)
        };
        let (fk, fg) = (sorted(keep)?, sorted(gone)?);
        if fk.terms.len() != fg.terms.len() {
            return None;
        }
        let (sk, sg) = (
            &self.groups[keep.group].space,
            &self.groups[gone.group].space,
        );
        let mut rename = SmallVec::new();
        for (a, c) in &fg.terms {
            let (k, _) = fk.terms.iter().find(|t| t.1 == *c)?;
            if sk.extent(*k) != sg.extent(*a) {
                return None;
            }
            rename.push((*a, *k));
        }
        Some(rename)
    }

    fn merge(&mut self, keep: usize, gone: usize, rename: &[(Ax, Ax)]) {
        let old = std::mem::take(&mut self.groups[gone]);
        let rename_map = |m: &Map| -> Map {
            let m = old.space.resolve_map(m);
            m.iter().map(|e| e.renamed(|a| to(rename, a))).collect()
        };
        for &n in &old.pending {
            for i in 0..self.demands[n].len() {
                if self.find(self.demands[n][i].group) == gone {
                    let d = &mut self.demands[n][i];
                    d.group = keep;
                    d.map = d.map.as_ref().map(&rename_map);
                }
            }
        }
        // Demands on values without sources are not pending; the walk finds them here.
        let unsourced: Vec<Nid> = old
            .members
            .iter()
            .flat_map(|m| self.node(*m).inputs.iter().copied())
            .filter(|n| self.facts.sources[*n] == 0)
            .collect();
        for n in unsourced {
            for i in 0..self.demands[n].len() {
                if self.find(self.demands[n][i].group) == gone {
                    let d = &mut self.demands[n][i];
                    d.group = keep;
                    d.map = d.map.as_ref().map(&rename_map);
                }
            }
        }
        let roots: Vec<(Nid, Map)> = old.roots.iter().map(|(n, m)| (*n, rename_map(m))).collect();
        let reduced: Vec<(Nid, Map)> = old
            .members
            .iter()
            .filter_map(|n| Some((*n, rename_map(old.reduced.get(n)?))))
            .collect();
        self.groups[gone].merged_into = Some(keep);
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
        for d in old.deps {
            if !group.deps.contains(&d) {
                group.deps.push(d);
            }
        }
    }
}

fn to(rename: &[(Ax, Ax)], a: Ax) -> Ax {
    rename.iter().find(|r| r.0 == a).map_or(a, |r| r.1)
}
