//! Conversions between register types.

use super::code::{Call, Op};
use super::compute::with_compute;
use super::lanes::{Elem, Number, map1};
use crate::simd::convert::{Mem, with_dtype};
use kiln_base::DType;

/// A register element that stands for one of a dtype, as one of another.
#[inline(always)]
pub(crate) fn cast_one<S: Elem, D: Mem, const UNSIGNED: bool>(x: S) -> D::C
where
    D::C: Elem,
{
    let number = match x.number() {
        Number::Int(x) if UNSIGNED => Number::Unsigned(x as u64),
        number => number,
    };
    D::C::cast(number, D::DTYPE)
}

/// The loop that converts a value of dtype `from` to dtype `to`.
pub(super) fn cast(from: DType, to: DType) -> Op {
    unsafe fn of<S: Elem, D: Mem, const UNSIGNED: bool>(call: Call)
    where
        D::C: Elem,
    {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<S, D::C>(call, |x| cast_one::<S, D, UNSIGNED>(x)) }
    }
    with_dtype!(to, D => with_compute!(from.compute(), S => match from {
        DType::U64 => of::<S, D, true>,
        _ => of::<S, D, false>,
    }))
}
