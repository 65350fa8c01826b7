//! The measured peak rates of this processor.

use kiln_kernel::simd::{Features, Isa, Vectorized, fma32, fma64, vectorized};
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
