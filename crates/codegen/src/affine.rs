//! Index maps: affine expressions over the axes of an iteration space.
//!
//! A map gives, for each dim of a value, its index as an [`Affine`] expression over a [`Space`]'s axes.
//! Reshapes are pulled through in two steps. The flat index of each run of dims with equal products is written out, and
//! then taken apart by division with remainder. Where a coefficient does not divide, an axis of extent `E` may be split
//! into `(E/t, t)`. Expressions name axes by stable ids, so a split only records the old axis in terms of the two new
//! ones.

use kiln_base::{Dim, Sym, contiguous_strides, numel};
use kiln_plan::Described;
use smallvec::SmallVec;

/// An axis: an index into the space's table.
pub(crate) type Ax = u32;

/// `offset + Σ coefficient · axis`; terms ascend by axis and have no coefficient 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Affine {
    pub offset: Dim,
    pub terms: SmallVec<[(Ax, Dim); 2]>,
}

/// One expression per dim.
pub(crate) type Map = SmallVec<[Affine; 4]>;

impl Affine {
    pub fn new(offset: Dim, terms: &[(Ax, &Dim)]) -> Affine {
        let mut affine = Affine {
            offset,
            terms: SmallVec::new(),
        };
        terms.iter().for_each(|(a, c)| affine.add_term(*a, c));
        affine
    }

    pub fn constant(offset: Dim) -> Affine {
        Affine::new(offset, &[])
    }

    pub fn zero() -> Affine {
        Affine::constant(Dim::ZERO)
    }

    pub fn axis(a: Ax) -> Affine {
        Affine::new(Dim::ZERO, &[(a, &Dim::ONE)])
    }

    /// `self += other * factor`.
    pub fn add_scaled(&mut self, other: &Affine, factor: &Dim) {
        if factor.is(0) {
            return;
        }
        self.offset = &self.offset + &(&other.offset * factor);
        for (a, c) in &other.terms {
            self.add_term(*a, &(c * factor));
        }
    }

    pub fn add_term(&mut self, a: Ax, c: &Dim) {
        if c.is(0) {
            return;
        }
        match self.terms.binary_search_by_key(&a, |t| t.0) {
            Ok(i) => {
                self.terms[i].1 = &self.terms[i].1 + c;
                if self.terms[i].1.is(0) {
                    self.terms.remove(i);
                }
            }
            Err(i) => self.terms.insert(i, (a, c.clone())),
        }
    }

    pub fn plus(mut self, offset: &Dim) -> Affine {
        self.offset = &self.offset + offset;
        self
    }

    pub fn coefficient(&self, a: Ax) -> Dim {
        self.terms
            .iter()
            .find(|t| t.0 == a)
            .map_or(Dim::ZERO, |t| t.1.clone())
    }

    /// Renames axes.
    pub fn renamed(&self, f: impl Fn(Ax) -> Ax) -> Affine {
        let mut out = Affine::constant(self.offset.clone());
        for (a, c) in &self.terms {
            out.add_term(f(*a), c);
        }
        out
    }
}

/// Returns the flat row-major index of a map into a shape.
pub(crate) fn flatten(map: &[Affine], shape: &[Dim]) -> Affine {
    let mut flat = Affine::zero();
    for (index, stride) in map.iter().zip(contiguous_strides(shape)) {
        flat.add_scaled(index, &stride);
    }
    flat
}

/// Returns the index into the memory of `[batch, channels, spatial..]`, where the channels may come last.
pub(crate) fn stored(map: &[Affine], shape: &[Dim], channels_last: bool) -> Affine {
    if !channels_last {
        return flatten(map, shape);
    }
    let not_channels = |i: usize| (i != 1).then_some(i);
    let order = (0..shape.len()).filter_map(not_channels).chain([1]);
    let (map, shape): (Map, SmallVec<[Dim; 4]>) =
        order.map(|i| (map[i].clone(), shape[i].clone())).unzip();
    flatten(&map, &shape)
}

/// An axis of a space.
#[derive(Clone, Debug)]
struct Axis {
    extent: Dim,
    /// The axes it was split into, and the extent of the second.
    split: Option<(Ax, Ax)>,
}

/// An iteration space: parallel axes and the axes that reductions run over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    table: Vec<Axis>,
    pub axes: Vec<Ax>,
    pub inner: Vec<Ax>,
    /// The parallel axes that are nevertheless walked in order, since stored values are combined over them.
    pub ordered: Vec<Ax>,
}

/// Returns an estimate of a size for decisions: symbols count as 64.
pub(crate) fn estimate(d: &Dim) -> i64 {
    d.eval_checked(&values(d.max_symbol())).unwrap_or(i64::MAX)
}

