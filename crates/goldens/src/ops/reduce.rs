//! Reductions.

use super::{Outputs, rejected, typed_input, unsupported};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{Scalar, Tensor, keep};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let dims = || a.ints_or(1, "dim", &[]);
    let keepdim = || a.bool_or(2, "keepdim", false);
    Ok(match op {
        "sum" => in_dtype(a, typed_input(a)?.sum(keep(dims()?).when(keepdim()?)))?.into(),
        "prod" => in_dtype(a, typed_input(a)?.prod(keep(dims()?).when(keepdim()?)))?.into(),
        "mean" => typed_input(a)?.mean(keep(dims()?).when(keepdim()?)).into(),
        "nansum" => typed_input(a)?
            .nansum(keep(dims()?).when(keepdim()?))
            .into(),
        "nanmean" => typed_input(a)?
            .nanmean(keep(dims()?).when(keepdim()?))
            .into(),
        "amax" => a.input()?.amax(keep(dims()?).when(keepdim()?)).into(),
        "amin" => a.input()?.amin(keep(dims()?).when(keepdim()?)).into(),
        "any" => a.input()?.any(keep(dims()?).when(keepdim()?)).into(),
        "all" => a.input()?.all(keep(dims()?).when(keepdim()?)).into(),
        "max" | "min" => match (op, a.opt_int(1, "dim")?) {
            ("max", Some(d)) => a.input()?.max(keep(d).when(keepdim()?)).into(),
            ("max", None) => a.input()?.amax(()).into(),
            (_, Some(d)) => a.input()?.min(keep(d).when(keepdim()?)).into(),
            (_, None) => a.input()?.amin(()).into(),
        },
        "aminmax" => {
            let dim = a.opt_int(usize::MAX, "dim")?;
            let keepdim = a.bool_or(usize::MAX, "keepdim", false)?;
            a.input()?.aminmax(keep(dim).when(keepdim)).into()
        }
        "argmax" => a
            .input()?
            .argmax(keep(a.opt_int(1, "dim")?).when(keepdim()?))
            .into(),
        "argmin" => a
            .input()?
            .argmin(keep(a.opt_int(1, "dim")?).when(keepdim()?))
            .into(),
        "count_nonzero" => a.input()?.count_nonzero(dims()?).into(),
        "logsumexp" => a.input()?.logsumexp(keep(dims()?).when(keepdim()?)).into(),
        "var" | "std" | "var_mean" | "std_mean" => moments(op, a)?,
        "linalg.vector_norm" => {
            let x = typed_input(a)?;
            let ord = a.float_or(1, "ord", 2.0)?;
            let dims = a.ints_or(2, "dim", &[])?;
            x.vector_norm(ord, keep(dims).when(a.bool_or(3, "keepdim", false)?))
                .into()
        }
        _ => return Err(Failure::Unknown),
    })
}

/// The result in the dtype that the call asks for.
fn in_dtype(a: &Args, y: Tensor) -> Parsed<Tensor> {
    Ok(match a.dtype("dtype")? {
        Some(dtype) => y.to_dtype(dtype),
        None => y,
    })
}

/// `(dim, unbiased, keepdim)`, `(unbiased)` or keywords with a correction.
fn moments(op: &str, a: &Args) -> Parsed<Outputs> {
    let x = a.input()?;
    let only_flag = matches!(a.get(1, "dim"), Some(Arg::Number(Scalar::Bool(_))));
    let dims = if only_flag {
        Vec::new()
    } else {
        a.ints_or(1, "dim", &[])?
    };
    let position = if only_flag { 1 } else { 2 };
    let unbiased = a.bool_or(position, "unbiased", true)?;
    let correction = a.opt_float(usize::MAX, "correction")?;
    let correction = correction.unwrap_or(unbiased as i64 as f64);
    let keepdim = a.bool_or(3, "keepdim", false)?;
    x.check().map_err(rejected)?;
    Ok(match op {
        "var" => x.var_with(keep(dims).when(keepdim), correction).into(),
        "std" => x.std_with(keep(dims).when(keepdim), correction).into(),
        "var_mean" => x.var_mean_with(keep(dims).when(keepdim), correction).into(),
        "std_mean" => x.std_mean_with(keep(dims).when(keepdim), correction).into(),
        _ => return Err(unsupported(op)),
    })
}
