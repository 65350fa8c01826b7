//! Decompositions of matrices, with the feature `linalg`.

use super::rows;
use kiln_tensor::{MatrixNorm, QrMode, Result, Tensor};

rows! {
    (x: &Tensor, y: &Tensor, pivots: &Tensor);
    "torch.linalg.cholesky", "torch.cholesky" = { x.cholesky(false) } "the flag is `upper`, here and below";
    "torch.cholesky_solve" = { y.cholesky_solve(x, false) };
    "torch.cholesky_inverse" = { x.cholesky_inverse(false) };
    "torch.linalg.qr", "torch.qr" = { x.qr(QrMode::Reduced) } "`QrMode::Complete` and `QrMode::R` too; a pair";
    "torch.linalg.lu" = { x.lu() } "P, L and U, always with pivots";
    "torch.linalg.lu_factor", "torch.lu" = { x.lu_factor() } "a singular matrix is no error";
    "torch.linalg.lu_solve", "torch.lu_solve" = { x.lu_solve(pivots, y) };
    "torch.linalg.svd", "torch.svd" = { x.svd(false) } "U, S and Vᵀ; the flag is `full_matrices`";
    "torch.linalg.svdvals" = { x.svdvals() };
    "torch.linalg.eigh" = { x.eigh(false) } "the flag is `UPLO=\"U\"`";
    "torch.linalg.eigvalsh" = { x.eigvalsh(false) };
    "torch.linalg.det", "torch.det" = { x.det() };
    "torch.linalg.slogdet", "torch.slogdet" = { x.slogdet() } "a pair";
    "torch.logdet" = { x.logdet() };
    "torch.linalg.inv", "torch.inverse" = { x.inv() };
    "torch.linalg.pinv", "torch.pinverse" = { x.pinv(None, None, false) } "`atol`, `rtol`, `hermitian`";
    "torch.linalg.solve" = { x.solve(y, true) } "the flag is `left`";
    "torch.linalg.solve_triangular" = { x.solve_triangular(y, false, true, false) } "`upper`, `left`, `unitriangular`";
    "torch.triangular_solve" = { y.solve_triangular(x, true, true, false) } "the matrix comes first";
    "torch.linalg.lstsq" = { x.lstsq(y, None) } "by singular values, which it always gives; residuals where there are more rows than columns";
    "torch.linalg.matrix_rank" = { x.matrix_rank(None, None, false) } "`atol`, `rtol`, `hermitian`";
    "torch.linalg.cond" = { x.cond(2.0) };
    "torch.linalg.matrix_norm(ord=\"nuc\")" = { x.matrix_norm(MatrixNorm::Nuclear, [-2, -1]) };
    "torch.linalg.matrix_norm(ord=2)" = { x.matrix_norm(2.0, [-2, -1]) } "and −2";
    "torch.linalg.matrix_power(n=-1)" = { x.matrix_power(-1) };
}
