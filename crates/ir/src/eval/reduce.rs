use super::index::{Sum, offsets, strides};
use super::{Array, Context, Data};
use crate::ops::Reduce;
use kiln_base::DType;
use kiln_base::prim::Reduction;

pub(super) fn eval(op: &Reduce, x: &Array, cx: &Context) -> Data {
    let (mut inner_shape, mut inner_strides) = (vec![], vec![]);
    let mut kept_strides = vec![];
    for (a, stride) in strides(x.shape()).into_iter().enumerate() {
        if op.axes.contains(&a) {
            inner_shape.push(x.shape()[a]);
            inner_strides.push(stride);
        } else {
            kept_strides.push(stride);
        }
    }
    let bases = offsets(&cx.shape, &kept_strides, 0);
    let inner = offsets(&inner_shape, &inner_strides, 0);
    combine(op.kind, x, cx.dtype, &bases, &inner)
}

/// For each base, the combination of the elements at `base + inner`.
fn combine(kind: Reduction, x: &Array, dtype: DType, bases: &[usize], inner: &[usize]) -> Data {
    match x.data() {
        Data::Float(v) => {
            let reduced = |b: &usize| combine_floats(kind, inner.iter().map(|i| v[b + i]));
            Data::Float(bases.iter().map(reduced).collect())
        }
        Data::Int(v) => {
            let reduced = |b: &usize| combine_ints(kind, dtype, inner.iter().map(|i| v[b + i]));
            Data::Int(bases.iter().map(reduced).collect())
        }
    }
}

/// NaN wins a maximum and a minimum.
pub(super) fn combine_floats(kind: Reduction, values: impl Iterator<Item = f64>) -> f64 {
    match kind {
        Reduction::Sum => {
            let mut sum = Sum::default();
            values.for_each(|x| sum.add(x));
            sum.get()
        }
        Reduction::Prod => values.product(),
        Reduction::Max | Reduction::Min => {
            values.fold(kind.identity_f64(), |a, x| kind.combine().eval_f64(a, x))
        }
    }
}

/// Sums and products wrap into the dtype afterwards.
pub(super) fn combine_ints(
    kind: Reduction,
    dtype: DType,
    values: impl Iterator<Item = i64>,
) -> i64 {
    let (low, high) = dtype.int_range().unwrap_or((0, 0));
    match kind {
        Reduction::Sum => values.fold(0, i64::wrapping_add),
        Reduction::Prod => values.fold(1, i64::wrapping_mul),
        Reduction::Max => values.fold(low as i64, i64::max),
        Reduction::Min => values.fold(high as i64, i64::min),
    }
}
