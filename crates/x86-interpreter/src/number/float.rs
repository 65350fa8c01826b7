//! Floating point of 32 and 64 bits, rounded to nearest even.
//!
//! The NaN of a result depends on the order of operands, which the compiler may change, so NaNs are handled
//! separately. Rules: Intel, Software Developer's Manual, volume 1, "Rules for Handling NaNs" and volume 2 by
//! instruction.

use super::rounding::Rounding;
use crate::vector::Lane;

pub(crate) trait Float: Lane + PartialOrd {
    fn is_nan(self) -> bool;
    /// A NaN made quiet.
    fn quiet(self) -> Self;
    /// The result of an invalid operation.
    const INDEFINITE: Self;

    fn plus(self, b: Self) -> Self;
    fn minus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
    fn over(self, b: Self) -> Self;
    fn root(self) -> Self;
    /// `self · b + c`, rounded once.
    fn fused(self, b: Self, c: Self) -> Self;
    fn negative(self) -> Self;
    /// `self` if it is less, else `b`, also if one is NaN.
    fn least(self, b: Self) -> Self;
    /// `self` if it is greater, else `b`, also if one is NaN.
    fn greatest(self, b: Self) -> Self;
    /// Rounds to an integer.
    fn integral(self, rounding: Rounding) -> Self;
    /// Rounds to a multiple of 2 to the power of minus the immediate's high four bits.
    fn rounded(self, immediate: u8) -> Self;
    /// `self · 2^⌊b⌋`.
    fn scaled(self, b: Self) -> Self;
    /// The exponent: `⌊log2 |self|⌋`.
    fn exponent(self) -> Self;
    /// The mantissa in the interval that the immediate selects.
    fn mantissa(self, immediate: u8) -> Self;
    /// Converts to an integer; out of range, to the least.
    fn to_i32(self, rounding: Rounding) -> i32;
    fn to_i64(self, rounding: Rounding) -> i64;
    /// The significand in [1, 2), without the sign, and the exponent of a finite number other than 0.
    fn normalised(self) -> (Self, i64);
}

/// Replaces a subnormal by the zero of its sign.
pub(crate) fn flushed(x: f32) -> f32 {
    if x.is_subnormal() {
        0.0f32.copysign(x)
    } else {
        x
    }
}

/// The first NaN among the operands, made quiet; else the result, with the indefinite NaN for an invalid operation.
macro_rules! nan_or {
    ($($x:expr),* => $result:expr) => {{
        $(if $x.is_nan() {
            return $x.quiet();
        })*
        let result = $result;
        if result.is_nan() { Self::INDEFINITE } else { result }
    }};
}

