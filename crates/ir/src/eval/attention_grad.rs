use super::attention::Rows;
use super::index::Sum;
use super::{Array, Context, Data};
use crate::ops::AttentionGrad;

pub(super) fn eval(op: &AttentionGrad, x: &[&Array], cx: &Context) -> Data {
    let rows = Rows::new(&op.of, x[0], x[1], &x[4..]);
    let (v, g) = (x[2].to_f64(), x[3].to_f64());
    let (keys, e, w) = (rows.keys, rows.width, x[2].shape()[rows.rank - 1]);
    let batch: usize = x[0].shape()[..rows.rank - 2].iter().product();
    let mut dq = vec![Sum::default(); rows.count * e];
    let mut dk = vec![Sum::default(); batch * keys * e];
    let mut dv = vec![Sum::default(); batch * keys * w];
    for row in 0..rows.count {
        let (weights, b) = (rows.weights(row), rows.matrix(row));
        // The gradients of the weights, and of the scores.
        let weight_grad = |j: usize| {
            let mut sum = Sum::default();
            (0..w).for_each(|c| sum.add(g[row * w + c] * v[(b * keys + j) * w + c]));
            sum.get()
        };
        let mut weight_grads: Vec<f64> = (0..keys).map(weight_grad).collect();
        rows.drop(row, &mut weight_grads);
        let mut dropped = weights.clone();
        rows.drop(row, &mut dropped);
        let mut total = Sum::default();
        let pairs = weights.iter().zip(&weight_grads);
        pairs.clone().for_each(|(w, d)| total.add(w * d));
        // Engines compute this sum from the weights, or from the result.
        let total = cx.perturb(total.get(), row);
        for (j, (weight, d)) in pairs.enumerate() {
            let d = weight * (d - total) * op.of.scale.as_f64();
            let key = b * keys + j;
            for i in 0..e {
                dq[row * e + i].add(d * rows.key[key * e + i]);
                dk[key * e + i].add(d * rows.query[row * e + i]);
            }
            (0..w).for_each(|c| dv[key * w + c].add(dropped[j] * g[row * w + c]));
        }
    }
    let gradients = dq.iter().chain(&dk).chain(&dv);
    Data::Float(gradients.map(Sum::get).collect())
}
