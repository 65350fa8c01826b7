use super::index::{Sum, offsets, strides};
use super::{Array, Data, Problem};
use crate::ops::Scatter;
use kiln_base::prim::{Binary, ScatterKind};

pub(super) fn eval(op: &Scatter, x: &Array, index: &Array, src: &Array) -> Result<Data, Problem> {
    let at = positions(op.axis, x, index)?;
    let combine = match op.kind {
        ScatterKind::Set => None,
        ScatterKind::Sum => Some(Binary::Add),
        ScatterKind::Prod => Some(Binary::Mul),
        ScatterKind::Max => Some(Binary::Max),
        ScatterKind::Min => Some(Binary::Min),
    };
    Ok(match (x.data(), src.data()) {
        (Data::Float(x), Data::Float(src)) if op.kind == ScatterKind::Sum => {
            Data::Float(sum_at(x, src, &at))
        }
        (Data::Float(x), Data::Float(src)) => Data::Float(combined(x, src, &at, |old, new| {
            combine.map_or(new, |c| c.eval_f64(old, new))
        })),
        (Data::Int(x), Data::Int(src)) => Data::Int(combined(x, src, &at, |old, new| {
            combine.map_or(new, |c| c.eval_i64(old, new).unwrap_or(0))
        })),
        _ => unreachable!("inference wants one dtype"),
    })
}

/// For each element of an index into an axis of `x`, the position in `x` that it names.
pub(super) fn positions(axis: usize, x: &Array, index: &Array) -> Result<Vec<usize>, Problem> {
    let mut steps = strides(x.shape());
    let stride = steps[axis] as usize;
    steps[axis] = 0;
    let bound = x.shape()[axis] as i64;
    let mut positions = offsets(index.shape(), &steps, 0);
    let indices = index.ints().unwrap_or(&[]);
    for (element, (position, &index)) in positions.iter_mut().zip(indices).enumerate() {
        if !(0..bound).contains(&index) {
            return Err(Problem::Index {
                index,
                bound,
                element,
            });
        }
        *position += index as usize * stride;
    }
    Ok(positions)
}

fn combined<T: Copy>(x: &[T], src: &[T], at: &[usize], combine: impl Fn(T, T) -> T) -> Vec<T> {
    let mut out = x.to_vec();
    for (i, new) in at.iter().zip(src) {
        out[*i] = combine(out[*i], *new);
    }
    out
}

fn sum_at(x: &[f64], src: &[f64], at: &[usize]) -> Vec<f64> {
    let mut sums = vec![Sum::default(); x.len()];
    let starts = sums.iter_mut().zip(x);
    starts.for_each(|(sum, x)| sum.add(*x));
    at.iter().zip(src).for_each(|(i, new)| sums[*i].add(*new));
    // An element that no index touches keeps its −0.
    let mut out = x.to_vec();
    at.iter().for_each(|i| out[*i] = sums[*i].get());
    out
}
