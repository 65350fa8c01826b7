//! The interpreter of contractions.

use super::{Access, Contraction};
use crate::tile::Bound;
use kiln_base::Dim;

impl Contraction {
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
        let evaluate = |dims: &[Dim]| dims.iter().map(|d| d.eval(values)).collect::<Vec<i64>>();
        let bound = |b: &Bound| {
            (
                b.offset.eval(values),
                evaluate(&b.strides),
                b.extent.eval(values),
            )
        };
        Map {
            offset: self.offset.eval(values),
            strides: evaluate(&self.strides),
            bounds: self.bounds.iter().map(bound).collect(),
        }
    }
}
