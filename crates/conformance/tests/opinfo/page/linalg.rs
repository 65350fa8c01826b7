//! Decompositions of matrices, with the feature `linalg`.

use super::rows;
use kiln_tensor::{
    MatrixNorm, QrMode, Rank, Result, Solve, SolveTriangular, Svd, Tensor, Triangle,
};

rows! {
    (x: &Tensor, y: &Tensor, pivots: &Tensor);
    "torch.linalg.cholesky", "torch.cholesky" = { x.cholesky() };
    "torch.linalg.cholesky(upper=)" = { x.cholesky_with(Triangle::Upper) };
    "torch.cholesky_solve" = { y.cholesky_solve(x) };
    "torch.cholesky_solve(upper=)" = { y.cholesky_solve_with(x, Triangle::Upper) };
    "torch.cholesky_inverse" = { x.cholesky_inverse() };
    "torch.cholesky_inverse(upper=)" = { x.cholesky_inverse_with(Triangle::Upper) };
    "torch.linalg.qr", "torch.qr" = { x.qr() } "a pair";
    "torch.linalg.qr(mode=)" = { x.qr_with(QrMode::Complete) };
    "torch.linalg.lu" = { x.lu() } "P, L and U, always with pivots";
    "torch.linalg.lu_factor", "torch.lu" = { x.lu_factor() } "a singular matrix is not an error";
    "torch.linalg.lu_solve", "torch.lu_solve" = { x.lu_solve(pivots, y) };
    "torch.linalg.svd", "torch.svd" = { x.svd() } "U, S and Vᵀ";
    "torch.linalg.svd(full_matrices=)" = { x.svd_with(Svd::new().full_matrices(false)) };
    "torch.linalg.svdvals" = { x.svdvals() };
    "torch.linalg.eigh" = { x.eigh() };
    "torch.linalg.eigh(UPLO=)" = { x.eigh_with(Triangle::Upper) };
    "torch.linalg.eigvalsh" = { x.eigvalsh() };
    "torch.linalg.eigvalsh(UPLO=)" = { x.eigvalsh_with(Triangle::Upper) };
    "torch.linalg.det", "torch.det" = { x.det() };
    "torch.linalg.slogdet", "torch.slogdet" = { x.slogdet() } "a pair";
    "torch.logdet" = { x.logdet() };
    "torch.linalg.inv", "torch.inverse" = { x.inv() };
    "torch.linalg.pinv", "torch.pinverse" = { x.pinv() };
    "torch.linalg.pinv(rtol=)" = { x.pinv_with(Rank::new().rtol(1e-9)) } "also `.atol(..)`, `.hermitian(true)`";
    "torch.linalg.solve" = { x.solve(y) };
    "torch.linalg.solve(left=)" = { x.solve_with(y, Solve::new().left(false)) };
    "torch.linalg.solve_triangular" = { x.solve_triangular(y, Triangle::Lower) };
    "torch.linalg.solve_triangular(left=, unitriangular=)" = { x.solve_triangular(y, SolveTriangular::new(Triangle::Upper).left(false)) };
    "torch.triangular_solve" = { y.solve_triangular(x, Triangle::Upper) } "the matrix comes first";
    "torch.linalg.lstsq" = { x.lstsq(y) } "by singular values, which it always gives; residuals where there are more rows than columns";
    "torch.linalg.lstsq(rcond=)" = { x.lstsq_with(y, 1e-6) };
    "torch.linalg.matrix_rank" = { x.matrix_rank() };
    "torch.linalg.matrix_rank(atol=)" = { x.matrix_rank_with(Rank::new().atol(1e-6)) };
    "torch.linalg.cond" = { x.cond(2.0) };
    "torch.linalg.matrix_norm(ord=\"nuc\")" = { x.matrix_norm(MatrixNorm::Nuclear, [-2, -1]) };
    "torch.linalg.matrix_norm(ord=2)" = { x.matrix_norm(2.0, [-2, -1]) } "and −2";
    "torch.linalg.matrix_power(n=-1)" = { x.matrix_power(-1) };
}
