//! Elements chosen by masks and put by indices.

use super::{Outputs, rejected, unsupported};
use crate::args::{Arg, Args, Failure, Operand, Parsed};
use kiln_tensor::{Combine, Diagonal, Index, Put, ScatterReduction, Tensor};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    Ok(match op {
        "scatter" => scatter(a)?.into(),
        "scatter_add" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            a.input()?
                .scatter_add(dim, &index, &a.tensor(3, "src")?)
                .into()
        }
        "scatter_reduce" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            let (src, reduce) = (a.tensor(3, "src")?, reduction(a, 4)?);
            let include = a.bool_or(usize::MAX, "include_self", true)?;
            a.input()?
                .scatter_reduce(
                    dim,
                    &index,
                    &src,
                    Combine::new(reduce).include_self(include),
                )
                .into()
        }
        "index_add" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            let alpha = a.number_or(usize::MAX, "alpha", 1i64)?;
            a.input()?
                .index_add_scaled(dim, &index, &a.tensor(3, "source")?, alpha)
                .into()
        }
        "index_copy" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            a.input()?
                .index_copy(dim, &index, &a.tensor(3, "source")?)
                .into()
        }
        "index_reduce" => {
            let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
            let (source, reduce) = (a.tensor(3, "source")?, reduction(a, 4)?);
            let include = a.bool_or(usize::MAX, "include_self", true)?;
            a.input()?
                .index_reduce(
                    dim,
                    &index,
                    &source,
                    Combine::new(reduce).include_self(include),
                )
                .into()
        }
        "index_put" => {
            let indices = match a.get(1, "indices") {
                Some(Arg::List(items)) => items.iter().map(|i| match i {
                    Arg::Tensor(_, t, _) => Ok(Index::from(t)),
                    Arg::None => Ok(Index::from(..)),
                    _ => Err(unsupported("this index")),
                }),
                _ => return Err(unsupported("these indices")),
            };
            let indices = indices.collect::<Parsed<Vec<Index>>>()?;
            let options = Put::new().accumulate(a.bool_or(3, "accumulate", false)?);
            a.input()?
                .index_put_with(indices, &a.tensor(2, "values")?, options)
                .into()
        }
        "put" => {
            let (index, source) = (a.tensor(1, "index")?, a.tensor(2, "source")?);
            a.input()?
                .put_with(
                    &index,
                    &source,
                    Put::new().accumulate(a.bool_or(3, "accumulate", false)?),
                )
                .into()
        }
        "masked_scatter" => a
            .input()?
            .masked_scatter(&a.tensor(1, "mask")?, &a.tensor(2, "source")?)
            .into(),
        "masked_select" => a.input()?.masked_select(&a.tensor(1, "mask")?).into(),
        "nonzero" => match a.bool_or(usize::MAX, "as_tuple", false)? {
            true => a.input()?.nonzero_as_tuple().into(),
            false => a.input()?.nonzero().into(),
        },
        "argwhere" => a.input()?.argwhere().into(),
        "diagonal_scatter" => {
            let (src, offset) = (a.tensor(1, "src")?, a.int_or(2, "offset", 0)?);
            let (dim1, dim2) = (a.int_or(3, "dim1", 0)?, a.int_or(4, "dim2", 1)?);
            a.input()?
                .diagonal_scatter_with(&src, Diagonal::new().offset(offset).dim1(dim1).dim2(dim2))
                .into()
        }
        _ => return Err(Failure::Unknown),
    })
}

fn scatter(a: &Args) -> Parsed<Tensor> {
    let (dim, index) = (a.int(1, "dim")?, a.tensor(2, "index")?);
    let src = match a.opt_operand(usize::MAX, "value")? {
        Some(value) => value,
        None => a.operand(3, "src")?,
    };
    let x = a.input()?;
    if let Operand::Tensor(t) = &src
        && a.keyword("value").is_some()
    {
        if t.ndim() > 0 {
            return Err(rejected("the value must be a number"));
        }
        let n = a.number(usize::MAX, "value")?;
        return Ok(x.scatter(dim, &index, n));
    }
    Ok(match a.opt_text(usize::MAX, "reduce")? {
        None => x.scatter(dim, &index, &src),
        Some(reduce) => {
            let reduce: ScatterReduction = reduce.parse().map_err(rejected)?;
            x.scatter_reduce(dim, &index, &src, reduce)
        }
    })
}

fn reduction(a: &Args, position: usize) -> Parsed<ScatterReduction> {
    let name = a.opt_text(position, "reduce")?;
    let name = name.ok_or(unsupported("a call without reduce"))?;
    name.parse().map_err(rejected)
}
