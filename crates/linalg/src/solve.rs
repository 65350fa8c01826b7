//! Systems of equations, inverses and determinants.

use crate::batch::Real;
use crate::factor::lu;
use crate::spectrum::svd;
use faer::linalg::triangular_solve as triangle;
use faer::{MatMut, MatRef, Par};

/// Solves `A X = B` for a triangular A.
pub(crate) fn triangular<T: Real>(
    a: &[T],
    n: usize,
    b: &[T],
    columns: usize,
    x: &mut [T],
    upper: bool,
    unit: bool,
) -> Result<(), String> {
    x.copy_from_slice(b);
    if x.is_empty() {
        return Ok(());
    }
    let a = MatRef::from_row_major_slice(a, n, n);
    let x = MatMut::from_row_major_slice_mut(x, n, columns);
    match (upper, unit) {
        (false, false) => triangle::solve_lower_triangular_in_place(a, x, Par::Seq),
        (false, true) => triangle::solve_unit_lower_triangular_in_place(a, x, Par::Seq),
        (true, false) => triangle::solve_upper_triangular_in_place(a, x, Par::Seq),
        (true, true) => triangle::solve_unit_upper_triangular_in_place(a, x, Par::Seq),
    }
    Ok(())
}

/// A factored square matrix.
struct Factored<T> {
    factors: Vec<T>,
    pivots: Vec<usize>,
    n: usize,
}

impl<T: Real> Factored<T> {
    fn new(a: &[T], n: usize) -> Factored<T> {
        let mut factors = a.to_vec();
        let pivots = lu(&mut factors, n, n);
        Factored { factors, pivots, n }
    }

    fn diagonal(&self) -> impl Iterator<Item = T> {
        (0..self.n).map(|i| self.factors[i * self.n + i])
    }

    /// Returns the position of the first zero on the diagonal of U, counted from 1.
    fn zero(&self) -> Option<usize> {
        Some(self.diagonal().position(|d| d == T::ZERO)? + 1)
    }

    /// True if the permutation of the rows is odd.
    fn odd(&self) -> bool {
        let swaps = self.pivots.iter().enumerate().filter(|(i, p)| i != *p);
        swaps.count() % 2 == 1
    }

    fn determinant(&self) -> T {
        let sign = if self.odd() { -T::ONE } else { T::ONE };
        self.diagonal().fold(sign, |d, u| d * u)
    }

    fn solve_in_place(&self, x: &mut [T], columns: usize) {
        if x.is_empty() {
            return;
        }
        for (i, &p) in self.pivots.iter().enumerate() {
            for j in 0..columns {
                x.swap(i * columns + j, p * columns + j);
            }
        }
        let a = MatRef::from_row_major_slice(&self.factors, self.n, self.n);
        let mut x = MatMut::from_row_major_slice_mut(x, self.n, columns);
        triangle::solve_unit_lower_triangular_in_place(a, x.as_mut(), Par::Seq);
        triangle::solve_upper_triangular_in_place(a, x, Par::Seq);
    }

    fn inverse(&self, out: &mut [T]) {
        out.fill(T::ZERO);
        for i in 0..self.n {
            out[i * self.n + i] = T::ONE;
        }
        self.solve_in_place(out, self.n);
    }
}

pub(crate) fn solve<T: Real>(
    a: &[T],
    n: usize,
    b: &[T],
    columns: usize,
    x: &mut [T],
) -> Result<(), String> {
    let factored = Factored::new(a, n);
    if factored.zero().is_some() {
        return Err("The solver failed because the input matrix is singular.".into());
    }
    x.copy_from_slice(b);
    factored.solve_in_place(x, columns);
    Ok(())
}

pub(crate) fn inverse<T: Real>(
    a: &[T],
    n: usize,
    out: &mut [T],
    checked: bool,
) -> Result<(), String> {
    let factored = Factored::new(a, n);
    if let Some(zero) = factored.zero().filter(|_| checked) {
        return Err(format!(
            "The diagonal element {zero} is zero, the inversion could not be completed because the input \
             matrix is singular."
        ));
    }
    factored.inverse(out);
    Ok(())
}

pub(crate) fn determinant<T: Real>(
    a: &[T],
    n: usize,
    _: usize,
    out: &mut [T],
) -> Result<(), String> {
    out[0] = Factored::new(a, n).determinant();
    Ok(())
}

pub(crate) fn sign_and_log<T: Real>(
    a: &[T],
    n: usize,
    _: usize,
    out: &mut [T],
) -> Result<(), String> {
    let factored = Factored::new(a, n);
    let mut sign = if factored.odd() { -T::ONE } else { T::ONE };
    let mut log = T::ZERO;
    for u in factored.diagonal() {
        sign = match u {
            u if u == T::ZERO => T::ZERO,
            u if u < T::ZERO => -sign,
            u if u > T::ZERO => sign,
            nan => nan,
        };
        log += u.size().log();
    }
    out.copy_from_slice(&[sign, log]);
    Ok(())
}

/// Computes `det(A) A⁻ᵀ`. For a singular matrix it is `det(U) det(V) U C Vᵀ`, where C is diagonal and holds the
/// products of all singular values but one.
pub(crate) fn cofactors<T: Real>(a: &[T], n: usize, _: usize, out: &mut [T]) -> Result<(), String> {
    let factored = Factored::new(a, n);
    if factored.zero().is_none() {
        let mut inverse = vec![T::ZERO; n * n];
        factored.inverse(&mut inverse);
        let determinant = factored.determinant();
        for i in 0..n {
            for j in 0..n {
                out[i * n + j] = inverse[j * n + i] * determinant;
            }
        }
        return Ok(());
    }
    let mut parts = vec![T::ZERO; 2 * n * n + n];
    svd(a, n, n, &mut parts, false)?;
    let (u, rest) = parts.split_at(n * n);
    let (s, v) = rest.split_at(n);
    let sign = Factored::new(u, n).determinant() * Factored::new(v, n).determinant();
    let without = |i: usize| {
        let other_vectors = s.iter().enumerate().filter(|(j, _)| *j != i);
        other_vectors.fold(sign, |product, (_, s)| product * *s)
    };
    for l in 0..n {
        let weight = without(l);
        for i in 0..n {
            for j in 0..n {
                out[i * n + j] += u[i * n + l] * weight * v[l * n + j];
            }
        }
    }
    Ok(())
}
