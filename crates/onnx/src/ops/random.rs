//! Random numbers. A seed gives the same numbers in each run, which are not those of another program.

use super::Record;
use crate::call::{Call, Results, single};
use crate::fault::invalid;
use kiln_base::Dim;
use kiln_tensor::{DType, Multinomial, Result, Tensor, with_seed};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "Bernoulli" => |c| {
            let chances = c.tensor(0)?;
            let dtype = c.dtype("dtype", chances.dtype())?;
            single(draw_with_seed(c, || chances.to_dtype(DType::F32).bernoulli())?.to_dtype(dtype))
        },
        "Multinomial" => |c| {
            let count = c.int("sample_size", 1)?;
            let chances = c.tensor(0)?.softmax(1);
            let options = Multinomial::new(count).replacement(true);
            let drawn = draw_with_seed(c, || chances.multinomial(options))?;
            single(drawn.to_dtype(c.dtype("dtype", DType::I32)?))
        },
        "RandomNormal" => |c| normal(c, &shape(c)?, DType::F32),
        "RandomNormalLike" => |c| {
            let x = c.tensor(0)?;
            normal(c, x.dims(), x.dtype())
        },
        "RandomUniform" => |c| uniform(c, &shape(c)?, DType::F32),
        "RandomUniformLike" => |c| {
            let x = c.tensor(0)?;
            uniform(c, x.dims(), x.dtype())
        },
        _ => return None,
    })
}

fn shape(c: &Call) -> Result<Vec<Dim>> {
    let list = c.ints("shape")?;
    let list = list.ok_or_else(|| invalid("the shape is missing"))?;
    Ok(list.into_iter().map(Dim::Const).collect())
}

/// Draws with the node's seed, if it has one. The numbers are then those of each run, so they are not part of a program,
/// which draws others in each.
fn draw_with_seed(c: &Call, f: impl FnOnce() -> Tensor) -> Result<Tensor> {
    Ok(match c.maybe_float("seed")? {
        Some(seed) => with_seed((seed as f32).to_bits().into(), || f().realize().cloned())?,
        None => f(),
    })
}

/// Returns the dtype of the result, and one that numbers are drawn in.
fn dtypes(c: &Call, default: DType) -> Result<(DType, DType)> {
    let dtype = c.dtype("dtype", default)?;
    Ok((
        dtype,
        if dtype == DType::F64 {
            DType::F64
        } else {
            DType::F32
        },
    ))
}

fn normal(c: &Call, shape: &[Dim], default: DType) -> Results {
    let (dtype, drawn) = dtypes(c, default)?;
    let (mean, scale) = (c.float("mean", 0.0)?, c.float("scale", 1.0)?);
    let y = draw_with_seed(c, || Tensor::randn(shape, drawn))? * scale + mean;
    single(y.to_dtype(dtype))
}

fn uniform(c: &Call, shape: &[Dim], default: DType) -> Results {
    let (dtype, drawn) = dtypes(c, default)?;
    let (low, high) = (c.float("low", 0.0)?, c.float("high", 1.0)?);
    let y = draw_with_seed(c, || Tensor::rand(shape, drawn))? * (high - low) + low;
    single(y.to_dtype(dtype))
}
