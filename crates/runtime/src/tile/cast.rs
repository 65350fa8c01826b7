//! Conversions between register types.

use super::code::{Call, Op};
use super::lanes::map1;
use crate::simd::convert::{Mem, Source, Target, Unsigned, with_dtype};
use kiln_base::{Compute, DType};

/// The loop that converts a value of dtype `from` to dtype `to`.
pub(super) fn cast(from: DType, to: DType) -> Op {
    unsafe fn of<S: Source, D: Mem>(call: Call)
    where
        D::C: Target,
    {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe { map1::<S, D::C>(call, |x| D::C::cast(x, D::DTYPE)) }
    }
    with_dtype!(to, D => match from.compute() {
        _ if from == DType::U64 => of::<Unsigned, D>,
        Compute::F32 => of::<f32, D>,
        Compute::F64 => of::<f64, D>,
        Compute::I32 => of::<i32, D>,
        Compute::I64 => of::<i64, D>,
        Compute::Mask => of::<u8, D>,
    })
}
