//! Sorting, scanning, searching and counting.

use super::{Outputs, rejected, typed_input};
use crate::args::{Args, Failure, Parsed};
use kiln_tensor::{
    BinCount, Bucketize, DType, Diff, Histogram, Interpolation, SearchSorted, Sort, Tensor, TopK,
    keep,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    Ok(match op {
        "sort" | "argsort" => {
            a.bool_or(usize::MAX, "stable", false)?; // every sort is
            let (dim, descending) = (a.int_or(1, "dim", -1)?, a.bool_or(2, "descending", false)?);
            match op {
                "sort" => a
                    .input()?
                    .sort_with(dim, Sort::new().descending(descending))
                    .into(),
                _ => a
                    .input()?
                    .argsort_with(dim, Sort::new().descending(descending))
                    .into(),
            }
        }
        "msort" => a.input()?.msort().into(),
        "topk" => {
            let (k, dim) = (a.int(1, "k")?, a.int_or(2, "dim", -1)?);
            let largest = a.bool_or(3, "largest", true)?;
            a.bool_or(4, "sorted", true)?; // always are
            a.input()?
                .topk(TopK::new(k).dim(dim).largest(largest))
                .into()
        }
        "kthvalue" => {
            let (k, dim) = (a.int(1, "k")?, a.int_or(2, "dim", -1)?);
            a.input()?
                .kthvalue(k, keep(dim).when(a.bool_or(3, "keepdim", false)?))
                .into()
        }
        "median" | "nanmedian" => {
            let (x, keepdim) = (a.input()?, a.bool_or(2, "keepdim", false)?);
            match (op, a.opt_int(1, "dim")?) {
                ("median", Some(dim)) => x.median(keep(dim).when(keepdim)).into(),
                ("median", None) => x.median_all().into(),
                (_, Some(dim)) => x.nanmedian(keep(dim).when(keepdim)).into(),
                (_, None) => x.nanmedian_all().into(),
            }
        }
        "mode" => {
            let (dim, keepdim) = (a.int_or(1, "dim", -1)?, a.bool_or(2, "keepdim", false)?);
            a.input()?.mode(keep(dim).when(keepdim)).into()
        }
        "quantile" | "nanquantile" => {
            let (dim, keepdim) = (a.opt_int(2, "dim")?, a.bool_or(3, "keepdim", false)?);
            let interpolation = a.opt_text(usize::MAX, "interpolation")?;
            let interpolation = match interpolation {
                Some(name) => name.parse().map_err(rejected)?,
                None => Interpolation::Linear,
            };
            let (x, q) = (a.input()?, a.operand(1, "q")?);
            match op {
                "quantile" => x
                    .quantile_with(&q, keep(dim).when(keepdim), interpolation)
                    .into(),
                _ => x
                    .nanquantile_with(&q, keep(dim).when(keepdim), interpolation)
                    .into(),
            }
        }
        "cumsum" => scan_in_dtype(a, Tensor::cumsum)?.into(),
        "cumprod" => scan_in_dtype(a, Tensor::cumprod)?.into(),
        "logcumsumexp" => a.input()?.logcumsumexp(a.int(1, "dim")?).into(),
        "cummax" => a.input()?.cummax(a.int(1, "dim")?).into(),
        "cummin" => a.input()?.cummin(a.int(1, "dim")?).into(),
        "diff" => {
            let options = Diff {
                n: a.int_or(1, "n", 1)?,
                dim: a.int_or(2, "dim", -1)?.into(),
                prepend: a.opt_tensor(3, "prepend")?,
                append: a.opt_tensor(4, "append")?,
            };
            a.input()?.diff_with(options).into()
        }
        "trapezoid" | "trapz" | "cumulative_trapezoid" => {
            let dim = a.int_or(usize::MAX, "dim", -1)?;
            let y = a.tensor(0, "y")?;
            let x = match (a.opt_operand(1, "x")?, a.opt_operand(usize::MAX, "dx")?) {
                (Some(x), None) | (None, Some(x)) => x,
                (None, None) => crate::args::Operand::Number(1i64.into()),
                _ => return Err(rejected("x and dx are both given")),
            };
            match op {
                "cumulative_trapezoid" => y.cumulative_trapezoid(&x, dim).into(),
                _ => y.trapezoid(&x, dim).into(),
            }
        }
        "searchsorted" => {
            let right = match a.opt_text(usize::MAX, "side")?.as_deref() {
                None => a.bool_or(usize::MAX, "right", false)?,
                Some("right") => true,
                Some("left") if !a.bool_or(usize::MAX, "right", false)? => false,
                Some(other) => return Err(rejected(format!("side = {other:?}"))),
            };
            let sorter = a.opt_tensor(usize::MAX, "sorter")?;
            let values = a.operand(1, "input")?;
            let sequence = a.tensor(0, "sorted_sequence")?;
            in_i32(
                a,
                sequence
                    .searchsorted_with(&values, SearchSorted::new().right(right).sorter(&sorter)),
            )?
            .into()
        }
        "bucketize" => {
            let right = a.bool_or(usize::MAX, "right", false)?;
            in_i32(
                a,
                a.input()?
                    .bucketize_with(&a.tensor(1, "boundaries")?, Bucketize::new().right(right)),
            )?
            .into()
        }
        "isin" => {
            let invert = a.bool_or(usize::MAX, "invert", false)?;
            a.bool_or(usize::MAX, "assume_unique", false)?; // for speed only
            let elements = match a.operand(0, "elements")? {
                crate::args::Operand::Tensor(t) => t,
                crate::args::Operand::Number(n) => Tensor::full((), n, super::create::default(n)),
            };
            let hit = elements.isin(&a.operand(1, "test_elements")?);
            if invert { !hit } else { hit }.into()
        }
        "bincount" => {
            let weights = a.opt_tensor(1, "weights")?;
            let min_length = a.int_or(2, "minlength", 0)?;
            a.input()?
                .bincount_with(BinCount::new().weights(&weights).minlength(min_length))
                .into()
        }
        "histc" => {
            let bins = a.int_or(1, "bins", 100)?;
            let (min, max) = (a.float_or(2, "min", 0.0)?, a.float_or(3, "max", 0.0)?);
            a.input()?
                .histc(Histogram::new(bins).min(min).max(max))
                .into()
        }
        "unique" | "unique_consecutive" => return distinct(op, a),
        _ => return Err(Failure::Unknown),
    })
}

