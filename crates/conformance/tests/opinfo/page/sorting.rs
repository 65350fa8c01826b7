//! Sorting, scanning, searching and counting.

use super::rows;
use kiln_tensor::{
    BinCount, Bucketize, Diff, Histogram, Interpolation, Result, SearchSorted, Sort, Tensor, TopK,
};

rows! {
    (x: &Tensor, y: &Tensor, dim: i64, descending: bool, right: bool);
    "torch.sort" = { x.sort(dim) } "always stable";
    "torch.sort(descending=)" = { x.sort_with(dim, Sort::new().descending(descending)) };
    "torch.argsort" = { x.argsort(dim) } "always stable";
    "torch.argsort(descending=)" = { x.argsort_with(dim, Sort::new().descending(descending)) };
    "torch.msort" = { x.msort() };
    "torch.topk" = { x.topk(5) } "always sorted";
    "torch.topk(dim=, largest=)" = { x.topk(TopK::new(5).dim(dim).largest(false)) };
    "torch.kthvalue" = { x.kthvalue(2, dim) };
    "torch.median" = { x.median_all() };
    "torch.median(dim=)" = { x.median(dim) };
    "torch.nanmedian" = { x.nanmedian_all() };
    "torch.nanmedian(dim=)" = { x.nanmedian(dim) };
    "torch.mode" = { x.mode(dim) };
    "torch.quantile" = { x.quantile(0.5, dim) } "`()` for the flattened tensor; q may be a tensor";
    "torch.quantile(interpolation=\"lower\")" = { x.quantile_with(0.5, dim, Interpolation::Lower) };
    "torch.nanquantile" = { x.nanquantile(0.5, dim) };
    "torch.nanquantile(interpolation=\"lower\")" = { x.nanquantile_with(0.5, dim, Interpolation::Lower) };
    "torch.cumsum" = { x.cumsum(dim) };
    "torch.cumprod" = { x.cumprod(dim) };
    "torch.logcumsumexp" = { x.logcumsumexp(dim) };
    "torch.cummax" = { x.cummax(dim) };
    "torch.cummin" = { x.cummin(dim) };
    "torch.diff" = { x.diff() };
    "torch.diff(n, dim)" = { x.diff_with(Diff::new().n(2).dim(dim)) } "and `.prepend(..)`, `.append(..)`";
    "torch.trapezoid", "torch.trapz" = { y.trapezoid(x, dim) } "a number for `dx`";
    "torch.cumulative_trapezoid" = { y.cumulative_trapezoid(x, dim) };
    "torch.searchsorted" = { x.searchsorted(y) } "i64; `out_int32` is a `to_dtype`";
    "torch.searchsorted(right=, sorter=)" = { x.searchsorted_with(y, SearchSorted::new().right(right)) };
    "torch.bucketize" = { x.bucketize(y) };
    "torch.bucketize(right=)" = { x.bucketize_with(y, Bucketize::new().right(right)) };
    "torch.isin" = { x.isin(y) };
    "torch.isin(invert=)" = { !x.isin(y) };
    "torch.bincount" = { x.bincount() } "computes `x`";
    "torch.bincount(weights=, minlength=)" = { x.bincount_with(BinCount::new().weights(y).minlength(9)) };
    "torch.histc" = { x.histc(100) };
    "torch.histc(min=, max=)" = { x.histc(Histogram::new(100).min(0.0).max(1.0)) };
    "torch.unique" = { x.unique(()) } "(values, inverse, counts), always sorted; computes `x`";
    "torch.unique(dim=)" = { x.unique(dim) };
    "torch.unique_consecutive" = { x.unique_consecutive(()) } "(values, inverse, counts)";
}
