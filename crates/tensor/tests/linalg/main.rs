//! Linear algebra: every factorisation against its definition, every derivative against central differences, and
//! invalid or empty matrices.

mod definitions;
mod derivatives;
mod errors;
mod programs;

use kiln_tensor::{DType, Tensor, where_, with_seed};

const FLOATS: [DType; 2] = [DType::F32, DType::F64];

/// Odd sizes, and one larger than the panels of the factorisations.
const SIZES: [usize; 7] = [0, 1, 2, 3, 5, 17, 70];

/// Normally distributed numbers determined by the seed.
fn random(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    with_seed(seed, || Tensor::randn(shape, DType::F64)).to_dtype(dtype)
}

/// Symmetric matrices `[.., n, n]` with eigenvalues of at least 1.
fn positive(seed: u64, shape: &[usize], dtype: DType) -> Tensor {
    let n = shape[shape.len() - 1] as i64;
    let x = random(seed, shape, dtype);
    x.matmul(x.transpose(-1, -2)) + Tensor::eye(n, dtype)
}

/// Checks that all elements agree up to 100 (size + 1) (n + 1) rounding errors.
#[track_caller]
fn assert_near(found: &Tensor, expected: &Tensor, size: f64, n: usize) {
    assert_eq!(found.shape().unwrap(), expected.shape().unwrap());
    assert_eq!(found.dtype(), expected.dtype());
    let epsilon = match found.dtype() {
        DType::F64 => f64::EPSILON,
        _ => f32::EPSILON as f64,
    };
    if found.numel().unwrap() == 0 {
        return;
    }
    let off = (found - expected).to_dtype(DType::F64).abs();
    let off = where_(found.eq(expected), off.zeros_like(), &off);
    let off = off.amax(()).item::<f64>().unwrap();
    let bound = 100.0 * epsilon * (size + 1.0) * (n + 1) as f64;
    assert!(
        off <= bound,
        "off by {off}, allowed {bound}: {found}\n{expected}"
    );
}

/// Ones on the diagonals of `[.., n, n]`.
fn identity(batch: &[usize], n: usize, dtype: DType) -> Tensor {
    let mut shape: Vec<i64> = batch.iter().map(|d| *d as i64).collect();
    shape.extend([n as i64; 2]);
    Tensor::eye(n as i64, dtype).expand(shape)
}
