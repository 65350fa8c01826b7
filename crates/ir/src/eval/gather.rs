use super::index::{offsets, strides};
use super::{Array, Data, Problem};
use crate::ops::Gather;

pub(super) fn eval(op: &Gather, x: &Array, index: &Array) -> Result<Data, Problem> {
    let mut steps = strides(x.shape());
    let stride = steps[op.axis] as usize;
    steps[op.axis] = 0;
    let bound = x.shape()[op.axis] as i64;
    let mut at = offsets(index.shape(), &steps, 0);
    let indices = index.ints().unwrap_or(&[]);
    for (element, (at, &index)) in at.iter_mut().zip(indices).enumerate() {
        if !(0..bound).contains(&index) {
            return Err(Problem::Index {
                index,
                bound,
                element,
            });
        }
        *at += index as usize * stride;
    }
    Ok(x.data().pick(&at))
}
