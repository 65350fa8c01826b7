//! Creation of tensors.

use super::{Outputs, rejected, unsupported};
use crate::args::{Args, Failure, Parsed};
use kiln_tensor::{DType, Scalar, Tensor};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let dtype = || a.dtype("dtype");
    Ok(match op {
        "zeros" | "ones" => {
            let value = (op == "ones") as i64;
            Tensor::full(
                sizes(a.rest_ints(0, "size")?)?,
                value,
                dtype()?.unwrap_or(DType::F32),
            )
        }
        "full" => {
            let value = a.number(1, "fill_value")?;
            Tensor::full(
                sizes(a.ints(0, "size")?)?,
                value,
                dtype()?.unwrap_or(default(value)),
            )
        }
        "new_full" => {
            let (x, value) = (a.input()?, a.number(2, "fill_value")?);
            Tensor::full(
                sizes(a.ints(1, "size")?)?,
                value,
                dtype()?.unwrap_or(x.dtype()),
            )
        }
        "zeros_like" | "ones_like" | "full_like" => {
            let x = a.input()?;
            let x = match dtype()? {
                Some(d) => x.to_dtype(d),
                None => x,
            };
            match op {
                "zeros_like" => x.zeros_like(),
                "ones_like" => x.ones_like(),
                _ => x.full_like(a.number(1, "fill_value")?),
            }
        }
        "scalar_tensor" => Tensor::full((), a.number(0, "s")?, dtype()?.unwrap_or(DType::F32)),
        "eye" => {
            let n = a.int(0, "n")?;
            let m = a.opt_int(1, "m")?.unwrap_or(n);
            Tensor::eye((n, m), dtype()?.unwrap_or(DType::F32))
        }
        "arange" => {
            // With one positional number, `end=` makes that number the start.
            let (start, end) = match (a.positions(), a.opt_number(1, "end")?) {
                (_, Some(end)) => (a.number_or(0, "start", 0i64)?, end),
                (0, None) => return Err(rejected("arange needs an end")),
                (_, None) => (Scalar::Int(0), a.number(0, "end")?),
            };
            let step = a.number_or(2, "step", 1i64)?;
            match dtype()? {
                Some(d) => Tensor::arange_dtype(start, end, step, d),
                None => Tensor::arange(start, end, step),
            }
        }
        "linspace" => {
            let (start, end) = (a.number(0, "start")?, a.number(1, "end")?);
            let dtype = dtype()?.unwrap_or(DType::F32);
            Tensor::linspace(start, end, steps(a)?, dtype)
        }
        "logspace" => {
            let (start, end) = (a.number(0, "start")?, a.number(1, "end")?);
            let (steps, base) = (steps(a)?, a.float_or(3, "base", 10.0)?);
            Tensor::logspace(start, end, steps, base, dtype()?.unwrap_or(DType::F32))
        }
        "tril_indices" | "triu_indices" => {
            let (row, col) = (a.int(0, "row")?, a.int(1, "col")?);
            let offset = a.int_or(2, "offset", 0)?;
            if !matches!(dtype()?, None | Some(DType::I64)) {
                return Err(unsupported("indices of another dtype"));
            }
            match op {
                "tril_indices" => Tensor::tril_indices_with(row, col, offset),
                _ => Tensor::triu_indices_with(row, col, offset),
            }
        }
        _ => return Err(Failure::Unknown),
    }
    .into())
}

/// The number of steps; a fraction is an error.
fn steps(a: &Args) -> Parsed<i64> {
    match a.number(2, "steps")? {
        Scalar::Float(n) => Err(rejected(format!("steps must be an integer, not {n}"))),
        _ => a.int(2, "steps"),
    }
}

fn sizes(shape: Vec<i64>) -> Parsed<Vec<usize>> {
    let size = |d: i64| usize::try_from(d).map_err(|_| rejected(format!("a size of {d}")));
    shape.into_iter().map(size).collect()
}

pub(super) fn default(value: Scalar) -> DType {
    match value {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F32,
    }
}
