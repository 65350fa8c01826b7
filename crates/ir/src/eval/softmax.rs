use super::index::{Sum, lanes};
use super::{Array, Data};
use crate::ops::Softmax;

pub(super) fn eval(op: &Softmax, x: &Array) -> Data {
    let mut out = x.to_f64();
    let lanes = lanes(x.shape(), op.axis);
    for start in lanes.starts {
        let position = |i: usize| start + i * lanes.stride;
        let max = (0..lanes.len).fold(f64::NEG_INFINITY, |m, i| m.max(out[position(i)]));
        let mut sum = Sum::default();
        (0..lanes.len).for_each(|i| sum.add((out[position(i)] - max).exp()));
        let (sum, log_sum) = (sum.get(), sum.get().ln());
        for i in 0..lanes.len {
            let shifted = out[position(i)] - max;
            out[position(i)] = if op.log {
                shifted - log_sum
            } else {
                shifted.exp() / sum
            };
        }
    }
    Data::Float(out)
}
