//! Number types of accumulators.

use crate::simd::vector::Vector;
use crate::simd::{Features, Isa, fma32, fma64};
use crate::view::Plain;
use kiln_base::DType;

/// The maximum number of rows that share a pass over the values.
pub const ROWS: i64 = 8;
/// Returns the number of rows of a register tile of a level. With its vectors of positions they fill the registers,
/// except for those of the operands.
pub fn rows_of(level: Features) -> i64 {
    match level.width() {
        Features::AVX2 => 6,
        _ => ROWS,
    }
}
/// A number type that vectors hold.
pub trait Lane: Plain + PartialEq + std::ops::Add<Output = Self> {
    const ZERO: Self;
    const DTYPE: DType;
    /// The widest vector of it at a level.
    type Vector<I: Isa>: Vector<Lane = Self>;
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    fn is_finite(self) -> bool;
    fn from_f32(x: f32) -> Self;
}
impl Lane for f32 {
    const ZERO: f32 = 0.0;
    const DTYPE: DType = DType::F32;
    type Vector<I: Isa> = I::F32;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f32, c: f32) -> f32 {
        fma32::<I>(self, b, c)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f32::is_finite(self)
    }

    fn from_f32(x: f32) -> f32 {
        x
    }
}
impl Lane for f64 {
    const ZERO: f64 = 0.0;
    const DTYPE: DType = DType::F64;
    type Vector<I: Isa> = I::F64;

    #[inline(always)]
    fn mul_add<I: Isa>(self, b: f64, c: f64) -> f64 {
        fma64::<I>(self, b, c)
    }

    #[inline(always)]
    fn is_finite(self) -> bool {
        f64::is_finite(self)
    }

    fn from_f32(x: f32) -> f64 {
        x.into()
    }
}