/// Returns values of the symbols in the sizes of a kernel, for decisions.
pub(crate) fn typical(kernel: &dyn Described) -> SmallVec<[i64; 8]> {
    let mut last = None;
    kernel.all_dims(&mut |d| {
        last = last.max(d.max_symbol());
        true
    });
    values(last)
}

fn values(last: Option<Sym>) -> SmallVec<[i64; 8]> {
    SmallVec::from_elem(64, last.map_or(0, |s| s.0 as usize + 1))
}

impl Space {
    /// Adds an axis that is in no list yet.
    pub fn add(&mut self, extent: Dim) -> Ax {
        self.table.push(Axis {
            extent,
            split: None,
        });
        self.table.len() as Ax - 1
    }

    /// Returns the space whose parallel axes are the dims of a shape, and its identity map.
    pub fn over(shape: &[Dim]) -> (Space, Map) {
        let mut space = Space::default();
        let map = space.append(shape, false);
        (space, map)
    }

    /// Adds an axis for each dim except those of extent 1. Returns the map that indexes the dims by them.
    pub fn append(&mut self, shape: &[Dim], inner: bool) -> Map {
        let mut map = Map::new();
        for d in shape {
            if d.is(1) {
                map.push(Affine::zero());
                continue;
            }
            let a = self.add(d.clone());
            if inner {
                self.inner.push(a);
            } else {
                self.axes.push(a);
            }
            map.push(Affine::axis(a));
        }
        map
    }

    pub fn extent(&self, a: Ax) -> &Dim {
        &self.table[a as usize].extent
    }

    pub fn extents(&self, list: &[Ax]) -> Vec<Dim> {
        list.iter().map(|a| self.extent(*a).clone()).collect()
    }

    /// Returns the expression with every split axis written in terms of its parts.
    pub fn resolve(&self, e: &Affine) -> Affine {
        if e.terms
            .iter()
            .all(|t| self.table[t.0 as usize].split.is_none())
        {
            return e.clone();
        }
        let mut out = Affine::constant(e.offset.clone());
        for (a, c) in &e.terms {
            self.resolve_term(*a, c, &mut out);
        }
        out
    }

    fn resolve_term(&self, a: Ax, c: &Dim, out: &mut Affine) {
        match self.table[a as usize].split {
            None => out.add_term(a, c),
            Some((high, low)) => {
                self.resolve_term(high, &(c * self.extent(low)), out);
                self.resolve_term(low, c, out);
            }
        }
    }

    pub fn resolve_map(&self, map: &[Affine]) -> Map {
        map.iter().map(|e| self.resolve(e)).collect()
    }

    /// Splits an axis into (E/t, t). True if `t` divides its extent `E` and both parts differ from 1.
    pub fn split(&mut self, a: Ax, t: &Dim) -> bool {
        let Ok(rest) = self.extent(a).div_exact(t) else {
            return false;
        };
        if rest.is(1) || t.is(1) {
            return false;
        }
        let (high, low) = (self.add(rest), self.add(t.clone()));
        if let Some(at) = self.ordered.iter().position(|x| *x == a) {
            self.ordered.splice(at..=at, [high, low]);
        }
        for list in [&mut self.axes, &mut self.inner] {
            if let Some(at) = list.iter().position(|x| *x == a) {
                list[at] = high;
                list.insert(at + 1, low);
                self.table[a as usize].split = Some((high, low));
                return true;
            }
        }
        false
    }

    /// Returns the smallest and largest value of an expression. Its symbols need not be small: coefficients count as
    /// positive or negative by their value at typical sizes.
    fn range(&self, e: &Affine) -> (Dim, Dim) {
        let (mut low, mut high) = (e.offset.clone(), e.offset.clone());
        for (a, c) in &e.terms {
            let reach = c * &(self.extent(*a) - &Dim::ONE);
            if estimate(c) >= 0 {
                high = &high + &reach;
            } else {
                low = &low + &reach;
            }
        }
        (low, high)
    }

    /// Returns two flags: true if `0 <= e`, and true if `e < extent`, are known to hold.
    pub fn sides(&self, e: &Affine, extent: &Dim) -> (bool, bool) {
        let (low, high) = self.range(e);
        let room = (&(extent - &Dim::ONE) - &high).as_const();
        (
            low.as_const().is_some_and(|l| l >= 0),
            room.is_some_and(|n| n >= 0),
        )
    }

