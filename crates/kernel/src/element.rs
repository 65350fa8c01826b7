//! The scalar semantics of register types.

use crate::simd::convert::Mem;
use crate::simd::math;
use kiln_base::prim::{Binary, Unary};
use kiln_base::{DType, float_to_int, round_float, wrap_int};

/// The operand of a cast. Narrower floats are represented as f64 too.
#[derive(Copy, Clone)]
pub enum Number {
    Float(f64),
    Int(i64),
    Unsigned(u64),
}

impl Number {
    /// Rounds the number to f64.
    #[inline(always)]
    pub fn float(self) -> f64 {
        match self {
            Number::Float(x) => x,
            Number::Int(x) => x as f64,
            Number::Unsigned(x) => x as f64,
        }
    }

    /// Converts the number to an integer of a dtype, saturating from floats and wrapping from integers.
    #[inline(always)]
    pub fn int(self, to: DType) -> i64 {
        match self {
            Number::Float(x) => float_to_int(x, to),
            Number::Int(x) => wrap_int(x, to),
            Number::Unsigned(x) => wrap_int(x as i64, to),
        }
    }
}

/// A register element.
pub trait Elem: Copy + PartialOrd + 'static {
    const ZERO: Self;
    const ONE: Self;
    /// True for f32, of which long sums are accumulated in f64.
    const IS_F32: bool = false;
    /// The lowest element (floats: minus infinity).
    const LOWEST: Self;
    /// The highest element (floats: infinity).
    const HIGHEST: Self;
    fn is_nan(self) -> bool;
    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    /// Returns the element with these bits, in the low bytes.
    fn from_bits(bits: u64) -> Self;
    /// Evaluates a primitive that gives an element.
    fn unary(op: Unary, x: Self) -> Self;
    /// Evaluates a primitive on two elements; `None` for integer division by 0.
    fn binary(op: Binary, x: Self, y: Self) -> Option<Self>;
    /// Evaluates a primitive that gives a mask.
    fn test(op: Unary, x: Self) -> bool;
    /// Returns the element as the operand of a cast.
    fn number(self) -> Number;
    /// Casts a number to a dtype.
    fn cast(x: Number, to: DType) -> Self;

    /// Returns the maximum: `self` if both are equal, NaN if one is NaN.
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if b > self || b.is_nan() { b } else { self }
    }
    /// Returns the minimum: `self` if both are equal, NaN if one is NaN.
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if b < self || b.is_nan() { b } else { self }
    }

    /// Evaluates a primitive on two elements that gives a mask.
    #[inline(always)]
    fn compare(op: Binary, x: Self, y: Self) -> bool {
        match op {
            Binary::Eq => x == y,
            Binary::Ne => x != y,
            Binary::Lt => x < y,
            Binary::Le => x <= y,
            Binary::Gt => x > y,
            _ => x >= y,
        }
    }
}

macro_rules! float_elem {
    ($t:ident, $bits:ty, |$op:ident, $x:ident| $unary:expr) => {
        impl Elem for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            const IS_F32: bool = size_of::<$t>() == 4;
            const LOWEST: $t = $t::NEG_INFINITY;
            const HIGHEST: $t = $t::INFINITY;
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
            fn from_bits(bits: u64) -> $t {
                $t::from_bits(bits as $bits)
            }
            #[inline(always)]
            fn unary($op: Unary, $x: $t) -> $t {
                $unary
            }
            #[inline(always)]
            fn binary(op: Binary, x: $t, y: $t) -> Option<$t> {
                Some(match op {
                    Binary::Max => Elem::max(x, y),
                    Binary::Min => Elem::min(x, y),
                    // The quotient is rounded before the floor.
                    Binary::FloorDiv => (x / y).floor(),
                    _ => op.eval_f64(x as f64, y as f64) as $t,
                })
            }
            #[inline(always)]
            fn test(op: Unary, x: $t) -> bool {
                match op {
                    Unary::IsNan => x.is_nan(),
                    Unary::IsInf => x.is_infinite(),
                    _ => x.is_sign_negative(),
                }
            }
            #[inline(always)]
            fn number(self) -> Number {
                Number::Float(self as f64)
            }
            #[inline(always)]
            fn cast(x: Number, to: DType) -> $t {
                match (x, to) {
                    (_, to) if to.is_narrow_float() => round_float(x.float(), to) as $t,
                    // These casts round once.
                    (Number::Int(x), _) => x as $t,
                    (Number::Unsigned(x), _) => x as $t,
                    (Number::Float(x), _) => x as $t,
                }
            }
        }
    };
}
// Functions that round the same from f64 need no f32 version.
float_elem!(f32, u32, |op, x| match op {
    Unary::Rsqrt => 1.0 / x.sqrt(),
    Unary::Exp => math::exp(x),
    Unary::Exp2 => math::exp2(x),
    Unary::Expm1 => math::expm1(x),
    Unary::Log => math::log(x),
    Unary::Log2 => math::log2(x),
    Unary::Log10 => math::log10(x),
    Unary::Log1p => math::log1p(x),
    Unary::Tanh => math::tanh(x),
    Unary::Sigmoid => math::sigmoid(x),
    Unary::Erf => math::erf(x),
    Unary::Sin => math::sin(x),
    Unary::Cos => math::cos(x),
    _ => op.eval_f64(x as f64) as f32,
});
float_elem!(f64, u64, |op, x| op.eval_f64(x));

