//! Views, joins and parts.

use super::{Outputs, refs, rejected};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{
    Diagonal, PadMode, Scalar, Strided, Tensor, Window, block_diag, cat, column_stack, dstack,
    hstack, stack, vstack,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    if let Some(list) = call_list(op, a)? {
        return Ok(list.into());
    }
    Ok(match op {
        "reshape" => a.input()?.reshape(a.rest_ints(1, "shape")?),
        "view" => a.input()?.view(a.rest_ints(1, "size")?),
        "view_as" | "reshape_as" => a.input()?.view_as(&a.tensor(1, "other")?),
        "expand" | "broadcast_to" => a.input()?.expand(a.rest_ints(1, "size")?),
        "expand_as" => a.input()?.expand_as(&a.tensor(1, "other")?),
        "permute" => a.input()?.permute(a.rest_ints(1, "dims")?),
        "transpose" => a.input()?.transpose(a.int(1, "dim0")?, a.int(2, "dim1")?),
        "t" => a.input()?.t(),
        "squeeze" => match a.opt_ints(1, "dim")? {
            Some(dims) => a.input()?.squeeze(dims),
            None => a.input()?.squeeze_all(),
        },
        "unsqueeze" => a.input()?.unsqueeze(a.int(1, "dim")?),
        "flatten" => {
            let (start, end) = (a.int_or(1, "start_dim", 0)?, a.int_or(2, "end_dim", -1)?);
            a.input()?.flatten((start, end))
        }
        "ravel" => a.input()?.flatten(()),
        "unflatten" => a.input()?.unflatten(a.int(1, "dim")?, a.ints(2, "sizes")?),
        "movedim" => a
            .input()?
            .movedim(a.ints(1, "source")?, a.ints(2, "destination")?),
        "narrow" => a
            .input()?
            .narrow(a.int(1, "dim")?, a.int(2, "start")?, a.int(3, "length")?),
        "select" => a.input()?.select(a.int(1, "dim")?, a.int(2, "index")?),
        "flip" => a.input()?.flip(a.rest_ints(1, "dims")?),
        "fliplr" | "flipud" => {
            let x = a.input()?;
            let dim = (op == "fliplr") as i64;
            if (x.ndim() as i64) <= dim {
                return Err(rejected("the input has too few dims"));
            }
            x.flip(dim)
        }
        "roll" => a
            .input()?
            .roll(a.ints(1, "shifts")?, a.ints_or(2, "dims", &[])?),
        "rot90" => a
            .input()?
            .rot90(a.int_or(1, "k", 1)?, a.ints_or(2, "dims", &[0, 1])?),
        "fft.fftshift" => {
            let x = a.input()?;
            let all_dims: Vec<i64> = (0..x.ndim() as i64).collect();
            let dims = a.ints_or(1, "dim", &all_dims)?;
            let shape = x.shape().map_err(rejected)?;
            let half = |d: &i64| shape[d.rem_euclid(shape.len() as i64) as usize] as i64 / 2;
            x.roll(
                dims.iter().map(half).collect::<Vec<_>>().as_slice(),
                &dims[..],
            )
        }
        "cat" | "concat" => cat(&refs(&a.tensors(0, "tensors")?), a.int_or(1, "dim", 0)?),
        "stack" => stack(&refs(&a.tensors(0, "tensors")?), a.int_or(1, "dim", 0)?),
        "as_strided" => {
            let offset = a.int_or(3, "storage_offset", 0)?;
            a.input()?.as_strided(
                Strided::new(a.ints(1, "size")?)
                    .stride(a.ints(2, "stride")?)
                    .storage_offset(offset),
            )
        }
        "block_diag" => block_diag(&refs(&a.rest_tensors(0, "tensors")?)),
        "column_stack" => column_stack(&refs(&a.tensors(0, "tensors")?)),
        "dstack" => dstack(&refs(&a.tensors(0, "tensors")?)),
        "vstack" => vstack(&refs(&a.tensors(0, "tensors")?)),
        "hstack" => hstack(&refs(&a.tensors(0, "tensors")?)),
        "repeat" => a.input()?.repeat(a.rest_ints(1, "repeats")?),
        "tile" => a.input()?.tile(a.rest_ints(1, "dims")?),
        "repeat_interleave" => match a.get(1, "repeats") {
            Some(Arg::Number(Scalar::Int(n))) => {
                a.input()?.repeat_interleave(*n, a.opt_int(2, "dim")?)
            }
            _ => {
                let repeats = a.ints(1, "repeats")?;
                a.opt_int(3, "output_size")?; // follows from the repeats
                a.input()?
                    .repeat_interleave_each(repeats, a.opt_int(2, "dim")?)
            }
        },
        "nn.functional.pad" => {
            let mode = a.opt_text(2, "mode")?.unwrap_or("constant".into());
            let value = a.number_or(3, "value", 0i64)?;
            let mode = match mode.parse().map_err(rejected)? {
                PadMode::Constant(_) => PadMode::Constant(value),
                other => other,
            };
            a.input()?.pad(a.ints(1, "pad")?, mode)
        }
        "tril" => a.input()?.tril_with(a.int_or(1, "diagonal", 0)?),
        "triu" => a.input()?.triu_with(a.int_or(1, "diagonal", 0)?),
        "diag" => a.input()?.diag_with(a.int_or(1, "diagonal", 0)?),
        "diagonal" | "linalg.diagonal" => {
            let defaults = if op == "diagonal" { (0, 1) } else { (-2, -1) };
            let offset = a.int_or(1, "offset", 0)?;
            let dims = (
                a.int_or(2, "dim1", defaults.0)?,
                a.int_or(3, "dim2", defaults.1)?,
            );
            a.input()?
                .diagonal_with(Diagonal::new().offset(offset).dim1(dims.0).dim2(dims.1))
        }
        "diag_embed" => {
            let offset = a.int_or(1, "offset", 0)?;
            a.input()?.diag_embed_with(
                Diagonal::new()
                    .offset(offset)
                    .dim1(a.int_or(2, "dim1", -2)?)
                    .dim2(a.int_or(3, "dim2", -1)?),
            )
        }
        "diagflat" => a
            .input()?
            .reshape([-1])
            .diag_with(a.int_or(1, "offset", 0)?),
        "trace" => a.input()?.trace(),
        "nn.functional.pixel_shuffle" => a.input()?.pixel_shuffle(a.int(1, "upscale_factor")?),
        "nn.functional.pixel_unshuffle" => {
            a.input()?.pixel_unshuffle(a.int(1, "downscale_factor")?)
        }
        "nn.functional.channel_shuffle" => a.input()?.channel_shuffle(a.int(1, "groups")?),
        "unfold" => {
            let (dim, size) = (a.int(1, "dimension")?, a.int(2, "size")?);
            a.input()?
                .unfold(dim, Window::new(size).step(a.int(3, "step")?))
        }
        _ => return Err(Failure::Unknown),
    }
    .into())
}

