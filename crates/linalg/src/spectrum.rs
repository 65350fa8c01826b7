//! Singular values and eigenvalues.

use crate::batch::Real;
use faer::{MatMut, MatRef, Side};

const NOT_FINITE: &str =
    "The algorithm failed to converge because the input matrix contained non-finite values.";
const NOT_CONVERGED: &str = "The algorithm failed to converge because the input matrix is ill-conditioned \
                             or has too many repeated singular values.";

/// Returns the matrix scaled by a power of two that brings its largest element near 1, so that no square overflows,
/// and the power's inverse.
fn scaled<T: Real>(a: &[T]) -> Result<(Vec<T>, T), String> {
    if !a.iter().all(|v| v.finite()) {
        return Err(NOT_FINITE.into());
    }
    let largest = a
        .iter()
        .fold(T::ZERO, |l, v| if v.size() > l { v.size() } else { l });
    let (two, half) = (T::float(2.0), T::float(0.5));
    let mut back = T::ONE;
    while largest > T::ZERO && largest / back > two && (back * two).finite() {
        back *= two;
    }
    while largest > T::ZERO && largest / back < half && back * half > T::min_positive_impl() {
        back *= half;
    }
    Ok((a.iter().map(|v| *v / back).collect(), back))
}

/// Computes U, the singular values and Vᵀ.
pub(crate) fn svd<T: Real>(
    a: &[T],
    m: usize,
    n: usize,
    out: &mut [T],
    full: bool,
) -> Result<(), String> {
    let k = m.min(n);
    let (rows, columns) = if full { (m, n) } else { (k, k) };
    let (u, out) = out.split_at_mut(m * rows);
    let (s, v) = out.split_at_mut(k);
    let mut u = MatMut::from_row_major_slice_mut(u, m, rows);
    let mut v = MatMut::from_row_major_slice_mut(v, columns, n);
    let (a, back) = scaled(a)?;
    if k == 0 {
        u.diagonal_mut().fill(T::ONE);
        v.diagonal_mut().fill(T::ONE);
        return Ok(());
    }
    let a = MatRef::from_row_major_slice(&a, m, n);
    let factors = if full { a.svd() } else { a.thin_svd() };
    let factors = factors.map_err(|_| NOT_CONVERGED.to_string())?;
    u.copy_from(factors.U());
    v.copy_from(factors.V().transpose());
    for (s, value) in s.iter_mut().zip(factors.S().column_vector().iter()) {
        *s = *value * back;
    }
    Ok(())
}

pub(crate) fn singular_values<T: Real>(
    a: &[T],
    m: usize,
    n: usize,
    out: &mut [T],
) -> Result<(), String> {
    let (a, back) = scaled(a)?;
    if out.is_empty() {
        return Ok(());
    }
    let values = MatRef::from_row_major_slice(&a, m, n).singular_values();
    let values = values.map_err(|_| NOT_CONVERGED.to_string())?;
    for (s, value) in out.iter_mut().zip(values) {
        *s = value * back;
    }
    Ok(())
}

/// Completes a symmetric matrix from its lower triangle, and scales it.
fn symmetric<T: Real>(a: &[T], n: usize) -> Result<(Vec<T>, T), String> {
    let mut full = a.to_vec();
    for i in 0..n {
        for j in i + 1..n {
            full[i * n + j] = a[j * n + i];
        }
    }
    scaled(&full)
}

/// Computes the eigenvalues and the eigenvectors.
pub(crate) fn eigh<T: Real>(a: &[T], n: usize, _: usize, out: &mut [T]) -> Result<(), String> {
    let (a, back) = symmetric(a, n)?;
    if n == 0 {
        return Ok(());
    }
    let (values, vectors) = out.split_at_mut(n);
    let eigen = MatRef::from_row_major_slice(&a, n, n).self_adjoint_eigen(Side::Lower);
    let eigen = eigen.map_err(|_| NOT_CONVERGED.replace("singular values", "eigenvalues"))?;
    MatMut::from_row_major_slice_mut(vectors, n, n).copy_from(eigen.U());
    for (v, value) in values.iter_mut().zip(eigen.S().column_vector().iter()) {
        *v = *value * back;
    }
    Ok(())
}

pub(crate) fn eigenvalues<T: Real>(
    a: &[T],
    n: usize,
    _: usize,
    out: &mut [T],
) -> Result<(), String> {
    let (a, back) = symmetric(a, n)?;
    if n == 0 {
        return Ok(());
    }
    let values = MatRef::from_row_major_slice(&a, n, n).self_adjoint_eigenvalues(Side::Lower);
    let values = values.map_err(|_| NOT_CONVERGED.replace("singular values", "eigenvalues"))?;
    for (v, value) in out.iter_mut().zip(values) {
        *v = value * back;
    }
    Ok(())
}

/// Computes `V S⁺ Uᵀ`, where S⁺ is 0 for singular values that are treated as 0.
pub(crate) fn pseudo_inverse<T: Real>(
    a: &[T],
    m: usize,
    n: usize,
    out: &mut [T],
    absolute: T,
    relative: T,
) -> Result<(), String> {
    let k = m.min(n);
    if k == 0 {
        return Ok(());
    }
    let mut parts = vec![T::ZERO; m * k + k + k * n];
    svd(a, m, n, &mut parts, false)?;
    let (u, rest) = parts.split_at(m * k);
    let (s, v) = rest.split_at(k);
    let bound = s[0] * relative;
    let bound = if absolute > bound { absolute } else { bound };
    let mut scaled = v.to_vec();
    for (row, s) in scaled.chunks_exact_mut(n).zip(s) {
        for x in row {
            *x = if *s > bound { *x / *s } else { T::ZERO };
        }
    }
    let scaled = MatRef::from_row_major_slice(&scaled, k, n);
    let u = MatRef::from_row_major_slice(u, m, k);
    faer::linalg::matmul::matmul(
        MatMut::from_row_major_slice_mut(out, n, m),
        faer::Accum::Replace,
        scaled.transpose(),
        u.transpose(),
        T::ONE,
        faer::Par::Seq,
    );
    Ok(())
}
