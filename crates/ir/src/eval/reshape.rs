use super::{Array, Data};

pub(super) fn eval(x: &Array) -> Data {
    x.data().clone()
}
