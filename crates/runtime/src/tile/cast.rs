//! Conversions between register types.

use super::code::{Call, Op};
use super::lanes::map1;
use crate::simd::convert::{Mem, Source, Target, Unsigned, with_dtype};
use crate::simd::{Isa, Kernel, Level, baseline, compiled};
use kiln_base::{Compute, DType};
use std::marker::PhantomData;

struct Cast<S, D>(PhantomData<(S, D)>);

impl<S: Source, D: Mem> Kernel<Call> for Cast<S, D>
where
    D::C: Target,
{
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: the call is of this instruction, whose operand's type was checked.
        unsafe {
            map1::<S, D::C>(
                call,
                #[inline(always)]
                |x| D::C::cast(x, D::DTYPE),
            );
        }
    }
}

/// The loop that converts a value of dtype `from` to dtype `to`.
pub(super) fn cast(from: DType, to: DType, level: Level) -> Op {
    // f64 and integers to half floats go through a library routine.
    let slow = matches!(to, DType::F16 | DType::BF16) && from.compute() != Compute::F32;
    let level = if slow { Level::Baseline } else { level };
    fn of<S: Source, D: Mem>(level: Level) -> Op
    where
        D::C: Target,
    {
        match level {
            Level::Baseline => baseline::<Cast<S, D>, Call>(),
            level => compiled::<Cast<S, D>, Call>(level),
        }
    }
    with_dtype!(to, D => match from.compute() {
        _ if from == DType::U64 => of::<Unsigned, D>(level),
        Compute::F32 => of::<f32, D>(level),
        Compute::F64 => of::<f64, D>(level),
        Compute::I32 => of::<i32, D>(level),
        Compute::I64 => of::<i64, D>(level),
        Compute::Mask => of::<u8, D>(level),
    })
}
