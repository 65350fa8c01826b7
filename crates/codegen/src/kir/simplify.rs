//! Removal of unused values, accesses and axes, and merging of contiguous axes.

use super::{Access, Expr, Kernel, Val};
use kiln_base::Dim;

impl Kernel {
    /// Removes unused values and accesses, and merges adjacent axes that every access walks with one stride.
    pub(crate) fn simplify(&mut self) {
        self.drop_dead();
        self.merge_axes();
    }

    fn drop_dead(&mut self) {
        let mut live = vec![false; self.body.len()];
        for s in &self.stores {
            live[s.value.index()] = true;
        }
        for i in (0..self.body.len()).rev() {
            if live[i] {
                self.body[i].expr.operands(|o| live[o.index()] = true);
            }
        }
        let mut new_value = vec![Val(u32::MAX); self.body.len()];
        let mut body = Vec::with_capacity(self.body.len());
        for (i, mut def) in std::mem::take(&mut self.body).into_iter().enumerate() {
            if live[i] {
                def.expr.map_operands(|o| new_value[o.index()]);
                new_value[i] = Val(body.len() as u32);
                body.push(def);
            }
        }
        self.body = body;
        let mut new_access = vec![u16::MAX; self.accesses.len()];
        let old = std::mem::take(&mut self.accesses);
        let mut accesses: Vec<Access> = Vec::new();
        let mut renumber = |a: &mut u16| {
            let i = *a as usize;
            if new_access[i] == u16::MAX {
                new_access[i] = accesses.len() as u16;
                accesses.push(old[i].clone());
            }
            *a = new_access[i];
        };
        for def in &mut self.body {
            if let Expr::Load { access } | Expr::LoadAt { access, .. } = &mut def.expr {
                renumber(access);
            }
        }
        for s in &mut self.stores {
            s.value = new_value[s.value.index()];
            renumber(&mut s.access);
        }
        self.accesses = accesses;
    }

    /// Calls `f` with every list of strides.
    fn strides_mut(&mut self, mut f: impl FnMut(&mut Vec<Dim>)) {
        for a in &mut self.accesses {
            f(&mut a.strides);
            a.bounds.iter_mut().for_each(|b| f(&mut b.strides));
        }
        for d in &mut self.body {
            if let Expr::Index { strides, .. } = &mut d.expr {
                f(strides);
            }
        }
    }

    fn merge_axes(&mut self) {
        let mut axis = 0;
        while axis + 1 < self.axes.len() + self.inner.len() {
            let outer = self.axes.len();
            if axis + 1 == outer || axis + 1 + self.serial == outer {
                axis += 1;
                continue;
            }
            let extent = match axis < outer {
                true => self.axes[axis + 1].clone(),
                false => self.inner[axis + 1 - outer].clone(),
            };
            let mut is_contiguous = true;
            self.strides_mut(|s| is_contiguous &= s[axis] == &s[axis + 1] * &extent);
            if !is_contiguous {
                axis += 1;
                continue;
            }
            self.strides_mut(|s| drop(s.remove(axis)));
            self.serial -= usize::from(axis < outer && axis + self.serial >= outer);
            let (list, axis) = match axis < outer {
                true => (&mut self.axes, axis),
                false => (&mut self.inner, axis - outer),
            };
            list[axis] = &list[axis] * &extent;
            list.remove(axis + 1);
        }
    }
}
