use super::array::int_to_float;
use super::{Array, Context, Data, Mode};
use kiln_base::{DType, float_to_int};

pub(super) fn eval(x: &Array, cx: &Context) -> Data {
    let dtype = cx.dtype;
    let width = match cx.mode {
        Mode::Rounded => dtype,
        Mode::Exact | Mode::Stochastic { .. } => DType::F64,
    };
    match (x.data(), dtype.is_float()) {
        (Data::Float(v), true) => Data::Float(v.clone()),
        (Data::Float(v), false) => Data::Int(v.iter().map(|x| float_to_int(*x, dtype)).collect()),
        (Data::Int(v), true) => {
            let source = x.dtype();
            Data::Float(v.iter().map(|x| int_to_float(*x, source, width)).collect())
        }
        (Data::Int(v), false) if dtype == DType::Bool => {
            Data::Int(v.iter().map(|x| (*x != 0) as i64).collect())
        }
        (Data::Int(v), false) => Data::Int(v.clone()),
    }
}
