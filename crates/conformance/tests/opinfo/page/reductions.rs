//! Reductions.

use super::rows;
use kiln_tensor::{Result, Tensor, keep};

rows! {
    (x: &Tensor, dim: i64, dims: &[i64]);
    "torch.sum" = { x.sum(dims) } "`()` is all dims, here and below; `dtype=` is a `to_dtype` before it";
    "torch.nansum" = { x.nansum(dims) };
    "torch.mean" = { x.mean(dims) };
    "torch.nanmean" = { x.nanmean(dims) };
    "torch.prod" = { x.prod(dims) } "several dims at once, too";
    "torch.amax" = { x.amax(dims) };
    "torch.amin" = { x.amin(dims) };
    "torch.max" = { x.amax(()) };
    "torch.max(dim=)" = { x.max(dim) } "a pair (values, indices)";
    "torch.min" = { x.amin(()) };
    "torch.min(dim=)" = { x.min(dim) } "a pair (values, indices)";
    "torch.aminmax" = { x.aminmax(dim) } "`()` for all elements";
    "torch.argmax" = { x.argmax(dim) } "`()` for the flattened tensor";
    "torch.argmin" = { x.argmin(dim) } "`()` for the flattened tensor";
    "torch.any" = { x.any(dims) };
    "torch.all" = { x.all(dims) };
    "torch.count_nonzero" = { x.count_nonzero(dims) };
    "torch.sum(keepdim=True)" = { x.sum(keep(dims)) } "as all others";
    "torch.sum(keepdim=flag)" = { x.sum(keep(dims).when(true)) };
    "torch.var" = { x.var(dims) };
    "torch.var(correction=0)" = { x.var_with(dims, 0.0) } "`unbiased=False`";
    "torch.std" = { x.std(dims) };
    "torch.std(correction=0)" = { x.std_with(dims, 0.0) };
    "torch.var_mean" = { x.var_mean(dims) };
    "torch.var_mean(correction=0)" = { x.var_mean_with(dims, 0.0) };
    "torch.std_mean" = { x.std_mean(dims) };
    "torch.std_mean(correction=0)" = { x.std_mean_with(dims, 0.0) };
    "torch.logsumexp", "torch.special.logsumexp" = { x.logsumexp(dims) };
    "torch.linalg.vector_norm", "torch.norm" = { x.vector_norm(2.0, dims) };
}
