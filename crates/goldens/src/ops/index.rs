//! Indexing.

use super::{Outputs, refs, rejected, unsupported};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{
    BagMode, Bags, Combinations, Index, Indexing, Scalar, Tensor, cartesian_prod, meshgrid_with,
    where_,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    Ok(match op {
        "gather" => a.input()?.gather(a.int(1, "dim")?, &a.tensor(2, "index")?),
        "take_along_dim" => a
            .input()?
            .take_along_dim(&a.tensor(1, "indices")?, a.opt_int(2, "dim")?),
        "take" => a.input()?.take(&a.tensor(1, "index")?),
        "index_select" => a
            .input()?
            .index_select(a.int(1, "dim")?, &a.tensor(2, "index")?),
        "index_fill" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            a.input()?.index_fill(dim, &index, &a.operand(3, "value")?)
        }
        "masked_fill" => a
            .input()?
            .masked_fill(&a.tensor(1, "mask")?, &a.operand(2, "value")?),
        "select_scatter" => {
            let src = a.tensor(1, "src")?;
            a.input()?
                .select_scatter(&src, a.int(2, "dim")?, a.int(3, "index")?)
        }
        "slice_scatter" => {
            let (src, dim) = (a.tensor(1, "src")?, a.int_or(2, "dim", 0)?);
            let range = Index::Slice {
                start: a.opt_int(3, "start")?,
                end: a.opt_int(4, "end")?,
                step: a.int_or(5, "step", 1)?,
            };
            a.input()?.slice_scatter(&src, dim, range)
        }
        "nn.functional.embedding" => return embedding(a),
        "nn.functional.one_hot" => {
            let x = a.input()?;
            match a.int_or(1, "num_classes", -1)? {
                -1 => {
                    let Some(labels) = a.get(0, "input").and_then(Arg::ints) else {
                        return Err(unsupported("classes of unknown number"));
                    };
                    x.one_hot(labels.into_iter().max().unwrap_or(-1) + 1)
                }
                n => x.one_hot(n),
            }
        }
        "nn.functional.embedding_bag" => return embedding_bag(a),
        "combinations" => {
            let (r, with_replacement) = (
                a.int_or(1, "r", 2)?,
                a.bool_or(2, "with_replacement", false)?,
            );
            a.input()?
                .combinations(Combinations::new(r).with_replacement(with_replacement))
        }
        "cartesian_prod" => cartesian_prod(&refs(&a.rest_tensors(0, "tensors")?)),
        "meshgrid" => {
            let vectors = a.rest_tensors(0, "tensors")?;
            let indexing = match a.opt_text(usize::MAX, "indexing")?.as_deref() {
                Some("xy") => Indexing::Xy,
                _ => Indexing::Ij,
            };
            return Ok(meshgrid_with(&refs(&vectors), indexing).into());
        }
        "__getitem__" => getitem(a)?,
        _ => return Err(Failure::Unknown),
    }
    .into())
}

fn embedding(a: &Args) -> Parsed<Outputs> {
    a.opt_int(2, "padding_idx")?; // this and the flags change gradients only
    a.bool_or(5, "scale_grad_by_freq", false)?;
    a.bool_or(6, "sparse", false)?;
    embedding_with(a, |weight, indices| weight.embedding(indices))
}

fn embedding_bag(a: &Args) -> Parsed<Outputs> {
    a.bool_or(5, "scale_grad_by_freq", false)?; // these change gradients only
    a.bool_or(7, "sparse", false)?;
    let mode = match a.opt_text(6, "mode")? {
        Some(mode) => mode.parse().map_err(rejected)?,
        None => BagMode::Mean,
    };
    let options = Bags {
        mode,
        offsets: a.opt_tensor(2, "offsets")?,
        per_sample_weights: a.opt_tensor(8, "per_sample_weights")?,
        include_last_offset: a.bool_or(9, "include_last_offset", false)?,
        padding_idx: a.opt_int(10, "padding_idx")?,
    };
    embedding_with(a, |weight, indices| {
        weight.embedding_bag_with(indices, options.clone())
    })
}

/// Looks rows up in a weight: the first argument, unless that is a matrix of integers. A `max_norm` scales the rows
/// that are looked up, in the weight itself.
fn embedding_with(a: &Args, look_up: impl Fn(&Tensor, &Tensor) -> Tensor) -> Parsed<Outputs> {
    let (weight, indices) = (a.tensor(0, "weight")?, a.tensor(1, "input")?);
    let weight_first = weight.dtype().is_float() || weight.ndim() != 2;
    let (weight, indices, name) = match weight_first {
        true => (weight, indices, a.tensor_name(0, "weight")),
        false => (indices, weight, a.tensor_name(1, "input")),
    };
    let p = a.float_or(4, "norm_type", 2.0)?;
    let Some(limit) = a.opt_float(3, "max_norm")? else {
        return Ok(look_up(&weight, &indices).into());
    };
    let rows = weight.shape().map_err(rejected)?;
    let rows = rows.first().map_or(0, |n| *n as i64);
    let scaled = weight.renorm(p, 0, limit);
    let used = indices.one_hot(rows).reshape([-1, rows]).any(0);
    let after = where_(used.unsqueeze(1), &scaled, &weight);
    Ok(Outputs {
        tensors: vec![look_up(&after, &indices)],
        assigned: vec![(name.unwrap_or_default().to_string(), after)],
    })
}

/// Python's `x[..]`.
fn getitem(a: &Args) -> Parsed<Tensor> {
    let items = match a.get(1, "index") {
        Some(Arg::List(items)) => items.clone(),
        Some(one) => vec![one.clone()],
        None => return Err(unsupported("a call without an index")),
    };
    let items: Parsed<Vec<Index>> = items.iter().map(item).collect();
    Ok(a.input()?.i(items?))
}

fn item(arg: &Arg) -> Parsed<Index> {
    Ok(match arg {
        Arg::Number(Scalar::Int(i)) => Index::At(*i),
        Arg::Number(Scalar::Bool(keep)) => Index::Bool(*keep),
        Arg::Slice([start, end, step]) => Index::Slice {
            start: *start,
            end: *end,
            step: step.unwrap_or(1),
        },
        Arg::None => Index::NewAxis,
        Arg::Ellipsis => Index::Ellipsis,
        Arg::List(_) => Index::List(arg.ints().ok_or(unsupported("a nested index"))?),
        Arg::Tensor(_, t, _) => Index::Tensor(t.clone()),
        _ => return Err(unsupported("this index")),
    })
}
