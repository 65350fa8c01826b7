//! Conversions between widths of floating point.

use super::rounding::Rounding;

/// Converts 16 bits to 32, exactly.
pub(crate) fn from_half(x: u16) -> f32 {
    let sign = u32::from(x >> 15) << 31;
    let exponent = u32::from(x >> 10 & 0x1F);
    let fraction = u32::from(x & 0x3FF);
    match (exponent, fraction) {
        (0x1F, 0) => f32::from_bits(sign | 0x7F80_0000),
        (0x1F, _) => f32::from_bits(sign | 0x7FC0_0000 | fraction << 13),
        (0, _) => {
            let unsigned = fraction as f32 * 2.0f32.powi(-24);
            f32::from_bits(sign | unsigned.to_bits())
        }
        _ => f32::from_bits(sign | (exponent + 127 - 15) << 23 | fraction << 13),
    }
}

/// Converts 32 bits to 16.
pub(crate) fn to_half(x: f32, rounding: Rounding) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7FFF_FFFF;
    if magnitude > 0x7F80_0000 {
        return sign | 0x7E00 | (bits >> 13 & 0x1FF) as u16;
    }
    let away = match rounding {
        Rounding::Nearest | Rounding::Zero => false,
        Rounding::Down => sign != 0,
        Rounding::Up => sign == 0,
    };
    if magnitude == 0x7F80_0000 {
        return sign | 0x7C00;
    }
    let exponent = (magnitude >> 23) as i32 - 127;
    if exponent > 15 {
        let infinite = away || rounding == Rounding::Nearest;
        return sign | if infinite { 0x7C00 } else { 0x7BFF };
    }
    // The last bit of the result is worth 2^(exponent - 10), at least 2^-24.
    let significand = u64::from(magnitude & 0x7F_FFFF | u32::from(magnitude >> 23 > 0) << 23);
    let exponent = exponent.max(-126);
    let shift = (13 + (-14 - exponent).max(0)).min(40) as u32;
    let (kept, lost) = (significand >> shift, significand & ((1 << shift) - 1));
    let half = 1 << (shift - 1);
    let up = match rounding {
        Rounding::Nearest => lost > half || lost == half && kept & 1 == 1,
        _ => away && lost != 0,
    };
    // A carry propagates into the exponent, and turns the greatest number into infinity.
    let exponent = (exponent + 14).max(0) as u64;
    sign | ((exponent << 10) + kept + u64::from(up)) as u16
}

/// Converts 32 bits to bfloat16, to nearest even; a subnormal becomes 0.
pub(crate) fn bfloat(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    if bits & 0x7F80_0000 == 0 {
        return (bits >> 16) as u16 & 0x8000;
    }
    let up = 0x7FFF + (bits >> 16 & 1);
    ((bits + up) >> 16) as u16
}

/// Converts 32 bits to 64, exactly.
pub(crate) fn widen(x: f32) -> f64 {
    if !x.is_nan() {
        return f64::from(x);
    }
    let bits = u64::from(x.to_bits());
    let sign = bits >> 31 << 63;
    f64::from_bits(sign | 0x7FF8 << 48 | (bits & 0x7F_FFFF) << 29)
}

/// Converts 64 bits to 32.
pub(crate) fn narrow(x: f64) -> f32 {
    if !x.is_nan() {
        return x as f32;
    }
    let bits = x.to_bits();
    let sign = (bits >> 63 << 31) as u32;
    f32::from_bits(sign | 0x7FC0_0000 | (bits >> 29 & 0x7F_FFFF) as u32)
}
