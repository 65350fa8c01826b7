//! Contractions: `result[b, m, n] = Σ_k left[b, m, k] · right[b, n, k]`.
//!
//! Matrix products, convolutions and the gradients of these are contractions. Each of b, m, n and k stands for some
//! loops. Operands and result are accessed by affine maps of their indices, with bounds. Elements outside the bounds
//! are 0, or left out of the sum.
//!
//! The gradient of a convolution's images reads a tap t of the filter for an image position x and a result position y
//! where `x + padding = y · stride + t · dilation`. With `g = gcd(stride, dilation)` and `hop = stride / g`, all of
//! these are `t = r + u · hop`, `x = q · stride + r · dilation - padding` and `y = q - u · dilation / g`: affine in q,
//! u and r < hop. Positions that no tap meets are offset from these by `e`, for 0 < e < g.

#[cfg(test)]
mod tests;

use crate::tile::Bound;
use crate::{Conv, ConvRole, Images, MatMul, Matrix};
use kiln_base::{Dim, numel};
use std::fmt;

/// A contraction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contraction {
    /// The extents of the loops of b, m, n and k, the outermost first.
    pub loops: [Vec<Dim>; 4],
    /// The left and the right operand.
    pub operands: [Access; 2],
    /// The result, whose elements are written once each.
    pub result: Access,
    /// True if terms with an operand outside its bounds are left out, so that an infinite factor there makes no NaN.
    pub skips: bool,
}

/// The loops over the batch.
pub const BATCH: usize = 0;
/// The loops over rows of the result.
pub const ROWS: usize = 1;
/// The loops over columns of the result.
pub const COLUMNS: usize = 2;
/// The loops over terms of a sum.
pub const TERMS: usize = 3;

/// An affine map into an array: the element at `offset + Σ stride · index`, where all bounds hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The index of the argument.
    pub arg: u16,
    /// The number of elements of the array.
    pub len: Dim,
    /// The element at index zero.
    pub offset: Dim,
    /// A stride for each loop of b, then of m, n and k.
    pub strides: Vec<Dim>,
    /// Conditions on the indices of the same loops.
    pub bounds: Vec<Bound>,
}

/// The memory layout of a convolution's filters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Filters {
    /// `[groups · out, in, kernel..]`.
    ChannelsFirst,
    /// `[groups · out, kernel.., in]`.
    ChannelsLast,
}

impl From<&MatMul> for Contraction {
    fn from(p: &MatMul) -> Contraction {
        let MatMul { batch, m, k, n, .. } = p;
        let nothing = [Dim::ZERO];
        let access = |x: &Matrix, [rows, columns, terms]: [&[Dim]; 3]| {
            let parts = [&x.batch_strides[..], rows, columns, terms];
            let strides: Vec<Dim> = parts.concat();
            let extents = batch.iter().chain([m, n, k]);
            let last = |(n, by): (&Dim, &Dim)| match by.as_const() {
                Some(..0) => Dim::ZERO,
                _ => n * by,
            };
            let reach = extents.zip(&strides).map(last);
            Access {
                arg: x.arg,
                len: reach.fold(x.offset.clone(), |sum, n| &sum + &n),
                offset: x.offset.clone(),
                strides,
                bounds: Vec::new(),
            }
        };
        let one = |d: &Dim| [d.clone()];
        let (left, right) = (&p.lhs, &p.rhs);
        let extents: Vec<&Dim> = batch.iter().chain([m, n]).collect();
        let mut strides = contiguous(&extents);
        strides.push(Dim::ZERO);
        Contraction {
            loops: [
                batch.clone(),
                vec![m.clone()],
                vec![n.clone()],
                vec![k.clone()],
            ],
            operands: [
                access(left, [&one(&left.row), &nothing, &one(&left.col)]),
                access(right, [&nothing, &one(&right.col), &one(&right.row)]),
            ],
            result: Access {
                arg: p.out,
                len: product(&extents),
                offset: Dim::ZERO,
                strides,
                bounds: Vec::new(),
            },
            skips: false,
        }
        .simplified()
    }
}

/// Returns the strides of a contiguous array.
fn contiguous(extents: &[&Dim]) -> Vec<Dim> {
    let mut strides = vec![Dim::ONE; extents.len()];
    for i in (1..extents.len()).rev() {
        strides[i - 1] = &strides[i] * extents[i];
    }
    strides
}

