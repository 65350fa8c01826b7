//! Operators that search, sort, scan and scatter, against naive computations written here in f64 and
//! i64: odd sizes, ties, NaN, negative zero, empty tensors, dims of size 1.

mod arguments;
mod errors;
mod order;
mod sampling;
mod scans;
mod scatters;
mod searching;
mod selection;

use kiln::{DType, Tensor, evaluate_reference};
use kiln_ir::fuzz::Rng;

/// A row-major tensor on the host.
#[derive(Clone, Debug)]
struct Host {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Host {
    fn new(shape: &[usize], data: Vec<f64>) -> Host {
        assert_eq!(data.len(), shape.iter().product::<usize>());
        let shape = shape.to_vec();
        Host { shape, data }
    }

    /// Elements made by `f`.
    fn made(shape: &[usize], f: impl FnMut() -> f64) -> Host {
        let count = shape.iter().product();
        Host::new(shape, std::iter::repeat_with(f).take(count).collect())
    }

    /// Few different numbers, so that there are ties, and among floats NaN, infinities and −0.
    fn ties(rng: &mut Rng, shape: &[usize], dtype: DType) -> Host {
        let special = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 0.0];
        Host::made(shape, || match dtype {
            DType::Bool => rng.below(2) as f64,
            d if d.is_float() && rng.chance(0.2) => rng.one(special),
            _ => rng.range(-3, 3) as f64,
        })
    }

    /// Multiples of a quarter, which every float dtype adds without rounding.
    fn quarters(rng: &mut Rng, shape: &[usize]) -> Host {
        Host::made(shape, || rng.range(-9, 9) as f64 / 4.0)
    }

    fn tensor(&self, dtype: DType) -> Tensor {
        Tensor::from_slice(&self.data, self.shape.as_slice()).to_dtype(dtype)
    }

    fn offset(&self, at: &[usize]) -> usize {
        at.iter().zip(&self.shape).fold(0, |o, (i, n)| o * n + i)
    }

    fn at(&self, at: &[usize]) -> f64 {
        self.data[self.offset(at)]
    }

    /// Every index, row-major.
    fn indices(&self) -> Vec<Vec<usize>> {
        indices(&self.shape)
    }

    /// The same with every lane of a dim made anew.
    fn lanes(&self, dim: usize, f: impl Fn(&[f64]) -> Vec<f64>) -> Host {
        let n = self.shape[dim];
        let inner: usize = self.shape[dim + 1..].iter().product();
        let outer: usize = self.shape[..dim].iter().product();
        let mut out: Vec<Vec<f64>> = Vec::new();
        for lane in 0..outer * inner {
            let start = lane / inner.max(1) * n * inner + lane % inner.max(1);
            let values: Vec<f64> = (0..n).map(|i| self.data[start + i * inner]).collect();
            out.push(f(&values));
        }
        let m = out.first().map_or_else(|| f(&vec![0.0; n]).len(), Vec::len);
        let mut shape = self.shape.clone();
        shape[dim] = m;
        let at = |n: usize| {
            let (o, i, k) = (n / inner / m, n / inner % m, n % inner);
            out[o * inner + k][i]
        };
        let data = (0..outer * m * inner).map(at).collect();
        Host::new(&shape, data)
    }
}

fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let count = shape.iter().product();
    let index = |mut n: usize| {
        let mut at = vec![0; shape.len()];
        for (i, d) in at.iter_mut().zip(shape).rev() {
            *i = n % d;
            n /= d;
        }
        at
    };
    (0..count).map(index).collect()
}

/// An i64 tensor.
fn ints(shape: &[usize], values: &[i64]) -> Tensor {
    Tensor::from_slice(values, shape)
}

/// The values, on which the engine and the reference agree.
#[track_caller]
fn read(t: &Tensor) -> Vec<f64> {
    let wide = |t: &Tensor| t.to_dtype(DType::F64).to_vec::<f64>().unwrap();
    let reference = wide(&evaluate_reference(t).unwrap());
    assert_near(&wide(t), &reference, t.dtype());
    reference
}

/// Asserts equality, up to rounding in a float dtype; NaN equals NaN, and the float −0 is not 0.
#[track_caller]
fn assert_near(got: &[f64], expected: &[f64], dtype: DType) {
    let epsilon = match dtype {
        DType::F64 => 1e-12,
        DType::F32 => 1e-5,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    };
    assert_eq!(got.len(), expected.len(), "{got:?}\n{expected:?}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let signs = dtype.is_float() && *g == 0.0 && g.is_sign_negative() != e.is_sign_negative();
        let same = g == e && !signs;
        let near = *e != 0.0 && (g - e).abs() <= epsilon * e.abs().max(1.0);
        assert!(
            same || near || g.is_nan() && e.is_nan(),
            "element {i}: {g}, not {e}\n{got:?}\n{expected:?}"
        );
    }
}

/// Asserts dtype, shape and values of a tensor.
#[track_caller]
fn assert_is(t: &Tensor, dtype: DType, expected: &Host) {
    assert_eq!(t.shape().unwrap(), expected.shape);
    assert_eq!(t.dtype(), dtype);
    assert_near(&read(t), &expected.data, dtype);
}

/// Shapes with a dim of theirs.
const LANES: &[(&[usize], usize)] = &[
    (&[7], 0),
    (&[1], 0),
    (&[67], 0),
    (&[3, 5], 0),
    (&[3, 5], 1),
    (&[2, 1, 3], 1),
    (&[2, 11, 3], 1),
    (&[4, 0], 0),
];

const DTYPES: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::BF16,
    DType::I64,
    DType::U8,
    DType::Bool,
];
