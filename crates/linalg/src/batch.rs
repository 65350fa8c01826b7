//! Batches of row-major matrices.

use faer::traits::RealField;
use kiln_base::Element;
use kiln_base::custom::{ArrayView, ArrayViewMut, KernelError};

/// f32 or f64.
pub(crate) trait Real: RealField + Element + Copy {
    const ZERO: Self;
    const ONE: Self;
    fn float(v: f64) -> Self;
    fn size(self) -> Self;
    fn log(self) -> Self;
    fn finite(self) -> bool;
}

macro_rules! real {
    ($($t:ident)*) => {$(
        impl Real for $t {
            const ZERO: $t = 0.0;
            const ONE: $t = 1.0;
            fn float(v: f64) -> $t {
                v as $t
            }
            fn size(self) -> $t {
                self.abs()
            }
            fn log(self) -> $t {
                self.ln()
            }
            fn finite(self) -> bool {
                self.is_finite()
            }
        }
    )*};
}
real!(f32 f64);

/// Returns the rows, the columns and the number of matrices.
fn sizes(shape: &[usize]) -> Result<(usize, usize, usize), KernelError> {
    match shape {
        [batch @ .., m, n] => Ok((*m, *n, batch.iter().product())),
        _ => Err(format!("{shape:?} are not matrices").into()),
    }
}

/// The error of a matrix, which is named if there may be several.
fn failed(text: String, i: usize, shape: &[usize]) -> KernelError {
    match shape.len() > 2 {
        true => format!("(Batch element {i}): {text}").into(),
        false => text.into(),
    }
}

/// Runs `f(matrix, rows, columns, result)` for each matrix.
pub(crate) fn each<T: Real>(
    a: &ArrayView<'_>,
    output: &mut ArrayViewMut<'_>,
    f: impl Fn(&[T], usize, usize, &mut [T]) -> Result<(), String>,
) -> Result<(), KernelError> {
    each_numbered(a, output, |_, a, m, n, out| f(a, m, n, out))
}

/// As [`len`], with the index of the matrix as the first argument.
pub(crate) fn each_numbered<T: Real>(
    a: &ArrayView<'_>,
    output: &mut ArrayViewMut<'_>,
    f: impl Fn(usize, &[T], usize, usize, &mut [T]) -> Result<(), String>,
) -> Result<(), KernelError> {
    let shape = a.shape();
    let (m, n, count) = sizes(shape)?;
    let a = a.as_slice::<T>()?;
    let out = output.as_mut_slice::<T>()?;
    let len = out.len() / count.max(1);
    for i in 0..count {
        let (a, out) = (&a[i * m * n..][..m * n], &mut out[i * len..][..len]);
        f(i, a, m, n, out).map_err(|text| failed(text, i, shape))?;
    }
    Ok(())
}

/// Runs `f(a, n, b, columns, x)` for each pair of matrices `[n, n]` and `[n, columns]`.
pub(crate) fn each_pair<T: Real>(
    inputs: &[ArrayView<'_>],
    output: &mut ArrayViewMut<'_>,
    f: impl Fn(&[T], usize, &[T], usize, &mut [T]) -> Result<(), String>,
) -> Result<(), KernelError> {
    let (_, columns, count) = sizes(inputs[1].shape())?;
    let b = inputs[1].as_slice::<T>()?;
    let b_len = b.len() / count.max(1);
    each_numbered(&inputs[0], output, |i, a: &[T], _, n, x| {
        f(a, n, &b[i * b_len..][..b_len], columns, x)
    })
}
