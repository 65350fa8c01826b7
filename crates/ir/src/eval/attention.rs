use super::index::Sum;
use super::{Array, Data};
use crate::ops::Attention;
use kiln_base::prim::{RandomKind, random_uniform_f32, random_words};

pub(super) fn eval(op: &Attention, x: &[&Array]) -> Data {
    let rows = Rows::new(op, x[0], x[1], &x[3..]);
    let v = x[2].to_f64();
    let w = x[2].shape()[rows.rank - 1];
    let mut out = Vec::with_capacity(rows.count * w);
    for row in 0..rows.count {
        let mut weights = rows.weights(row);
        rows.drop(row, &mut weights);
        for c in 0..w {
            let mut sum = Sum::default();
            for (j, weight) in weights.iter().enumerate() {
                sum.add(weight * v[(rows.matrix(row) * rows.keys + j) * w + c]);
            }
            out.push(sum.get());
        }
    }
    Data::Float(out)
}

/// The query and key rows of all matrices of the batch.
pub(super) struct Rows<'a> {
    op: &'a Attention,
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    mask: Option<&'a Data>,
    random_key: Option<&'a Data>,
    pub rank: usize,
    /// Rows of all queries, and of one; keys of one; and the width of both.
    pub count: usize,
    pub length: usize,
    pub keys: usize,
    pub width: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(
        op: &'a Attention,
        query: &Array,
        key: &Array,
        other_inputs: &[&'a Array],
    ) -> Rows<'a> {
        let rank = query.shape().len();
        let [length, width] = [rank - 2, rank - 1].map(|i| query.shape()[i]);
        let batch: usize = query.shape()[..rank - 2].iter().product();
        Rows {
            op,
            query: query.to_f64(),
            key: key.to_f64(),
            mask: op.mask(other_inputs).map(|x| x.data()),
            random_key: op.random_key(other_inputs).map(|x| x.data()),
            rank,
            count: batch * length,
            length,
            keys: key.shape()[rank - 2],
            width,
        }
    }

    /// The number of the matrix that a row is in.
    pub(super) fn matrix(&self, row: usize) -> usize {
        row / self.length.max(1)
    }

    /// Drops some of a row's weights, or of their gradients.
    pub(super) fn drop(&self, row: usize, weights: &mut [f64]) {
        let (Some(p), Some(Data::Int(key))) = (self.op.dropout, self.random_key) else {
            return;
        };
        let p = p.as_f64();
        for (j, weight) in weights.iter_mut().enumerate() {
            let position = (key[1] as u64).wrapping_add((row * self.keys + j) as u64);
            let words = random_words(RandomKind::Uniform, false, position, key[0] as u64);
            let is_kept = random_uniform_f32(words) >= p as f32;
            *weight *= if is_kept {
                Attention::dropout_scale(p)
            } else {
                0.0
            };
        }
    }

    /// The weights of the keys for a row.
    pub(super) fn weights(&self, row: usize) -> Vec<f64> {
        let (op, keys, width) = (self.op, self.keys, self.width);
        let b = self.matrix(row);
        let scale = op.scale.as_f64();
        let score = |j: usize| {
            if op.causal && j > row % self.length {
                return f64::NEG_INFINITY;
            }
            let mut product = Sum::default();
            for i in 0..width {
                product.add(self.query[row * width + i] * self.key[(b * keys + j) * width + i]);
            }
            match self.mask {
                None => product.get() * scale,
                Some(Data::Float(m)) => product.get() * scale + m[row * keys + j],
                Some(Data::Int(m)) if m[row * keys + j] != 0 => product.get() * scale,
                Some(Data::Int(_)) => f64::NEG_INFINITY,
            }
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let larger = |m: f64, x: &f64| if x.is_nan() || *x > m { *x } else { m };
        let max = scores.iter().fold(f64::NEG_INFINITY, larger);
        if max == f64::NEG_INFINITY && (op.causal || self.mask.is_some()) {
            return vec![0.0; keys];
        }
        let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
        let mut total = Sum::default();
        weights.iter().for_each(|x| total.add(*x));
        weights.iter().map(|x| x / total.get()).collect()
    }
}
