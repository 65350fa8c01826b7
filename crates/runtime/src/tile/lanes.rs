//! Lane-by-lane loops and the scalar semantics of register types.

use crate::tile::{Code, Ctx};

/// A register element.
pub(crate) trait Elem: Copy + PartialOrd + 'static {
    const ZERO: Self;
    const ONE: Self;
    /// What every other element is at least (floats: minus infinity).
    const LEAST: Self;
    /// What every other element is at most.
    const MOST: Self;
    fn is_nan(self) -> bool;
    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn bits(bits: u64) -> Self;

    /// The larger; NaN wins.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if self > b || self.is_nan() { self } else { b }
    }
    /// The smaller; NaN wins.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if self < b || self.is_nan() { self } else { b }
    }
}

macro_rules! float_elem {
    ($t:ident, $bits:ty) => {
        impl Elem for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const LEAST: $t = $t::NEG_INFINITY;
            const MOST: $t = $t::INFINITY;
            #[inline(always)]
            #[allow(clippy::eq_op)] // the form that vectorises everywhere
            fn is_nan(self) -> bool {
                self != self
            }
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self * b
            }
            fn bits(bits: u64) -> $t {
                $t::from_bits(bits as $bits)
            }
        }
    };
}
float_elem!(f32, u32);
float_elem!(f64, u64);

macro_rules! int_elem {
    ($($t:ident),*) => {$(
        impl Elem for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            const LEAST: $t = $t::MIN;
            const MOST: $t = $t::MAX;
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            fn bits(bits: u64) -> $t {
                bits as $t
            }
        }
    )*};
}
int_elem!(i32, i64);

/// Masks: 0 or 1.
impl Elem for u8 {
    const ZERO: u8 = 0;
    const ONE: u8 = 1;
    const LEAST: u8 = 0;
    const MOST: u8 = 1;
    #[inline(always)]
    fn is_nan(self) -> bool {
        false
    }
    #[inline(always)]
    fn add(self, b: u8) -> u8 {
        self | b
    }
    #[inline(always)]
    fn mul(self, b: u8) -> u8 {
        self & b
    }
    fn bits(bits: u64) -> u8 {
        (bits != 0) as u8
    }
}

/// A register element from the low bits of a word.
pub(crate) fn from_bits<T: Elem>(bits: u64) -> T {
    T::bits(bits)
}

/// `dst[i] = f(a[i])`.
///
/// # Safety
/// As for every instruction; the registers' elements are `R` and `A`, and differ in memory.
#[inline(always)]
pub(crate) unsafe fn map1<A: Copy, R>((ctx, c): (*mut Ctx, *const Code), f: impl Fn(A) -> R) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, a) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a));
        for i in 0..ctx.n {
            *d.add(i) = f(*a.add(i));
        }
    }
}

/// `dst[i] = f(a[i], b[i])`.
///
/// # Safety
/// As for [`map1`].
#[inline(always)]
pub(crate) unsafe fn map2<A: Copy, B: Copy, R>(
    (ctx, c): (*mut Ctx, *const Code),
    f: impl Fn(A, B) -> R,
) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, a, b) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a), ctx.reg::<B>(c.b));
        for i in 0..ctx.n {
            *d.add(i) = f(*a.add(i), *b.add(i));
        }
    }
}

/// `dst[i] = f(a[i], b[i], c[i])`.
///
/// # Safety
/// As for [`map1`].
#[inline(always)]
pub(crate) unsafe fn map3<A: Copy, B: Copy, C: Copy, R>(
    (ctx, c): (*mut Ctx, *const Code),
    f: impl Fn(A, B, C) -> R,
) {
    // SAFETY: the context is the program's, whose registers have `n` elements, of these types.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, x) = (ctx.reg::<R>(c.dst), ctx.reg::<A>(c.a));
        let (y, z) = (ctx.reg::<B>(c.b), ctx.reg::<C>(c.c));
        for i in 0..ctx.n {
            *d.add(i) = f(*x.add(i), *y.add(i), *z.add(i));
        }
    }
}
