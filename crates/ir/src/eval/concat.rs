use super::{Array, Data};
use crate::ops::Concat;

pub(super) fn eval(op: &Concat, x: &[&Array]) -> Data {
    if x[0].dtype().is_float() {
        Data::Float(joined(op.axis, x, |a| a.floats().unwrap_or(&[])))
    } else {
        Data::Int(joined(op.axis, x, |a| a.ints().unwrap_or(&[])))
    }
}

fn joined<'a, T: Copy + 'a>(
    axis: usize,
    x: &[&'a Array],
    data: impl Fn(&'a Array) -> &'a [T],
) -> Vec<T> {
    let outer: usize = x[0].shape()[..axis].iter().product();
    let mut out = Vec::with_capacity(x.iter().map(|a| a.len()).sum());
    for i in 0..outer {
        for a in x {
            let run: usize = a.shape()[axis..].iter().product();
            out.extend_from_slice(&data(a)[i * run..(i + 1) * run]);
        }
    }
    out
}
