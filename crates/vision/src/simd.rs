//! Loops compiled for the machine's vector instructions.

#[cfg(all(target_arch = "x86_64", not(portable)))]
use kiln_base::{Feature, Features};

/// True if loops compiled for AVX2 may run.
#[cfg(all(target_arch = "x86_64", not(portable)))]
pub(crate) fn has_avx2() -> bool {
    // A level that is requested but missing is an error that the engine reports.
    Features::current().is_ok_and(|level| level.has(Feature::Avx2))
}

/// Defines a function whose body is compiled for every machine and once more for AVX2.
macro_rules! wide {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$(const $c:ident: usize),*>)? ($($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$meta])*
        $vis fn $name $(<$(const $c: usize),*>)? ($($arg: $ty),*) {
            #[inline(always)]
            fn plain $(<$(const $c: usize),*>)? ($($arg: $ty),*) $body
            #[cfg(all(target_arch = "x86_64", not(portable)))]
            if $crate::simd::has_avx2() {
                #[target_feature(enable = "avx2")]
                fn avx2 $(<$(const $c: usize),*>)? ($($arg: $ty),*) {
                    plain $(::<$($c),*>)? ($($arg),*)
                }
                // SAFETY: the machine has AVX2.
                return unsafe { avx2 $(::<$($c),*>)? ($($arg),*) };
            }
            plain $(::<$($c),*>)? ($($arg),*)
        }
    };
}
pub(crate) use wide;
