//! Tensors of random numbers.

use crate::Int;
use crate::create::{IntoShape, dims};
use crate::record::{Recorder, compose};
use crate::{DType, Tensor};
use kiln_base::Dim;
use kiln_base::prim::RandomKind;
use kiln_ir::{Builder, OpError, Pw, Shape, ops};
use kiln_lazy::random;

/// Records random numbers of a kind and `shape`.
pub(crate) fn numbers(
    b: &mut Recorder,
    kind: RandomKind,
    dtype: DType,
    shape: &[Dim],
) -> Result<Tensor, OpError> {
    let shape = Shape::from(shape);
    let count = kiln_base::numel(&shape);
    let key = Tensor::from(random::key(&mut b.lazy, &count)?);
    if kind == RandomKind::Uniform && dtype.size() == 2 {
        // Rounding an f32 just below 1 would give 1. Numbers with only as many bits as the dtype has don't round.
        let dtype_bits = if dtype == DType::F16 { 11.0 } else { 8.0 };
        let steps = f64::exp2(dtype_bits);
        let wide = DType::F32;
        let u = b.op(
            ops::Random {
                kind,
                dtype: wide,
                shape,
            },
            &[key],
        )?;
        let (up, down) = (b.scalar_like(steps, &u)?, b.scalar_like(1.0 / steps, &u)?);
        let scaled = b.pointwise(Pw::Mul, &[u, up])?;
        let floored = b.pointwise(Pw::Floor, &[scaled])?;
        let u = b.pointwise(Pw::Mul, &[floored, down])?;
        return b.cast(&u, dtype);
    }
    b.op(ops::Random { kind, dtype, shape }, &[key])
}

impl Tensor {
    /// Uniform numbers in [0, 1).
    #[track_caller]
    pub fn rand(shape: impl IntoShape, dtype: DType) -> Tensor {
        compose("rand", &[], |b| {
            numbers(b, RandomKind::Uniform, dtype, &dims(shape, dtype)?)
        })
    }

    /// Standard normal numbers.
    #[track_caller]
    pub fn randn(shape: impl IntoShape, dtype: DType) -> Tensor {
        compose("randn", &[], |b| {
            numbers(b, RandomKind::Normal, dtype, &dims(shape, dtype)?)
        })
    }

    /// Integers in `low..high`, as i64.
    #[track_caller]
    pub fn randint(low: impl Into<Int>, high: impl Into<Int>, shape: impl IntoShape) -> Tensor {
        let (low, high) = (low.into().0, high.into().0);
        compose("randint", &[], |b| {
            draw(b, [low, high], &dims(shape, DType::I64)?)
        })
    }

    /// Uniform numbers in [0, 1) of this tensor's shape and dtype (f32 for integers).
    #[track_caller]
    pub fn rand_like(&self) -> Tensor {
        compose("rand_like", &[self], |b| {
            let dtype = crate::promote::float_dtype(self.dtype());
            numbers(b, RandomKind::Uniform, dtype, self.dims())
        })
    }

    /// Numbers of the standard normal distribution, of this tensor's shape and dtype (f32 for integers).
    #[track_caller]
    pub fn randn_like(&self) -> Tensor {
        compose("randn_like", &[self], |b| {
            let dtype = crate::promote::float_dtype(self.dtype());
            numbers(b, RandomKind::Normal, dtype, self.dims())
        })
    }

    /// Integers in `low..high` of this tensor's shape and dtype.
    #[track_caller]
    pub fn randint_like(&self, low: impl Into<Int>, high: impl Into<Int>) -> Tensor {
        let (low, high) = (low.into().0, high.into().0);
        compose("randint_like", &[self], |b| {
            let values = draw(b, [low, high], self.dims())?;
            b.cast(&values, self.dtype())
        })
    }
}

/// Integers of a range, as i64.
fn draw(b: &mut Recorder, [low, high]: [i64; 2], shape: &[Dim]) -> Result<Tensor, OpError> {
    if low >= high {
        return Err(OpError(format!("there is no integer in {low}..{high}")));
    }
    let count = high
        .checked_sub(low)
        .ok_or_else(|| OpError(format!("{low}..{high} holds more than 2^63 integers")))?;
    let bits = numbers(b, RandomKind::Bits, DType::I64, shape)?;
    let range = b.scalar_like(count, &bits)?;
    let offset = b.pointwise(Pw::Remainder, &[bits, range])?;
    let low = b.scalar_like(low, &offset)?;
    b.pointwise(Pw::Add, &[offset, low])
}
