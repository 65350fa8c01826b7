//! Vectors in registers, for loops whose register allocation matters.

use super::{Isa, fma32, fma64};

/// Some lanes of a float. Everything is inlined into a kernel whose level has the instructions.
pub trait Vector: Copy {
    /// One lane.
    type Lane: Copy;
    /// The number of lanes.
    const LANES: usize;

    /// Returns the same number in every lane.
    ///
    /// # Safety
    /// The machine has the vector's instructions, here and below.
    unsafe fn splat(x: Self::Lane) -> Self;
    /// # Safety
    /// All lanes exist.
    unsafe fn load(from: *const Self::Lane) -> Self;
    /// # Safety
    /// There is room for all lanes.
    unsafe fn store(self, to: *mut Self::Lane);
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
    /// Returns the larger, or `b` if either is NaN.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn max(self, b: Self) -> Self;
}

/// Vectors of f32 whose exponents are written as bits.
pub trait Exponent: Vector<Lane = f32> {
    /// Returns the power of 2 whose exponent, plus 127, is in the low bits of each lane.
    ///
    /// # Safety
    /// As [`Vector::splat`].
    unsafe fn raised(self) -> Self;
}

/// Four lanes, for a level without its own instructions here.
pub struct Four<I, T>([T; 4], std::marker::PhantomData<I>);
impl<I, T: Copy> Clone for Four<I, T> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}
impl<I, T: Copy> Copy for Four<I, T> {}

macro_rules! four {
    ($lane:ty, $mul_add:ident) => {
        impl<I: Isa> Vector for Four<I, $lane> {
            type Lane = $lane;
            const LANES: usize = 4;

            #[inline(always)]
            unsafe fn splat(x: $lane) -> Self {
                Four([x; 4], std::marker::PhantomData)
            }
            #[inline(always)]
            unsafe fn load(from: *const $lane) -> Self {
                // SAFETY: four numbers can be read there.
                let lanes = unsafe { from.cast::<[$lane; 4]>().read_unaligned() };
                Four(lanes, std::marker::PhantomData)
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $lane) {
                // SAFETY: four numbers can be written there.
                unsafe { to.cast::<[$lane; 4]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            unsafe fn add(mut self, b: Self) -> Self {
                for i in 0..4 {
                    self.0[i] += b.0[i];
                }
                self
            }
            #[inline(always)]
            unsafe fn sub(mut self, b: Self) -> Self {
                for i in 0..4 {
                    self.0[i] -= b.0[i];
                }
                self
            }
            #[inline(always)]
            unsafe fn mul(mut self, b: Self) -> Self {
                for i in 0..4 {
                    self.0[i] *= b.0[i];
                }
                self
            }
            #[inline(always)]
            unsafe fn mul_add(mut self, b: Self, c: Self) -> Self {
                for i in 0..4 {
                    self.0[i] = $mul_add::<I>(self.0[i], b.0[i], c.0[i]);
                }
                self
            }
            #[inline(always)]
            unsafe fn max(self, mut b: Self) -> Self {
                for i in 0..4 {
                    b.0[i] = if self.0[i] > b.0[i] {
                        self.0[i]
                    } else {
                        b.0[i]
                    };
                }
                b
            }
        }
    };
}
four!(f32, fma32);
four!(f64, fma64);

impl<I: Isa> Exponent for Four<I, f32> {
    #[inline(always)]
    unsafe fn raised(self) -> Self {
        let lanes = self.0.map(|x| f32::from_bits(x.to_bits() << 23));
        Four(lanes, std::marker::PhantomData)
    }
}

#[cfg(all(target_arch = "x86_64", not(portable)))]
mod x86 {
    use super::{Exponent, Vector};
    use std::arch::x86_64::*;

    macro_rules! vector {
        ($register:ty, $lane:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $add:ident, $sub:ident, $mul:ident, $mul_add:ident, $max:ident) => {
            impl Vector for $register {
                type Lane = $lane;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(x: $lane) -> Self {
                    // SAFETY: the machine has the instruction; the caller's, here and below.
                    unsafe { $splat(x) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $lane) -> Self {
                    // SAFETY: as above.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $lane) {
                    // SAFETY: as above.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn add(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $add(self, b) }
                }
                #[inline(always)]
                unsafe fn sub(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $sub(self, b) }
                }
                #[inline(always)]
                unsafe fn mul(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul(self, b) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, b: Self, c: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $mul_add(self, b, c) }
                }
                #[inline(always)]
                unsafe fn max(self, b: Self) -> Self {
                    // SAFETY: as above.
                    unsafe { $max(self, b) }
                }
            }
        };
    }
    #[rustfmt::skip]
    vector!(__m512, f32, 16, _mm512_set1_ps, _mm512_loadu_ps, _mm512_storeu_ps, _mm512_add_ps, _mm512_sub_ps, _mm512_mul_ps, _mm512_fmadd_ps, _mm512_max_ps);
    #[rustfmt::skip]
    vector!(__m512d, f64, 8, _mm512_set1_pd, _mm512_loadu_pd, _mm512_storeu_pd, _mm512_add_pd, _mm512_sub_pd, _mm512_mul_pd, _mm512_fmadd_pd, _mm512_max_pd);
    #[rustfmt::skip]
    vector!(__m256, f32, 8, _mm256_set1_ps, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_add_ps, _mm256_sub_ps, _mm256_mul_ps, _mm256_fmadd_ps, _mm256_max_ps);
    #[rustfmt::skip]
    vector!(__m256d, f64, 4, _mm256_set1_pd, _mm256_loadu_pd, _mm256_storeu_pd, _mm256_add_pd, _mm256_sub_pd, _mm256_mul_pd, _mm256_fmadd_pd, _mm256_max_pd);

    impl Exponent for __m512 {
        #[inline(always)]
        unsafe fn raised(self) -> Self {
            // SAFETY: as above.
            unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_castps_si512(self))) }
        }
    }
    impl Exponent for __m256 {
        #[inline(always)]
        unsafe fn raised(self) -> Self {
            // SAFETY: as above.
            unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_castps_si256(self))) }
        }
    }
}
