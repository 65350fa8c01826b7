use super::index::lanes;
use super::{Array, Data};
use crate::ops::ArgSort;
use kiln_base::Dim;
use std::cmp::Ordering;

pub(super) fn eval(op: &ArgSort, x: &Array) -> Data {
    match x.data() {
        Data::Float(v) => argsort(op, x.shape(), v, |a, b| {
            // NaN is the largest and equal to itself.
            a.partial_cmp(b)
                .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
        }),
        Data::Int(v) => argsort(op, x.shape(), v, Ord::cmp),
    }
}

fn argsort<T>(op: &ArgSort, shape: &[usize], v: &[T], cmp: impl Fn(&T, &T) -> Ordering) -> Data {
    let lanes = lanes(shape, op.axis);
    let first = op.first.as_ref().and_then(Dim::as_const);
    let count = first.map_or(lanes.len, |first| first as usize);
    let mut out_shape = shape.to_vec();
    out_shape[op.axis] = count;
    let out_lanes = super::index::lanes(&out_shape, op.axis);
    let mut out = vec![0i64; out_shape.iter().product()];
    // Without elements to give there are no lanes to write to.
    for (start, out_start) in lanes.starts.iter().zip(&out_lanes.starts) {
        let mut order: Vec<usize> = (0..lanes.len).collect();
        order.sort_by(|a, b| {
            let ordering = cmp(&v[start + a * lanes.stride], &v[start + b * lanes.stride]);
            if op.descending {
                ordering.reverse()
            } else {
                ordering
            }
        });
        for (i, index) in order.iter().take(count).enumerate() {
            out[out_start + i * out_lanes.stride] = *index as i64;
        }
    }
    Data::Int(out)
}
