//! Operators that read and write by index, and those that order.

use super::Record;
use super::elementwise::Unsigned;
use crate::call::{Call, Results, single};
use crate::fault::invalid;
use crate::value::{iota, size_as_tensor};
use kiln_base::{Dim, numel};
use kiln_tensor::{Combine, DType, Fact, Result, ScatterReduction, Tensor, TopK};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Compress" => compress,
        "Gather" => gather,
        "GatherElements" => |c| {
            let (x, index) = (c.tensor(0)?, c.tensor(1)?);
            let axis = c.axis("axis", 0, x.ndim())?;
            let index = from_start(&index, &x.dims()[axis]);
            single(x.gather(axis as i64, index))
        },
        "GatherND" => gather_nd,
        "NonZero" => |c| single(c.tensor(0)?.nonzero().t()),
        "Scatter" | "ScatterElements" => scatter_elements,
        "ScatterND" => scatter_nd,
        "TensorScatter" => tensor_scatter,
        "TopK" => top_k,
        "Unique" => unique,
        _ => return None,
    })
}

/// Returns i64 indices, of which negative ones are counted from the end of a dim.
pub(super) fn from_start(index: &Tensor, size: &Dim) -> Tensor {
    let index = index.to_dtype(DType::I64);
    let size = size_as_tensor(size);
    (&index + size).where_cond(index.lt(0), &index)
}

fn gather(c: &Call) -> Results {
    let (x, index) = (c.tensor(0)?, c.tensor(1)?);
    let axis = c.axis("axis", 0, x.ndim())?;
    // Known indices need no arithmetic.
    let known = c.traced(1)?.known().and_then(|k| k.integers());
    if let (Some(list), Some(n), 0) = (&known, x.dims()[axis].as_const(), index.ndim()) {
        let i = list[0];
        if i < -n || i >= n {
            return Err(invalid(format!("the index {i} is not one of {n}")));
        }
        return single(x.select(axis as i64, i));
    }
    let all_positive = known.is_some_and(|list| list.iter().all(|i| *i >= 0));
    let wrapped = match all_positive {
        true => index.to_dtype(DType::I64),
        false => from_start(&index, &x.dims()[axis]),
    };
    let shape = [&x.dims()[..axis], index.dims(), &x.dims()[axis + 1..]].concat();
    let flat = wrapped.reshape(vec![numel(index.dims())]);
    single(x.index_select(axis as i64, flat).reshape(shape))
}

/// Flat positions that index tuples in the last dim of `indices` stand for, within dims of these sizes.
fn flat_positions(indices: &Tensor, sizes: &[Dim]) -> Tensor {
    let mut flat: Option<Tensor> = None;
    for (i, size) in sizes.iter().enumerate() {
        let index = from_start(&indices.select(-1, i as i64), size);
        flat = Some(match (flat, size.as_const()) {
            (None, _) => index,
            (Some(f), Some(n)) => f * n + index,
            (Some(f), None) => f * size_as_tensor(size) + index,
        });
    }
    flat.unwrap_or_else(|| Tensor::zeros(&indices.dims()[..indices.ndim() - 1], DType::I64))
}

/// Returns the number of dims that an index tuple covers.
fn tuple_len(indices: &Tensor, within: usize) -> Result<usize> {
    let last = indices.dims().last().and_then(Dim::as_const);
    match last.and_then(|k| usize::try_from(k).ok()) {
        Some(k) if k <= within => Ok(k),
        _ => {
            let indices = Fact::new(indices.dtype(), indices.dims().iter().cloned());
            Err(invalid(format!(
                "the last dim of the indices {indices} must be at most {within}"
            )))
        }
    }
}

