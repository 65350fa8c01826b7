use super::{Array, Data};
use crate::ops::BatchNorm;

pub(super) fn eval(op: &BatchNorm, x: &[&Array]) -> Data {
    let shape = x[0].shape();
    let channels = shape[1];
    let plane: usize = shape[2..].iter().product();
    let statistic = |i: usize, c: usize| x[i].floats().map_or(f64::NAN, |v| v[c]);
    let eps = op.eps.as_f64();
    let values = x[0].floats().unwrap_or(&[]);
    let normalised = values.iter().enumerate().map(|(i, v)| {
        let c = i / plane % channels;
        let y = (v - statistic(1, c)) / (statistic(2, c) + eps).sqrt();
        if op.affine {
            y * statistic(3, c) + statistic(4, c)
        } else {
            y
        }
    });
    Data::Float(normalised.collect())
}
