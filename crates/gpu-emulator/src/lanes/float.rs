//! Arithmetic of f32 and f64.

use super::rounding::*;
use super::{Run, approx, binary, ternary, unary};
use crate::ptx::Type::{self, F32, F64};

/// The modifiers of an opcode that affect a floating-point result.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mode {
    pub rounding: Rounding,
    /// Subnormal operands and results become zero.
    pub flush: bool,
    /// The result is clamped to [0, 1], NaN to 0.
    pub saturate: bool,
    /// `min` and `max` give NaN when an operand is.
    pub propagate_nan: bool,
}

/// A subnormal becomes a zero of its sign.
#[inline(always)]
pub(crate) fn flush(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits(if bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    })
}

/// Clamps to [0, 1]; NaN becomes 0.
#[inline(always)]
#[allow(clippy::manual_clamp)] // `clamp` keeps NaN, `max` gives the other operand
pub(crate) fn saturate(x: f32) -> f32 {
    x.max(0.0).min(1.0)
}

fn unary32<F: Fn(f32) -> f32 + Copy>(f: F, mode: &Mode) -> Run {
    match (mode.flush, mode.saturate) {
        (false, false) => unary(f),
        (true, false) => unary(move |x: f32| flush(f(flush(x)))),
        (false, true) => unary(move |x: f32| saturate(f(x))),
        (true, true) => unary(move |x: f32| saturate(f(flush(x)))),
    }
}

fn binary32<F: Fn(f32, f32) -> f32 + Copy>(f: F, mode: &Mode) -> Run {
    match (mode.flush, mode.saturate) {
        (false, false) => binary(f),
        (true, false) => binary(move |x: f32, y: f32| flush(f(flush(x), flush(y)))),
        (false, true) => binary(move |x: f32, y: f32| saturate(f(x, y))),
        (true, true) => binary(move |x: f32, y: f32| saturate(f(flush(x), flush(y)))),
    }
}

fn ternary32<F: Fn(f32, f32, f32) -> f32 + Copy>(f: F, mode: &Mode) -> Run {
    match (mode.flush, mode.saturate) {
        (false, false) => ternary(f),
        (true, false) => {
            ternary(move |x: f32, y: f32, z: f32| flush(f(flush(x), flush(y), flush(z))))
        }
        (false, true) => ternary(move |x: f32, y: f32, z: f32| saturate(f(x, y, z))),
        (true, true) => {
            ternary(move |x: f32, y: f32, z: f32| saturate(f(flush(x), flush(y), flush(z))))
        }
    }
}

/// `$wrap($nearest)` or, for a directed rounding, `$wrap($directed::<Mode>)`.
macro_rules! rounded {
    ($mode:expr, $nearest:expr, $directed:ident, |$f:ident| $wrap:expr) => {
        match $mode.rounding {
            Rounding::Nearest => {
                let $f = $nearest;
                $wrap
            }
            Rounding::Zero => {
                let $f = $directed::<Zero>;
                $wrap
            }
            Rounding::Down => {
                let $f = $directed::<Down>;
                $wrap
            }
            Rounding::Up => {
                let $f = $directed::<Up>;
                $wrap
            }
        }
    };
}

#[inline(always)]
fn rcp32<M: Round>(x: f32) -> f32 {
    div32::<M>(1.0, x)
}

#[inline(always)]
fn rcp64<M: Round>(x: f64) -> f64 {
    div64::<M>(1.0, x)
}

#[inline(always)]
fn sub32<M: Round>(x: f32, y: f32) -> f32 {
    add32::<M>(x, -y)
}

#[inline(always)]
fn sub64<M: Round>(x: f64, y: f64) -> f64 {
    add64::<M>(x, -y)
}

/// Minimum and maximum as PTX defines them: −0 < +0, and NaN only if both operands are NaN.
macro_rules! extremes {
    ($float:ident, $min:ident, $max:ident) => {
        #[inline(always)]
        pub(crate) fn $min(x: $float, y: $float) -> $float {
            let is_less = x < y || x == y && x.is_sign_negative();
            match !x.is_nan() && (y.is_nan() || is_less) {
                true => x,
                false => y,
            }
        }
        #[inline(always)]
        pub(crate) fn $max(x: $float, y: $float) -> $float {
            -$min(-x, -y)
        }
    };
}
extremes!(f32, min32, max32);
extremes!(f64, min64, max64);

