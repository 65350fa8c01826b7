//! Affine index maps whose symbols have values, and the ranges of their results.

use crate::error::{Result, damaged};
pub use kiln_base::ceil;
use kiln_base::{Dim, MAX_PARTS};
use kiln_plan::tile::Bound;

/// The bound of all numbers; sums of a few numbers fit an i64.
const LIMIT: i128 = 1 << 60;

/// Evaluates a dim.
pub fn eval(dim: &Dim, values: &[i64]) -> Result<i64> {
    let v = dim.eval_checked(values);
    v.filter(|v| (v.unsigned_abs() as i128) < LIMIT)
        .ok_or_else(|| {
            damaged!(
                "size {dim} has no usable value: it is at least 2^60, or has more than {MAX_PARTS} terms and factors"
            )
        })
}

/// Evaluates an extent, which must not be negative.
pub fn extent(dim: &Dim, values: &[i64]) -> Result<i64> {
    let v = eval(dim, values)?;
    if v < 0 {
        return Err(damaged!("extent {dim} is negative"));
    }
    Ok(v)
}

/// Returns the product of extents.
pub fn product(extents: &[i64]) -> Result<i64> {
    if extents.contains(&0) {
        return Ok(0);
    }
    let n = extents.iter().try_fold(1i64, |n, e| n.checked_mul(*e));
    n.filter(|n| (*n as i128) < LIMIT)
        .ok_or_else(|| damaged!("an iteration space is too large"))
}

/// `offset + Σ stride · index`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affine {
    pub offset: i64,
    /// One stride per axis.
    pub strides: Vec<i64>,
}

impl Affine {
    /// Evaluates a map over `rank` axes.
    pub fn new(offset: &Dim, strides: &[Dim], rank: usize, values: &[i64]) -> Result<Affine> {
        if strides.len() != rank {
            return Err(damaged!("{} strides for {rank} axes", strides.len()));
        }
        Ok(Affine {
            offset: eval(offset, values)?,
            strides: strides
                .iter()
                .map(|s| eval(s, values))
                .collect::<Result<_>>()?,
        })
    }

    /// Returns the smallest and largest value over a non-empty box of indices.
    pub fn range(&self, extents: &[i64]) -> (i128, i128) {
        let mut range = (self.offset as i128, self.offset as i128);
        for (s, e) in self.strides.iter().zip(extents) {
            let span = *s as i128 * (*e as i128 - 1);
            range.0 += span.min(0);
            range.1 += span.max(0);
        }
        range
    }

    /// Returns the range, or an error if it is too large to compute with.
    pub fn checked_range(&self, extents: &[i64]) -> Result<(i64, i64)> {
        let (low, high) = self.range(extents);
        if low < -LIMIT || high > LIMIT {
            return Err(damaged!("an index overflows"));
        }
        Ok((low as i64, high as i64))
    }

    /// True if different indices of the box always give different values. The test is sufficient, not necessary: sorted
    /// by magnitude, each stride exceeds the range of all smaller ones together.
    pub fn is_injective(&self, extents: &[i64]) -> bool {
        let mut dims: Vec<(i128, i128)> = (self.strides.iter().zip(extents))
            .filter(|(_, e)| **e > 1)
            .map(|(s, e)| (s.unsigned_abs() as i128, *e as i128))
            .collect();
        dims.sort();
        let mut span = 0;
        dims.iter().all(|(s, e)| {
            let exceeds = *s > span;
            span += s * (e - 1);
            exceeds
        })
    }

    /// Returns the range of values over a box, its end excluded, if it provably has no gaps.
    pub fn range_without_gaps(&self, extents: &[i64]) -> Option<(i64, i64)> {
        if extents.contains(&0) {
            return None;
        }
        let steps = self.strides.iter().zip(extents);
        let mut steps: Vec<(i64, i64)> = steps
            .filter(|(s, e)| **e > 1 && **s != 0)
            .map(|(s, e)| (*s, *e))
            .collect();
        steps.sort();
        let mut count = 1i64;
        for (stride, extent) in steps {
            if !(1..=count).contains(&stride) {
                return None;
            }
            count = stride.checked_mul(extent - 1)?.checked_add(count)?;
        }
        Some((self.offset, self.offset.checked_add(count)?))
    }
}

