//! Sequences of numbers.

use super::args::{Int, check_listable};
use crate::create::range;
use crate::record::compose;
use crate::{DType, Scalar, Tensor};
use kiln_base::Dim;
use kiln_ir::{OpError, ensure};

impl Tensor {
    /// `steps` numbers from `start` to `end`, both included, evenly spaced. The first half is computed from the start
    /// and the second from the end, so that both ends are exact.
    #[track_caller]
    pub fn linspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: impl Into<Int>,
        dtype: DType,
    ) -> Tensor {
        let steps = steps.into().0;
        let (start, end) = (start.into(), end.into());
        compose("linspace", &[], |b| {
            let values = evenly_spaced(start, end, steps, dtype)?;
            b.list(&values, &[values.len()], dtype)
        })
    }

    /// `base` to the power of `steps` numbers from `start` to `end`, both included, evenly spaced.
    #[track_caller]
    pub fn logspace(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        steps: impl Into<Int>,
        base: f64,
        dtype: DType,
    ) -> Tensor {
        let steps = steps.into().0;
        let (start, end) = (start.into(), end.into());
        compose("logspace", &[], |b| {
            let exponents = evenly_spaced(start, end, steps, DType::F64)?;
            let values: Vec<f64> = exponents.iter().map(|e| base.powf(*e)).collect();
            b.list(&values, &[values.len()], dtype)
        })
    }

    /// [`Tensor::arange`] in a given dtype.
    #[track_caller]
    pub fn arange_dtype(
        start: impl Into<Scalar>,
        end: impl Into<Scalar>,
        step: impl Into<Scalar>,
        dtype: DType,
    ) -> Tensor {
        let (start, end, step) = (start.into(), end.into(), step.into());
        compose("arange", &[], |b| {
            let distance = (end.as_f64() - start.as_f64()) / step.as_f64();
            if !distance.is_finite() || distance < 0.0 {
                return Err(OpError(format!(
                    "no steps of {step} lead from {start} to {end}"
                )));
            }
            let len = Dim::Const(distance.ceil() as i64);
            range(b, start, step, len, dtype)
        })
    }
}

/// Evenly spaced numbers. Integers are rounded to f32 and truncated, as in PyTorch.
fn evenly_spaced(
    start: Scalar,
    end: Scalar,
    steps: i64,
    dtype: DType,
) -> Result<Vec<f64>, OpError> {
    ensure!(
        steps >= 0,
        "the number of steps must not be negative, but is {steps}"
    );
    check_listable(Some(steps), &format!("{steps} steps"))?;
    let (from, to) = (start.as_f64(), end.as_f64());
    if steps == 1 {
        return Ok(vec![from]);
    }
    let step = (to - from) / (steps - 1) as f64;
    let element = |i: i64| {
        if i < steps / 2 {
            from + step * i as f64
        } else {
            to - step * (steps - 1 - i) as f64
        }
    };
    let values = (0..steps).map(element);
    if dtype.is_int() {
        return Ok(values.map(|v| (v as f32).trunc() as f64).collect());
    }
    Ok(values.collect())
}
