//! The representation of values in registers.

use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::{LANES, Registers, Slot};

/// The word or double word that a lane of a register holds.
pub(crate) trait Bits: Copy + Default + 'static {
    fn lanes(registers: &Registers, slot: Slot) -> &[Self; LANES];
    fn lanes_mut(registers: &mut Registers, slot: Slot) -> &mut [Self; LANES];
}

impl Bits for u32 {
    #[inline(always)]
    fn lanes(registers: &Registers, slot: Slot) -> &[u32; LANES] {
        registers.word(slot)
    }
    #[inline(always)]
    fn lanes_mut(registers: &mut Registers, slot: Slot) -> &mut [u32; LANES] {
        registers.word_mut(slot)
    }
}

impl Bits for u64 {
    #[inline(always)]
    fn lanes(registers: &Registers, slot: Slot) -> &[u64; LANES] {
        registers.wide(slot)
    }
    #[inline(always)]
    fn lanes_mut(registers: &mut Registers, slot: Slot) -> &mut [u64; LANES] {
        registers.wide_mut(slot)
    }
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

impl Value for f32 {
    type Bits = u32;
    #[inline(always)]
    fn from_bits(bits: u32) -> f32 {
        f32::from_bits(bits)
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32::to_bits(self)
    }
}

impl Value for f64 {
    type Bits = u64;
    #[inline(always)]
    fn from_bits(bits: u64) -> f64 {
        f64::from_bits(bits)
    }
    #[inline(always)]
    fn to_bits(self) -> u64 {
        f64::to_bits(self)
    }
}

/// An f16, as the f32 of its value.
#[derive(Copy, Clone)]
pub(crate) struct Half(pub f32);

impl Value for Half {
    type Bits = u32;
    #[inline(always)]
    fn from_bits(bits: u32) -> Half {
        Half(f16_to_f32(bits))
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32_to_f16(self.0)
    }
}

/// A bf16, as the f32 of its value.
#[derive(Copy, Clone)]
pub(crate) struct Bf(pub f32);

impl Value for Bf {
    type Bits = u32;
    #[inline(always)]
    fn from_bits(bits: u32) -> Bf {
        Bf(bf16_to_f32(bits))
    }
    #[inline(always)]
    fn to_bits(self) -> u32 {
        f32_to_bf16(self.0)
    }
}