fn gather_nd(c: &Call) -> Results {
    let (x, indices) = (c.tensor(0)?, c.tensor(1)?);
    let batch = usize::try_from(c.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    if batch >= x.ndim().min(indices.ndim()) {
        return Err(invalid(format!("batch_dims can't be {batch}")));
    }
    let k = tuple_len(&indices, x.ndim() - batch)?;
    let (lead, trailing) = (&x.dims()[..batch], &x.dims()[batch + k..]);
    let indexed_dims = &x.dims()[batch..batch + k];
    let queries = &indices.dims()[batch..indices.ndim() - 1];
    let flat = flat_positions(&indices, indexed_dims).reshape(vec![numel(lead), numel(queries)]);
    let table_size = numel(indexed_dims);
    let rows = match table_size.as_const() {
        Some(n) => iota(&numel(lead)) * n,
        None => return Err(invalid("needs known sizes")),
    };
    let flat = (flat + rows.unsqueeze(-1)).reshape(vec![&numel(lead) * &numel(queries)]);
    let table = x.reshape(vec![&numel(lead) * &table_size, numel(trailing)]);
    let shape = [lead, queries, trailing].concat();
    single(table.index_select(0, flat).reshape(shape))
}

fn reduction(c: &Call) -> Result<Option<ScatterReduction>> {
    Ok(Some(match c.text("reduction", "none")? {
        "none" => return Ok(None),
        "add" => ScatterReduction::Sum,
        "mul" => ScatterReduction::Prod,
        "max" => ScatterReduction::Amax,
        "min" => ScatterReduction::Amin,
        other => return Err(invalid(format!("there is no reduction {other:?}"))),
    }))
}

fn scatter_elements(c: &Call) -> Results {
    let (x, index, updates) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let axis = c.axis("axis", 0, x.ndim())?;
    let index = from_start(&index, &x.dims()[axis]);
    match reduction(c)? {
        None => single(x.scatter(axis as i64, index, updates)),
        Some(r) => single(x.scatter_reduce(axis as i64, index, updates, Combine::new(r))),
    }
}

fn scatter_nd(c: &Call) -> Results {
    let (x, indices, updates) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let k = tuple_len(&indices, x.ndim())?;
    let (indexed_dims, trailing) = x.dims().split_at(k);
    let queries = numel(&indices.dims()[..indices.ndim() - 1]);
    let flat = flat_positions(&indices, indexed_dims).reshape(vec![queries.clone()]);
    let table = x.reshape(vec![numel(indexed_dims), numel(trailing)]);
    let updates = updates.reshape(vec![queries, numel(trailing)]);
    let written = match reduction(c)? {
        None => table.index_copy(0, flat, updates),
        Some(ScatterReduction::Sum) => table.index_add(0, flat, updates),
        Some(r) => table.index_reduce(0, flat, updates, Combine::new(r)),
    };
    single(written.reshape(x.dims()))
}

fn top_k(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let k = match c.has(1) {
        true => c.first_integer(1)?,
        false => Some(c.int("k", -1)?),
    };
    let k = k.filter(|k| *k >= 0);
    let k = k.ok_or_else(|| invalid("k must be one number, not negative"))?;
    let axis = c.axis("axis", -1, x.ndim())? as i64;
    let unsigned = Unsigned::from_tensor(&x);
    let x = unsigned.ordered(&unsigned.signed(&x));
    let (values, indices) = x.topk(TopK::new(k).dim(axis).largest(c.flag("largest", true)?));
    let values = unsigned.restore(unsigned.ordered(&values));
    Ok(vec![values.into(), indices.into()])
}

fn compress(c: &Call) -> Results {
    let (x, condition) = (c.tensor(0)?, c.tensor(1)?);
    let positions = condition.nonzero().squeeze(1);
    if c.attribute("axis").is_none() {
        let flat = x.reshape(vec![numel(x.dims())]);
        return single(flat.index_select(0, positions));
    }
    let axis = c.axis("axis", 0, x.ndim())?;
    single(x.index_select(axis as i64, positions))
}

fn unique(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let flat = c.attribute("axis").is_none();
    let axis = if flat {
        0
    } else {
        c.axis("axis", 0, x.ndim())?
    };
    let source = if flat {
        x.reshape(vec![numel(x.dims())])
    } else {
        x
    };
    let (values, inverse, counts) = if flat {
        source.unique(())
    } else {
        source.unique(axis as i64)
    };
    values.check()?;
    let (kinds, inverse) = (
        values.dims()[axis].clone(),
        inverse.reshape(vec![source.dims()[axis].clone()]),
    );
    // The first position of each.
    let n = source.dims()[axis].clone();
    let positions = iota(&n);
    let last = Tensor::full(vec![kinds], i64::MAX, DType::I64);
    let first_positions =
        last.scatter_reduce(0, &inverse, positions, Combine::new(ScatterReduction::Amin));
    if c.flag("sorted", true)? {
        return Ok(vec![
            values.into(),
            first_positions.into(),
            inverse.into(),
            counts.into(),
        ]);
    }
    let order = first_positions.argsort(0);
    let rank = order.argsort(0);
    Ok(vec![
        values.index_select(axis as i64, &order).into(),
        first_positions.index_select(0, &order).into(),
        rank.index_select(0, inverse).into(),
        counts.index_select(0, order).into(),
    ])
}

/// Writes the update behind each sample's position along an axis.
fn tensor_scatter(c: &Call) -> Results {
    let (cache, update) = (c.tensor(0)?, c.tensor(1)?);
    let axis = c.axis("axis", -2, cache.ndim())?;
    if update.ndim() != cache.ndim() {
        return Err(invalid("the update and the cache need as many dims"));
    }
    let along = |t: Tensor, a: usize| {
        let mut shape = vec![Dim::ONE; cache.ndim()];
        shape[a] = numel(t.dims());
        t.reshape(shape)
    };
    let steps = along(iota(&update.dims()[axis]), axis);
    let position = match c.optional(2)? {
        Some(first) => steps + along(first.to_dtype(DType::I64), 0),
        None => steps,
    };
    let position = match (c.text("mode", "linear")?, cache.dims()[axis].as_const()) {
        ("linear", _) => position,
        ("circular", Some(n)) => position.remainder(n),
        ("circular", None) => return Err(invalid("this mode needs known sizes")),
        (other, _) => return Err(invalid(format!("there is no mode {other:?}"))),
    };
    single(cache.scatter(axis as i64, position.expand(update.dims()), update))
}
