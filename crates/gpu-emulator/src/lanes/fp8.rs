//! The 8-bit floats e4m3 and e5m2, converted with saturation.

use super::half::{f16_to_f32, f32_to_f16};
use super::{Run, binary, unary};

/// A format: mantissa bits, exponent bias and the largest finite code.
#[derive(Copy, Clone)]
struct Format {
    mantissa: u32,
    bias: i32,
    largest: u8,
}

const E4M3: Format = Format {
    mantissa: 3,
    bias: 7,
    largest: 0x7e,
};
const E5M2: Format = Format {
    mantissa: 2,
    bias: 15,
    largest: 0x7b,
};

fn widen(code: u8, format: Format) -> f32 {
    let sign = if code & 0x80 != 0 { -1.0 } else { 1.0 };
    let code = code & 0x7f;
    if code > format.largest {
        let is_infinite = format.mantissa == 2 && code == 0x7c;
        return if is_infinite {
            sign * f32::INFINITY
        } else {
            f32::NAN
        };
    }
    let exponent = (code >> format.mantissa) as i32;
    let fraction = code as u32 & ((1 << format.mantissa) - 1);
    let fraction = fraction as f32 / (1 << format.mantissa) as f32;
    let magnitude = match exponent {
        0 => fraction * 2f32.powi(1 - format.bias),
        _ => (1.0 + fraction) * 2f32.powi(exponent - format.bias),
    };
    sign * magnitude
}

/// The nearest code, ties to even; a value that is too large becomes the largest finite one.
fn narrow(x: f32, format: Format) -> u32 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = x.to_bits() >> 24 & 0x80;
    let magnitude = x.abs();
    // Codes ascend with their values, so the nearest code is the last one not above `x` or the next one.
    let (mut below, mut above) = (0, format.largest);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if widen(middle, format) <= magnitude {
            below = middle;
        } else {
            above = middle;
        }
    }
    let (down, up) = (
        magnitude - widen(below, format),
        widen(above, format) - magnitude,
    );
    let take_above = up < down || up == down && below & 1 == 1;
    sign | if take_above { above } else { below } as u32
}

/// Two f32 → two codes, the first operand in the high byte.
pub(crate) fn narrow_pair(e5m2: bool) -> Run {
    if e5m2 {
        binary(|x: f32, y: f32| narrow(x, E5M2) << 8 | narrow(y, E5M2))
    } else {
        binary(|x: f32, y: f32| narrow(x, E4M3) << 8 | narrow(y, E4M3))
    }
}

/// An f16x2 → two codes.
pub(crate) fn narrow_f16x2(e5m2: bool) -> Run {
    if e5m2 {
        unary(|x: u32| narrow(f16_to_f32(x), E5M2) | narrow(f16_to_f32(x >> 16), E5M2) << 8)
    } else {
        unary(|x: u32| narrow(f16_to_f32(x), E4M3) | narrow(f16_to_f32(x >> 16), E4M3) << 8)
    }
}

/// Two codes → an f16x2.
pub(crate) fn widen_pair(e5m2: bool) -> Run {
    #[inline(always)]
    fn pair(codes: u32, format: Format) -> u32 {
        f32_to_f16(widen(codes as u8, format)) | f32_to_f16(widen((codes >> 8) as u8, format)) << 16
    }
    if e5m2 {
        unary(|x: u32| pair(x, E5M2))
    } else {
        unary(|x: u32| pair(x, E4M3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_round_trip() {
        for format in [E4M3, E5M2] {
            for code in 0..=255u8 {
                let value = widen(code, format);
                if value.is_finite() {
                    assert_eq!(narrow(value, format) as u8, code);
                }
            }
            assert_eq!(narrow(1e9, format) as u8, format.largest);
        }
        assert_eq!((widen(0x7e, E4M3), widen(0x7b, E5M2)), (448.0, 57344.0));
    }
}