fn product(extents: &[&Dim]) -> Dim {
    extents.iter().fold(Dim::ONE, |n, d| &n * *d)
}

/// A contraction under construction: loops have names.
#[derive(Default)]
struct Draft {
    loops: [Vec<(Dim, usize)>; 4],
    count: usize,
}

/// An affine function of named loops.
#[derive(Clone)]
struct Affine {
    offset: Dim,
    steps: Vec<(usize, Dim)>,
}

/// A coordinate of an array, and its extent, outside of which it may lie.
type Coordinate = (Affine, Dim);

impl Affine {
    fn of(steps: impl IntoIterator<Item = (usize, Dim)>, offset: Dim) -> Affine {
        Affine {
            offset,
            steps: steps.into_iter().collect(),
        }
    }

    fn one(at: usize) -> Affine {
        Affine::of([(at, Dim::ONE)], Dim::ZERO)
    }
}

impl Draft {
    /// Adds a loop, inside those of its kind.
    fn add(&mut self, kind: usize, extent: Dim) -> usize {
        self.loops[kind].push((extent, self.count));
        self.count += 1;
        self.count - 1
    }

    /// Returns the function's stride for each loop.
    fn strides(&self, f: &Affine) -> Vec<Dim> {
        let all = self.loops.iter().flatten();
        let stride = |(_, name): &(Dim, usize)| {
            let own = f.steps.iter().filter(|(at, _)| at == name);
            own.fold(Dim::ZERO, |sum, (_, by)| &sum + by)
        };
        all.map(stride).collect()
    }

    /// Returns the access to an array of these coordinates, the outermost first. Each is a condition; those that always
    /// hold are removed later.
    fn access(&self, arg: u16, coordinates: Vec<Coordinate>) -> Access {
        let extents: Vec<&Dim> = coordinates.iter().map(|c| &c.1).collect();
        let mut whole = Affine::of([], Dim::ZERO);
        for ((f, _), by) in coordinates.iter().zip(contiguous(&extents)) {
            whole.offset = &whole.offset + &(&f.offset * &by);
            whole
                .steps
                .extend(f.steps.iter().map(|(at, step)| (*at, step * &by)));
        }
        let bound = |(f, extent): &Coordinate| Bound {
            offset: f.offset.clone(),
            strides: self.strides(f),
            extent: extent.clone(),
        };
        Access {
            arg,
            len: product(&extents),
            offset: whole.offset.clone(),
            strides: self.strides(&whole),
            bounds: coordinates.iter().map(bound).collect(),
        }
    }

    fn extents(&self) -> [Vec<Dim>; 4] {
        let extents = |loops: &Vec<(Dim, usize)>| loops.iter().map(|(d, _)| d.clone()).collect();
        self.loops.each_ref().map(extents)
    }
}

impl Conv {
    /// Returns the layout of filters that are read, on a GPU or on a CPU.
    pub fn filters(&self, on_gpu: bool) -> Filters {
        match on_gpu && self.images != Images::ChannelsFirst {
            true => Filters::ChannelsLast,
            false => Filters::ChannelsFirst,
        }
    }

