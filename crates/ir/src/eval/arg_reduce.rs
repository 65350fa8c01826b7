use super::index::{Lanes, lanes};
use super::{Array, Data};
use crate::ops::ArgReduce;
use kiln_base::prim::Reduction;

pub(super) fn eval(op: &ArgReduce, x: &Array) -> Data {
    let lanes = lanes(x.shape(), op.axis);
    let largest = op.kind == Reduction::Max;
    Data::Int(match x.data() {
        // NaN beats everything but an earlier NaN.
        Data::Float(v) => first_best(&lanes, v, |new, best| {
            !best.is_nan() && (new.is_nan() || if largest { new > best } else { new < best })
        }),
        Data::Int(v) => first_best(
            &lanes,
            v,
            |new, best| {
                if largest { new > best } else { new < best }
            },
        ),
    })
}

/// Returns the index of the first element of each lane that no other beats.
fn first_best<T: Copy>(lanes: &Lanes, v: &[T], beats: impl Fn(T, T) -> bool) -> Vec<i64> {
    let best_of = |start: &usize| {
        let get = |i: usize| v[start + i * lanes.stride];
        (1..lanes.len).fold(0, |best, i| if beats(get(i), get(best)) { i } else { best }) as i64
    };
    lanes.starts.iter().map(best_of).collect()
}
