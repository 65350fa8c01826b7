use super::index::{Lanes, Sum, lanes};
use super::{Array, Data};
use crate::ops::Scan;
use kiln_base::prim::ScanKind;

pub(super) fn eval(op: &Scan, x: &Array) -> Data {
    let lanes = lanes(x.shape(), op.axis);
    match x.data() {
        Data::Float(v) => Data::Float(match op.kind {
            ScanKind::Sum => running(&lanes, v, op.reverse, Sum::default(), |sum, x| {
                sum.add(x);
                sum.get()
            }),
            ScanKind::Prod => running(&lanes, v, op.reverse, 1.0, |product, x| {
                *product *= x;
                *product
            }),
            ScanKind::Max => running(&lanes, v, op.reverse, f64::NEG_INFINITY, |best, x| {
                *best = if x.is_nan() || x > *best { x } else { *best };
                *best
            }),
            ScanKind::Min => running(&lanes, v, op.reverse, f64::INFINITY, |best, x| {
                *best = if x.is_nan() || x < *best { x } else { *best };
                *best
            }),
            ScanKind::LogSumExp => running(&lanes, v, op.reverse, f64::NEG_INFINITY, log_add),
        }),
        Data::Int(v) => {
            let (start, combine): (i64, fn(i64, i64) -> i64) = match op.kind {
                ScanKind::Sum => (0, i64::wrapping_add),
                ScanKind::Prod => (1, i64::wrapping_mul),
                ScanKind::Max => (i64::MIN, i64::max),
                ScanKind::Min => (i64::MAX, i64::min),
                ScanKind::LogSumExp => unreachable!("inference wants floats"),
            };
            Data::Int(running(&lanes, v, op.reverse, start, |state, x| {
                *state = combine(*state, x);
                *state
            }))
        }
    }
}

/// The state after each element of each lane.
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
            let at = first + i * lanes.stride;
            out[at] = step(&mut state, v[at]);
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
