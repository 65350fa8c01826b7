//! Floats of 8 bits.

/// A float format of 8 bits: a sign, an exponent and a fraction. FNUZ formats have neither infinities nor −0,
/// whose bits are their NaN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Float8 {
    /// The bits of the fraction.
    pub fraction: u32,
    /// The bias of the exponent.
    pub bias: u32,
    /// The bits of the largest finite number.
    pub largest: u32,
    /// True for FNUZ.
    pub fnuz: bool,
}

impl Float8 {
    /// Four bits of exponent, no infinities: NaN has all bits but the sign.
    pub const E4M3: Float8 = Float8::new(3, 7, 0x7e, false);
    /// The upper byte of an f16.
    pub const E5M2: Float8 = Float8::new(2, 15, 0x7b, false);
    /// FNUZ with four bits of exponent.
    pub const E4M3FNUZ: Float8 = Float8::new(3, 8, 0x7f, true);
    /// FNUZ with five bits of exponent.
    pub const E5M2FNUZ: Float8 = Float8::new(2, 16, 0x7f, true);

    const fn new(fraction: u32, bias: u32, largest: u32, fnuz: bool) -> Float8 {
        Float8 {
            fraction,
            bias,
            largest,
            fnuz,
        }
    }

    /// Returns the smallest positive number.
    pub const fn smallest(self) -> f32 {
        f32::from_bits((128 - self.bias - self.fraction) << 23)
    }

    /// Returns the bits of the smallest normal number, as an f32.
    pub const fn least_normal(self) -> u32 {
        (128 - self.bias) << 23
    }

    /// Returns the f32 whose unit in the last place is the smallest number.
    pub const fn aligner(self) -> f32 {
        f32::from_bits((151 - self.bias - self.fraction) << 23)
    }

    /// Returns the number with these bits.
    #[inline(always)]
    pub const fn to_f32(self, bits: u8) -> f32 {
        let bits = bits as u32;
        let magnitude_bits = bits & 0x7f;
        let aligned = magnitude_bits << (23 - self.fraction);
        let magnitude = if magnitude_bits > self.largest {
            aligned | 0x7f80_0000
        } else if self.fnuz && bits == 0x80 {
            0x7fc0_0000
        } else if magnitude_bits < 1 << self.fraction {
            (magnitude_bits as f32 * self.smallest()).to_bits()
        } else {
            aligned + ((127 - self.bias) << 23)
        };
        f32::from_bits(magnitude | (bits & 0x80) << 24)
    }

    /// Returns the bits of the nearest number; ties round to even. Larger numbers become infinity, or NaN in formats
    /// without infinities.
    #[inline(always)]
    pub const fn from_f32(self, x: f32) -> u8 {
        let (sign, magnitude) = (x.to_bits() >> 24 & 0x80, x.to_bits() & 0x7fff_ffff);
        let rounded = if magnitude < self.least_normal() {
            (f32::from_bits(magnitude) + self.aligner()).to_bits() - self.aligner().to_bits()
        } else {
            let shift = 23 - self.fraction;
            let odd = magnitude >> shift & 1;
            (magnitude - ((127 - self.bias) << 23) + (1 << (shift - 1)) - 1 + odd) >> shift
        };
        let bits = if self.fnuz {
            if rounded > self.largest {
                0x80
            } else if rounded == 0 {
                0
            } else {
                sign | rounded
            }
        } else if magnitude > 0x7f80_0000 {
            sign | 0x7f
        } else if rounded > self.largest {
            sign | (self.largest + 1)
        } else {
            sign | rounded
        };
        bits as u8
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, round_float};
    use half::f16;

    /// The numbers of a format from its definition: bits of the exponent, its bias, and the magnitudes that are no
    /// finite numbers.
    struct Format {
        dtype: DType,
        exponent: i32,
        bias: i32,
        special: &'static [(u8, f64)],
    }

