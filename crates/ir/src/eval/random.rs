use super::{Array, Context, Data};
use crate::ops::Random;
use kiln_base::DType;
use kiln_base::prim::{
    RandomKind, random_bits, random_normal_f32, random_normal_f64, random_uniform_f32,
    random_uniform_f64, random_words,
};

pub(super) fn eval(op: &Random, key: &Array, cx: &Context) -> Data {
    let Data::Int(key) = key.data() else {
        unreachable!("inference wants an i64 key")
    };
    let (seed, offset) = (key[0] as u64, key[1] as u64);
    let n: usize = cx.shape.iter().product();
    let wide = matches!(op.dtype, DType::F64 | DType::I64);
    let words = |i| random_words(op.kind, wide, offset.wrapping_add(i), seed);
    let blocks = (0..n as u64).map(words);
    match op.kind {
        RandomKind::Bits => Data::Int(blocks.map(random_bits).collect()),
        RandomKind::Uniform if op.dtype == DType::F64 => {
            Data::Float(blocks.map(random_uniform_f64).collect())
        }
        RandomKind::Uniform => Data::Float(blocks.map(|w| random_uniform_f32(w) as f64).collect()),
        RandomKind::Normal if op.dtype == DType::F64 => {
            Data::Float(blocks.map(random_normal_f64).collect())
        }
        RandomKind::Normal => Data::Float(blocks.map(random_normal_f32).collect()),
    }
}
