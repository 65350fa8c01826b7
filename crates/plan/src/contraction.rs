//! Contractions: `result[b, m, n] = Σ_k left[b, m, k] · right[b, n, k]`.
//!
//! Matrix products, convolutions and the gradients of these are contractions. Each of b, m, n and k stands for some
//! loops. Operands and result are accessed by affine maps of their indices, with bounds. Elements outside the bounds
//! are 0, or left out of the sum.
//!
//! The gradient of a convolution's images reads a tap t of the filter for an image position x and a result position y
//! where `x + padding = y · stride + t · dilation`. With `g = gcd(stride, dilation)` and `hop = stride / g`, all of
//! these are `t = r + u · hop`, `x = q · stride + r · dilation - padding` and `y = q - u · dilation / g`: affine in q,
//! u and r < hop. Positions that no tap reaches are offset from these by `e`, for 0 < e < g.

mod interpret;
mod lower;
#[cfg(test)]
mod tests;

use crate::tile::Bound;
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
    /// True if terms with an operand outside its bounds are skipped: an infinite factor there then gives no NaN.
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

    /// Returns the contraction with the loops of one access alone: adjacent loops that are contiguous for it are
    /// merged.
    #[must_use]
    pub fn seen_by(&self, access: &Access) -> Contraction {
        let copy = || access.clone();
        let restricted = Contraction {
            loops: self.loops.clone(),
            operands: [copy(), copy()],
            result: copy(),
            skips: self.skips,
        };
        restricted.simplified()
    }

    /// True if some elements of operands are outside their bounds.
    pub fn is_bounded(&self) -> bool {
        self.operands.iter().any(|x| !x.bounds.is_empty())
    }

    fn accesses(&mut self) -> [&mut Access; 3] {
        let [left, right] = &mut self.operands;
        [left, right, &mut self.result]
    }

    /// Removes bounds that always hold and loops of one iteration, and merges adjacent loops that are contiguous for
    /// all accesses.
    fn simplified(mut self) -> Contraction {
        let extents: Vec<Dim> = self.extents().cloned().collect();
        for access in self.accesses() {
            access.bounds.retain(|b| !always_holds(b, &extents));
        }
        for kind in 0..4 {
            let mut i = 0;
            while i < self.loops[kind].len() {
                let position = self.range(kind).start + i;
                if self.loops[kind][i].is(1) {
                    self.remove(kind, i, position);
                } else if i > 0 && self.is_contiguous(position, &self.loops[kind][i]) {
                    // The outer loop takes over the inner one's steps.
                    let inner = self.loops[kind][i].clone();
                    self.loops[kind][i] = &self.loops[kind][i - 1] * &inner;
                    self.remove(kind, i - 1, position - 1);
                } else {
                    i += 1;
                }
            }
        }
        self
    }

    /// Moves outer loops of rows and columns to the batch. This needs unbounded
    /// accesses, sums of one loop, and enough remaining rows or columns.
    #[must_use]
    pub fn batched(mut self, enough: impl Fn(&Dim) -> bool) -> Contraction {
        let has_bounds = self.is_bounded() || !self.result.bounds.is_empty();
        if has_bounds || self.loops[TERMS].len() > 1 {
            return self;
        }
        for kind in [ROWS, COLUMNS] {
            while let [outer, .., last] = &self.loops[kind][..] {
                if !enough(last) {
                    break;
                }
                let (outer, outer_position) = (outer.clone(), self.range(kind).start);
                let batch_end = self.loops[BATCH].len();
                self.loops[kind].remove(0);
                self.loops[BATCH].push(outer);
                for access in self.accesses() {
                    let stride = access.strides.remove(outer_position);
                    access.strides.insert(batch_end, stride);
                }
            }
        }
        self
    }

    /// Returns the transposed contraction: rows and columns, and with them the operands, are exchanged.
    #[must_use]
    pub fn transposed(mut self) -> Contraction {
        let range = self.range(ROWS).start..self.range(COLUMNS).end;
        let rows = self.loops[ROWS].len();
        for access in self.accesses() {
            access.strides[range.clone()].rotate_left(rows);
            for bound in &mut access.bounds {
                bound.strides[range.clone()].rotate_left(rows);
            }
        }
        self.loops.swap(ROWS, COLUMNS);
        self.operands.reverse();
        self
    }

    fn remove(&mut self, kind: usize, i: usize, position: usize) {
        self.loops[kind].remove(i);
        for access in self.accesses() {
            access.strides.remove(position);
            for bound in &mut access.bounds {
                bound.strides.remove(position);
            }
        }
    }

    /// True if a loop of this extent and the enclosing loop are contiguous for all accesses.
    fn is_contiguous(&self, at: usize, extent: &Dim) -> bool {
        let contiguous = |strides: &[Dim]| strides[at - 1] == &strides[at] * extent;
        let accesses = self.operands.iter().chain([&self.result]);
        accesses
            .flat_map(|a| a.bounds.iter().map(|b| &b.strides).chain([&a.strides]))
            .all(|strides| contiguous(strides))
    }

    /// Checks that accesses fit the loops. If sizes are known and nothing is bounded, also checks that they are within
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
            let strides_lists = access
                .bounds
                .iter()
                .map(|b| &b.strides)
                .chain([&access.strides]);
            for strides in strides_lists {
                if strides.len() != count {
                    let n = strides.len();
                    return Err(format!("{name} has {n} strides for {count} loops"));
                }
                let forbidden = unused.map(|kind| self.range(kind)).into_iter().flatten();
                if let Some(l) = forbidden.into_iter().find(|l| !strides[*l].is(0)) {
                    return Err(format!(
                        "{name} depends on loop {l}, which is not one of its own"
                    ));
                }
            }
            if let Some(extents) = &extents {
                access.verify(extents).map_err(|e| format!("{name} {e}"))?;
            }
        }
        Ok(())
    }
}

impl Access {
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
            let spans = strides.iter().zip(extents);
            spans
                .map(|(s, n)| (s * (n - 1) * sign).max(0) * sign)
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
            let span = stride.as_const()? * (n.as_const()?.max(1) - 1);
            (low, high) = (low + span.min(0), high + span.max(0));
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
