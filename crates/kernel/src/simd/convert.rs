//! Conversions between memory elements and register elements.

use super::{Features, Isa, Kernel, compiled};
use crate::view::Plain;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kiln_base::{DType, Float8};

/// Widens elements of `dtype`, f16 or bf16, to f32.
pub fn widen(level: Features, dtype: DType, from: &[u16], to: &mut [f32]) {
    let arguments = WidenArguments { dtype, from, to };
    // SAFETY: the machine has the level.
    unsafe { compiled::<Widen, _>(level)(arguments) }
}

/// The 16-bit floats to widen, and as many f32 to write.
struct WidenArguments<'a> {
    dtype: DType,
    from: &'a [u16],
    to: &'a mut [f32],
}

/// The kernel that widens 16-bit floats to f32.
struct Widen;
impl Kernel<WidenArguments<'_>> for Widen {
    #[inline(always)]
    unsafe fn run<I: Isa>(WidenArguments { dtype, from, to }: WidenArguments<'_>) {
        if dtype != DType::F16 {
            for (to, from) in to.iter_mut().zip(from) {
                *to = f32::from_bits(u32::from(*from) << 16);
            }
            return;
        }
        #[cfg(all(target_arch = "x86_64", not(portable)))]
        let (from, to) = {
            use std::arch::x86_64::*;
            const CHUNK: usize = 16;
            let vector_len = match I::LEVEL {
                Features::BASELINE => 0,
                _ => from.len().min(to.len()) / CHUNK * CHUNK,
            };
            for i in (0..vector_len).step_by(CHUNK) {
                let (from, to) = (from[i..].as_ptr(), to[i..].as_mut_ptr());
                // SAFETY: there are `CHUNK` elements; the machine has the level.
                unsafe {
                    match I::LEVEL {
                        Features::AVX2 => {
                            for i in [0, 8] {
                                let bits = _mm_loadu_si128(from.add(i).cast());
                                _mm256_storeu_ps(to.add(i), _mm256_cvtph_ps(bits));
                            }
                        }
                        _ => {
                            let bits = _mm256_loadu_si256(from.cast());
                            _mm512_storeu_ps(to, _mm512_cvtph_ps(bits));
                        }
                    }
                }
            }
            (&from[vector_len..], &mut to[vector_len..])
        };
        from.reinterpret_cast::<f16>().convert_to_f32_slice(to);
    }
}

/// A dtype at compile time.
pub trait Mem: 'static {
    /// The element in memory.
    type Raw: Plain;
    /// The register element; masks are bytes of 0 or 1.
    type C: Copy + 'static;
    /// The dtype.
    const DTYPE: DType;
    /// True if register and memory elements have the same bits.
    const DIRECT: bool;
    /// Converts from memory to register.
    fn load(x: Self::Raw) -> Self::C;
    /// Converts from register to memory: floats round to nearest even, integers wrap.
    fn store(x: Self::C) -> Self::Raw;
}

macro_rules! mem {
    ($($name:ident: $raw:ty, $c:ty, $direct:literal, $load:expr, $store:expr;)*) => {$(
        pub struct $name;
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
    F16: u16, f32, false, |x| f16::from_bits(x).to_f32(), |x| f16::from_f32(x).to_bits();
    BF16: u16, f32, false, |x| bf16::from_bits(x).to_f32(), |x| bf16::from_f32(x).to_bits();
    F32: f32, f32, true, |x| x, |x| x;
    F64: f64, f64, true, |x| x, |x| x;
    F8E4M3: u8, f32, false, |x| Float8::E4M3.to_f32(x), |x| Float8::E4M3.from_f32(x);
    F8E5M2: u8, f32, false, |x| Float8::E5M2.to_f32(x), |x| Float8::E5M2.from_f32(x);
    F8E4M3FNUZ: u8, f32, false, |x| Float8::E4M3FNUZ.to_f32(x), |x| Float8::E4M3FNUZ.from_f32(x);
    F8E5M2FNUZ: u8, f32, false, |x| Float8::E5M2FNUZ.to_f32(x), |x| Float8::E5M2FNUZ.from_f32(x);
}

/// Evaluates `$body` with the type `$T` of a dtype.
#[macro_export]
macro_rules! with_dtype {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::with_dtype!($dtype, $T => $body;
            Bool U8 I8 I16 I32 I64 U16 U32 U64 F16 BF16 F32 F64 F8E4M3 F8E5M2 F8E4M3FNUZ F8E5M2FNUZ)
    };
    ($dtype:expr, $T:ident => $body:expr; $($name:ident)*) => {
        match $dtype {
            $(kiln_base::DType::$name => {
                type $T = $crate::simd::convert::$name;
                $body
            })*
        }
    };
}
pub use crate::with_dtype;