    const NAN: f64 = f64::NAN;
    const FORMATS: [Format; 4] = [
        Format {
            dtype: DType::F8E4M3,
            exponent: 4,
            bias: 7,
            special: &[(0x7f, NAN)],
        },
        Format {
            dtype: DType::F8E5M2,
            exponent: 5,
            bias: 15,
            special: &[(0x7c, f64::INFINITY), (0x7d, NAN), (0x7e, NAN), (0x7f, NAN)],
        },
        Format {
            dtype: DType::F8E4M3FNUZ,
            exponent: 4,
            bias: 8,
            special: &[],
        },
        Format {
            dtype: DType::F8E5M2FNUZ,
            exponent: 5,
            bias: 16,
            special: &[],
        },
    ];

    impl Format {
        fn fnuz(&self) -> bool {
            self.special.is_empty()
        }

        /// The magnitude of these bits if all of them were finite numbers; those of 0x80 are the next ones.
        fn magnitude(&self, bits: u8) -> f64 {
            let fraction = 7 - self.exponent;
            let part = f64::from(bits & ((1 << fraction) - 1)) / f64::from(1 << fraction);
            match i32::from(bits >> fraction) {
                0 => part * 2f64.powi(1 - self.bias),
                e => (1.0 + part) * 2f64.powi(e - self.bias),
            }
        }

        fn number(&self, bits: u8) -> f64 {
            if self.fnuz() && bits == 0x80 {
                return NAN;
            }
            let special = self.special.iter().find(|(b, _)| *b == bits & 0x7f);
            let magnitude = special.map_or_else(|| self.magnitude(bits & 0x7f), |s| s.1);
            if bits >> 7 == 1 {
                -magnitude
            } else {
                magnitude
            }
        }

        /// The nearest of all magnitudes, the even one of two; what lies above the largest is the first special one.
        fn nearest(&self, x: f64) -> u8 {
            let sign = u8::from(x.is_sign_negative()) << 7;
            let first = self.special.first().map_or(0x80, |s| s.0);
            let distance = |bits: &u8| (self.magnitude(*bits) - x.abs()).abs();
            let bits = match x {
                _ if x.is_nan() => 0x7f,
                _ if x.abs() > self.magnitude(first) => first,
                _ => (0..=first)
                    .min_by(|a, b| {
                        let nearer = distance(a).total_cmp(&distance(b));
                        nearer.then((a & 1).cmp(&(b & 1)))
                    })
                    .unwrap(),
            };
            match bits {
                _ if self.fnuz() && x.is_nan() => 0x80,
                0 if self.fnuz() => 0,
                _ => sign | bits,
            }
        }

        fn check(&self, x: f64) {
            let want = self.nearest(x);
            assert_eq!(self.dtype.float_bytes(&[x]), [want], "{} {x:e}", self.dtype);
            let (got, want) = (round_float(x, self.dtype), self.number(want));
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{} {x:e}: {got} {want}", self.dtype);
        }
    }

    #[test]
    fn all_bits_are_the_numbers_of_their_formats() {
        for format in FORMATS {
            let dtype = format.dtype;
            for bits in 0..=255 {
                let (got, want) = (dtype.floats(&[bits])[0], format.number(bits));
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{dtype} {bits:#x}: {got} {want}");
                if !want.is_nan() {
                    assert_eq!(dtype.float_bytes(&[want]), [bits]);
                }
            }
        }
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_even_one() {
        for format in FORMATS {
            (0..=u16::MAX).for_each(|bits| format.check(f16::from_bits(bits).to_f64()));
            // Every exponent of f32, with fractions around those of all numbers and ties.
            for high in 0..=u32::from(u16::MAX) >> 3 {
                for low in [0, 1, 0x3_ffff, 0x4_0000, 0x4_0001, 0x7_ffff] {
                    format.check(f32::from_bits(high << 19 | low).into());
                }
            }
            // Ties, and numbers nearer to them than any f32.
            for bits in 0..0x80 {
                let tie = (format.magnitude(bits) + format.magnitude(bits + 1)) / 2.0;
                for x in [tie, tie * (1.0 + 1e-12), tie * (1.0 - 1e-12)] {
                    [x, -x].into_iter().for_each(|x| format.check(x));
                }
            }
        }
    }
}
