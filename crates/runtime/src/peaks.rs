//! The measured peak rates of this processor.

use kiln_kernel::simd::{Features, Isa, Vectorized, fma32, fma64, vectorized};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Bytes that a copy reads.
const COPIED: usize = 128 << 20;
/// The number of measurements of each rate; the best counts.
const ROUNDS: usize = 8;

/// Measures the peak rate of `threads` threads in operations per second: multiply-adds of f32 or, if `double`, of f64,
/// that stay in registers. Takes about a quarter of a second.
pub fn operations(threads: usize, double: bool) -> f64 {
    let mut best = 0f64;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let operations: f64 = std::thread::scope(|s| {
            let workers = (0..threads).map(|_| s.spawn(move || multiply_adds(double)));
            let workers: Vec<_> = workers.collect();
            let counts = workers.into_iter().map(|w| w.join().unwrap_or(0.0));
            counts.sum()
        });
        best = best.max(operations / start.elapsed().as_secs_f64());
    }
    best
}

/// Measures the peak bytes per second that `threads` threads read and write, copying data larger than the caches. Takes
/// about a quarter of a second.
pub fn bandwidth(threads: usize) -> f64 {
    let source = vec![1u8; COPIED];
    let mut target = vec![0u8; COPIED];
    let chunk = COPIED.div_ceil(threads);
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        std::thread::scope(|s| {
            for (source, target) in source.chunks(chunk).zip(target.chunks_mut(chunk)) {
                s.spawn(move || target.copy_from_slice(black_box(source)));
            }
        });
        best = best.min(start.elapsed());
    }
    black_box(&target);
    2.0 * COPIED as f64 / best.as_secs_f64()
}

/// Independent chains of multiply-adds, enough to hide their latency with two units.
const CHAINS: usize = 12;
/// Steps of each chain in one measurement.
const STEPS: usize = 2_000_000;

/// Chains of multiply-adds, `x = x a + b` over and over, of f32 or, if `double`, of f64.
struct Chains<'a> {
    double: bool,
    /// The number of operations.
    done: &'a mut f64,
}

impl Vectorized for Chains<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        *self.done = match (I::LEVEL.width(), self.double) {
            (Features::AVX512, false) => chains::<f32, 16>([1.0, 0.999, 0.001], fma32::<I>),
            (Features::AVX512, true) => chains::<f64, 8>([1.0, 0.999, 0.001], fma64::<I>),
            (Features::AVX2, false) => chains::<f32, 8>([1.0, 0.999, 0.001], fma32::<I>),
            (Features::AVX2, true) => chains::<f64, 4>([1.0, 0.999, 0.001], fma64::<I>),
            (_, false) => chains::<f32, 4>([1.0, 0.999, 0.001], fma32::<I>),
            (_, true) => chains::<f64, 2>([1.0, 0.999, 0.001], fma64::<I>),
        };
    }
}

/// Runs the chains with the widest instructions of this machine. Returns the number of operations.
fn multiply_adds(double: bool) -> f64 {
    let widest = Features::WIDTHS.into_iter().rfind(|l| l.is_supported());
    let mut done = 0.0;
    let chains = Chains {
        double,
        done: &mut done,
    };
    vectorized(widest.unwrap_or(Features::BASELINE), chains);
    done
}

/// The chains on vectors of some lanes.
#[inline(always)]
fn chains<T: Copy, const LANES: usize>(numbers: [T; 3], step: impl Fn(T, T, T) -> T) -> f64 {
    let [start, a, b] = black_box(numbers);
    let mut x = [[start; LANES]; CHAINS];
    for _ in 0..STEPS {
        for lane in x.as_flattened_mut() {
            *lane = step(*lane, a, b);
        }
    }
    black_box(x);
    2.0 * (CHAINS * LANES * STEPS) as f64
}
