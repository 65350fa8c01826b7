use super::index::{offsets, strides};
use super::{Array, Context, Data};
use crate::ops::Slice;

pub(super) fn eval(op: &Slice, x: &Array, cx: &Context) -> Data {
    let mut start = 0isize;
    let mut steps = Vec::with_capacity(op.axes.len());
    for (s, stride) in op.axes.iter().zip(strides(x.shape())) {
        // Sizes are bound; numbers that could overflow belong to slices of no elements.
        let first = s.start.as_const().unwrap_or(0) as isize;
        start = start.wrapping_add(first.wrapping_mul(stride));
        steps.push((s.step as isize).wrapping_mul(stride));
    }
    x.data().pick(&offsets(&cx.shape, &steps, start))
}
