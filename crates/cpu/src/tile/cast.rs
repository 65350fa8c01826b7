//! Conversions between register types.

use super::code::{Call, Op};
use super::lanes::map1;
use kiln_base::DType;
use kiln_kernel::compute::with_compute;
use kiln_kernel::element::{Elem, cast_one};
use kiln_kernel::simd::convert::{Mem, with_dtype};

/// Returns the loop that converts a value of dtype `from` to dtype `to`.
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
