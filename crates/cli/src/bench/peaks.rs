//! The measured peaks of a machine.

use kiln::{DType, Device, Result, Tensor, peaks};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// The peak rates of a device.
#[derive(Clone, Debug, Serialize)]
pub struct Peaks {
    /// Floating-point operations per second, by dtype: of fused multiply-adds in registers on a CPU, of the best of a
    /// few matrix products on a GPU. A CPU has none for f16 and bf16, since it does not compute in them.
    pub flops: BTreeMap<String, f64>,
    /// Bytes read and written per second, by a copy that is larger than the caches.
    pub bandwidth: f64,
}

/// Bytes that a copy reads.
const COPIED: usize = 128 << 20;
/// The number of measurements of each peak; the best counts.
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
        let flops = measured.map(|d| (d.to_string(), peaks::operations(threads, *d == "f64")));
        Ok(Peaks {
            flops: flops.collect(),
            bandwidth: peaks::bandwidth(threads),
        })
    }
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
    // Smaller products for dtypes that may have few units.
    let operands = [
        (DType::F16, 8192),
        (DType::BF16, 8192),
        (DType::F32, 8192),
        (DType::F64, 4096),
    ];
    for (dtype, side) in operands {
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
        // Half as many lanes: about half as fast, whatever other load the machine has.
        let part = peaks.flops["f64"] / peaks.flops["f32"];
        assert!((0.2..1.2).contains(&part), "{part}");
    }
}
