use super::index::Sum;
use super::{Array, Data};
use crate::ops::Attention;

pub(super) fn eval(op: &Attention, x: &[&Array]) -> Data {
    let (q, k, v) = (x[0].to_f64(), x[1].to_f64(), x[2].to_f64());
    let r = x[0].shape().len();
    let (l, e) = (x[0].shape()[r - 2], x[0].shape()[r - 1]);
    let (s, w) = (x[1].shape()[r - 2], x[2].shape()[r - 1]);
    let batch: usize = x[0].shape()[..r - 2].iter().product();
    let scale = op.scale.as_f64();
    let mask = x.get(3).map(|m| m.data());
    let mut out = Vec::with_capacity(batch * l * w);
    for row in 0..batch * l {
        let b = row / l.max(1);
        let score = |j: usize| {
            if op.causal && j > row % l {
                return f64::NEG_INFINITY;
            }
            let mut product = Sum::default();
            for i in 0..e {
                product.add(q[row * e + i] * k[(b * s + j) * e + i]);
            }
            match mask {
                None => product.get() * scale,
                Some(Data::Float(m)) => product.get() * scale + m[row * s + j],
                Some(Data::Int(m)) if m[row * s + j] != 0 => product.get() * scale,
                Some(Data::Int(_)) => f64::NEG_INFINITY,
            }
        };
        let scores: Vec<f64> = (0..s).map(score).collect();
        let max = scores.iter().fold(
            f64::NEG_INFINITY,
            |m, x| {
                if x.is_nan() || *x > m { *x } else { m }
            },
        );
        let blind = max == f64::NEG_INFINITY && (op.causal || mask.is_some());
        let weights: Vec<f64> = scores.iter().map(|x| (x - max).exp()).collect();
        let mut total = Sum::default();
        weights.iter().for_each(|x| total.add(*x));
        for c in 0..w {
            let mut sum = Sum::default();
            for (j, weight) in weights.iter().enumerate() {
                let weight = if blind { 0.0 } else { weight / total.get() };
                sum.add(weight * v[(b * s + j) * w + c]);
            }
            out.push(sum.get());
        }
    }
    Data::Float(out)
}
