use super::{Data, Problem};
use crate::ops::Input;

/// An input is given and not computed.
pub(super) fn eval(op: &Input) -> Result<Data, Problem> {
    let index = op.index;
    Err(Problem::Inputs(format!("input {index} has no value here")))
}
