//! Reductions.

use super::rows;
use kiln_tensor::{Result, Tensor};

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
    "torch.var" = { x.var(dims) } "`x.var_with(dims, 0.0)` for `correction=0`, here and below";
    "torch.std" = { x.std(dims) };
    "torch.var_mean" = { x.var_mean(dims) };
    "torch.std_mean" = { x.std_mean(dims) };
    "torch.logsumexp", "torch.special.logsumexp" = { x.logsumexp(dims) };
    "torch.linalg.vector_norm", "torch.norm" = { x.vector_norm(2.0, dims) };
}