    /// Returns the contraction that it is, with filters that are read in this layout. Its columns are contiguous in the
    /// result: positions, or channels if these come last.
    ///
    /// # Panics
    /// If a stride or dilation is not a number. Those of plans are.
    pub fn contraction(&self, filters: Filters) -> Contraction {
        let [x_last, y_last] = self.images.last();
        let is_last = self.images != Images::ChannelsFirst;
        let mut draft = Draft::default();
        let group = draft.add(BATCH, self.groups.clone());
        let steps: Vec<Steps> = (0..self.kernel.len()).map(|i| Steps::of(self, i)).collect();
        // The coordinates of images and filters along each axis.
        let (image, ins, outs);
        let (mut x_axes, mut y_axes, mut taps): (Vec<_>, Vec<_>, Vec<_>) = Default::default();
        let positions = match self.role {
            ConvRole::Weight => TERMS,
            _ if is_last => ROWS,
            _ => COLUMNS,
        };
        let channels = match self.role {
            ConvRole::Weight => ROWS,
            _ if is_last => COLUMNS,
            _ => ROWS,
        };
        // Among terms and columns of filters, channels are the innermost loop if they are contiguous.
        let tap_kind = if self.role == ConvRole::Weight {
            COLUMNS
        } else {
            TERMS
        };
        let summed = match self.role {
            ConvRole::Input => &self.out_channels,
            _ => &self.in_channels,
        };
        let mut summed_channel = None;
        if !is_last {
            summed_channel = Some(draft.add(tap_kind, summed.clone()));
        }
        image = draft.add(positions, self.batch.clone());
        match self.role {
            ConvRole::Input => {
                for s in &steps {
                    let r = draft.add(BATCH, Dim::Const(s.hop));
                    let e = draft.add(BATCH, Dim::Const(s.unit));
                    x_axes.push(vec![(r, Dim::Const(s.dilation)), (e, Dim::ONE)]);
                    y_axes.push(vec![]);
                    taps.push(vec![(r, Dim::ONE)]);
                }
                for (i, s) in steps.iter().enumerate() {
                    let q = draft.add(positions, s.places.clone());
                    x_axes[i].push((q, Dim::Const(s.stride)));
                    y_axes[i].push((q, Dim::ONE));
                }
                for (i, s) in steps.iter().enumerate() {
                    let u = draft.add(tap_kind, s.turns.clone());
                    y_axes[i].push((u, Dim::Const(-s.dilation / s.unit)));
                    taps[i].push((u, Dim::Const(s.hop)));
                }
            }
            _ => {
                for (i, s) in steps.iter().enumerate() {
                    let o = draft.add(positions, self.output[i].clone());
                    x_axes.push(vec![(o, Dim::Const(s.stride))]);
                    y_axes.push(vec![(o, Dim::ONE)]);
                }
                for (i, s) in steps.iter().enumerate() {
                    let t = draft.add(tap_kind, self.kernel[i].clone());
                    x_axes[i].push((t, Dim::Const(s.dilation)));
                    taps.push(vec![(t, Dim::ONE)]);
                }
            }
        }
        let summed_channel = summed_channel.unwrap_or_else(|| draft.add(tap_kind, summed.clone()));
        let channel = match self.role {
            ConvRole::Input => draft.add(channels, self.in_channels.clone()),
            _ => draft.add(channels, self.out_channels.clone()),
        };
        (ins, outs) = match self.role {
            ConvRole::Input => (channel, summed_channel),
            _ => (summed_channel, channel),
        };
        let axis = |all: &[Vec<(usize, Dim)>], offsets: &dyn Fn(&Steps) -> Dim, extents: &[Dim]| {
            let each = all.iter().zip(&steps).zip(extents);
            let coordinate = |((f, s), extent): ((&Vec<_>, &Steps), &Dim)| {
                (Affine::of(f.clone(), offsets(s)), extent.clone())
            };
            each.map(coordinate).collect::<Vec<Coordinate>>()
        };
        let is_input = self.role == ConvRole::Input;
        let x_axes = axis(
            &x_axes,
            &|s| {
                let first = if is_input {
                    &s.first * &Dim::Const(-s.stride)
                } else {
                    Dim::ZERO
                };
                &first - &s.padding
            },
            &self.input,
        );
        let y_axes = axis(
            &y_axes,
            &|s| {
                if is_input {
                    &Dim::ZERO - &s.first
                } else {
                    Dim::ZERO
                }
            },
            &self.output,
        );
        let taps = axis(&taps, &|_| Dim::ZERO, &self.kernel);
        let whole = |at: usize, extent: &Dim| (Affine::one(at), extent.clone());
        let images = |arg, last: bool, channel: Coordinate, axes: Vec<Coordinate>| {
            let channels = [whole(group, &self.groups), channel];
            let first = [whole(image, &self.batch)];
            let all: Vec<Coordinate> = match last {
                true => first.into_iter().chain(axes).chain(channels).collect(),
                false => first.into_iter().chain(channels).chain(axes).collect(),
            };
            draft.access(arg, all)
        };
        let filter = |arg, last: bool| {
            let outer = [whole(group, &self.groups), whole(outs, &self.out_channels)];
            let inner = [whole(ins, &self.in_channels)];
            let taps = taps.clone();
            let all: Vec<Coordinate> = match last {
                true => outer.into_iter().chain(taps).chain(inner).collect(),
                false => outer.into_iter().chain(inner).chain(taps).collect(),
            };
            draft.access(arg, all)
        };
        let x = |arg| images(arg, x_last, whole(ins, &self.in_channels), x_axes.clone());
        let y = |arg| images(arg, y_last, whole(outs, &self.out_channels), y_axes.clone());
        let [first, second] = self.operands;
        let last = filters == Filters::ChannelsLast;
        let (read, other, result) = match self.role {
            ConvRole::Result => (x(first), filter(second, last), y(self.out)),
            ConvRole::Input => {
                let mut read = y(first);
                // Positions that no tap meets.
                let behind = draft.loops[BATCH].iter().skip(2).step_by(2);
                for ((_, e), s) in behind.zip(&steps) {
                    if s.unit > 1 {
                        read.bounds.push(Bound {
                            offset: Dim::ZERO,
                            strides: draft.strides(&Affine::one(*e)),
                            extent: Dim::ONE,
                        });
                    }
                }
                (read, filter(second, last), x(self.out))
            }
            ConvRole::Weight => (x(first), y(second), filter(self.out, false)),
        };
        let operands = match (self.role, is_last) {
            (ConvRole::Weight, _) | (_, false) => [other, read],
            _ => [read, other],
        };
        let contraction = Contraction {
            loops: draft.extents(),
            operands,
            result,
            skips: is_input,
        };
        contraction.simplified()
    }
}

