//! Matrix decompositions, and functions computed from them.

use super::linalg::order;
use super::{Outputs, rejected};
use crate::args::{Args, Failure, Operand, Parsed};
use kiln_tensor::{
    Cutoff, MatrixNorm, Other, QrMode, Rank, Solve, SolveTriangular, Svd, Tensor, Triangle,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let matrix = || a.tensor(0, "A").or_else(|_| a.input());
    let half = |position: usize| Ok(triangle(a.bool_or(position, "upper", false)?));
    Ok(match op {
        "linalg.cholesky" | "cholesky" => matrix()?.cholesky_with(half(1)?),
        "cholesky_solve" => a.input()?.cholesky_solve_with(&a.tensor(1, "L")?, half(2)?),
        "cholesky_inverse" => a.input()?.cholesky_inverse_with(half(1)?),
        "linalg.qr" | "qr" => return qr(&matrix()?, op, a),
        "linalg.lu" => return triple(matrix()?.lu()),
        "linalg.lu_factor" => return Ok(matrix()?.lu_factor().into()),
        "linalg.svd" => {
            let options = Svd::new().full_matrices(a.bool_or(1, "full_matrices", true)?);
            return triple(matrix()?.svd_with(options));
        }
        "linalg.svdvals" => matrix()?.svdvals(),
        "linalg.eigh" => return Ok(matrix()?.eigh_with(half_of(a)?).into()),
        "linalg.eigvalsh" => matrix()?.eigvalsh_with(half_of(a)?),
        "linalg.det" | "det" => matrix()?.det(),
        "linalg.slogdet" | "slogdet" => return Ok(matrix()?.slogdet().into()),
        "logdet" => matrix()?.logdet(),
        "linalg.inv" | "inverse" => matrix()?.inv(),
        "linalg.pinv" | "pinverse" => {
            let rcond = a.opt_operand(1, "rcond")?;
            matrix()?.pinv_with(rank(a, None, rcond)?)
        }
        "linalg.matrix_rank" => {
            let tol = a.opt_operand(1, "tol")?;
            matrix()?.matrix_rank_with(rank(a, tol, None)?)
        }
        "linalg.solve" => {
            let left = a.bool_or(9, "left", true)?;
            matrix()?.solve_with(&a.tensor(1, "B")?, Solve::new().left(left))
        }
        "linalg.solve_triangular" => {
            let b = a.tensor(1, "B")?;
            let (left, unit) = (
                a.bool_or(9, "left", true)?,
                a.bool_or(9, "unitriangular", false)?,
            );
            matrix()?.solve_triangular(
                &b,
                SolveTriangular::new(half(9)?)
                    .left(left)
                    .unitriangular(unit),
            )
        }
        "triangular_solve" => {
            let (b, matrix) = (a.input()?, a.tensor(1, "A")?);
            let (upper, turned) = (
                a.bool_or(2, "upper", true)?,
                a.bool_or(3, "transpose", false)?,
            );
            let unit = a.bool_or(4, "unitriangular", false)?;
            let used = match turned {
                true => matrix.transpose(-1, -2),
                false => matrix.clone(),
            };
            let x = used.solve_triangular(
                &b,
                SolveTriangular::new(triangle(upper != turned)).unitriangular(unit),
            );
            return Ok((x, matrix).into());
        }
        "linalg.lstsq" => {
            let rcond = a
                .opt_float(2, "rcond")?
                .map_or(Cutoff::Default, Cutoff::from);
            let (x, residuals, rank, values) = matrix()?.lstsq_with(&a.tensor(1, "B")?, rcond);
            return Ok(vec![x, residuals, rank, values].into());
        }
        "linalg.cond" => {
            let p = order(a, 1, "p")?.unwrap_or(MatrixNorm::Order(2.0));
            matrix()?.cond(p)
        }
        _ => return Err(Failure::Unknown),
    }
    .into())
}

/// The options of a rank; `atol` and `rtol` under their older names.
fn rank(a: &Args, atol: Option<Operand>, rtol: Option<Operand>) -> Parsed<Rank> {
    let atol = a.opt_operand(9, "atol")?.or(atol);
    let rtol = a.opt_operand(9, "rtol")?.or(rtol);
    Ok(Rank::new()
        .atol(cutoff(&atol))
        .rtol(cutoff(&rtol))
        .hermitian(a.bool_or(2, "hermitian", false)?))
}

fn triple((a, b, c): (Tensor, Tensor, Tensor)) -> Parsed<Outputs> {
    Ok(vec![a, b, c].into())
}

fn cutoff(operand: &Option<Operand>) -> Cutoff {
    match operand.as_ref().map(Other::from) {
        Some(Other::Tensor(t)) => Cutoff::Tensor(t.into_owned()),
        Some(Other::Number(n)) => Cutoff::Number(n.as_f64()),
        None => Cutoff::Default,
    }
}

fn triangle(upper: bool) -> Triangle {
    match upper {
        true => Triangle::Upper,
        false => Triangle::Lower,
    }
}

fn half_of(a: &Args) -> Parsed<Triangle> {
    match a.opt_text(1, "UPLO")?.as_deref() {
        None | Some("L" | "l") => Ok(Triangle::Lower),
        Some("U" | "u") => Ok(Triangle::Upper),
        Some(text) => Err(rejected(format!("UPLO = {text:?}"))),
    }
}

fn qr(x: &Tensor, op: &str, a: &Args) -> Parsed<Outputs> {
    let mode = match op {
        "qr" if a.bool_or(1, "some", true)? => QrMode::Reduced,
        "qr" => QrMode::Complete,
        _ => match a.opt_text(1, "mode")?.as_deref() {
            None | Some("reduced") => QrMode::Reduced,
            Some("complete") => QrMode::Complete,
            Some("r") => QrMode::R,
            Some(text) => return Err(rejected(format!("mode = {text:?}"))),
        },
    };
    Ok(x.qr_with(mode).into())
}
