//! Vectors of f32 in registers, for loops whose register allocation matters.

use super::{Baseline, fma32};

/// A vector of f32. All methods are inlined into a kernel whose level has the instructions.
pub trait Vector: Copy {
    /// The number of lanes.
    const LANES: usize;

    /// Returns the same number in every lane.
    ///
    /// # Safety
    /// The machine has the vector's instructions, here and below.
    unsafe fn splat(x: f32) -> Self;
    /// # Safety
    /// All lanes exist.
    unsafe fn load(from: *const f32) -> Self;
    /// # Safety
    /// There is room for all lanes.
    unsafe fn store(self, to: *mut f32);
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn add(self, b: Self) -> Self;
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn sub(self, b: Self) -> Self;
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn mul(self, b: Self) -> Self;
    /// Returns `self · b + c`, rounded once where the level can.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn mul_add(self, b: Self, c: Self) -> Self;
    /// Returns the maximum, or `b` if either is NaN.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn max(self, b: Self) -> Self;
    /// Returns the power of 2 whose exponent, plus 127, is in the low bits of each lane.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn power_of_two(self) -> Self;
}

/// Four lanes, for the baseline.
#[derive(Copy, Clone)]
pub struct Four([f32; 4]);

impl Four {
    #[inline(always)]
    fn zip_with(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        Four(std::array::from_fn(|i| f(self.0[i], b.0[i])))
    }
}

impl Vector for Four {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Four([x; 4])
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: four numbers can be read there.
        Four(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: four numbers can be written there.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn add(self, b: Self) -> Self {
        self.zip_with(b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(self, b: Self) -> Self {
        self.zip_with(b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(self, b: Self) -> Self {
        self.zip_with(b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn mul_add(self, b: Self, c: Self) -> Self {
        let lane = |i: usize| fma32::<Baseline>(self.0[i], b.0[i], c.0[i]);
        Four(std::array::from_fn(lane))
    }
    #[inline(always)]
    unsafe fn max(self, b: Self) -> Self {
        self.zip_with(b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        Four(self.0.map(|x| f32::from_bits(x.to_bits() << 23)))
    }
}

#[cfg(all(target_arch = "x86_64", not(portable)))]
mod x86 {
    use super::Vector;
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($register:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $mul_add:ident,
            |$x:ident| $power_of_two:expr, $($name:ident $binary:ident)*) => {
            impl Vector for $register {
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(x: f32) -> Self {
                    // SAFETY: the machine has the instruction; the caller's, here and below.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const f32) -> Self {
                    // SAFETY: as above.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut f32) {
                    // SAFETY: as above.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul_add(self, b, c) }
                }
                #[inline(always)]
                unsafe fn power_of_two(self) -> Self {
                    let $x = self;
                    // SAFETY: as above.
                    unsafe { $power_of_two }
                }
                $(#[inline(always)]
                unsafe fn $name(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $binary(self, b) }
                })*
            }
        };
    }
    vector!(__m512, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_fmadd_ps,
        |x| _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(x))),
        add _mm512_add_ps sub _mm512_sub_ps mul _mm512_mul_ps max _mm512_max_ps);
    vector!(__m256, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_fmadd_ps,
        |x| _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(x))),
        add _mm256_add_ps sub _mm256_sub_ps mul _mm256_mul_ps max _mm256_max_ps);
}
