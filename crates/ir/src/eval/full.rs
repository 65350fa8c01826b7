use super::{Context, Data};
use crate::ops::Full;

pub(super) fn eval(op: &Full, cx: &Context) -> Data {
    let n = cx.shape.iter().product();
    if cx.dtype.is_float() {
        Data::Float(vec![op.value.as_f64(); n])
    } else {
        Data::Int(vec![op.value.as_i64(); n])
    }
}
