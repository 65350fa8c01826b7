//! The combining operations of scans and scatters, chosen at compile time.

/// Evaluates `$wide` with `$T` for the dtypes whose loops are compiled for every level, and `$narrow` for the other
/// dtypes that compute.
macro_rules! with_number {
    ($dtype:expr, $T:ident => $wide:expr, $narrow:expr) => {{
        use kiln_kernel::simd::convert as c;
        macro_rules! arm {
            ($name:ident, $body:expr) => {{
                type $T = c::$name;
                $body
            }};
        }
        match $dtype {
            DType::F32 => arm!(F32, $wide),
            DType::F64 => arm!(F64, $wide),
            DType::I32 => arm!(I32, $wide),
            DType::I64 => arm!(I64, $wide),
            DType::F16 => arm!(F16, $narrow),
            DType::BF16 => arm!(BF16, $narrow),
            DType::U8 => arm!(U8, $narrow),
            DType::I8 => arm!(I8, $narrow),
            DType::I16 => arm!(I16, $narrow),
            DType::Bool => arm!(Bool, $narrow),
            other => unreachable!("checking lets no {other} through"),
        }
    }};
}
pub(crate) use with_number;

use kiln_kernel::element::Elem;

/// A register element that can be accumulated.
pub(crate) trait Number: Elem {
    /// `log(exp(self) + exp(b))`; floats only.
    fn log_add(self, b: Self) -> Self;
}

macro_rules! float {
    ($($t:ty)*) => {$(
        impl Number for $t {
            #[inline(always)]
            fn log_add(self, b: $t) -> $t {
                let (high, low) = (Elem::max(self, b), Elem::min(self, b));
                if high.is_finite() {
                    high + (low - high).exp().ln_1p()
                } else {
                    high
                }
            }
        }
    )*};
}
float!(f32 f64);

macro_rules! integer {
    ($($t:ty)*) => {$(
        impl Number for $t {
            fn log_add(self, _: $t) -> $t {
                self // checking lets floats through only
            }
        }
    )*};
}
integer!(u8 i32 i64);

/// An associative operation on two elements.
pub(crate) trait Combine {
    /// True if regrouping changes at most the rounding.
    const REGROUPS: bool;
    /// Returns the identity element.
    fn identity<T: Number>() -> T;
    fn combine<T: Number>(a: T, b: T) -> T;
}

macro_rules! combine {
    ($($name:ident: $regroups:literal, $identity:ident, $f:ident;)*) => {$(
        pub(crate) struct $name;
        impl Combine for $name {
            const REGROUPS: bool = $regroups;
            #[inline(always)]
            fn identity<T: Number>() -> T {
                T::$identity
            }
            #[inline(always)]
            fn combine<T: Number>(a: T, b: T) -> T {
                a.$f(b)
            }
        }
    )*};
}
combine! {
    Sum: true, ZERO, add;
    Prod: false, ONE, mul;
    Max: true, LOWEST, max;
    Min: true, HIGHEST, min;
    LogSumExp: false, LOWEST, log_add;
}
