//! Factorisations: Cholesky, LU and QR.

use crate::batch::Real;
use faer::linalg::cholesky::llt::factor::LltError;
use faer::linalg::matmul::matmul;
use faer::linalg::triangular_solve::solve_unit_lower_triangular_in_place;
use faer::{Accum, MatMut, MatRef, Par, Side};
use kiln_base::custom::{ArrayView, ArrayViewMut, KernelError};

pub(crate) fn cholesky<T: Real>(a: &[T], n: usize, _: usize, out: &mut [T]) -> Result<(), String> {
    let not_definite = |order: usize| {
        format!(
            "The factorization could not be completed because the input is not positive-definite (the \
             leading minor of order {order} is not positive-definite)."
        )
    };
    let factors = MatRef::from_row_major_slice(a, n, n).llt(Side::Lower);
    let factors =
        factors.map_err(|LltError::NonPositivePivot { index }| not_definite(index + 1))?;
    let l = factors.L();
    for i in 0..n {
        for j in 0..=i {
            out[i * n + j] = l[(i, j)];
        }
    }
    Ok(())
}

/// The number of columns that are eliminated at once.
const PANEL: usize = 32;

/// Factors in place with partial pivoting, and returns the row that each step swapped with. A column of zeros is left
/// unchanged, as by LAPACK's `getrf`.
pub(crate) fn lu<T: Real>(a: &mut [T], m: usize, n: usize) -> Vec<usize> {
    let k = m.min(n);
    let mut pivots = Vec::with_capacity(k);
    for start in (0..k).step_by(PANEL) {
        let end = (start + PANEL).min(k);
        for step in start..end {
            pivots.push(eliminate(a, m, n, step, end));
        }
        let panel = MatMut::from_row_major_slice_mut(&mut a[start * n..], m - start, n);
        let (left, right) = panel.split_at_col_mut(end);
        let (upper, lower) = left
            .as_ref()
            .subcols(start, end - start)
            .split_at_row(end - start);
        let (mut row, behind) = right.split_at_row_mut(end - start);
        solve_unit_lower_triangular_in_place(upper, row.as_mut(), Par::Seq);
        matmul(behind, Accum::Add, lower, row.as_ref(), -T::ONE, Par::Seq);
    }
    pivots
}

/// Performs one step of a panel that ends before column `end`, and returns its pivot row.
fn eliminate<T: Real>(a: &mut [T], m: usize, n: usize, step: usize, end: usize) -> usize {
    let mut best = step;
    for i in step + 1..m {
        if a[i * n + step].size() > a[best * n + step].size() {
            best = i;
        }
    }
    if best != step {
        for j in 0..n {
            a.swap(step * n + j, best * n + j);
        }
    }
    let pivot = a[step * n + step];
    if pivot == T::ZERO {
        return best;
    }
    let (above, below) = a.split_at_mut((step + 1) * n);
    let row = &above[step * n..][..n];
    for other in below.chunks_exact_mut(n) {
        other[step] /= pivot;
        let factor = other[step];
        for (x, r) in other[step + 1..end].iter_mut().zip(&row[step + 1..end]) {
            *x -= factor * *r;
        }
    }
    best
}

pub(crate) fn lu_and_pivots<T: Real>(
    a: &[T],
    m: usize,
    n: usize,
    out: &mut [T],
) -> Result<(), String> {
    let (factors, pivots) = out.split_at_mut(m * n);
    factors.copy_from_slice(a);
    for (out, pivot) in pivots.iter_mut().zip(lu(factors, m, n)) {
        *out = T::float((pivot + 1) as f64);
    }
    Ok(())
}

/// See [`Routine::Rows`](kiln_base::linalg::Routine::Rows).
pub(crate) fn rows(
    inputs: &[ArrayView<'_>],
    output: &mut ArrayViewMut<'_>,
) -> Result<(), KernelError> {
    let (Some(&k), Some(&m)) = (inputs[0].shape().last(), output.shape().last()) else {
        return Err("takes vectors of pivots".into());
    };
    let pivots = inputs[0].as_slice::<i32>()?;
    for (i, rows) in output
        .as_mut_slice::<i64>()?
        .chunks_exact_mut(m.max(1))
        .enumerate()
    {
        for (r, row) in rows.iter_mut().enumerate() {
            *row = r as i64;
        }
        for (step, pivot) in pivots[i * k..][..k].iter().enumerate() {
            let other = usize::try_from(*pivot - 1).ok().filter(|p| *p < m);
            let other = other.ok_or_else(|| format!("the pivot {pivot} is outside 1..={m}"))?;
            rows.swap(step, other);
        }
    }
    Ok(())
}

/// Computes Q with `columns` columns and R with as many rows.
pub(crate) fn qr<T: Real>(
    a: &[T],
    m: usize,
    n: usize,
    out: &mut [T],
    columns: usize,
) -> Result<(), String> {
    let (q, r) = out.split_at_mut(m * columns);
    let mut q = MatMut::from_row_major_slice_mut(q, m, columns);
    if m == 0 || n == 0 {
        q.fill(T::ZERO);
        q.diagonal_mut().fill(T::ONE);
        return Ok(());
    }
    let factors = MatRef::from_row_major_slice(a, m, n).qr();
    q.copy_from(match columns == m {
        true => factors.compute_Q(),
        false => factors.compute_thin_Q(),
    });
    let upper = factors.thin_R();
    for i in 0..m.min(n) {
        for j in i..n {
            r[i * n + j] = upper[(i, j)];
        }
    }
    Ok(())
}
