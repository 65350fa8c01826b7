//! Integer arithmetic and bitwise logic.

use super::{Run, binary, ternary, unary};
use crate::ptx::Type::{self, *};

/// The loop of an operation that is written alike for all integers.
macro_rules! any_integer {
    ($ty:expr, |$x:ident, $y:ident| $value:expr) => {
        match $ty {
            U16 => binary(|$x: u16, $y: u16| $value),
            S16 => binary(|$x: i16, $y: i16| $value),
            U32 => binary(|$x: u32, $y: u32| $value),
            S32 => binary(|$x: i32, $y: i32| $value),
            U64 => binary(|$x: u64, $y: u64| $value),
            S64 => binary(|$x: i64, $y: i64| $value),
            _ => return None,
        }
    };
}

/// `f` of the low and of the high halves.
#[inline(always)]
fn pairwise(x: u32, y: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    f(x as u16, y as u16) as u32 | (f((x >> 16) as u16, (y >> 16) as u16) as u32) << 16
}

/// The loop of a two-operand instruction.
pub(crate) fn pick_binary(name: &str, ty: Type, saturate: bool) -> Option<Run> {
    Some(match (name, ty) {
        ("add", S32) if saturate => binary(i32::saturating_add),
        ("sub", S32) if saturate => binary(i32::saturating_sub),
        _ if saturate => return None,
        ("add", U16 | S16) => binary(u16::wrapping_add),
        ("add", U32 | S32) => binary(u32::wrapping_add),
        ("add", U64 | S64) => binary(u64::wrapping_add),
        ("add", U16x2 | S16x2) => binary(|x, y| pairwise(x, y, u16::wrapping_add)),
        ("sub", U16 | S16) => binary(u16::wrapping_sub),
        ("sub", U32 | S32) => binary(u32::wrapping_sub),
        ("sub", U64 | S64) => binary(u64::wrapping_sub),
        ("mul.lo", U16 | S16) => binary(u16::wrapping_mul),
        ("mul.lo", U32 | S32) => binary(u32::wrapping_mul),
        ("mul.lo", U64 | S64) => binary(u64::wrapping_mul),
        ("mul.hi", U16) => binary(|x: u16, y: u16| ((x as u32 * y as u32) >> 16) as u16),
        ("mul.hi", S16) => binary(|x: i16, y: i16| ((x as i32 * y as i32) >> 16) as i16),
        ("mul.hi", U32) => binary(|x: u32, y: u32| ((x as u64 * y as u64) >> 32) as u32),
        ("mul.hi", S32) => binary(|x: i32, y: i32| ((x as i64 * y as i64) >> 32) as i32),
        ("mul.hi", U64) => binary(|x: u64, y: u64| ((x as u128 * y as u128) >> 64) as u64),
        ("mul.hi", S64) => binary(|x: i64, y: i64| ((x as i128 * y as i128) >> 64) as i64),
        ("mul.wide", U16) => binary(|x: u16, y: u16| x as u32 * y as u32),
        ("mul.wide", S16) => binary(|x: i16, y: i16| x as i32 * y as i32),
        ("mul.wide", U32) => binary(|x: u32, y: u32| x as u64 * y as u64),
        ("mul.wide", S32) => binary(|x: i32, y: i32| x as i64 * y as i64),
        ("mul24.lo", U32) => binary(|x: u32, y: u32| (x << 8 >> 8).wrapping_mul(y << 8 >> 8)),
        ("mul24.lo", S32) => binary(|x: i32, y: i32| (x << 8 >> 8).wrapping_mul(y << 8 >> 8)),
        // As hardware divides: by zero, a quotient has all bits set, and a remainder is the dividend.
        ("div", _) => any_integer!(ty, |x, y| if y == 0 { !0 } else { x.wrapping_div(y) }),
        ("rem", _) => any_integer!(ty, |x, y| if y == 0 { x } else { x.wrapping_rem(y) }),
        ("min", U16x2) => binary(|x, y| pairwise(x, y, u16::min)),
        ("min", S16x2) => binary(|x, y| pairwise(x, y, |x, y| (x as i16).min(y as i16) as u16)),
        ("max", U16x2) => binary(|x, y| pairwise(x, y, u16::max)),
        ("max", S16x2) => binary(|x, y| pairwise(x, y, |x, y| (x as i16).max(y as i16) as u16)),
        ("min", _) => any_integer!(ty, |x, y| x.min(y)),
        ("max", _) => any_integer!(ty, |x, y| x.max(y)),
        ("and", U16 | U32) => binary(|x: u32, y: u32| x & y),
        ("and", U64) => binary(|x: u64, y: u64| x & y),
        ("or", U16 | U32) => binary(|x: u32, y: u32| x | y),
        ("or", U64) => binary(|x: u64, y: u64| x | y),
        ("xor", U16 | U32) => binary(|x: u32, y: u32| x ^ y),
        ("xor", U64) => binary(|x: u64, y: u64| x ^ y),
        ("shl", U16) => binary(|x: u16, n: u32| if n > 15 { 0 } else { x << n }),
        ("shl", U32) => binary(|x: u32, n: u32| if n > 31 { 0 } else { x << n }),
        ("shl", U64) => binary(|x: u64, n: u32| if n > 63 { 0 } else { x << n }),
        ("shr", U16) => binary(|x: u16, n: u32| if n > 15 { 0 } else { x >> n }),
        ("shr", S16) => binary(|x: i16, n: u32| x >> n.min(15)),
        ("shr", U32) => binary(|x: u32, n: u32| if n > 31 { 0 } else { x >> n }),
        ("shr", S32) => binary(|x: i32, n: u32| x >> n.min(31)),
        ("shr", U64) => binary(|x: u64, n: u32| if n > 63 { 0 } else { x >> n }),
        ("shr", S64) => binary(|x: i64, n: u32| x >> n.min(63)),
        _ => return None,
    })
}

