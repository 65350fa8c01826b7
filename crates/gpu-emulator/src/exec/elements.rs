//! Elements of the operands of matrix instructions: their values, and where they lie in shared memory.

use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::half::{bf16_to_f32, f16_to_f32};
use crate::ptx::Type;

/// Fails unless every lane takes part.
pub(super) fn whole_warp(mask: u32, what: &str) -> Outcome<()> {
    if mask == !0 {
        return Ok(());
    }
    let why = format!("{what} with only the lanes {mask:#010x}");
    Err(Raised::new(FaultKind::Divergence, why))
}

/// The value of a 16-bit element.
#[inline(always)]
pub(super) fn widen(ty: Type, bits: u32) -> f32 {
    if ty == Type::Bf16 {
        bf16_to_f32(bits & 0xffff)
    } else {
        f16_to_f32(bits)
    }
}

/// Swizzles an offset in shared memory by 16-byte units, as hardware does. 1: 32 bytes, 2: 64, 3: 128.
pub(super) fn swizzle(offset: usize, mode: u8) -> usize {
    let bits = [0, 1, 3, 7][mode as usize & 3];
    offset ^ (offset >> 7 & bits) << 4
}

/// The value of a TF32 number, whose lowest 13 bits are not read.
#[inline(always)]
pub(super) fn tf32(bits: u32) -> f32 {
    f32::from_bits(bits & 0xffff_e000)
}

/// The value of an integer of 8 bits.
#[inline(always)]
pub(super) fn integer(ty: Type, bits: u8) -> f32 {
    match ty {
        Type::S8 => f32::from(bits as i8),
        _ => f32::from(bits),
    }
}
