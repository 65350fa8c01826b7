//! What the machine can do at most, measured.

use kiln::{DType, Device, Result, Tensor};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a device can do at most.
#[derive(Clone, Debug, Serialize)]
pub struct Peaks {
    /// Floating-point operations a second, by dtype: of fused multiply-adds in registers on a CPU, of the best
    /// of a few matrix products on a GPU. A CPU has none for f16 and bf16, which it does not compute in.
    pub flops: BTreeMap<String, f64>,
    /// Bytes read and written a second, by a copy that is larger than the caches.
    pub bandwidth: f64,
}

/// Bytes that a copy reads.
const COPIED: usize = 128 << 20;
/// How often each is measured; the best counts.
const ROUNDS: usize = 8;

impl Peaks {
    /// Measures a device with all of Kiln's threads, for these dtypes; takes about half a second.
    ///
    /// # Errors
    /// If the device fails or has too little memory.
    pub fn measure(device: Device, dtypes: &BTreeSet<&str>) -> Result<Peaks> {
        if device.gpu().is_some() {
            return gpu(device, dtypes);
        }
        let threads = kiln::threads();
        let measured = dtypes.iter().filter(|d| ["f32", "f64"].contains(d));
        let flops = measured.map(|d| (d.to_string(), arithmetic(threads, *d == "f64")));
        Ok(Peaks {
            flops: flops.collect(),
            bandwidth: copy(threads),
        })
    }
}

/// The best of all threads' multiply-adds, of f32 or, if `double`, of f64, in operations a second.
fn arithmetic(threads: usize, double: bool) -> f64 {
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

/// Independent chains of multiply-adds, enough to hide their latency with two units.
const CHAINS: usize = 12;
/// Steps of each chain in one measurement.
const STEPS: usize = 2_000_000;

/// A function that runs the chains, `x = x a + b` over and over, on vectors, and gives the number of operations.
/// They are written with the machine's instructions: a compiler that finds no vectors would measure itself.
macro_rules! chains {
    ($name:ident, $features:literal, $type:ty, $fill:ident, $step:ident, $lanes:literal) => {
        #[cfg(target_arch = "x86_64")]
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

/// Runs the chains with the best instructions of this machine, of f32 or, if `double`, of f64; gives the number
/// of operations.
fn multiply_adds(double: bool) -> f64 {
    #[cfg(target_arch = "x86_64")]
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
    #[cfg(target_arch = "x86_64")]
    return match double {
        false => baseline::<f32, 4>([1.0, 0.999, 0.001], |x, a, b| x * a + b),
        true => baseline::<f64, 2>([1.0, 0.999, 0.001], |x, a, b| x * a + b),
    };
    #[cfg(not(target_arch = "x86_64"))]
    match double {
        false => baseline::<f32, 4>([1.0, 0.999, 0.001], f32::mul_add),
        true => baseline::<f64, 2>([1.0, 0.999, 0.001], f64::mul_add),
    }
}

/// The chains of what every machine has, in vectors of 16 bytes.
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

fn gpu(device: Device, dtypes: &BTreeSet<&str>) -> Result<Peaks> {
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
    let mut flops = BTreeMap::new();
    // Smaller ones where there may be few units for it.
    let sides = [
        (DType::F16, 8192),
        (DType::BF16, 8192),
        (DType::F32, 8192),
        (DType::F64, 4096),
    ];
    for (dtype, side) in sides {
        if dtypes.contains(&dtype.to_string()[..]) {
            let m = Tensor::ones([side, side], dtype).to(device);
            let product = best(&|| m.matmul(&m).realize().map(drop))?;
            flops.insert(dtype.to_string(), 2.0 * (side as f64).powi(3) / product);
        }
    }
    Ok(Peaks {
        flops,
        bandwidth: 2.0 * COPIED as f64 / copied,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_has_a_peak_for_the_dtypes_that_are_computed_in() {
        let dtypes = BTreeSet::from(["f32", "f64", "bf16"]);
        let peaks = Peaks::measure(Device::Cpu, &dtypes).unwrap();
        let known: Vec<&str> = peaks.flops.keys().map(|k| &k[..]).collect();
        assert_eq!(known, ["f32", "f64"]);
        // Half as many lanes: about half as fast, whatever else the machine does.
        let part = peaks.flops["f64"] / peaks.flops["f32"];
        assert!((0.2..1.2).contains(&part), "{part}");
    }
}
