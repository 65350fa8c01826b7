use super::index::{Sum, offsets, strides};
use super::{Array, Data, Problem};
use crate::ops::Scatter;
use kiln_base::prim::ScatterKind;

pub(super) fn eval(op: &Scatter, x: &Array, index: &Array, src: &Array) -> Result<Data, Problem> {
    let to = places(op.axis, x, index)?;
    Ok(match (x.data(), src.data()) {
        (Data::Float(x), Data::Float(src)) => Data::Float(floats(op.kind, x, src, &to)),
        (Data::Int(x), Data::Int(src)) => {
            let combine: fn(i64, i64) -> i64 = match op.kind {
                ScatterKind::Set => |_, new| new,
                ScatterKind::Sum => i64::wrapping_add,
                ScatterKind::Prod => i64::wrapping_mul,
                ScatterKind::Max => i64::max,
                ScatterKind::Min => i64::min,
            };
            let mut out = x.clone();
            for (&at, &new) in to.iter().zip(src) {
                out[at] = combine(out[at], new);
            }
            Data::Int(out)
        }
        _ => unreachable!("inference wants one dtype"),
    })
}

/// The position in the result of each element of the source.
fn places(axis: usize, x: &Array, index: &Array) -> Result<Vec<usize>, Problem> {
    let mut steps = strides(x.shape());
    let stride = steps[axis] as usize;
    steps[axis] = 0;
    let bound = x.shape()[axis] as i64;
    let mut to = offsets(index.shape(), &steps, 0);
    let indices = index.ints().unwrap_or(&[]);
    for (element, (to, &index)) in to.iter_mut().zip(indices).enumerate() {
        if !(0..bound).contains(&index) {
            return Err(Problem::Index {
                index,
                bound,
                element,
            });
        }
        *to += index as usize * stride;
    }
    Ok(to)
}

fn floats(kind: ScatterKind, x: &[f64], src: &[f64], to: &[usize]) -> Vec<f64> {
    if kind == ScatterKind::Sum {
        let mut sums: Vec<Sum> = x.iter().map(|_| Sum::default()).collect();
        let starts = x.iter().enumerate();
        starts.for_each(|(at, x)| sums[at].add(*x));
        to.iter().zip(src).for_each(|(at, new)| sums[*at].add(*new));
        // An element that no index touches keeps its −0.
        let mut out = x.to_vec();
        to.iter().for_each(|at| out[*at] = sums[*at].get());
        return out;
    }
    let mut out = x.to_vec();
    for (&at, &new) in to.iter().zip(src) {
        let old = out[at];
        out[at] = match kind {
            ScatterKind::Set => new,
            ScatterKind::Prod => old * new,
            _ if old.is_nan() => old,
            ScatterKind::Max if new.is_nan() || new > old => new,
            ScatterKind::Min if new.is_nan() || new < old => new,
            _ => old,
        };
    }
    out
}
