//! Reductions.

use super::rows;
use kiln_tensor::{Result, Tensor};

rows! {
    (x: &Tensor, dim: i64, dims: &[i64], keepdim: bool);
    "torch.sum" = { x.sum(dims, keepdim) } "`()` is all dims, here and below; `dtype=` is a `to_dtype` before it";
    "torch.nansum" = { x.nansum(dims, keepdim) };
    "torch.mean" = { x.mean(dims, keepdim) };
    "torch.nanmean" = { x.nanmean(dims, keepdim) };
    "torch.prod" = { x.prod(dims, keepdim) } "several dims at once, too";
    "torch.amax" = { x.amax(dims, keepdim) };
    "torch.amin" = { x.amin(dims, keepdim) };
    "torch.max" = { x.amax((), false) };
    "torch.max(dim=)" = { x.max(dim, keepdim) } "a pair (values, indices)";
    "torch.min" = { x.amin((), false) };
    "torch.min(dim=)" = { x.min(dim, keepdim) } "a pair (values, indices)";
    "torch.aminmax" = { x.aminmax(dim, keepdim) } "`()` for all elements";
    "torch.argmax" = { x.argmax(dim, keepdim) } "`()` for the flattened tensor";
    "torch.argmin" = { x.argmin(dim, keepdim) } "`()` for the flattened tensor";
    "torch.any" = { x.any(dims, keepdim) };
    "torch.all" = { x.all(dims, keepdim) };
    "torch.count_nonzero" = { x.count_nonzero(dims) };
    "torch.var" = { x.var(dims, 1.0, keepdim) } "the number is `correction`: 1 for `unbiased=True`, 0 else";
    "torch.std" = { x.std(dims, 1.0, keepdim) };
    "torch.var_mean" = { x.var_mean(dims, 1.0, keepdim) };
    "torch.std_mean" = { x.std_mean(dims, 1.0, keepdim) };
    "torch.logsumexp", "torch.special.logsumexp" = { x.logsumexp(dims, keepdim) };
    "torch.linalg.vector_norm", "torch.norm" = { x.vector_norm(2.0, dims, keepdim) };
}
