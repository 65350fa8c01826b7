//! Lane-by-lane loops.

use super::code::{Ctx, Instruction};

/// `dst[i] = f(a[i])`.
///
/// # Safety
/// As for every instruction; the registers' elements are `R` and `A`, and differ in memory.
#[inline(always)]
pub(crate) unsafe fn map1<A: Copy, R>(
    (ctx, c): (*mut Ctx, *const Instruction),
    f: impl Fn(A) -> R,
) {
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
    (ctx, c): (*mut Ctx, *const Instruction),
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
    (ctx, c): (*mut Ctx, *const Instruction),
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
