//! Functions that AVX-512 has an instruction for, and their loops without it.

use super::code::{Call, Op};
use super::lanes::map1;
#[cfg(target_arch = "x86_64")]
use crate::simd::erf::ErfTable;
use crate::simd::{Isa, Kernel, Level, compiled, math};

/// A loop of one function of lanes.
macro_rules! lanes {
    ($($name:ident: $f:ident;)*) => {$(
        struct $name;
        impl Kernel<Call> for $name {
            #[inline(always)]
            unsafe fn run<I: Isa>(call: Call) {
                // SAFETY: the call is of this instruction, whose operand's type was checked.
                unsafe { map1::<f32, f32>(call, #[inline(always)] |x| math::$f::<I>(x)) }
            }
        }
    )*};
}
lanes! {
    LanesErf: erf;
    LanesExp: exp;
}

/// The error function: a lookup where the machine has it, else arithmetic.
pub(super) fn erf(level: Level) -> Op {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 {
        return compiled::<ErfLookup, Call>(level);
    }
    compiled::<LanesErf, Call>(level)
}

#[cfg(target_arch = "x86_64")]
struct ErfLookup;
#[cfg(target_arch = "x86_64")]
impl Kernel<Call> for ErfLookup {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        let table = ErfTable::get();
        // SAFETY: the call is of this instruction, whose operand's type was checked. Only AVX-512 machines come here.
        unsafe {
            map16(
                call,
                #[inline(always)]
                |x| table.of(x),
            )
        }
    }
}

/// e^x: in one step from the exponent where the machine has that.
pub(super) fn exp(level: Level) -> Op {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Avx512 {
        return compiled::<ExpScaled, Call>(level);
    }
    compiled::<LanesExp, Call>(level)
}

#[cfg(target_arch = "x86_64")]
struct ExpScaled;
#[cfg(target_arch = "x86_64")]
impl Kernel<Call> for ExpScaled {
    #[inline(always)]
    unsafe fn run<I: Isa>(call: Call) {
        // SAFETY: as for `ErfLookup`.
        unsafe {
            map16(
                call,
                #[inline(always)]
                |x| math::exp16(x),
            )
        }
    }
}

/// `dst[i] = f(a[i])`, 16 numbers at once.
///
/// # Safety
/// As for every instruction; both registers' elements are f32, and the machine has AVX-512 F.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn map16(
    (ctx, c): Call,
    f: impl Fn(std::arch::x86_64::__m512) -> std::arch::x86_64::__m512,
) {
    use std::arch::x86_64::*;
    // SAFETY: the context is the program's, whose registers have `n` elements and hold f32; the machine has AVX-512 F.
    unsafe {
        let (ctx, c) = (&*ctx, &*c);
        let (d, a) = (ctx.reg::<f32>(c.dst), ctx.reg::<f32>(c.a));
        let whole = ctx.n / 16 * 16;
        for i in (0..whole).step_by(16) {
            _mm512_storeu_ps(d.add(i), f(_mm512_loadu_ps(a.add(i))));
        }
        let rest = (1u16 << (ctx.n - whole)) - 1;
        let x = _mm512_maskz_loadu_ps(rest, a.add(whole));
        _mm512_mask_storeu_ps(d.add(whole), rest, f(x));
    }
}