    /// Returns the quotient and remainder of an expression by a positive number, where both are affine.
    fn divide(&mut self, e: &Affine, by: &Dim, may_split: bool) -> Option<(Affine, Affine)> {
        loop {
            let e = self.resolve(e);
            let (q0, r0) = match (e.offset.as_const(), by.as_const()) {
                (Some(o), Some(d)) => (Dim::Const(o.div_euclid(d)), Dim::Const(o.rem_euclid(d))),
                _ => match e.offset.div_exact(by) {
                    Ok(q) => (q, Dim::ZERO),
                    Err(_) => (Dim::ZERO, e.offset.clone()),
                },
            };
            let (mut q, mut r) = (Affine::constant(q0), Affine::constant(r0));
            for (a, c) in &e.terms {
                match c.div_exact(by) {
                    Ok(c) => q.add_term(*a, &c),
                    Err(_) => r.add_term(*a, c),
                }
            }
            let (low, high) = self.range(&r);
            let slack = (&(by - &Dim::ONE) - &high).as_const();
            if low.as_const().is_some_and(|l| l >= 0) && slack.is_some_and(|n| n >= 0) {
                return Some((q, r));
            }
            let split = may_split
                && r.terms.iter().any(|(a, c)| {
                    by.div_exact(c)
                        .is_ok_and(|t| estimate(&t) > 1 && self.split(*a, &t))
                });
            if !split {
                return None;
            }
        }
    }

    /// Splits a flat index into indices of `dims`.
    pub fn unflatten(&mut self, flat: &Affine, dims: &[Dim], may_split: bool) -> Option<Map> {
        let mut map: Map = SmallVec::from_elem(Affine::zero(), dims.len());
        let mut remaining = flat.clone();
        let outermost = dims.iter().position(|d| !d.is(1));
        for k in (0..dims.len()).rev() {
            if dims[k].is(1) {
                continue;
            }
            if Some(k) == outermost {
                map[k] = self.resolve(&remaining);
                break;
            }
            let (q, r) = self.divide(&remaining, &dims[k], may_split)?;
            map[k] = r;
            remaining = q;
        }
        Some(self.resolve_map(&map))
    }

    /// Returns the map into `from` of the element that `map` names in `to`, where both shapes hold the same elements in
    /// row-major order. `None` if that is not affine.
    pub fn through_reshape(
        &mut self,
        map: &[Affine],
        from: &[Dim],
        to: &[Dim],
        may_split: bool,
    ) -> Option<Map> {
        let mut out: Map = SmallVec::from_elem(Affine::zero(), from.len());
        if numel(from).is(0) {
            return Some(out);
        }
        let (mut i, mut j) = (0, 0); // where the current segment begins in `from` and `to`
        while i < from.len() {
            if from[i].is(1) {
                i += 1;
                continue;
            }
            let (i_end, j_end) = segment(&from[i..], &to[j..])?;
            let (dims, index) = (&from[i..i + i_end], &map[j..j + j_end]);
            let flat = flatten(index, &to[j..j + j_end]);
            let part = self.unflatten(&flat, dims, may_split)?;
            out[i..i + i_end].clone_from_slice(&part);
            (i, j) = (i + i_end, j + j_end);
        }
        Some(self.resolve_map(&out))
    }

    /// Returns the axes that a flat index walks without gaps, innermost first, and their number of points.
    fn walk(&self, flat: &Affine) -> (Vec<Ax>, Dim) {
        let (mut order, mut points) = (Vec::with_capacity(flat.terms.len()), Dim::ONE);
        let next = |order: &[Ax], points: &Dim| {
            let mut terms = flat.terms.iter();
            terms.find_map(|(a, c)| (c == points && !order.contains(a)).then_some(*a))
        };
        while let Some(a) = next(&order, &points) {
            points = &points * self.extent(a);
            order.push(a);
        }
        (order, points)
    }

    /// True if a flat index names every element of `numel` exactly once, over the axes that it uses.
    pub fn is_bijection(&self, flat: &Affine, numel: &Dim) -> bool {
        if !flat.offset.is(0) || numel.is(0) {
            return false;
        }
        let (walked, points) = self.walk(flat);
        let mut axes = flat.terms.iter().map(|t| t.0);
        axes.all(|a| walked.contains(&a) || self.extent(a).is(1)) && points == *numel
    }

    /// Puts the parallel axes into the order in which `flat`, a bijection, walks them.
    pub fn sort_axes(&mut self, flat: &Affine) {
        self.axes = self.walk(flat).0;
        self.axes.reverse();
    }

    /// Returns the number of points of the whole space, for decisions.
    pub fn points(&self) -> i64 {
        let axes = self.axes.iter().chain(&self.inner);
        axes.fold(1i64, |n, a| n.saturating_mul(estimate(self.extent(*a))))
    }
}

/// Returns the smallest numbers of leading dims of two shapes that hold equally many elements.
fn segment(a: &[Dim], b: &[Dim]) -> Option<(usize, usize)> {
    let mut products: SmallVec<[Dim; 4]> = SmallVec::new();
    let mut p = Dim::ONE;
    for d in b {
        p = &p * d;
        products.push(p.clone());
    }
    let mut p = Dim::ONE;
    for (i, d) in a.iter().enumerate() {
        p = &p * d;
        if let Some(j) = products.iter().position(|q| *q == p) {
            return Some((i + 1, j + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests;