/// The correspondence of positions and taps along an axis; see the [module](self).
struct Steps {
    stride: i64,
    dilation: i64,
    padding: Dim,
    /// `gcd(stride, dilation)`, and `stride` in these.
    unit: i64,
    hop: i64,
    /// The number of values of q, of which `first` are below 0, and that of u.
    places: Dim,
    first: Dim,
    turns: Dim,
}

impl Steps {
    fn of(c: &Conv, i: usize) -> Steps {
        let number = |d: &Dim| d.as_const().expect("strides and dilations are numbers");
        let (stride, dilation) = (number(&c.stride[i]), number(&c.dilation[i]));
        let unit = gcd(stride, dilation);
        let hop = stride / unit;
        let ceil = |d: Dim, by: i64| (&d + &Dim::Const(by - 1)).div_floor(by);
        let padding = c.padding[i].clone();
        // For all r and e, the first q is before the first position, or within a step after it.
        let farthest = Dim::Const((hop - 1) * dilation + unit - stride);
        let first = ceil(&farthest - &padding, stride);
        let last = ceil(&c.input[i] + &padding, stride);
        Steps {
            stride,
            dilation,
            padding,
            unit,
            hop,
            places: &last + &first,
            first,
            turns: ceil(c.kernel[i].clone(), hop),
        }
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}

impl Contraction {
    /// Returns the extents of all loops.
    pub fn extents(&self) -> impl Iterator<Item = &Dim> {
        self.loops.iter().flatten()
    }

    /// Returns the number of iterations of the loops of a kind.
    pub fn size(&self, kind: usize) -> Dim {
        numel(&self.loops[kind])
    }

    /// Returns the positions of the loops of a kind among all strides.
    pub fn range(&self, kind: usize) -> std::ops::Range<usize> {
        let before = self.loops[..kind].iter().map(Vec::len).sum::<usize>();
        before..before + self.loops[kind].len()
    }

    /// Returns the loops as only one access needs them: neighbours that are one loop to it are merged.
    #[must_use]
    pub fn seen_by(&self, access: &Access) -> Contraction {
        let all = || access.clone();
        let seen = Contraction {
            loops: self.loops.clone(),
            operands: [all(), all()],
            result: all(),
            skips: self.skips,
        };
        seen.simplified()
    }

    fn accesses(&mut self) -> [&mut Access; 3] {
        let [left, right] = &mut self.operands;
        [left, right, &mut self.result]
    }

    /// Returns the same without bounds that always hold, without loops of one iteration, and with neighbouring loops
    /// merged that are one to all accesses.
    fn simplified(mut self) -> Contraction {
        let extents: Vec<Dim> = self.extents().cloned().collect();
        for access in self.accesses() {
            access.bounds.retain(|b| !always_holds(b, &extents));
        }
        for kind in 0..4 {
            let mut i = 0;
            while i < self.loops[kind].len() {
                let at = self.range(kind).start + i;
                if self.loops[kind][i].is(1) {
                    self.remove(kind, i, at);
                } else if i > 0 && self.is_one(at, &self.loops[kind][i]) {
                    // The outer loop takes over the inner one's steps.
                    let inner = self.loops[kind][i].clone();
                    self.loops[kind][i] = &self.loops[kind][i - 1] * &inner;
                    self.remove(kind, i - 1, at - 1);
                } else {
                    i += 1;
                }
            }
        }
        self
    }