macro_rules! float {
    ($t:ident, $bits:ident, $fraction:literal, $bias:literal) => {
        impl Float for $t {
            const INDEFINITE: $t = $t::from_bits($bits::MAX << ($fraction - 1));

            fn is_nan(self) -> bool {
                self != self
            }

            fn quiet(self) -> $t {
                $t::from_bits(self.to_bits() | 1 << ($fraction - 1))
            }

            fn plus(self, b: $t) -> $t {
                nan_or!(self, b => self + b)
            }

            fn minus(self, b: $t) -> $t {
                nan_or!(self, b => self - b)
            }

            fn times(self, b: $t) -> $t {
                nan_or!(self, b => self * b)
            }

            fn over(self, b: $t) -> $t {
                nan_or!(self, b => self / b)
            }

            fn root(self) -> $t {
                nan_or!(self => self.sqrt())
            }

            fn fused(self, b: $t, c: $t) -> $t {
                nan_or!(self, b, c => self.mul_add(b, c))
            }

            fn negative(self) -> $t {
                $t::from_bits(self.to_bits() ^ 1 << ($bits::BITS - 1))
            }

            fn least(self, b: $t) -> $t {
                if self < b { self } else { b }
            }

            fn greatest(self, b: $t) -> $t {
                if self > b { self } else { b }
            }

            fn integral(self, rounding: Rounding) -> $t {
                nan_or!(self => match rounding {
                    Rounding::Nearest => self.round_ties_even(),
                    Rounding::Down => self.floor(),
                    Rounding::Up => self.ceil(),
                    Rounding::Zero => self.trunc(),
                })
            }

            fn rounded(self, immediate: u8) -> $t {
                let rounding = Rounding::of(immediate);
                let unit = $t::from_bits(($bias + $bits::from(immediate >> 4)) << $fraction);
                // Floats of at least this magnitude are integers.
                let large = $t::from_bits(($bias + $fraction) << $fraction);
                nan_or!(self => if self.abs() >= large {
                    self
                } else {
                    (self * unit).integral(rounding) / unit
                })
            }

            fn scaled(self, b: $t) -> $t {
                let infinity = $t::INFINITY;
                if b.is_nan() {
                    // A quiet NaN gives way to the result of scaling by an infinity.
                    return if self.is_nan() { self.quiet() } else { b.quiet() };
                }
                if self.is_nan() {
                    let signals = self.to_bits() >> ($fraction - 1) & 1 == 0;
                    return match b.abs() == infinity && !signals {
                        true if b > 0.0 => infinity,
                        true => 0.0,
                        false => self.quiet(),
                    };
                }
                if self == 0.0 {
                    return if b == infinity { Self::INDEFINITE } else { self };
                }
                if self.abs() == infinity {
                    return if b == -infinity { Self::INDEFINITE } else { self };
                }
                // Beyond this range, every result is 0 or infinite.
                let by = b.floor().clamp(-4500.0, 4500.0) as i64;
                let (significand, exponent) = self.normalised();
                let exponent = exponent + by;
                let power = |e: i64| $t::from_bits(((e + $bias) as $bits) << $fraction);
                let unsigned = if exponent > $bias {
                    infinity
                } else if exponent > -$bias {
                    significand * power(exponent)
                } else {
                    // The first product is exact, the second one rounds.
                    let least = 1 - $bias;
                    (significand * power(least)) * power((exponent - least).max(least))
                };
                unsigned.copysign(self)
            }

            fn normalised(self) -> ($t, i64) {
                let bits = self.to_bits();
                let fraction = bits & ((1 << $fraction) - 1);
                let exponent = (bits << 1 >> ($fraction + 1)) as i64;
                let one = $bias << $fraction;
                if exponent > 0 {
                    return ($t::from_bits(fraction | one), exponent - $bias);
                }
                let shift = fraction.leading_zeros() - ($bits::BITS - 1 - $fraction);
                let fraction = fraction << shift & ((1 << $fraction) - 1);
                let exponent = 1 - i64::from(shift) - $bias;
                ($t::from_bits(fraction | one), exponent)
            }

            fn exponent(self) -> $t {
                nan_or!(self => if self == 0.0 {
                    -$t::INFINITY
                } else if self.abs() == $t::INFINITY {
                    $t::INFINITY
                } else {
                    self.normalised().1 as $t
                })
            }

            fn mantissa(self, immediate: u8) -> $t {
                if self.is_nan() {
                    return self.quiet();
                }
                let (unsigned, refuses) = (immediate >> 2 & 1 == 1, immediate >> 3 & 1 == 1);
                let negative = self.is_sign_negative();
                if refuses && negative && self != 0.0 {
                    return Self::INDEFINITE;
                }
                let sign = if unsigned || !negative { 1.0 } else { -1.0 };
                if self == 0.0 || self.abs() == $t::INFINITY {
                    return sign;
                }
                let (significand, exponent) = self.normalised();
                let halves = match immediate & 3 {
                    0 => false,
                    1 => exponent & 1 == 1,
                    2 => true,
                    _ => significand >= 1.5,
                };
                sign * if halves { significand / 2.0 } else { significand }
            }

            fn to_i32(self, rounding: Rounding) -> i32 {
                let x = f64::from(self.integral(rounding));
                let fits = x >= f64::from(i32::MIN) && x <= f64::from(i32::MAX);
                if fits { x as i32 } else { i32::MIN }
            }

            fn to_i64(self, rounding: Rounding) -> i64 {
                let x = f64::from(self.integral(rounding));
                // 2^63 is the smallest number that does not fit.
                let fits = x >= i64::MIN as f64 && x < -(i64::MIN as f64);
                if fits { x as i64 } else { i64::MIN }
            }
        }
    };
}
float!(f32, u32, 23, 127);
float!(f64, u64, 52, 1023);
