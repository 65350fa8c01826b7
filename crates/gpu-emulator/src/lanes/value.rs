//! The representation of values in registers.

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// The word or double word that a lane of a register holds.
pub(crate) trait Bits: Copy + Default + 'static {
    const WORDS: usize;
}

impl Bits for u32 {
    const WORDS: usize = 1;
}

impl Bits for u64 {
    const WORDS: usize = 2;
}

/// A value that a lane computes with. Narrow integers ignore the upper bits of their word when read. When written,
/// they extend their sign to these bits, as `ld.s8` and `cvt.s16` do.
pub(crate) trait Value: Copy + 'static {
    type Bits: Bits;
    fn from_bits(bits: Self::Bits) -> Self;
    fn to_bits(self) -> Self::Bits;
}

macro_rules! integers {
    ($($ty:ty, $extended:ty => $bits:ty;)*) => {$(
        impl Value for $ty {
            type Bits = $bits;
            #[inline(always)]
            fn from_bits(bits: $bits) -> $ty {
                bits as $ty
            }
            #[inline(always)]
            fn to_bits(self) -> $bits {
                self as $extended as $bits
            }
        }
    )*};
}

integers! {
    u8, u32 => u32;
    i8, i32 => u32;
    u16, u32 => u32;
    i16, i32 => u32;
    u32, u32 => u32;
    i32, u32 => u32;
    u64, u64 => u64;
    i64, u64 => u64;
}

/// An f16, as the f32 of its value.
#[derive(Copy, Clone)]
pub(crate) struct Half(pub f32);

/// A bf16, as the f32 of its value.
#[derive(Copy, Clone)]
pub(crate) struct Bf(pub f32);

macro_rules! floats {
    ($($ty:ty => $bits:ty, $from:expr, $to:expr;)*) => {$(
        impl Value for $ty {
            type Bits = $bits;
            #[inline(always)]
            fn from_bits(bits: $bits) -> $ty {
                $from(bits)
            }
            #[inline(always)]
            fn to_bits(self) -> $bits {
                $to(self)
            }
        }
    )*};
}

floats! {
    f32 => u32, f32::from_bits, f32::to_bits;
    f64 => u64, f64::from_bits, f64::to_bits;
    Half => u32, |bits| Half(f16_to_f32(bits)), |x: Half| f32_to_f16(x.0);
    Bf => u32, |bits| Bf(bf16_to_f32(bits)), |x: Bf| f32_to_bf16(x.0);
}
