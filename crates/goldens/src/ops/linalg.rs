//! Norms, powers and products of matrices.

use super::{Outputs, rejected, typed_input};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{MatrixNorm, Tensor, keep};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    Ok(match op {
        "linalg.matrix_norm" => {
            let x = typed_input(a)?;
            let dims = a.ints_or(2, "dim", &[-2, -1])?;
            let ord = order(a, 1, "ord")?.unwrap_or(MatrixNorm::Frobenius);
            matrix_norm(&x, ord, &dims, a.bool_or(3, "keepdim", false)?)?
        }
        "linalg.norm" | "norm" => norm(op, a)?,
        "linalg.matrix_power" | "matrix_power" => a.input()?.matrix_power(a.int(1, "n")?),
        "matrix_exp" | "linalg.matrix_exp" => a.input()?.matrix_exp(),
        "linalg.vecdot" => {
            let dim = a.int_or(2, "dim", -1)?;
            a.input()?.vecdot(&a.tensor(1, "other")?, dim)
        }
        "cross" | "linalg.cross" => {
            let (x, y) = (a.input()?, a.tensor(1, "other")?);
            let dim = match (op, a.opt_int(2, "dim")?) {
                (_, Some(dim)) => dim,
                ("cross", None) => {
                    let shape = x.shape().map_err(rejected)?;
                    let three = shape.iter().position(|n| *n == 3);
                    three.ok_or_else(|| rejected("no dim has length 3"))? as i64
                }
                _ => -1,
            };
            x.cross(&y, dim)
        }
        "kron" => a.input()?.kron(&a.tensor(1, "other")?),
        "linalg.vander" => a.input()?.vander_with(a.opt_int(1, "N")?),
        "nn.functional.bilinear" => {
            let (x2, weight) = (a.tensor(1, "input2")?, a.tensor(2, "weight")?);
            let bias = a.opt_tensor(3, "bias")?;
            a.tensor(0, "input1")?.bilinear_with(&x2, &weight, &bias)
        }
        _ => return Err(Failure::Unknown),
    }
    .into())
}

/// The order of a norm, if it is given.
pub(super) fn order(a: &Args, position: usize, name: &str) -> Parsed<Option<MatrixNorm>> {
    if let Some(Arg::Text(text)) = a.get(position, name) {
        return match text.as_str() {
            "fro" => Ok(Some(MatrixNorm::Frobenius)),
            "nuc" => Ok(Some(MatrixNorm::Nuclear)),
            other => Err(rejected(format!("{other:?} is not a norm"))),
        };
    }
    Ok(a.opt_float(position, name)?.map(MatrixNorm::Order))
}

fn matrix_norm(x: &Tensor, ord: MatrixNorm, dims: &[i64], keepdim: bool) -> Parsed<Tensor> {
    let [rows, columns] = dims[..] else {
        return Err(rejected(format!("{dims:?} are not the dims of matrices")));
    };
    Ok(x.matrix_norm(ord, keep([rows, columns]).when(keepdim)))
}

/// `torch.linalg.norm`, and the older `torch.norm`, whose numeric orders are always vector norms.
fn norm(op: &str, a: &Args) -> Parsed<Tensor> {
    let old = op == "norm";
    let x = typed_input(a)?;
    let ord = order(a, 1, if old { "p" } else { "ord" })?;
    let dims = a.opt_ints(2, "dim")?;
    let keepdim = a.bool_or(3, "keepdim", false)?;
    let rank = dims.as_ref().map_or(x.ndim(), Vec::len);
    let axes = dims.clone().unwrap_or_default();
    match ord {
        None => Ok(x.vector_norm(2.0, keep(axes).when(keepdim))),
        Some(MatrixNorm::Nuclear) if old && dims.is_none() && x.ndim() == 2 => {
            matrix_norm(&x, MatrixNorm::Nuclear, &[-2, -1], keepdim)
        }
        Some(MatrixNorm::Frobenius) if old => Ok(x.vector_norm(2.0, keep(axes).when(keepdim))),
        Some(MatrixNorm::Order(p)) if old || rank == 1 => {
            Ok(x.vector_norm(p, keep(axes).when(keepdim)))
        }
        Some(ord) if rank == 2 => matrix_norm(&x, ord, &dims.unwrap_or(vec![-2, -1]), keepdim),
        Some(_) => Err(rejected("a norm with an order takes 1 or 2 dims")),
    }
}
