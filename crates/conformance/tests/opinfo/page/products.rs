//! Products of matrices and what is built on them.

use super::rows;
use kiln_tensor::{
    Cosine, Factors, MatrixNorm, Pairwise, Result, Scalar, Tensor, cdist, cdist_with, einsum,
    multi_dot,
};

rows! {
    (x: &Tensor, y: &Tensor, z: &Tensor, weight: &Tensor, bias: &Tensor, dim: i64, alpha: Scalar, beta: Scalar, p: f64, keepdim: bool);
    "torch.matmul", "torch.linalg.matmul" = { x.matmul(y) } "`@`";
    "torch.mm" = { x.mm(y) };
    "torch.bmm" = { x.bmm(y) };
    "torch.mv" = { x.mv(y) };
    "torch.dot", "torch.vdot" = { x.dot(y) };
    "torch.inner" = { x.inner(y) };
    "torch.outer", "torch.ger" = { x.outer(y) };
    "torch.addmm" = { x.addmm(y, z) };
    "torch.addmm(beta=, alpha=)" = { x.addmm_with(y, z, Factors::new().beta(beta).alpha(alpha)) };
    "torch.addmv" = { x.addmv(y, z) };
    "torch.addmv(beta=, alpha=)" = { x.addmv_with(y, z, Factors::new().alpha(alpha)) };
    "torch.addr" = { x.addr(y, z) };
    "torch.addr(beta=, alpha=)" = { x.addr_with(y, z, Factors::new().alpha(alpha)) };
    "torch.addbmm" = { x.addbmm(y, z) };
    "torch.addbmm(beta=, alpha=)" = { x.addbmm_with(y, z, Factors::new().alpha(alpha)) };
    "torch.baddbmm" = { x.baddbmm(y, z) };
    "torch.baddbmm(beta=, alpha=)" = { x.baddbmm_with(y, z, Factors::new().alpha(alpha)) };
    "torch.einsum" = { einsum("bij,bjk->bik", &[x, y]) };
    "torch.tensordot" = { x.tensordot(y, 2) };
    "torch.tensordot(dims=(.., ..))" = { x.tensordot_dims(y, [0, 1], [1, 0]) };
    "torch.nn.functional.linear" = { x.linear(weight) };
    "torch.nn.functional.linear(bias=)" = { x.linear_with(weight, bias) };
    "torch.nn.functional.bilinear" = { x.bilinear(y, weight) };
    "torch.nn.functional.bilinear(bias=)" = { x.bilinear_with(y, weight, bias) };
    "torch.kron" = { x.kron(y) };
    "torch.cross" = { x.cross(y, -1) } "the dim must be given";
    "torch.linalg.cross" = { x.cross(y, -1) };
    "torch.linalg.vecdot" = { x.vecdot(y, dim) };
    "torch.linalg.multi_dot", "torch.chain_matmul" = { multi_dot(&[x, y, z]) };
    "torch.linalg.matrix_power", "torch.matrix_power" = { x.matrix_power(3) } "negative with the feature `linalg`";
    "torch.matrix_exp", "torch.linalg.matrix_exp" = { x.matrix_exp() } "NaN for a norm above 2¹⁵, unless of a single number";
    "torch.linalg.matrix_norm" = { x.matrix_norm(MatrixNorm::Frobenius, [-2, -1]) } "the orders 1, −1, ±∞ and Frobenius; others with the feature `linalg`";
    "torch.linalg.norm" = { x.vector_norm(2.0, ()) } "of vectors or the flattened tensor; `matrix_norm` for matrices with an order";
    "torch.linalg.vander" = { x.vander() };
    "torch.linalg.vander(N=)" = { x.vander_with(4) };
    "torch.trace" = { x.trace() };
    "torch.dist" = { x.dist(y) };
    "torch.dist(p)" = { x.dist_with(y, p) };
    "torch.cdist" = { cdist(x, y) };
    "torch.cdist(p)" = { cdist_with(x, y, p) };
    "torch.nn.functional.pdist", "torch.pdist" = { x.pdist() };
    "torch.nn.functional.pdist(p)" = { x.pdist_with(p) };
    "torch.nn.functional.pairwise_distance" = { x.pairwise_distance(y) };
    "torch.nn.functional.pairwise_distance(p, keepdim)" = { x.pairwise_distance_with(y, Pairwise::new().p(p).keepdim(keepdim)) };
    "torch.nn.functional.cosine_similarity" = { x.cosine_similarity(y) };
    "torch.nn.functional.cosine_similarity(dim, eps)" = { x.cosine_similarity_with(y, Cosine::new().dim(-1).eps(1e-6)) };
}
