//! PyTorch's operators by name, and the translation of a case's arguments for Kiln.

mod create;
mod factors;
mod index;
mod linalg;
mod loss;
mod matmul;
mod nn;
mod order;
mod pointwise;
mod pool;
mod reduce;
mod scatter;
mod shape;

use crate::args::{Args, Failure, Parsed};
use kiln_tensor::Tensor;

/// The results of a call.
pub(crate) struct Outputs {
    /// The flattened outputs.
    pub(crate) tensors: Vec<Tensor>,
    /// Inputs that the call changes, with their new values.
    pub(crate) assigned: Vec<(String, Tensor)>,
}

impl From<Tensor> for Outputs {
    fn from(t: Tensor) -> Outputs {
        vec![t].into()
    }
}

impl From<Vec<Tensor>> for Outputs {
    fn from(tensors: Vec<Tensor>) -> Outputs {
        Outputs {
            tensors,
            assigned: Vec::new(),
        }
    }
}

impl From<(Tensor, Tensor)> for Outputs {
    fn from((a, b): (Tensor, Tensor)) -> Outputs {
        vec![a, b].into()
    }
}

/// A group of operators.
type Group = fn(&str, &Args) -> Parsed<Outputs>;

const GROUPS: &[Group] = &[
    pointwise::call,
    shape::call,
    reduce::call,
    index::call,
    scatter::call,
    order::call,
    matmul::call,
    linalg::call,
    factors::call,
    nn::call,
    pool::call,
    loss::call,
    create::call,
];

/// Calls an operator; the prefix `promo.` of its name is ignored.
pub(crate) fn call(op: &str, args: &Args) -> Parsed<Outputs> {
    let op = op.strip_prefix("promo.").unwrap_or(op);
    for group in GROUPS {
        match group(op, args) {
            Err(Failure::Unknown) => continue,
            found => return found,
        }
    }
    Err(Failure::Unknown)
}

/// References to owned tensors.
fn refs(tensors: &[Tensor]) -> Vec<&Tensor> {
    tensors.iter().collect()
}

fn rejected(e: impl std::fmt::Display) -> Failure {
    Failure::Rejected(e.to_string())
}

fn unsupported(why: impl Into<String>) -> Failure {
    Failure::Unsupported(why.into())
}

/// The first argument, converted to `dtype` if that is given.
fn typed_input(a: &Args) -> Parsed<Tensor> {
    let x = a.input()?;
    Ok(match a.dtype("dtype")? {
        Some(dtype) => x.to_dtype(dtype),
        None => x,
    })
}
