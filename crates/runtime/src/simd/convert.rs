//! Conversions between memory elements and the types kernels compute in.

use half::{bf16, f16};
use kiln_base::{DType, wrap_int};

/// A dtype at compile time.
pub(crate) trait Mem: 'static {
    /// The element in memory.
    type Raw: Copy + 'static;
    /// The register element; masks are bytes of 0 or 1.
    type C: Copy + 'static;
    /// The dtype.
    const DTYPE: DType;
    /// Whether register and memory elements are the same bits.
    const DIRECT: bool;
    /// Memory to register.
    fn load(x: Self::Raw) -> Self::C;
    /// Register to memory: floats round to nearest even, integers wrap.
    fn store(x: Self::C) -> Self::Raw;
}

macro_rules! mem {
    ($($name:ident: $raw:ty, $c:ty, $direct:literal, $load:expr, $store:expr;)*) => {$(
        pub(crate) struct $name;
        impl Mem for $name {
            type Raw = $raw;
            type C = $c;
            const DTYPE: DType = DType::$name;
            const DIRECT: bool = $direct;
            #[inline(always)]
            fn load(x: $raw) -> $c {
                ($load)(x)
            }
            #[inline(always)]
            fn store(x: $c) -> $raw {
                ($store)(x)
            }
        }
    )*};
}
mem! {
    Bool: u8, u8, true, |x| x, |x| x;
    U8: u8, i32, false, |x| x as i32, |x| x as u8;
    I8: i8, i32, false, |x| x as i32, |x| x as i8;
    I16: i16, i32, false, |x| x as i32, |x| x as i16;
    I32: i32, i32, true, |x| x, |x| x;
    I64: i64, i64, true, |x| x, |x| x;
    U16: u16, i32, false, |x| x as i32, |x| x as u16;
    U32: u32, i64, false, |x| x as i64, |x| x as u32;
    U64: u64, i64, false, |x| x as i64, |x| x as u64;
    F16: u16, f32, false, f16_to_f32, f32_to_f16;
    BF16: u16, f32, false, bf16_to_f32, f32_to_bf16;
    F32: f32, f32, true, |x| x, |x| x;
    F64: f64, f64, true, |x| x, |x| x;
}

/// Evaluates `$body` with the type `$T` standing for the dtype.
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {{
        use $crate::simd::convert as c;
        match $dtype {
            kiln_base::DType::Bool => {
                type $T = c::Bool;
                $body
            }
            kiln_base::DType::U8 => {
                type $T = c::U8;
                $body
            }
            kiln_base::DType::I8 => {
                type $T = c::I8;
                $body
            }
            kiln_base::DType::I16 => {
                type $T = c::I16;
                $body
            }
            kiln_base::DType::I32 => {
                type $T = c::I32;
                $body
            }
            kiln_base::DType::I64 => {
                type $T = c::I64;
                $body
            }
            kiln_base::DType::U16 => {
                type $T = c::U16;
                $body
            }
            kiln_base::DType::U32 => {
                type $T = c::U32;
                $body
            }
            kiln_base::DType::U64 => {
                type $T = c::U64;
                $body
            }
            kiln_base::DType::F16 => {
                type $T = c::F16;
                $body
            }
            kiln_base::DType::BF16 => {
                type $T = c::BF16;
                $body
            }
            kiln_base::DType::F32 => {
                type $T = c::F32;
                $body
            }
            kiln_base::DType::F64 => {
                type $T = c::F64;
                $body
            }
        }
    }};
}
pub(crate) use with_dtype;

#[inline(always)]
fn bf16_to_f32(x: u16) -> f32 {
    f32::from_bits((x as u32) << 16)
}

#[inline(always)]
fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let nan = bits >> 16 | 0x40;
    (if x.is_nan() { nan } else { rounded }) as u16
}

/// Branch-free: the exponent is moved by a multiplication, which also normalises subnormals.
#[inline(always)]
fn f16_to_f32(x: u16) -> f32 {
    let x = x as u32;
    let magnitude = (x & 0x7fff) << 13;
    let finite = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
    let special = magnitude | 0x7f80_0000 | if x & 0x3ff != 0 { 0x40_0000 } else { 0 };
    let bits = if x & 0x7c00 == 0x7c00 {
        special
    } else {
        finite
    };
    f32::from_bits(bits | (x & 0x8000) << 16)
}

/// Branch-free, after F. Giesen's `float_to_half_fast3_rtne`.
#[inline(always)]
fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let a = bits & 0x7fff_ffff;
    // Subnormal results: adding 0.5 lets the float adder align and round the ten bits.
    let subnormal = (f32::from_bits(a) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let normal = a.wrapping_add(0xc800_0fff).wrapping_add(a >> 13 & 1) >> 13;
    let special = if a > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let h = if a < 0x3880_0000 { subnormal } else { normal };
    let h = if a >= 0x4780_0000 { special } else { h };
    (h | sign) as u16
}

