use super::{Array, Data};
use kiln_base::DType;

/// The operands, of this dtype, concatenated along an axis.
pub(super) fn eval(dtype: DType, axis: usize, x: &[&Array]) -> Data {
    match dtype.is_float() {
        true => Data::Float(joined(axis, x, |a| a.floats().unwrap_or(&[]))),
        false => Data::Int(joined(axis, x, |a| a.ints().unwrap_or(&[]))),
    }
}

fn joined<'a, T: Copy + 'a>(
    axis: usize,
    x: &[&'a Array],
    data: impl Fn(&'a Array) -> &'a [T],
) -> Vec<T> {
    let blocks = x.first().map_or(0, |a| a.shape()[..axis].iter().product());
    let mut out = Vec::with_capacity(x.iter().map(|a| a.len()).sum());
    for i in 0..blocks {
        for a in x {
            let run: usize = a.shape()[axis..].iter().product();
            out.extend_from_slice(&data(a)[i * run..(i + 1) * run]);
        }
    }
    out
}
