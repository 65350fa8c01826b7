//! Products.

use super::{Outputs, refs};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{Factors, einsum, multi_dot};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let factors = || -> Parsed<Factors> {
        let (beta, alpha) = (
            a.number_or(3, "beta", 1i64)?,
            a.number_or(4, "alpha", 1i64)?,
        );
        Ok(Factors::new().beta(beta).alpha(alpha))
    };
    Ok(match op {
        "matmul" => a.input()?.matmul(&a.tensor(1, "other")?),
        "mm" => a.input()?.mm(&a.tensor(1, "mat2")?),
        "bmm" => a.input()?.bmm(&a.tensor(1, "mat2")?),
        "mv" => a.input()?.mv(&a.tensor(1, "vec")?),
        "dot" | "vdot" => a.input()?.dot(&a.tensor(1, "tensor")?),
        "outer" | "ger" => a.input()?.outer(&a.tensor(1, "vec2")?),
        "inner" => a.input()?.inner(&a.tensor(1, "other")?),
        "addmm" => a
            .input()?
            .addmm_with(&a.tensor(1, "mat1")?, &a.tensor(2, "mat2")?, factors()?),
        "addmv" => a
            .input()?
            .addmv_with(&a.tensor(1, "mat")?, &a.tensor(2, "vec")?, factors()?),
        "addbmm" => {
            a.input()?
                .addbmm_with(&a.tensor(1, "batch1")?, &a.tensor(2, "batch2")?, factors()?)
        }
        "addr" => a
            .input()?
            .addr_with(&a.tensor(1, "vec1")?, &a.tensor(2, "vec2")?, factors()?),
        "baddbmm" => {
            a.input()?
                .baddbmm_with(&a.tensor(1, "batch1")?, &a.tensor(2, "batch2")?, factors()?)
        }
        "nn.functional.linear" => {
            let bias = a.opt_tensor(2, "bias")?;
            a.input()?.linear_with(&a.tensor(1, "weight")?, &bias)
        }
        "tensordot" => {
            let (x, y) = (a.input()?, a.tensor(1, "other")?);
            match a.get(2, "dims") {
                Some(Arg::List(pair)) => match &pair[..] {
                    [p, q] => match (p.ints(), q.ints()) {
                        (Some(p), Some(q)) => x.tensordot_dims(&y, p, q),
                        _ => return Err(super::unsupported("these dims")),
                    },
                    _ => return Err(super::rejected("dims must be two lists")),
                },
                _ => x.tensordot(&y, a.int_or(2, "dims", 2)?),
            }
        }
        "einsum" => {
            // In the goldens the operands come first.
            let (operands, equation) = match a.get(0, "equation") {
                Some(Arg::Text(_)) => (a.rest_tensors(1, "operands")?, a.opt_text(0, "equation")?),
                _ => (a.tensors(0, "operands")?, a.opt_text(1, "equation")?),
            };
            let equation = equation.ok_or(super::unsupported("a call without an equation"))?;
            einsum(&equation, &refs(&operands))
        }
        "linalg.multi_dot" => multi_dot(&refs(&a.tensors(0, "tensors")?)),
        _ => return Err(Failure::Unknown),
    }
    .into())
}
