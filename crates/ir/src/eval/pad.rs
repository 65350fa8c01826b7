use super::index::{offsets, strides};
use super::{Array, Context, Data};
use crate::ops::Pad;

pub(super) fn eval(op: &Pad, x: &Array, cx: &Context) -> Data {
    let low: Vec<usize> = op
        .low
        .iter()
        .map(|d| d.as_const().unwrap_or(0) as usize)
        .collect();
    match x.data() {
        Data::Float(v) => {
            let fill = op.value.as_f64();
            Data::Float(bordered(v, x.shape(), &low, &cx.shape, fill))
        }
        Data::Int(v) => {
            let fill = op.value.as_i64();
            Data::Int(bordered(v, x.shape(), &low, &cx.shape, fill))
        }
    }
}

/// Returns a larger tensor of `fill` that holds the elements of `x` from index `low` on.
pub(super) fn bordered<T: Copy>(
    x: &[T],
    shape: &[usize],
    low: &[usize],
    padded: &[usize],
    fill: T,
) -> Vec<T> {
    let mut out = vec![fill; padded.iter().product()];
    if x.is_empty() {
        return out;
    }
    let steps = strides(padded);
    let start: isize = low.iter().zip(&steps).map(|(l, s)| *l as isize * s).sum();
    for (v, position) in x.iter().zip(offsets(shape, &steps, start)) {
        out[position] = *v;
    }
    out
}
