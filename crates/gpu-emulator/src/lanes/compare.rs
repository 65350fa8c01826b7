//! Comparisons into predicates.

use super::float::flush;
use super::{Bf, Half, LANES, Loop, Operands, Registers, Run, Value, compiled, lanes};
use crate::ptx::Type::{self, *};
use std::marker::PhantomData;

/// The operation that combines a comparison with a third predicate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Combine {
    /// Not at all.
    None,
    And,
    Or,
    Xor,
}

/// The number of a comparison's loop: the combination, the negation of the third predicate, and the predicate that
/// takes the opposite.
pub(crate) fn number(combine: Combine, negated: bool, opposite: u32) -> u32 {
    combine as u32 | (negated as u32) << 2 | opposite << 3
}

struct Compare<A, F>(PhantomData<fn() -> (A, F)>);

impl<A: Value, F: Fn(A, A) -> bool + Copy> Loop for Compare<A, F> {
    #[inline(always)]
    fn run(registers: &mut Registers, o: &Operands, mask: u32) {
        let f = super::closure::<F>();
        let (a, b) = (lanes::<A>(registers, o.a), lanes::<A>(registers, o.b));
        let mut holds = 0;
        for l in 0..LANES {
            holds |= (f(A::from_bits(a[l]), A::from_bits(b[l])) as u32) << l;
        }
        let mut third = registers.predicates[o.c as usize];
        if o.x & 4 != 0 {
            third = !third;
        }
        let (holds, opposite) = match o.x & 3 {
            0 => (holds, !holds),
            1 => (holds & third, !holds & third),
            2 => (holds | third, !holds | third),
            _ => (holds ^ third, !holds ^ third),
        };
        registers.set_predicate(o.d, holds, mask);
        registers.set_predicate(o.x >> 3, opposite, mask);
    }
}

fn compare<A: Value, F: Fn(A, A) -> bool + Copy>(_: F) -> Run {
    compiled::<Compare<A, F>>()
}

macro_rules! integer {
    ($relation:expr, $ty:ty) => {
        Some(match $relation {
            "eq" => compare(|x: $ty, y: $ty| x == y),
            "ne" => compare(|x: $ty, y: $ty| x != y),
            "lt" | "lo" => compare(|x: $ty, y: $ty| x < y),
            "le" | "ls" => compare(|x: $ty, y: $ty| x <= y),
            "gt" | "hi" => compare(|x: $ty, y: $ty| x > y),
            "ge" | "hs" => compare(|x: $ty, y: $ty| x >= y),
            _ => return None,
        })
    };
}

/// The relations of floats; those ending in `u` hold for NaN too.
fn float<A: Value, V: PartialOrd, G: Fn(A) -> V + Copy>(relation: &str, get: G) -> Option<Run> {
    use std::cmp::Ordering::*;
    Some(match relation {
        "eq" => compare(move |x: A, y: A| get(x) == get(y)),
        "ne" => {
            compare(move |x: A, y: A| matches!(get(x).partial_cmp(&get(y)), Some(Less | Greater)))
        }
        "lt" => compare(move |x: A, y: A| get(x) < get(y)),
        "le" => compare(move |x: A, y: A| get(x) <= get(y)),
        "gt" => compare(move |x: A, y: A| get(x) > get(y)),
        "ge" => compare(move |x: A, y: A| get(x) >= get(y)),
        "equ" => {
            compare(move |x: A, y: A| matches!(get(x).partial_cmp(&get(y)), None | Some(Equal)))
        }
        "neu" => compare(move |x: A, y: A| get(x) != get(y)),
        "ltu" => {
            compare(move |x: A, y: A| !matches!(get(x).partial_cmp(&get(y)), Some(Equal | Greater)))
        }
        "leu" => compare(move |x: A, y: A| get(x).partial_cmp(&get(y)) != Some(Greater)),
        "gtu" => {
            compare(move |x: A, y: A| !matches!(get(x).partial_cmp(&get(y)), Some(Equal | Less)))
        }
        "geu" => compare(move |x: A, y: A| get(x).partial_cmp(&get(y)) != Some(Less)),
        "num" => compare(move |x: A, y: A| get(x).partial_cmp(&get(y)).is_some()),
        "nan" => compare(move |x: A, y: A| get(x).partial_cmp(&get(y)).is_none()),
        _ => return None,
    })
}

/// The loop of `setp.relation.ty`.
pub(crate) fn pick(relation: &str, ty: Type, flushing: bool) -> Option<Run> {
    match ty {
        U16 => integer!(relation, u16),
        S16 => integer!(relation, i16),
        U32 => integer!(relation, u32),
        S32 => integer!(relation, i32),
        U64 => integer!(relation, u64),
        S64 => integer!(relation, i64),
        F32 if flushing => float(relation, flush),
        F32 => float(relation, |x: f32| x),
        F64 => float(relation, |x: f64| x),
        F16 => float(relation, |x: Half| x.0),
        Bf16 => float(relation, |x: Bf| x.0),
        _ => None,
    }
}
