use super::scatter::positions;
use super::{Array, Data, Problem};
use crate::ops::Gather;

pub(super) fn eval(op: &Gather, x: &Array, index: &Array) -> Result<Data, Problem> {
    Ok(x.data().pick(&positions(op.axis, x, index)?))
}