    /// Returns the same as a batch of more products, whose rows and columns are evenly spaced. This needs unbounded
    /// accesses, sums of one loop, and enough remaining rows or columns.
    #[must_use]
    pub fn batched(mut self, enough: impl Fn(&Dim) -> bool) -> Contraction {
        let bounded = self.accesses().iter().any(|a| !a.bounds.is_empty());
        if bounded || self.loops[TERMS].len() > 1 {
            return self;
        }
        for kind in [ROWS, COLUMNS] {
            while let [outer, .., last] = &self.loops[kind][..] {
                if !enough(last) {
                    break;
                }
                let (outer, from) = (outer.clone(), self.range(kind).start);
                let to = self.loops[BATCH].len();
                self.loops[kind].remove(0);
                self.loops[BATCH].push(outer);
                for access in self.accesses() {
                    let stride = access.strides.remove(from);
                    access.strides.insert(to, stride);
                }
            }
        }
        self
    }

    fn remove(&mut self, kind: usize, i: usize, at: usize) {
        self.loops[kind].remove(i);
        for access in self.accesses() {
            access.strides.remove(at);
            for bound in &mut access.bounds {
                bound.strides.remove(at);
            }
        }
    }

    /// True if a loop of this extent and the one around it are one to all accesses.
    fn is_one(&self, at: usize, extent: &Dim) -> bool {
        let one = |strides: &[Dim]| strides[at - 1] == &strides[at] * extent;
        let accesses = self.operands.iter().chain([&self.result]);
        accesses
            .flat_map(|a| a.bounds.iter().map(|b| &b.strides).chain([&a.strides]))
            .all(|strides| one(strides))
    }

    /// Checks that accesses fit the loops. If sizes are known and nothing is bounded, also checks that they lie within
    /// their arrays.
    ///
    /// # Errors
    /// The reason, as text.
    pub fn verify(&self) -> Result<(), String> {
        let count = self.extents().count();
        let extents: Option<Vec<i64>> = self.extents().map(Dim::as_const).collect();
        let unused = [Some(COLUMNS), Some(ROWS), Some(TERMS)];
        let names = ["the left operand", "the right operand", "the result"];
        let accesses = self.operands.iter().chain([&self.result]);
        for ((access, name), unused) in accesses.zip(names).zip(unused) {
            let all = access
                .bounds
                .iter()
                .map(|b| &b.strides)
                .chain([&access.strides]);
            for strides in all {
                if strides.len() != count {
                    let n = strides.len();
                    return Err(format!("{name} has {n} strides for {count} loops"));
                }
                let moves = unused.map(|kind| self.range(kind)).into_iter().flatten();
                if let Some(at) = moves.into_iter().find(|at| !strides[*at].is(0)) {
                    return Err(format!(
                        "{name} moves with loop {at}, which is none of its own"
                    ));
                }
            }
            if let Some(extents) = &extents {
                access.verify(extents).map_err(|e| format!("{name} {e}"))?;
            }
        }
        Ok(())
    }

    /// Returns the result's array, with zeros in elements that are not written. The operands are arrays, and sums are
    /// in f64, in the order of the loops.
    ///
    /// # Panics
    /// If the arrays are not of the accesses' lengths.
    pub fn interpret(&self, operands: [&[f64]; 2], values: &[i64]) -> Vec<f64> {
        let of = |d: &Dim| d.eval(values);
        let accesses = [&self.operands[0], &self.operands[1], &self.result];
        let maps = accesses.map(|a| a.with(values));
        let extents: Vec<i64> = self.extents().map(of).collect();
        let mut result = vec![0.0; of(&self.result.len).max(0) as usize];
        if extents.contains(&0) {
            return result;
        }
        let mut index = vec![0i64; extents.len()];
        loop {
            let [left, right, to] = maps.each_ref().map(|map| map.at(&index));
            let is_inside = left.is_some() && right.is_some();
            let number = |i: usize, at: Option<usize>| at.map_or(0.0, |at| operands[i][at]);
            if let (Some(to), true) = (to, is_inside || !self.skips) {
                result[to] += number(0, left) * number(1, right);
            }
            let Some(next) = (0..extents.len())
                .rev()
                .find(|i| index[*i] + 1 < extents[*i])
            else {
                return result;
            };
            index[next] += 1;
            index[next + 1..].fill(0);
        }
    }
}

/// An access with known numbers.
struct Map {
    offset: i64,
    strides: Vec<i64>,
    bounds: Vec<(i64, Vec<i64>, i64)>,
}

impl Map {
    fn at(&self, index: &[i64]) -> Option<usize> {
        let affine = |offset: i64, strides: &[i64]| {
            offset + strides.iter().zip(index).map(|(s, i)| s * i).sum::<i64>()
        };
        let holds = |(offset, strides, extent): &(i64, Vec<i64>, i64)| {
            (0..*extent).contains(&affine(*offset, strides))
        };
        (self.bounds.iter().all(holds)).then(|| affine(self.offset, &self.strides) as usize)
    }
}

impl Access {
    fn with(&self, values: &[i64]) -> Map {
        let all = |dims: &[Dim]| dims.iter().map(|d| d.eval(values)).collect::<Vec<i64>>();
        let bound = |b: &Bound| {
            (
                b.offset.eval(values),
                all(&b.strides),
                b.extent.eval(values),
            )
        };
        Map {
            offset: self.offset.eval(values),
            strides: all(&self.strides),
            bounds: self.bounds.iter().map(bound).collect(),
        }
    }

