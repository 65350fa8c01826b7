//! How scans and scatters combine two elements, at compile time.

use crate::tile::Elem;

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

/// A way to combine.
pub(crate) trait Combine {
    /// Whether regrouping changes rounding at most.
    const REGROUPS: bool;
    /// What changes nothing.
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
    Max: true, LEAST, max;
    Min: true, MOST, min;
    LogSumExp: false, LEAST, log_add;
}