macro_rules! int_elem {
    ($($t:ident),*) => {$(
        impl Elem for $t {
            const ZERO: $t = 0;
            const ONE: $t = 1;
            const LOWEST: $t = $t::MIN;
            const HIGHEST: $t = $t::MAX;
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
            fn from_bits(bits: u64) -> $t {
                bits as $t
            }
            #[inline(always)]
            fn unary(op: Unary, x: $t) -> $t {
                op.eval_i64(x as i64).map_or(x, |y| y as $t)
            }
            #[inline(always)]
            fn binary(op: Binary, x: $t, y: $t) -> Option<$t> {
                const BITS: $t = $t::BITS as $t;
                let is_in_range = (0..BITS).contains(&y);
                Some(match op {
                    Binary::Shl if is_in_range => x.wrapping_shl(y as u32),
                    Binary::Shl => 0,
                    Binary::Shr if is_in_range => x.wrapping_shr(y as u32),
                    Binary::Shr => x >> (BITS - 1),
                    _ => op.eval_i64(x as i64, y as i64).ok()? as $t,
                })
            }
            #[inline(always)]
            fn test(_: Unary, _: $t) -> bool {
                false
            }
            #[inline(always)]
            fn number(self) -> Number {
                Number::Int(self as i64)
            }
            #[inline(always)]
            fn cast(x: Number, to: DType) -> $t {
                x.int(to) as $t
            }
        }
    )*};
}
int_elem!(i32, i64);

/// Masks: 0 or 1.
impl Elem for u8 {
    const ZERO: u8 = 0;
    const ONE: u8 = 1;
    const LOWEST: u8 = 0;
    const HIGHEST: u8 = 1;
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
    fn from_bits(bits: u64) -> u8 {
        (bits != 0) as u8
    }
    #[inline(always)]
    fn unary(_: Unary, x: u8) -> u8 {
        x ^ 1
    }
    #[inline(always)]
    fn binary(op: Binary, x: u8, y: u8) -> Option<u8> {
        Some(match op {
            Binary::And | Binary::Min => x & y,
            Binary::Or | Binary::Max => x | y,
            _ => x ^ y,
        })
    }
    #[inline(always)]
    fn test(_: Unary, _: u8) -> bool {
        false
    }
    #[inline(always)]
    fn number(self) -> Number {
        Number::Int(self.into())
    }
    #[inline(always)]
    fn cast(x: Number, _: DType) -> u8 {
        (x.float() != 0.0) as u8
    }
}

/// Casts a register element to another dtype.
#[inline(always)]
pub fn cast_one<S: Elem, D: Mem, const UNSIGNED: bool>(x: S) -> D::C
where
    D::C: Elem,
{
    let number = match x.number() {
        Number::Int(x) if UNSIGNED => Number::Unsigned(x as u64),
        number => number,
    };
    D::C::cast(number, D::DTYPE)
}