/// `0 <= value < extent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub value: Affine,
    pub extent: i64,
}

impl Limit {
    /// Evaluates a bound over `rank` axes.
    pub fn new(bound: &Bound, rank: usize, values: &[i64]) -> Result<Limit> {
        Ok(Limit {
            value: Affine::new(&bound.offset, &bound.strides, rank, values)?,
            extent: eval(&bound.extent, values)?.max(0),
        })
    }
}

/// True if `address` provably stays within `0..len` for all indices of a box that satisfy `limits`.
///
/// A limit whose axes the address uses in the same proportions becomes a separate variable, with the limit's range. The
/// other axes are bounded by their extents.
pub fn stays_inside(address: &Affine, limits: &[Limit], extents: &[i64], len: i64) -> bool {
    if extents.contains(&0) {
        return true;
    }
    let mut remaining = address.clone();
    let (mut low, mut high) = (0i128, 0i128);
    for limit in limits {
        let (l, h) = limit.value.range(extents);
        let (l, h) = (l.max(0), h.min(limit.extent as i128 - 1));
        if l > h {
            return true; // the limit never holds
        }
        let Some(factor) = proportion(&remaining.strides, &limit.value.strides, extents) else {
            continue;
        };
        for (r, s) in remaining.strides.iter_mut().zip(&limit.value.strides) {
            if *s != 0 {
                *r = 0;
            }
        }
        let Some(offset) = factor
            .checked_mul(limit.value.offset)
            .and_then(|o| remaining.offset.checked_sub(o))
        else {
            return false;
        };
        remaining.offset = offset;
        let ends = (factor as i128 * l, factor as i128 * h);
        low += ends.0.min(ends.1);
        high += ends.0.max(ends.1);
    }
    let (l, h) = remaining.range(extents);
    l + low >= 0 && h + high < len as i128
}

/// Returns the number `c` with `strides = c · base` on every axis that `base` uses.
fn proportion(strides: &[i64], base: &[i64], extents: &[i64]) -> Option<i64> {
    let mut factor = None;
    for ((s, o), e) in strides.iter().zip(base).zip(extents) {
        if *o == 0 || *e == 1 {
            continue;
        }
        let ratio = (s % o == 0).then_some(s / o)?;
        if factor.is_some_and(|f| f != ratio) {
            return None;
        }
        factor = Some(ratio);
    }
    factor
}

#[cfg(test)]
mod tests {
    use super::*;

    fn affine(offset: i64, strides: &[i64]) -> Affine {
        Affine {
            offset,
            strides: strides.to_vec(),
        }
    }

    #[test]
    fn proofs_use_the_limits() {
        // A 3x3 window with padding over an 8x8 image: axes oh, ow, kh, kw.
        let extents = [8, 8, 3, 3];
        let address = affine(-9, &[8, 1, 8, 1]);
        let rows = Limit {
            value: affine(-1, &[1, 0, 1, 0]),
            extent: 8,
        };
        let cols = Limit {
            value: affine(-1, &[0, 1, 0, 1]),
            extent: 8,
        };
        let limits = [rows.clone(), cols];
        assert!(stays_inside(&address, &limits, &extents, 64));
        assert!(!stays_inside(&address, &limits, &extents, 63));
        assert!(!stays_inside(&address, &[rows], &extents, 64));
        assert!(stays_inside(&affine(0, &[8, 1]), &[], &[8, 8], 64));
        assert!(!stays_inside(&affine(1, &[8, 1]), &[], &[8, 8], 64));
        assert!(stays_inside(&affine(1, &[8, 1]), &[], &[8, 0], 0));
    }

    #[test]
    fn strides_are_injective_if_they_exceed_smaller_spans() {
        assert!(affine(0, &[8, 1]).is_injective(&[4, 8]));
        assert!(affine(0, &[1, -8]).is_injective(&[8, 4]));
        assert!(!affine(0, &[4, 1]).is_injective(&[4, 8]));
        assert!(!affine(0, &[0]).is_injective(&[2]));
        assert!(affine(0, &[0]).is_injective(&[1]));
    }
}