    fn verify(&self, extents: &[i64]) -> Result<(), String> {
        let numbers = |dims: &[Dim]| dims.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>();
        let (Some(strides), Some(offset), Some(len)) = (
            numbers(&self.strides),
            self.offset.as_const(),
            self.len.as_const(),
        ) else {
            return Ok(());
        };
        if extents.contains(&0) || !self.bounds.is_empty() {
            return Ok(());
        }
        let ends = |sign: i64| {
            let far = strides.iter().zip(extents);
            far.map(|(s, n)| (s * (n - 1) * sign).max(0) * sign)
                .sum::<i64>()
                + offset
        };
        let (low, high) = (ends(-1), ends(1));
        match low >= 0 && high < len {
            true => Ok(()),
            false => Err(format!("reaches from {low} to {high} of {len} elements")),
        }
    }
}

/// True if a condition holds for all indices: by numbers, or since it is one loop's own range.
fn always_holds(b: &Bound, extents: &[Dim]) -> bool {
    let moving: Vec<(&Dim, &Dim)> = b
        .strides
        .iter()
        .zip(extents)
        .filter(|(s, n)| !s.is(0) && !n.is(1))
        .collect();
    if let ([(stride, n)], true) = (&moving[..], b.offset.is(0))
        && stride.is(1)
        && **n == b.extent
    {
        return true;
    }
    let ends = || {
        let (mut low, mut high) = (b.offset.as_const()?, b.offset.as_const()?);
        for (stride, n) in moving {
            let far = stride.as_const()? * (n.as_const()?.max(1) - 1);
            (low, high) = (low + far.min(0), high + far.max(0));
        }
        Some(low >= 0 && high < b.extent.as_const()?)
    };
    ends() == Some(true)
}

const NAMES: [char; 4] = ['b', 'm', 'n', 'k'];

impl fmt::Display for Contraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut names = Vec::new();
        f.write_str("for")?;
        for (loops, name) in self.loops.iter().zip(NAMES) {
            for (i, extent) in loops.iter().enumerate() {
                let name = match loops.len() {
                    1 => name.to_string(),
                    _ => format!("{name}{i}"),
                };
                write!(f, " {name} < {extent}")?;
                names.push(name);
            }
        }
        let affine = |offset: &Dim, strides: &[Dim]| {
            let moves = strides.iter().zip(&names).filter(|(s, _)| !s.is(0));
            let mut terms: Vec<String> = moves
                .map(|(s, name)| {
                    if s.is(1) {
                        name.clone()
                    } else {
                        format!("{name}*{s}")
                    }
                })
                .collect();
            if !offset.is(0) || terms.is_empty() {
                terms.push(offset.to_string());
            }
            terms.join(" + ").replace("+ -", "- ")
        };
        let access = |a: &Access| {
            let bounds = a.bounds.iter();
            let bounds =
                bounds.map(|b| format!("; 0 <= {} < {}", affine(&b.offset, &b.strides), b.extent));
            let bounds: String = bounds.collect();
            format!("[{}{bounds}]", affine(&a.offset, &a.strides))
        };
        let [left, right] = self.operands.each_ref().map(access);
        let skips = if self.skips { ", inside" } else { "" };
        let (to, [l, r]) = (
            access(&self.result),
            self.operands.each_ref().map(|a| a.arg),
        );
        write!(f, "\n  result{to} += arg{l}{left} * arg{r}{right}{skips}")
    }
}