/// `f`, but NaN when an operand is.
#[inline(always)]
pub(crate) fn or_nan(x: f32, y: f32, f: impl Fn(f32, f32) -> f32) -> f32 {
    if x.is_nan() || y.is_nan() {
        f32::from_bits(0x7fff_ffff)
    } else {
        f(x, y)
    }
}

/// The loop of a two-operand instruction.
pub(crate) fn pick_binary(name: &str, ty: Type, mode: &Mode) -> Option<Run> {
    Some(match (name, ty) {
        ("add", F32) => rounded!(mode, |x: f32, y: f32| x + y, add32, |f| binary32(f, mode)),
        ("sub", F32) => rounded!(mode, |x: f32, y: f32| x - y, sub32, |f| binary32(f, mode)),
        ("mul", F32) => rounded!(mode, |x: f32, y: f32| x * y, mul32, |f| binary32(f, mode)),
        ("div", F32) => rounded!(mode, |x: f32, y: f32| x / y, div32, |f| binary32(f, mode)),
        ("min", F32) if mode.propagate_nan => binary32(|x, y| or_nan(x, y, min32), mode),
        ("max", F32) if mode.propagate_nan => binary32(|x, y| or_nan(x, y, max32), mode),
        ("min", F32) => binary32(min32, mode),
        ("max", F32) => binary32(max32, mode),
        // PTX puts the sign's source first.
        ("copysign", F32) => binary(|sign: f32, x: f32| x.copysign(sign)),
        ("copysign", F64) => binary(|sign: f64, x: f64| x.copysign(sign)),
        ("add", F64) => rounded!(mode, |x: f64, y: f64| x + y, add64, |f| binary(f)),
        ("sub", F64) => rounded!(mode, |x: f64, y: f64| x - y, sub64, |f| binary(f)),
        ("mul", F64) => rounded!(mode, |x: f64, y: f64| x * y, mul64, |f| binary(f)),
        ("div", F64) => rounded!(mode, |x: f64, y: f64| x / y, div64, |f| binary(f)),
        ("min", F64) => binary(min64),
        ("max", F64) => binary(max64),
        _ => return None,
    })
}

/// The loop of a one-operand instruction.
pub(crate) fn pick_unary(name: &str, ty: Type, mode: &Mode) -> Option<Run> {
    Some(match (name, ty) {
        ("abs", F32) => unary32(f32::abs, mode),
        ("neg", F32) => unary32(|x| -x, mode),
        ("sqrt", F32) => rounded!(mode, f32::sqrt, sqrt32, |f| unary32(f, mode)),
        ("rcp", F32) => rounded!(mode, |x: f32| 1.0 / x, rcp32, |f| unary32(f, mode)),
        ("rsqrt", F32) => unary32(approx::rsqrt, mode),
        ("ex2", F32) => unary32(approx::ex2, mode),
        ("lg2", F32) => unary32(approx::lg2, mode),
        ("sin", F32) => unary32(approx::sin, mode),
        ("cos", F32) => unary32(approx::cos, mode),
        ("tanh", F32) => unary32(approx::tanh, mode),
        ("abs", F64) => unary(f64::abs),
        ("neg", F64) => unary(|x: f64| -x),
        ("sqrt", F64) => rounded!(mode, f64::sqrt, sqrt64, |f| unary(f)),
        ("rcp", F64) if mode.flush => unary(|x: f64| upper_half(1.0 / upper_half(x))),
        ("rcp", F64) => rounded!(mode, |x: f64| 1.0 / x, rcp64, |f| unary(f)),
        ("rsqrt", F64) if !mode.flush => unary(|x: f64| 1.0 / x.sqrt()),
        ("rsqrt", F64) => unary(|x: f64| upper_half(1.0 / upper_half(x).sqrt())),
        _ => return None,
    })
}

/// Clears the lower word. The f64 approximations with `.ftz` read and write only the upper word; those without are
/// done in software.
#[inline(always)]
fn upper_half(x: f64) -> f64 {
    let bits = x.to_bits() & 0xffff_ffff_0000_0000;
    let is_small = bits & 0x7ff0_0000_0000_0000 == 0;
    f64::from_bits(if is_small { bits & (1 << 63) } else { bits })
}

/// The loop of `fma`.
pub(crate) fn pick_fma(ty: Type, mode: &Mode) -> Option<Run> {
    Some(match ty {
        F32 => rounded!(mode, f32::mul_add, fma32, |f| ternary32(f, mode)),
        F64 if mode.rounding == Rounding::Nearest => ternary(f64::mul_add),
        _ => return None,
    })
}
