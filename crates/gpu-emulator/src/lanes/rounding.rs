//! Directed and double-step rounding.

/// The rounding of a result.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To nearest, ties to even.
    Nearest,
    /// Towards zero.
    Zero,
    /// Towards minus infinity.
    Down,
    /// Towards plus infinity.
    Up,
}

/// The rounding as a type, so that loops are compiled for each.
pub(crate) trait Round: Copy + 'static {
    const MODE: Rounding;
}

macro_rules! modes {
    ($($name:ident)*) => {$(
        #[derive(Copy, Clone)]
        pub(crate) struct $name;
        impl Round for $name {
            const MODE: Rounding = Rounding::$name;
        }
    )*};
}
modes! { Nearest Zero Down Up }

/// Adjusts the nearest value `x` of an exact result `x + rest` to the rounding mode.
macro_rules! directed {
    ($name:ident, $float:ty) => {
        #[inline(always)]
        fn $name<M: Round>(x: $float, rest: f64) -> $float {
            let (below, above) = (rest < 0.0, rest > 0.0);
            match M::MODE {
                Rounding::Nearest => x,
                Rounding::Down if below => x.next_down(),
                Rounding::Up if above => x.next_up(),
                Rounding::Zero if below && (x > 0.0 || x.is_infinite()) => x.next_down(),
                Rounding::Zero if above && (x < 0.0 || x.is_infinite()) => x.next_up(),
                _ => x,
            }
        }
    };
}
directed!(directed32, f32);
directed!(directed64, f64);

/// `value + rest` as f32; `|rest|` is far below the last bit of `value`.
#[inline(always)]
pub(crate) fn to_f32<M: Round>(value: f64, remainder: f64) -> f32 {
    let nearest = value as f32;
    if M::MODE == Rounding::Nearest || !value.is_finite() {
        return nearest;
    }
    let difference = value - nearest as f64;
    directed32::<M>(
        nearest,
        if difference == 0.0 {
            remainder
        } else {
            difference
        },
    )
}

/// The sum and the part of it that rounding lost.
#[inline(always)]
fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let b_part = sum - a;
    (sum, (a - (sum - b_part)) + (b - b_part))
}

/// `a + b`.
#[inline(always)]
pub(crate) fn add32<M: Round>(a: f32, b: f32) -> f32 {
    let (sum, remainder) = two_sum(a as f64, b as f64);
    to_f32::<M>(sum, remainder)
}

/// `a * b`; the product of two f32 is exact in f64.
#[inline(always)]
pub(crate) fn mul32<M: Round>(a: f32, b: f32) -> f32 {
    to_f32::<M>(a as f64 * b as f64, 0.0)
}

/// `a * b + c`.
#[inline(always)]
pub(crate) fn fma32<M: Round>(a: f32, b: f32, c: f32) -> f32 {
    let (sum, remainder) = two_sum(a as f64 * b as f64, c as f64);
    to_f32::<M>(sum, remainder)
}

/// `a / b`.
#[inline(always)]
pub(crate) fn div32<M: Round>(a: f32, b: f32) -> f32 {
    let (a, b) = (a as f64, b as f64);
    let quotient = a / b;
    let remainder = (-quotient).mul_add(b, a) * b.signum();
    to_f32::<M>(quotient, remainder)
}

/// `√a`.
#[inline(always)]
pub(crate) fn sqrt32<M: Round>(a: f32) -> f32 {
    let root = (a as f64).sqrt();
    to_f32::<M>(root, (-root).mul_add(root, a as f64))
}

/// `a + b` of f64.
#[inline(always)]
pub(crate) fn add64<M: Round>(a: f64, b: f64) -> f64 {
    let (sum, remainder) = two_sum(a, b);
    if sum.is_finite() {
        directed64::<M>(sum, remainder)
    } else {
        sum
    }
}

/// `a * b` of f64.
#[inline(always)]
pub(crate) fn mul64<M: Round>(a: f64, b: f64) -> f64 {
    let product = a * b;
    if product.is_finite() {
        directed64::<M>(product, a.mul_add(b, -product))
    } else {
        product
    }
}

/// `a / b` of f64.
#[inline(always)]
pub(crate) fn div64<M: Round>(a: f64, b: f64) -> f64 {
    let quotient = a / b;
    if !quotient.is_finite() {
        return quotient;
    }
    directed64::<M>(quotient, (-quotient).mul_add(b, a) * b.signum())
}