/// The loop of a one-operand instruction.
pub(crate) fn pick_unary(name: &str, ty: Type) -> Option<Run> {
    Some(match (name, ty) {
        ("abs", S16) => unary(i16::wrapping_abs),
        ("abs", S32) => unary(i32::wrapping_abs),
        ("abs", S64) => unary(i64::wrapping_abs),
        ("neg", S16) => unary(i16::wrapping_neg),
        ("neg", S32) => unary(i32::wrapping_neg),
        ("neg", S64) => unary(i64::wrapping_neg),
        ("not", U16) => unary(|x: u16| !x),
        ("not", U32) => unary(|x: u32| !x),
        ("not", U64) => unary(|x: u64| !x),
        _ => return None,
    })
}

/// The loop of a three-operand instruction.
pub(crate) fn pick_ternary(name: &str, ty: Type) -> Option<Run> {
    Some(match (name, ty) {
        ("mad.lo", U16 | S16) => {
            ternary(|x: u16, y: u16, z: u16| x.wrapping_mul(y).wrapping_add(z))
        }
        ("mad.lo", U32 | S32) => {
            ternary(|x: u32, y: u32, z: u32| x.wrapping_mul(y).wrapping_add(z))
        }
        ("mad.lo", U64 | S64) => {
            ternary(|x: u64, y: u64, z: u64| x.wrapping_mul(y).wrapping_add(z))
        }
        ("mad.hi", U32) => {
            ternary(|x: u32, y: u32, z: u32| (((x as u64 * y as u64) >> 32) as u32).wrapping_add(z))
        }
        ("mad.hi", S32) => {
            ternary(|x: i32, y: i32, z: i32| (((x as i64 * y as i64) >> 32) as i32).wrapping_add(z))
        }
        ("mad.hi", U64) => ternary(|x: u64, y: u64, z: u64| {
            (((x as u128 * y as u128) >> 64) as u64).wrapping_add(z)
        }),
        ("mad.hi", S64) => ternary(|x: i64, y: i64, z: i64| {
            (((x as i128 * y as i128) >> 64) as i64).wrapping_add(z)
        }),
        ("mad.wide", U16) => {
            ternary(|x: u16, y: u16, z: u32| (x as u32 * y as u32).wrapping_add(z))
        }
        ("mad.wide", S16) => {
            ternary(|x: i16, y: i16, z: i32| (x as i32 * y as i32).wrapping_add(z))
        }
        ("mad.wide", U32) => {
            ternary(|x: u32, y: u32, z: u64| (x as u64 * y as u64).wrapping_add(z))
        }
        ("mad.wide", S32) => {
            ternary(|x: i32, y: i32, z: i64| (x as i64 * y as i64).wrapping_add(z))
        }
        ("sad", U16) => ternary(|x: u16, y: u16, z: u16| x.abs_diff(y).wrapping_add(z)),
        ("sad", S16) => ternary(|x: i16, y: i16, z: u16| x.abs_diff(y).wrapping_add(z)),
        ("sad", U32) => ternary(|x: u32, y: u32, z: u32| x.abs_diff(y).wrapping_add(z)),
        ("sad", S32) => ternary(|x: i32, y: i32, z: u32| x.abs_diff(y).wrapping_add(z)),
        ("sad", U64) => ternary(|x: u64, y: u64, z: u64| x.abs_diff(y).wrapping_add(z)),
        ("sad", S64) => ternary(|x: i64, y: i64, z: u64| x.abs_diff(y).wrapping_add(z)),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Operands, Registers};
    use super::*;

    /// `name.ty` of two words.
    fn apply(name: &str, ty: Type, x: u32, y: u32) -> u32 {
        let mut registers = Registers::new(3 * 64, 3);
        registers.word_mut(0)[3] = x;
        registers.word_mut(64)[3] = y;
        let run = pick_binary(name, ty, false).unwrap();
        let operands = Operands::new(128, [0, 64, 0], 0);
        // SAFETY: the loop was compiled for this machine.
        unsafe { run(&mut registers, &operands, 1 << 3) };
        assert_eq!(registers.word(128)[2], 0, "an inactive lane was written");
        registers.word(128)[3]
    }

    #[test]
    fn the_corners_of_integers_are_hardwares() {
        assert_eq!(apply("div", S32, 7, 0), !0);
        assert_eq!(apply("div", S32, i32::MIN as u32, !0), i32::MIN as u32);
        assert_eq!(apply("rem", U32, 7, 0), 7);
        assert_eq!(apply("shl", U32, 1, 32), 0);
        assert_eq!(apply("shr", S32, 0x8000_0000, 99), !0);
        assert_eq!(apply("shr", S16, 0x8000, 15), !0);
        assert_eq!(apply("mul.hi", U32, !0, !0), 0xffff_fffe);
        assert_eq!(apply("add", U16, 0xffff_ffff, 2), 1);
    }
}
