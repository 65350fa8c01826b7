//! The measured peak rates of this processor.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes that a copy reads.
const COPIED: usize = 128 << 20;
/// The number of measurements of each rate; the best counts.
const ROUNDS: usize = 8;

/// The peak rate of `threads` threads in operations a second: multiply-adds of f32 or, if `double`, of f64, that stay
/// in registers. Takes about a quarter of a second.
pub fn operations(threads: usize, double: bool) -> f64 {
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let done: f64 = std::thread::scope(|s| {
            let workers = (0..threads).map(|_| s.spawn(move || multiply_adds(double)));
            let workers: Vec<_> = workers.collect();
            let each = workers.into_iter().map(|w| w.join().unwrap_or(0.0));
            each.sum()
        });
        best = best.max(done / start.elapsed().as_secs_f64());
    }
    best
}

/// The peak bytes a second that `threads` threads read and write, copying data larger than the caches. Takes about a
/// quarter of a second.
pub fn bandwidth(threads: usize) -> f64 {
    let from = vec![1u8; COPIED];
    let mut to = vec![0u8; COPIED];
    let part = COPIED.div_ceil(threads);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        std::thread::scope(|s| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                s.spawn(move || to.copy_from_slice(black_box(from)));
            }
        });
        best = best.min(start.elapsed());
    }
    black_box(&to);
    2.0 * COPIED as f64 / best.as_secs_f64()
}

/// Independent chains of multiply-adds, enough to hide their latency with two units.
const CHAINS: usize = 12;
/// Steps of each chain in one measurement.
const STEPS: usize = 2_000_000;

/// A function that runs the chains, `x = x a + b` over and over, on vectors, and returns the number of operations. It
/// uses intrinsics: if the compiler failed to vectorise, the rate would be the compiler's and not the processor's.
macro_rules! chains {
    ($name:ident, $features:literal, $type:ty, $fill:ident, $step:ident, $lanes:literal) => {
        #[cfg(all(target_arch = "x86_64", not(portable)))]
        #[target_feature(enable = $features)]
        fn $name() -> f64 {
            use std::arch::x86_64::{$fill, $step};
            let (one, a, b): ($type, $type, $type) = black_box((1.0, 0.999, 0.001));
            let (a, b) = ($fill(a), $fill(b));
            let mut x = [$fill(one); CHAINS];
            for _ in 0..STEPS {
                for chain in &mut x {
                    *chain = $step(*chain, a, b);
                }
            }
            black_box(x);
            2.0 * (CHAINS * $lanes * STEPS) as f64
        }
    };
}

chains!(
    wide_f32,
    "avx512f",
    f32,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    16
);
chains!(wide_f64, "avx512f", f64, _mm512_set1_pd, _mm512_fmadd_pd, 8);
chains!(f32s, "avx2,fma", f32, _mm256_set1_ps, _mm256_fmadd_ps, 8);
chains!(f64s, "avx2,fma", f64, _mm256_set1_pd, _mm256_fmadd_pd, 4);

/// Runs the chains with the widest instructions of this machine, of f32 or, if `double`, of f64. Returns the number
/// of operations.
fn multiply_adds(double: bool) -> f64 {
    #[cfg(all(target_arch = "x86_64", not(portable)))]
    {
        let wide = is_x86_feature_detected!("avx512f");
        let fused = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let vectors: Option<unsafe fn() -> f64> = match (wide, fused, double) {
            (true, _, false) => Some(wide_f32),
            (true, _, true) => Some(wide_f64),
            (_, true, false) => Some(f32s),
            (_, true, true) => Some(f64s),
            _ => None,
        };
        if let Some(chains) = vectors {
            // SAFETY: the machine has the instructions that the function is compiled for.
            return unsafe { chains() };
        }
    }
    #[cfg(all(target_arch = "x86_64", not(portable)))]
    return match double {
        false => baseline::<f32, 4>([1.0, 0.999, 0.001], |x, a, b| x * a + b),
        true => baseline::<f64, 2>([1.0, 0.999, 0.001], |x, a, b| x * a + b),
    };
    #[cfg(not(all(target_arch = "x86_64", not(portable))))]
    match double {
        false => baseline::<f32, 4>([1.0, 0.999, 0.001], f32::mul_add),
        true => baseline::<f64, 2>([1.0, 0.999, 0.001], f64::mul_add),
    }
}

/// The chains with instructions that every machine has, in vectors of 16 bytes.
fn baseline<T: Copy, const LANES: usize>(numbers: [T; 3], step: impl Fn(T, T, T) -> T) -> f64 {
    let [one, a, b] = black_box(numbers);
    let mut x = [[one; LANES]; CHAINS];
    for _ in 0..STEPS {
        for lane in x.as_flattened_mut() {
            *lane = step(*lane, a, b);
        }
    }
    black_box(x);
    2.0 * (CHAINS * LANES * STEPS) as f64
}
