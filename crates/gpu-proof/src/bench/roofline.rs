//! The roofline of a case: its time if it did nothing but move its bytes or multiply, whichever takes longer, as fast as
//! the machine can (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
//! architectures", CACM 52(4), 2009).

use super::{median, peak_rates};
use crate::driver::Driver;
use crate::{Failed, Report};
use kiln_runtime::cuda;
use kiln_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// Returns `max(bytes / bandwidth, flops / peak)` in seconds: `bandwidth` is that of a copy, whose bytes are read and
/// written, and `peak` the operations a second of the dtype's own arithmetic. None where there are operations and no
/// peak is known.
pub(super) fn roofline(bytes: f64, bandwidth: f64, flops: f64, peak: Option<f64>) -> Option<f64> {
    let multiplying = match flops {
        0.0 => 0.0,
        flops => flops / peak?,
    };
    Some(multiplying.max(bytes / bandwidth))
}

/// Operations a second of products by the dtype of their operands: those of cuBLASLt's large products, or the nominal
/// ones without it. Products of f32 are those of multiply-adds in f32, which the tuner's products of TF32 may beat.
pub(super) struct Peaks<'a> {
    gpu: &'a Arc<cuda::Device>,
    has_cublas: bool,
    /// Cycles a second of all multiprocessors together.
    cycles: f64,
    known: HashMap<DType, Option<f64>>,
}

impl<'a> Peaks<'a> {
    pub fn new(
        gpu: &'a Arc<cuda::Device>,
        driver: &Driver,
        has_cublas: bool,
    ) -> Result<Peaks<'a>, Failed> {
        Ok(Peaks {
            gpu,
            has_cublas,
            cycles: f64::from(driver.multiprocessors()?) * driver.clock()?,
            known: HashMap::new(),
        })
    }

    /// The peak of a dtype, of which a note says where it comes from.
    pub fn of(&mut self, dtype: DType, report: &mut Report) -> Option<f64> {
        if let Some(known) = self.known.get(&dtype) {
            return *known;
        }
        let measured = self.has_cublas.then(|| peak_rates(self.gpu, dtype));
        let (peak, source) = match measured {
            Some(Ok(rates)) => (Some(median(&rates)), "cuBLASLt's large products"),
            _ => (
                nominal(self.gpu.capability(), self.cycles, dtype),
                "multiprocessors and their clock",
            ),
        };
        if let Some(peak) = peak {
            report.note(format!(
                "predicted: {:.1} TFLOP/s of {dtype} by {source}",
                peak / 1e12
            ));
        }
        self.known.insert(dtype, peak);
        peak
    }
}

/// Operations a second, two for each multiply-add: those of f32 from the table of arithmetic instructions in NVIDIA's
/// CUDA C++ Programming Guide, those of tensor cores from the whitepapers on the A100 and the H100, for the two
/// architectures that kernels are compiled for.
fn nominal(capability: (u32, u32), cycles: f64, dtype: DType) -> Option<f64> {
    let multiply_adds = match (capability, dtype) {
        ((8, 0), DType::F32) => 64.0,
        ((9, 0), DType::F32) => 128.0,
        ((8, 0), DType::F16 | DType::BF16) => 1024.0,
        ((9, 0), DType::F16 | DType::BF16) => 2048.0,
        _ => return None,
    };
    Some(2.0 * multiply_adds * cycles)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_counts() {
        // A GB at 2 TB/s and 3 TFLOP at 500 TFLOP/s: 0.5 and 6 ms; a tenth of the operations leaves memory's time.
        assert_eq!(roofline(1e9, 2e12, 3e12, Some(5e14)), Some(6e-3));
        assert_eq!(roofline(1e9, 2e12, 1e11, Some(5e14)), Some(5e-4));
        assert_eq!(roofline(1e9, 2e12, 0.0, None), Some(5e-4));
        assert_eq!(roofline(1e9, 2e12, 1e11, None), None);
    }

    #[test]
    fn nominal_peaks_are_those_of_the_data_sheets() {
        let assert_close = |capability, processors: f64, clock: f64, dtype, tera: f64| {
            let peak = nominal(capability, processors * clock, dtype).unwrap();
            assert!((peak / 1e12 / tera - 1.0).abs() < 2e-3, "{dtype}: {peak}");
        };
        // A100: 108 multiprocessors at 1.41 GHz; H100 SXM: 132, at 1.83 GHz for tensor cores and 1.98 GHz without.
        assert_close((8, 0), 108.0, 1.41e9, DType::BF16, 312.0);
        assert_close((8, 0), 108.0, 1.41e9, DType::F32, 19.5);
        assert_close((9, 0), 132.0, 1.83e9, DType::F16, 989.4);
        assert_close((9, 0), 132.0, 1.98e9, DType::F32, 66.9);
        assert_eq!(nominal((7, 5), 1e11, DType::F16), None);
        assert_eq!(nominal((9, 0), 1e11, DType::F64), None);
    }
}