/// Operators that return a list.
fn call_list(op: &str, a: &Args) -> Parsed<Option<Vec<Tensor>>> {
    let indices = ["indices_or_sections", "indices", "sections"];
    Ok(Some(match op {
        "split" => match a.get(1, "split_size_or_sections") {
            Some(Arg::List(_)) => with_sizes(a)?,
            _ => {
                let size = a.int(1, "split_size_or_sections")?;
                a.input()?.split(size, a.int_or(2, "dim", 0)?)
            }
        },
        "atleast_1d" | "atleast_2d" | "atleast_3d" => {
            let tensors = a.rest_tensors(0, "tensors")?;
            let f = match op {
                "atleast_1d" => Tensor::atleast_1d,
                "atleast_2d" => Tensor::atleast_2d,
                _ => Tensor::atleast_3d,
            };
            tensors.iter().map(f).collect()
        }
        "split_with_sizes" => with_sizes(a)?,
        "chunk" => a
            .input()?
            .chunk(a.int(1, "chunks")?, a.int_or(2, "dim", 0)?),
        "tensor_split" => {
            let x = a.input()?;
            let name = indices.into_iter().find(|n| a.get(1, n).is_some());
            let name = name.unwrap_or("sections");
            let dim = a.int_or(2, "dim", 0)?;
            match a.get(1, name) {
                Some(Arg::Number(_)) => x.tensor_split(a.int(1, name)?, dim),
                Some(Arg::Tensor(_, t, _)) if t.ndim() == 0 => x.tensor_split(a.int(1, name)?, dim),
                _ => x.tensor_split_at(a.ints(1, name)?, dim),
            }
        }
        "unbind" => a.input()?.unbind(a.int_or(1, "dim", 0)?),
        _ => return Ok(None),
    }))
}

fn with_sizes(a: &Args) -> Parsed<Vec<Tensor>> {
    let sizes = match a.keyword("split_sizes") {
        Some(_) => a.ints(1, "split_sizes")?,
        None => a.ints(1, "split_size_or_sections")?,
    };
    Ok(a.input()?.split_with_sizes(sizes, a.int_or(2, "dim", 0)?))
}
