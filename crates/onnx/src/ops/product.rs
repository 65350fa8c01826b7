//! Matrix products.

use super::{Record, quantize};
use crate::call::{Call, Results, single};
use crate::fault::invalid;
use kiln_tensor::{Tensor, einsum};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        #[cfg(feature = "linalg")]
        "Det" => |c| single(c.tensor(0)?.det()),
        "Einsum" => |c| {
            single(einsum(
                &c.text("equation", "")?.replace(' ', ""),
                c.tensors(0)?,
            ))
        },
        "Gemm" => gemm,
        "MatMul" => |c| match quantize::product(c)? {
            Some(y) => single(y),
            None => single(c.tensor(0)?.matmul(c.tensor(1)?)),
        },
        _ => return None,
    })
}

fn gemm(c: &Call) -> Results {
    let (a, b) = (c.tensor(0)?, c.tensor(1)?);
    if a.ndim() != 2 || b.ndim() != 2 {
        return Err(invalid(format!(
            "needs matrices, not {} and {} dims",
            a.ndim(),
            b.ndim()
        )));
    }
    let a = if c.flag("transA", false)? { a.t() } else { a };
    let b = if c.flag("transB", false)? { b.t() } else { b };
    let scaled = |t: Tensor, factor: f64| match () {
        _ if factor == 1.0 => t,
        _ if t.dtype().is_float() => t * factor,
        _ => t * factor as i64,
    };
    let product = scaled(a.matmul(b), c.float("alpha", 1.0)?);
    match c.optional(2)? {
        Some(bias) => single(product + scaled(bias, c.float("beta", 1.0)?)),
        None => single(product),
    }
}
