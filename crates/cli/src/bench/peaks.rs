//! What the machine can do at most, measured.

use kiln::{DType, Device, Result, Tensor};
use serde::Serialize;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a device can do at most.
#[derive(Copy, Clone, Debug, Serialize)]
pub struct Peaks {
    /// Floating-point operations a second: of fused multiply-adds in registers on a CPU, of the best of a
    /// few matrix products on a GPU.
    pub flops: f64,
    /// Bytes read and written a second, by a copy that is larger than the caches.
    pub bandwidth: f64,
}

/// Bytes that a copy reads.
const COPIED: usize = 128 << 20;
/// How often each is measured; the best counts.
const ROUNDS: usize = 8;

impl Peaks {
    /// Measures a device with all of Kiln's threads; takes about half a second.
    ///
    /// # Errors
    /// If the device fails or has too little memory.
    pub fn measure(device: Device) -> Result<Peaks> {
        if device.gpu().is_some() {
            return gpu(device);
        }
        let threads = kiln::threads();
        let mut flops = 0f64;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let done: f64 = std::thread::scope(|s| {
                let workers: Vec<_> = (0..threads).map(|_| s.spawn(multiply_adds)).collect();
                let each = workers.into_iter().map(|w| w.join().unwrap_or(0.0));
                each.sum()
            });
            flops = flops.max(done / start.elapsed().as_secs_f64());
        }
        Ok(Peaks {
            flops,
            bandwidth: copy(threads),
        })
    }
}

/// The best of copies that each thread makes of its part, in bytes a second.
fn copy(threads: usize) -> f64 {
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

/// Independent chains of multiply-adds, enough to hide their latency with two units of 16 lanes.
const CHAINS: usize = 12;
const LANES: usize = 16;
/// Steps of each chain in one measurement.
const STEPS: usize = 2_000_000;

/// Runs the chains with the best instructions of this machine; gives the number of operations.
fn multiply_adds() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,fma")]
        fn avx512() {
            chains(f32::mul_add);
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2() {
            chains(f32::mul_add);
        }
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("fma") {
            // SAFETY: the machine has what the function is compiled for.
            unsafe { avx512() };
        } else if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            unsafe { avx2() };
        } else {
            chains(|x, a, b| x * a + b);
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    chains(f32::mul_add);
    2.0 * (CHAINS * LANES * STEPS) as f64
}

#[inline(always)]
fn chains(step: impl Fn(f32, f32, f32) -> f32) {
    let mut x = [[1f32; LANES]; CHAINS];
    let (a, b) = black_box((0.999_f32, 0.001_f32));
    for _ in 0..STEPS {
        for chain in &mut x {
            for lane in chain {
                *lane = step(*lane, a, b);
            }
        }
    }
    black_box(x);
}

fn gpu(device: Device) -> Result<Peaks> {
    let best = |f: &dyn Fn() -> Result<()>| -> Result<f64> {
        let mut best = f64::MAX;
        for _ in 0..ROUNDS {
            device.synchronize()?;
            let start = Instant::now();
            for _ in 0..ROUNDS {
                f()?;
            }
            device.synchronize()?;
            best = best.min(start.elapsed().as_secs_f64() / ROUNDS as f64);
        }
        Ok(best)
    };
    let x = Tensor::ones([COPIED / 4], DType::F32).to(device);
    let copied = best(&|| (-&x).realize().map(drop))?;
    let side = 8192usize;
    let m = Tensor::ones([side, side], DType::F16).to(device);
    let product = best(&|| m.matmul(&m).realize().map(drop))?;
    Ok(Peaks {
        flops: 2.0 * (side as f64).powi(3) / product,
        bandwidth: 2.0 * COPIED as f64 / copied,
    })
}