/// A register element that casts start from.
pub(crate) trait Source: Copy {
    /// As a float of a dtype, kept in f32.
    fn to_f32(self, to: DType) -> f32;
    /// As a double.
    fn to_f64(self) -> f64;
    /// As an integer of a dtype, saturating from floats and wrapping from integers.
    fn to_int(self, to: DType) -> i64;
    /// Whether it is not zero.
    fn to_bool(self) -> u8;
}

/// [`kiln_base::float_to_int`], inlined into loops.
macro_rules! saturate {
    ($x:expr, $to:expr) => {
        match $to {
            DType::Bool => ($x != 0.0) as i64,
            DType::U8 => $x as u8 as i64,
            DType::I8 => $x as i8 as i64,
            DType::I16 => $x as i16 as i64,
            DType::I32 => $x as i32 as i64,
            DType::U16 => $x as u16 as i64,
            DType::U32 => $x as u32 as i64,
            DType::U64 => $x as u64 as i64,
            _ => $x as i64,
        }
    };
}

macro_rules! int_source {
    ($t:ty, $value:expr) => {
        impl Source for $t {
            #[inline(always)]
            fn to_f32(self, to: DType) -> f32 {
                let v = ($value)(self);
                match to {
                    DType::F16 => f16::from_f64(v as f64).to_f32(),
                    DType::BF16 => bf16::from_f64(v as f64).to_f32(),
                    _ => v as f32,
                }
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                ($value)(self) as f64
            }
            #[inline(always)]
            fn to_int(self, to: DType) -> i64 {
                wrap_int(($value)(self) as i64, to)
            }
            #[inline(always)]
            fn to_bool(self) -> u8 {
                (($value)(self) != 0) as u8
            }
        }
    };
}
/// An i64 register that stands for a u64.
#[derive(Copy, Clone)]
#[repr(transparent)]
pub(crate) struct Unsigned(pub(crate) i64);
int_source!(u8, |x| x);
int_source!(i32, |x| x);
int_source!(i64, |x| x);
int_source!(Unsigned, |x: Unsigned| x.0 as u64);

impl Source for f32 {
    #[inline(always)]
    fn to_f32(self, to: DType) -> f32 {
        match to {
            DType::F16 => f16_to_f32(f32_to_f16(self)),
            DType::BF16 => bf16_to_f32(f32_to_bf16(self)),
            _ => self,
        }
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self as f64
    }
    #[inline(always)]
    fn to_int(self, to: DType) -> i64 {
        saturate!(self, to)
    }
    #[inline(always)]
    fn to_bool(self) -> u8 {
        (self != 0.0) as u8
    }
}

impl Source for f64 {
    #[inline(always)]
    fn to_f32(self, to: DType) -> f32 {
        match to {
            DType::F16 => f16::from_f64(self).to_f32(),
            DType::BF16 => bf16::from_f64(self).to_f32(),
            _ => self as f32,
        }
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
    #[inline(always)]
    fn to_int(self, to: DType) -> i64 {
        saturate!(self, to)
    }
    #[inline(always)]
    fn to_bool(self) -> u8 {
        (self != 0.0) as u8
    }
}

/// A register element that casts end in.
pub(crate) trait Target: Copy {
    /// `x` as a value of dtype `to`.
    fn cast<S: Source>(x: S, to: DType) -> Self;
}

macro_rules! target {
    ($($t:ty: |$x:ident, $to:ident| $e:expr;)*) => {$(
        impl Target for $t {
            #[inline(always)]
            fn cast<S: Source>($x: S, $to: DType) -> $t {
                $e
            }
        }
    )*};
}
target! {
    f32: |x, to| x.to_f32(to);
    f64: |x, _to| x.to_f64();
    i32: |x, to| x.to_int(to) as i32;
    i64: |x, to| x.to_int(to);
    u8: |x, _to| x.to_bool();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_conversions_agree_with_the_half_crate() {
        for bits in 0..=u16::MAX {
            let (a, b) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                "{bits:x}"
            );
            let (a, b) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
            assert!(
                a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan(),
                "{bits:x}"
            );
        }
        for i in 0..3_000_000u32 {
            let x = f32::from_bits(i.wrapping_mul(1429).wrapping_add(i << 13));
            let (a, b) = (f32_to_f16(x), f16::from_f32(x));
            let nan = f16::from_bits(a).is_nan() && x.is_nan();
            assert!(a == b.to_bits() || nan, "{x:e}: {a:x} {b:?}");
            let (a, b) = (f32_to_bf16(x), bf16::from_f32(x));
            let nan = bf16::from_bits(a).is_nan() && x.is_nan();
            assert!(a == b.to_bits() || nan, "{x:e}: {a:x} {b:?}");
        }
    }
}
