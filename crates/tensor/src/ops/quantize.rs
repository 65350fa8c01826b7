//! Quantisation to integers: x ≈ (q − zero_point) · scale.

use super::args::check_float;
use crate::Tensor;
use crate::record::compose;
use kiln_base::DType;
use kiln_derive::on_cells;
use kiln_ir::{Builder, OpError, Pw, ensure};

fn is_small(dtype: DType) -> bool {
    matches!(dtype, DType::U8 | DType::I8 | DType::I16)
}

#[on_cells]
impl Tensor {
    /// `round(x / scale) + zero_point` clamped to the range of an integer dtype, with halves rounded to even
    /// (`torch.ops.quantized_decomposed.quantize_per_tensor`). NaN is converted as in a cast.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::from([-1.0f32, 0.0, 0.26, 9.0]);
    /// let q = x.quantize_per_tensor(0.1, 10, DType::U8);
    /// assert_eq!(q.to_vec::<u8>()?, [0, 10, 13, 100]);
    /// assert_eq!(q.dequantize_per_tensor(0.1, 10).dtype(), DType::F32);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn quantize_per_tensor(&self, scale: f64, zero_point: i64, dtype: DType) -> Tensor {
        self.quantize_up_to(scale, zero_point, dtype, i128::MAX)
    }

    /// [`Tensor::quantize_per_tensor`] with results clamped to at most `largest`.
    pub(crate) fn quantize_up_to(
        &self,
        scale: f64,
        zero_point: i64,
        dtype: DType,
        largest: i128,
    ) -> Tensor {
        compose("quantize_per_tensor", &[self], |b| {
            check_float(self, "input")?;
            let range = dtype.int_range().filter(|_| is_small(dtype));
            let (lowest, highest) = range
                .ok_or_else(|| OpError(format!("quantises to u8, i8 or i16, not to {dtype}")))?;
            let highest = highest.min(largest);
            ensure!(
                scale.is_finite() && scale > 0.0,
                "the scale must be positive and finite, not {scale}"
            );
            ensure!(
                (lowest..=highest).contains(&i128::from(zero_point)),
                "the zero point {zero_point} is out of range for {dtype}"
            );
            let x = b.widen(self)?;
            let q = b.with(Pw::Mul, &x, 1.0 / scale)?;
            let q = b.unary(Pw::Round, &q)?;
            let q = match zero_point {
                0 => q,
                zero => b.with(Pw::Add, &q, zero as f64)?,
            };
            let q = b.with(Pw::Maximum, &q, lowest as f64)?;
            let q = b.with(Pw::Minimum, &q, highest as f64)?;
            b.cast(&q, dtype)
        })
    }

    /// `(q − zero_point) · scale` in f32 (`torch.ops.quantized_decomposed.dequantize_per_tensor`).
    pub fn dequantize_per_tensor(&self, scale: f64, zero_point: i64) -> Tensor {
        compose("dequantize_per_tensor", &[self], |b| {
            ensure!(
                is_small(self.dtype()),
                "u8, i8 and i16 are dequantised, not {}",
                self.dtype()
            );
            let q = b.cast(self, DType::F32)?;
            let q = match zero_point {
                0 => q,
                zero => b.with(Pw::Sub, &q, zero as f64)?,
            };
            b.with(Pw::Mul, &q, scale)
        })
    }
}
