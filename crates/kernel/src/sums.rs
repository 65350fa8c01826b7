//! Number types of vector lanes, and rows of register tiles.

use crate::simd::{Features, Isa, fma32, fma64};
use crate::view::Plain;
use kiln_base::DType;

/// The maximum number of rows that share a pass over the values.
pub const ROWS: i64 = 8;

/// Returns the number of rows of a register tile of a level. The accumulators of the tile fill the registers that
/// operands do not need.
pub fn tile_rows(level: Features) -> i64 {
    match level.width() {
        Features::AVX2 => 6,
        _ => ROWS,
    }
}

/// A number type that vectors hold.
pub trait Lane: Plain + PartialEq + std::ops::Add<Output = Self> {
    const ZERO: Self;
    const DTYPE: DType;
    fn mul_add<I: Isa>(self, b: Self, c: Self) -> Self;
    fn is_finite(self) -> bool;
    fn from_f32(x: f32) -> Self;
}

macro_rules! lane {
    ($t:ident, $dtype:ident, $mul_add:ident) => {
        impl Lane for $t {
            const ZERO: $t = 0.0;
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn mul_add<I: Isa>(self, b: $t, c: $t) -> $t {
                $mul_add::<I>(self, b, c)
            }

            #[inline(always)]
            fn is_finite(self) -> bool {
                $t::is_finite(self)
            }

            fn from_f32(x: f32) -> $t {
                x.into()
            }
        }
    };
}
lane!(f32, F32, fma32);
lane!(f64, F64, fma64);
