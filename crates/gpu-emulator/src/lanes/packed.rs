//! Arithmetic of f16 and bf16, one value or a packed pair per lane. It is computed in f32 and rounded again, which
//! for these operations equals rounding once.

use super::float::{Mode, max32, min32, or_nan, saturate};
use super::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use super::rounding::{Rounding, fma_odd};
use super::{Bf, Half, Run, approx, binary, ternary, unary};
use crate::ptx::Type::{self, *};

/// Applies `f` to the low and to the high value of the operands.
macro_rules! both {
    ($from:ident, $to:ident, $f:expr, $($x:ident),*) => {
        $to($f($($from($x & 0xffff)),*)) | $to($f($($from($x >> 16)),*)) << 16
    };
}

fn lift1<F: Fn(f32) -> f32 + Copy>(ty: Type, f: F) -> Option<Run> {
    Some(match ty {
        F16 => unary(move |x: Half| Half(f(x.0))),
        Bf16 => unary(move |x: Bf| Bf(f(x.0))),
        F16x2 => unary(move |x: u32| both!(f16_to_f32, f32_to_f16, f, x)),
        Bf16x2 => unary(move |x: u32| both!(bf16_to_f32, f32_to_bf16, f, x)),
        _ => return None,
    })
}

fn lift2<F: Fn(f32, f32) -> f32 + Copy>(ty: Type, f: F) -> Option<Run> {
    Some(match ty {
        F16 => binary(move |x: Half, y: Half| Half(f(x.0, y.0))),
        Bf16 => binary(move |x: Bf, y: Bf| Bf(f(x.0, y.0))),
        F16x2 => binary(move |x: u32, y: u32| both!(f16_to_f32, f32_to_f16, f, x, y)),
        Bf16x2 => binary(move |x: u32, y: u32| both!(bf16_to_f32, f32_to_bf16, f, x, y)),
        _ => return None,
    })
}

fn lift3<F: Fn(f32, f32, f32) -> f32 + Copy>(ty: Type, f: F) -> Option<Run> {
    Some(match ty {
        F16 => ternary(move |x: Half, y: Half, z: Half| Half(f(x.0, y.0, z.0))),
        Bf16 => ternary(move |x: Bf, y: Bf, z: Bf| Bf(f(x.0, y.0, z.0))),
        F16x2 => ternary(move |x: u32, y: u32, z: u32| both!(f16_to_f32, f32_to_f16, f, x, y, z)),
        Bf16x2 => {
            ternary(move |x: u32, y: u32, z: u32| both!(bf16_to_f32, f32_to_bf16, f, x, y, z))
        }
        _ => return None,
    })
}

/// True if these loops implement the rounding and flushing of `mode`.
fn is_plain(mode: &Mode) -> bool {
    mode.rounding == Rounding::Nearest && !mode.flush
}

/// The loop of a two-operand instruction.
pub(crate) fn pick_binary(name: &str, ty: Type, mode: &Mode) -> Option<Run> {
    if !is_plain(mode) {
        return None;
    }
    match name {
        "add" if mode.saturate => lift2(ty, |x, y| saturate(x + y)),
        "sub" if mode.saturate => lift2(ty, |x, y| saturate(x - y)),
        "mul" if mode.saturate => lift2(ty, |x, y| saturate(x * y)),
        "add" => lift2(ty, |x, y| x + y),
        "sub" => lift2(ty, |x, y| x - y),
        "mul" => lift2(ty, |x, y| x * y),
        "min" if mode.propagate_nan => lift2(ty, |x, y| or_nan(x, y, min32)),
        "max" if mode.propagate_nan => lift2(ty, |x, y| or_nan(x, y, max32)),
        "min" => lift2(ty, min32),
        "max" => lift2(ty, max32),
        _ => None,
    }
}

/// The loop of a one-operand instruction.
pub(crate) fn pick_unary(name: &str, ty: Type, mode: &Mode) -> Option<Run> {
    // `ex2` of bf16 exists with `.ftz` only; f32's subnormals are bf16's.
    if mode.flush && !(name == "ex2" && matches!(ty, Bf16 | Bf16x2)) {
        return None;
    }
    match name {
        "abs" => Some(unary(|x: u32| x & 0x7fff_7fff)),
        "neg" if matches!(ty, F16 | Bf16) => Some(unary(|x: u32| x ^ 0x8000)),
        "neg" => Some(unary(|x: u32| x ^ 0x8000_8000)),
        "ex2" if mode.flush => lift1(ty, |x| super::float::flush(approx::ex2(x))),
        "ex2" => lift1(ty, approx::ex2),
        "tanh" => lift1(ty, approx::tanh),
        _ => None,
    }
}

/// The loop of `fma`; `relu` clamps the result at 0.
pub(crate) fn pick_fma(ty: Type, mode: &Mode, relu: bool) -> Option<Run> {
    match (relu, mode.saturate) {
        _ if !is_plain(mode) => None,
        (false, false) => lift3(ty, fma_odd),
        (true, false) => lift3(ty, |x, y, z| max32(fma_odd(x, y, z), 0.0)),
        (false, true) => lift3(ty, |x, y, z| saturate(fma_odd(x, y, z))),
        (true, true) => None,
    }
}