/// A scan, whose result has the dtype that the call asks for.
fn scan_in_dtype(a: &Args, scan: fn(&Tensor, i64) -> Tensor) -> Parsed<Tensor> {
    let y = scan(&typed_input(a)?, a.int(1, "dim")?);
    Ok(match a.dtype("dtype")? {
        Some(dtype) => y.to_dtype(dtype), // sums of small integers wrap to it
        None => y,
    })
}

fn in_i32(a: &Args, y: Tensor) -> Parsed<Tensor> {
    Ok(match a.bool_or(usize::MAX, "out_int32", false)? {
        true => y.to_dtype(DType::I32),
        false => y,
    })
}

fn distinct(op: &str, a: &Args) -> Parsed<Outputs> {
    let x = a.input()?;
    let sorted = op == "unique";
    let index = sorted as usize; // `unique` has `sorted` in front of the other flags
    if sorted {
        a.bool_or(1, "sorted", true)?; // always
    }
    let inverse = a.bool_or(1 + index, "return_inverse", false)?;
    let counts = a.bool_or(2 + index, "return_counts", false)?;
    let dim = a.opt_int(3 + index, "dim")?;
    let (values, inverses, numbers) = match sorted {
        true => x.unique(dim),
        false => x.unique_consecutive(dim),
    };
    let mut out = vec![values];
    out.extend(inverse.then_some(inverses));
    out.extend(counts.then_some(numbers));
    Ok(out.into())
}
