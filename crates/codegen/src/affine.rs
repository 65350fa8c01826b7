//! Index maps: affine expressions over the axes of an iteration space.
//!
//! A map gives, for each dim of a value, its index as an [`Affine`] expression over a [`Space`]'s axes.
//! Maps are pulled through reshapes in two steps. Each run of dims with equal products gets a flat index, which is then
//! divided into indices with remainders. If a coefficient does not divide, an axis of extent `E` may be split into
//! `(E/t, t)`. Expressions name axes by stable ids, and a split records the old axis in terms of the two new ones.

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

    /// Returns the expression with renamed axes.
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

/// Returns the flat index of a map into `[batch, channels, spatial..]`, whose channels may come last in memory.
pub(crate) fn flatten_layout(map: &[Affine], shape: &[Dim], channels_last: bool) -> Affine {
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
    /// The outer and inner axis that it was split into.
    split: Option<(Ax, Ax)>,
}

/// An iteration space: parallel axes and the axes that reductions run over.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space {
    table: Vec<Axis>,
    pub axes: Vec<Ax>,
    pub inner: Vec<Ax>,
    /// The parallel axes that are walked in order, because stored values are combined over them.
    pub ordered: Vec<Ax>,
}

/// Returns an estimate of a size for decisions: symbols count as 64.
pub(crate) fn estimate(d: &Dim) -> i64 {
    let values = symbol_values(d.max_symbol());
    d.eval_checked(&values).unwrap_or(i64::MAX)
}

/// Returns typical values of the symbols in the sizes of a kernel, for decisions.
pub(crate) fn typical_values(kernel: &dyn Described) -> SmallVec<[i64; 8]> {
    let mut last = None;
    kernel.all_dims(&mut |d| {
        last = last.max(d.max_symbol());
        true
    });
    symbol_values(last)
}

fn symbol_values(last: Option<Sym>) -> SmallVec<[i64; 8]> {
    SmallVec::from_elem(64, last.map_or(0, |s| s.0 as usize + 1))
}

impl Space {
    /// Adds an axis that is neither parallel nor inner yet.
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

    /// Returns the expression in terms of axes that are not split.
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
        let Ok(quotient) = self.extent(a).div_exact(t) else {
            return false;
        };
        if quotient.is(1) || t.is(1) {
            return false;
        }
        let (high, low) = (self.add(quotient), self.add(t.clone()));
        if let Some(i) = self.ordered.iter().position(|x| *x == a) {
            self.ordered.splice(i..=i, [high, low]);
        }
        for list in [&mut self.axes, &mut self.inner] {
            if let Some(i) = list.iter().position(|x| *x == a) {
                list[i] = high;
                list.insert(i + 1, low);
                self.table[a as usize].split = Some((high, low));
                return true;
            }
        }
        false
    }

    /// Returns the smallest and largest value of an expression. Coefficients count as positive or negative by their
    /// value at typical sizes.
    fn range(&self, e: &Affine) -> (Dim, Dim) {
        let (mut low, mut high) = (e.offset.clone(), e.offset.clone());
        for (a, c) in &e.terms {
            let extreme = c * &(self.extent(*a) - &Dim::ONE);
            if estimate(c) >= 0 {
                high = &high + &extreme;
            } else {
                low = &low + &extreme;
            }
        }
        (low, high)
    }

    /// Returns two flags: true if `0 <= e` is known to hold, and true if `e < extent` is.
    pub fn known_bounds(&self, e: &Affine, extent: &Dim) -> (bool, bool) {
        let (low, high) = self.range(e);
        let slack = (&(extent - &Dim::ONE) - &high).as_const();
        (
            low.as_const().is_some_and(|l| l >= 0),
            slack.is_some_and(|n| n >= 0),
        )
    }

    /// Returns the quotient and remainder of an expression by a positive number, if both are affine.
    fn divide(&mut self, e: &Affine, divisor: &Dim, may_split: bool) -> Option<(Affine, Affine)> {
        loop {
            let e = self.resolve(e);
            let (q0, r0) = match (e.offset.as_const(), divisor.as_const()) {
                (Some(o), Some(d)) => (Dim::Const(o.div_euclid(d)), Dim::Const(o.rem_euclid(d))),
                _ => match e.offset.div_exact(divisor) {
                    Ok(q) => (q, Dim::ZERO),
                    Err(_) => (Dim::ZERO, e.offset.clone()),
                },
            };
            let (mut q, mut r) = (Affine::constant(q0), Affine::constant(r0));
            for (a, c) in &e.terms {
                match c.div_exact(divisor) {
                    Ok(c) => q.add_term(*a, &c),
                    Err(_) => r.add_term(*a, c),
                }
            }
            let (low, high) = self.range(&r);
            let slack = (&(divisor - &Dim::ONE) - &high).as_const();
            if low.as_const().is_some_and(|l| l >= 0) && slack.is_some_and(|n| n >= 0) {
                return Some((q, r));
            }
            let split = may_split
                && r.terms.iter().any(|(a, c)| {
                    divisor
                        .div_exact(c)
                        .is_ok_and(|t| estimate(&t) > 1 && self.split(*a, &t))
                });
            if !split {
                return None;
            }
        }
    }

    /// Returns the indices of `dims` with a flat index, if they are affine.
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

    /// Returns the map of the same elements before a reshape of `from` to `to`; `None` if it is not affine.
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
            let (i_end, j_end) = common_prefix(&from[i..], &to[j..])?;
            let (dims, index) = (&from[i..i + i_end], &map[j..j + j_end]);
            let flat = flatten(index, &to[j..j + j_end]);
            let part = self.unflatten(&flat, dims, may_split)?;
            out[i..i + i_end].clone_from_slice(&part);
            (i, j) = (i + i_end, j + j_end);
        }
        Some(self.resolve_map(&out))
    }

    /// Returns the axes that a flat index covers without gaps, innermost first, and their number of points.
    fn dense_axes(&self, flat: &Affine) -> (Vec<Ax>, Dim) {
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
        let (dense, points) = self.dense_axes(flat);
        let mut axes = flat.terms.iter().map(|t| t.0);
        axes.all(|a| dense.contains(&a) || self.extent(a).is(1)) && points == *numel
    }

    /// Sorts the parallel axes by their strides in `flat`, a bijection.
    pub fn sort_axes(&mut self, flat: &Affine) {
        self.axes = self.dense_axes(flat).0;
        self.axes.reverse();
    }

    /// Returns the number of points of the whole space, for decisions.
    pub fn points(&self) -> i64 {
        let axes = self.axes.iter().chain(&self.inner);
        axes.fold(1i64, |n, a| n.saturating_mul(estimate(self.extent(*a))))
    }
}

/// Returns the smallest numbers of leading dims of two shapes with equal products.
fn common_prefix(a: &[Dim], b: &[Dim]) -> Option<(usize, usize)> {
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
