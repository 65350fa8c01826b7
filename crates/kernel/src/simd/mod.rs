//! CPU levels. Every kernel loop is written once and compiled for each level.
//!
//! A loop is an implementation of [`Kernel`] whose body is inlined into one wrapper per level. The compiler vectorises
//! it for the wrapper's target features.

pub mod convert;
pub mod erf;
pub mod math;
pub mod transpose;
pub mod vector;

pub use kiln_base::Features;
use vector::{Four, Vector};

/// A level at compile time.
pub trait Isa {
    /// True if a fused multiply-add is one instruction.
    const FMA: bool;
    /// The level.
    const LEVEL: Features;
    /// Its widest vector of f32.
    type F32: Vector;
}

/// The level of every processor of the target.
pub struct Baseline;
#[cfg(all(target_arch = "x86_64", not(portable)))]
/// AVX2 with FMA and F16C.
pub struct Avx2;
#[cfg(all(target_arch = "x86_64", not(portable)))]
/// AVX-512 F, BW, DQ and VL.
pub struct Avx512;

impl Isa for Baseline {
    const FMA: bool = cfg!(target_feature = "fma") || cfg!(target_arch = "aarch64");
    const LEVEL: Features = Features::BASELINE;
    type F32 = Four;
}
#[cfg(all(target_arch = "x86_64", not(portable)))]
impl Isa for Avx2 {
    const FMA: bool = true;
    const LEVEL: Features = Features::AVX2;
    type F32 = std::arch::x86_64::__m256;
}
#[cfg(all(target_arch = "x86_64", not(portable)))]
impl Isa for Avx512 {
    const FMA: bool = true;
    const LEVEL: Features = Features::AVX512;
    type F32 = std::arch::x86_64::__m512;
}

/// A loop over the operands `A`.
pub trait Kernel<A> {
    /// Runs the loop; must be `#[inline(always)]`, as must all hot functions that it calls.
    ///
    /// # Safety
    /// The kernel's own requirements hold, and the machine supports the level `I`.
    unsafe fn run<I: Isa>(args: A);
}

/// A loop that is safe on every machine that supports its level.
pub trait Vectorized {
    /// Runs the loop; must be `#[inline(always)]`, as must all hot functions that it calls.
    fn run<I: Isa>(self);
}

/// Runs a loop, compiled for the widest level that this machine has up to `level`.
pub fn vectorized<K: Vectorized>(level: Features, kernel: K) {
    struct Run;
    impl<K: Vectorized> Kernel<K> for Run {
        #[inline(always)]
        unsafe fn run<I: Isa>(kernel: K) {
            kernel.run::<I>();
        }
    }
    // SAFETY: `compiled` picks a level that the machine supports, and such a loop requires nothing else.
    unsafe { compiled::<Run, K>(level)(kernel) }
}

/// Returns the kernel `K` compiled for `level`, or for the baseline if this machine does not have it.
pub fn compiled<K: Kernel<A>, A>(level: Features) -> unsafe fn(A) {
    let level = if level.is_supported() {
        level
    } else {
        Features::BASELINE
    };
    match level.width() {
        #[cfg(all(target_arch = "x86_64", not(portable)))]
        Features::AVX512 => {
            #[target_feature(
                enable = "avx,avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt,avx512f,avx512bw,avx512dq,avx512vl"
            )]
            unsafe fn avx512<K: Kernel<A>, A>(args: A) {
                // SAFETY: passed on to the caller.
                unsafe { K::run::<Avx512>(args) }
            }
            avx512::<K, A>
        }
        #[cfg(all(target_arch = "x86_64", not(portable)))]
        Features::AVX2 => {
            #[target_feature(enable = "avx,avx2,fma,f16c")]
            unsafe fn avx2<K: Kernel<A>, A>(args: A) {
                // SAFETY: passed on to the caller.
                unsafe { K::run::<Avx2>(args) }
            }
            avx2::<K, A>
        }
        _ => baseline::<K, A>(),
    }
}

/// Returns the kernel `K` compiled for the baseline, for loops that do not benefit from vectors.
pub fn baseline<K: Kernel<A>, A>() -> unsafe fn(A) {
    unsafe fn run<K: Kernel<A>, A>(args: A) {
        // SAFETY: passed on to the caller.
        unsafe { K::run::<Baseline>(args) }
    }
    run::<K, A>
}

/// Returns `a * b + c`, rounded once if the level has fused multiply-add.
#[inline(always)]
pub fn fma32<I: Isa>(a: f32, b: f32, c: f32) -> f32 {
    if I::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Returns `a * b + c`, rounded once if the level has fused multiply-add.
#[inline(always)]
pub fn fma64<I: Isa>(a: f64, b: f64, c: f64) -> f64 {
    if I::FMA { a.mul_add(b, c) } else { a * b + c }
}

/// Reduces `N` lanes, a power of two, as a balanced tree with short dependency chains.
#[inline(always)]
pub fn tree_reduce<T: Copy, const N: usize>(mut lanes: [T; N], f: impl Fn(T, T) -> T) -> T {
    let mut half = N;
    while half > 1 {
        half /= 2;
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
    }
    lanes[0]
}
