use super::index::{Lanes, Sum, lanes};
use super::{Array, Data};
use crate::ops::Scan;
use kiln_base::prim::Reduction;

pub(super) fn eval(op: &Scan, x: &Array) -> Data {
    let lanes = lanes(x.shape(), op.axis);
    match (x.data(), op.kind.reduction()) {
        (Data::Float(v), Some(Reduction::Sum)) => {
            Data::Float(running(&lanes, v, op.reverse, Sum::default(), |sum, x| {
                sum.add(x);
                sum.get()
            }))
        }
        (Data::Float(v), Some(r)) => Data::Float(running(
            &lanes,
            v,
            op.reverse,
            r.identity_f64(),
            |state, x| {
                *state = r.combine().eval_f64(*state, x);
                *state
            },
        )),
        (Data::Float(v), None) => {
            Data::Float(running(&lanes, v, op.reverse, f64::NEG_INFINITY, log_add))
        }
        (Data::Int(v), Some(r)) => {
            let start = r.identity_f64() as i64;
            Data::Int(running(&lanes, v, op.reverse, start, |state, x| {
                *state = r.combine().eval_i64(*state, x).unwrap_or(0);
                *state
            }))
        }
        (Data::Int(_), None) => unreachable!("inference wants floats"),
    }
}

/// Returns the state after each element of each lane.
fn running<T: Copy + Default, S: Clone>(
    lanes: &Lanes,
    v: &[T],
    reverse: bool,
    start: S,
    step: impl Fn(&mut S, T) -> T,
) -> Vec<T> {
    let mut out = vec![T::default(); v.len()];
    for first in &lanes.starts {
        let mut state = start.clone();
        for i in 0..lanes.len {
            let i = if reverse { lanes.len - 1 - i } else { i };
            let position = first + i * lanes.stride;
            out[position] = step(&mut state, v[position]);
        }
    }
    out
}

fn log_add(sum: &mut f64, x: f64) -> f64 {
    let (high, low) = (sum.max(x), sum.min(x));
    *sum = if x.is_nan() || sum.is_nan() {
        f64::NAN
    } else if high.is_infinite() {
        high
    } else {
        high + (low - high).exp().ln_1p()
    };
    *sum
}
