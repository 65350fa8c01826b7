//! Conversions between f32 and f16 or bf16, without branches so that they vectorise.

/// The f32 of the f16 in the low half of `bits`.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u32) -> f32 {
    let magnitude = (bits & 0x7fff) << 13;
    // Moving the exponent by a product keeps subnormals right.
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000;
    let bits_of_value = if magnitude >= 0x0f80_0000 {
        special
    } else {
        finite
    };
    f32::from_bits(bits_of_value | (bits & 0x8000) << 16)
}

/// The nearest f16 of `x`, ties to even; NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn f32_to_f16(x: f32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let normal = (magnitude
        .wrapping_add(0x0fff + (magnitude >> 13 & 1))
        .wrapping_sub(112 << 23))
        >> 13;
    // Adding 0.5 lines a subnormal's last bit up with f32's last bit.
    let subnormal = (f32::from_bits(magnitude) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let finite = if magnitude < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    let large = if magnitude > 0x7f80_0000 {
        0x7fff
    } else {
        0x7c00
    };
    let value = if magnitude >= 0x4780_0000 {
        large
    } else {
        finite
    };
    let sign = if magnitude > 0x7f80_0000 {
        0
    } else {
        bits >> 16 & 0x8000
    };
    value | sign
}

/// The f32 of the bf16 in the low half of `bits`.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u32) -> f32 {
    f32::from_bits(bits << 16)
}

/// The nearest bf16 of `x`, ties to even; NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn f32_to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff
    } else {
        rounded
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::half::{bf16, f16};

    #[test]
    fn every_half_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (f16_to_f32(bits as u32), f16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#x}"
            );
            let (ours, theirs) = (bf16_to_f32(bits as u32), bf16::from_bits(bits).to_f32());
            assert!(
                ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for high in 0..=u16::MAX as u32 {
            for low in [0, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let x = f32::from_bits(high << 16 | low);
                if x.is_nan() {
                    assert_eq!((f32_to_f16(x), f32_to_bf16(x)), (0x7fff, 0x7fff));
                    continue;
                }
                assert_eq!(f32_to_f16(x) as u16, f16::from_f32(x).to_bits(), "{x:e}");
                assert_eq!(f32_to_bf16(x) as u16, bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
    }
}
