use super::{Array, Data, Problem};
use crate::ops::Constant;

pub(super) fn eval(op: &Constant) -> Result<Data, Problem> {
    match Array::from_bytes(op.dtype, &op.shape, &op.bytes) {
        Ok(a) => Ok(a.data().clone()),
        Err(e) => Err(Problem::Inputs(e.to_string())),
    }
}