/// `√a` of f64.
#[inline(always)]
pub(crate) fn sqrt64<M: Round>(a: f64) -> f64 {
    let root = a.sqrt();
    directed64::<M>(root, (-root).mul_add(root, a))
}

/// An f32 that rounds to the same f16 or bf16 as `value + rest` does: towards zero, with the last bit set when
/// anything was lost (rounding to odd).
#[inline(always)]
pub(crate) fn odd_f32(value: f64, remainder: f64) -> f32 {
    let truncated = to_f32::<Zero>(value, remainder);
    let exact = truncated as f64 == value && remainder == 0.0;
    if exact || !value.is_finite() {
        truncated
    } else {
        f32::from_bits(truncated.to_bits() | 1)
    }
}

/// `a * b + c` to be rounded to f16 or bf16 next.
#[inline(always)]
pub(crate) fn fma_odd(a: f32, b: f32, c: f32) -> f32 {
    let (sum, remainder) = two_sum(a as f64 * b as f64, c as f64);
    if sum.is_finite() {
        odd_f32(sum, remainder)
    } else {
        sum as f32
    }
}

/// A tf32 is an f32 with 13 fewer bits: the nearest, ties away from zero.
#[inline(always)]
pub(crate) fn to_tf32(x: f32) -> u32 {
    let bits = x.to_bits();
    if x.is_nan() {
        0x7fff_ffff
    } else if x.is_infinite() {
        bits
    } else {
        bits.wrapping_add(0x1000) & 0xffff_e000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directed_sums_bracket_the_exact_one() {
        let tiny = 1e-30f32;
        assert_eq!(add32::<Up>(1.0, tiny), 1f32.next_up());
        assert_eq!(add32::<Down>(1.0, tiny), 1.0);
        assert_eq!(add32::<Down>(1.0, -tiny), 1f32.next_down());
        assert_eq!(add32::<Zero>(-1.0, tiny), -(1f32.next_down()));
        assert_eq!(div32::<Down>(1.0, 3.0).next_up(), div32::<Up>(1.0, 3.0));
        assert_eq!(div32::<Down>(1.0, -3.0), -div32::<Up>(1.0, 3.0));
        assert_eq!(sqrt32::<Down>(2.0).next_up(), sqrt32::<Up>(2.0));
        assert_eq!(mul64::<Up>(0.1, 0.1), mul64::<Down>(0.1, 0.1).next_up());
    }

    #[test]
    fn a_tf32_is_the_nearest_number_of_eleven_bits() {
        let mut bits = 1u32;
        for _ in 0..100_000 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // Ties too.
            let x = f32::from_bits(if bits & 1 == 0 { bits } else { bits & !0xfff });
            let exponent = (x.to_bits() >> 23 & 0xff) as i32;
            let y = f32::from_bits(to_tf32(x));
            if x.is_nan() {
                assert!(y.is_nan());
                continue;
            }
            // The distance of neighbours; round() takes ties away from zero.
            let unit = f64::powi(2.0, exponent.max(1) - 127 - 10);
            let nearest = (x as f64 / unit).round() * unit;
            assert!(
                x.is_infinite() && y == x || y as f64 == nearest as f32 as f64,
                "{x}: {y}"
            );
        }
        let bits = |x: f32| f32::from_bits(to_tf32(x));
        assert_eq!(bits(f32::MAX), f32::INFINITY);
        assert_eq!(bits(f32::NEG_INFINITY), f32::NEG_INFINITY);
        assert_eq!(to_tf32(-0.0), (-0f32).to_bits());
        assert!(bits(f32::from_bits(0x7f80_0001)).is_nan());
    }

    #[test]
    fn rounding_twice_through_an_odd_float_is_rounding_once() {
        // 1 + 2^-8 is a tie of bf16; the tiny addend decides it.
        let x = fma_odd(1.0 + 1.0 / 256.0, 1.0, 1e-30);
        assert_eq!(super::super::half::f32_to_bf16(x), 0x3f81);
        let x = fma_odd(1.0 + 1.0 / 256.0, 1.0, -1e-30);
        assert_eq!(super::super::half::f32_to_bf16(x), 0x3f80);
    }
}
