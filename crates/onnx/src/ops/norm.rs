//! Normalisation.

use super::Record;
use super::conv::per_channel;
use crate::call::{Call, Results, axes, single};
use crate::fault::invalid;
use crate::tensor;
use kiln_base::{Dim, numel};
use kiln_tensor::{Affine, DType, LocalResponse, Result, RunningStats, Tensor, keep};

pub(super) fn find(op: &str) -> Option<Record> {
    Some(match op {
        "BatchNormalization" => batch_norm,
        "GroupNormalization" => group_norm,
        "InstanceNormalization" => |c| {
            let options = RunningStats::new()
                .weight(c.tensor(1)?)
                .bias(c.tensor(2)?)
                .eps(c.float("epsilon", 1e-5)?);
            single(c.tensor(0)?.instance_norm_with(options))
        },
        "LRN" => local_response,
        "LayerNormalization" => layer_norm,
        "LpNormalization" => |c| {
            let x = c.tensor(0)?;
            let axis = c.axis("axis", -1, x.ndim())?;
            let norm = match c.int("p", 2)? {
                1 => x.abs().sum(keep(axis)),
                2 => (&x * &x).sum(keep(axis)).sqrt(),
                p => return Err(invalid(format!("p must be 1 or 2, not {p}"))),
            };
            let y = &x / &norm;
            // A vector of zeros stays one since release 1.20.
            match c.version {
                v if v < 25 => single(y),
                _ => single(y.where_cond(norm.ne(0.0), x.zeros_like())),
            }
        },
        "MeanVarianceNormalization" => |c| {
            let x = c.tensor(0)?;
            let list = axes(&c.ints("axes")?.unwrap_or(vec![0, 2, 3]), x.ndim())?;
            let centred = &x - x.mean(keep(list.clone()));
            let variance = (&centred * &centred).mean(keep(list));
            single(centred / (variance.sqrt() + 1e-9))
        },
        "RMSNormalization" => |c| {
            let x = c.tensor(0)?;
            let from = c.axis("axis", -1, x.ndim())?;
            let precise = statistics_dtype(c, x.dtype())?;
            let eps = c.float("epsilon", 1e-5)?;
            single(rms_normalize(&x, &c.tensor(1)?, from, eps, precise))
        },
        _ => return None,
    })
}

/// Returns the dtype that statistics are computed in.
fn statistics_dtype(c: &Call, dtype: DType) -> Result<DType> {
    match c.int("stash_type", 1)? {
        _ if !dtype.is_half() => Ok(dtype),
        n => tensor::dtype(n),
    }
}

fn batch_norm(c: &Call) -> Results {
    let x = c.tensor(0)?;
    if x.ndim() < 2 {
        return Err(invalid(format!(
            "needs a channel dim, and there are {} dims",
            x.ndim()
        )));
    }
    let spatial = x.ndim() - 2;
    let channel = |i: usize| Ok::<_, kiln_tensor::Error>(per_channel(&c.tensor(i)?, spatial));
    let (scale, bias, mean, var) = (channel(1)?, channel(2)?, channel(3)?, channel(4)?);
    let dtype = x.dtype();
    let eps = c.float("epsilon", 1e-5)?;
    let normalised = |x: &Tensor, mean: &Tensor, var: &Tensor| {
        let spread = (var + eps).rsqrt();
        ((x - mean) * spread * &scale + &bias).to_dtype(dtype)
    };
    // Before version 14, only programs for training have further outputs.
    if !c.flag("training_mode", false)? {
        return single(normalised(&x, &mean, &var));
    }
    let over: Vec<usize> = (0..x.ndim()).filter(|a| *a != 1).collect();
    let batch_mean = x.mean(keep(over.clone()));
    let centred = &x - &batch_mean;
    let batch_var = (&centred * &centred).mean(keep(over));
    let momentum = c.float("momentum", 0.9)?;
    let running = |old: Tensor, new: &Tensor| old * momentum + new.squeeze_all() * (1.0 - momentum);
    let running_mean = running(c.tensor(3)?, &batch_mean);
    let running_var = running(c.tensor(4)?, &batch_var);
    let shape = c.tensor(3)?.dims().to_vec();
    Ok(vec![
        normalised(&x, &batch_mean, &batch_var).into(),
        running_mean.reshape(&shape).into(),
        running_var.reshape(&shape).into(),
    ])
}

fn group_norm(c: &Call) -> Results {
    let (x, scale, bias) = (c.tensor(0)?, c.tensor(1)?, c.tensor(2)?);
    let groups = c.int("num_groups", 0)?;
    let channels = x.dims().get(1).and_then(Dim::as_const);
    let channels = channels.filter(|n| groups > 0 && n % groups == 0);
    let channels =
        channels.ok_or_else(|| invalid(format!("{groups} groups don't divide the channels")))?;
    // Before version 21, there is a number for each group.
    let per_channel_values = |t: Tensor| match c.version < 21 {
        true => t.repeat_interleave(channels / groups, 0),
        false => t,
    };
    let options = Affine::new()
        .weight(per_channel_values(scale))
        .bias(per_channel_values(bias))
        .eps(c.float("epsilon", 1e-5)?);
    single(x.group_norm_with(groups, options))
}

fn layer_norm(c: &Call) -> Results {
    let (x, scale, bias) = (c.tensor(0)?, c.tensor(1)?, c.optional(2)?);
    let from = c.axis("axis", -1, x.ndim())?;
    let eps = c.float("epsilon", 1e-5)?;
    let last = &x.dims()[from..];
    let sizes: Option<Vec<i64>> = last.iter().map(Dim::as_const).collect();
    let fits = |t: &Tensor| t.dims() == last && t.dtype() == x.dtype();
    if let (Some(sizes), false, false) = (sizes, c.wants(1), c.wants(2))
        && fits(&scale)
        && bias.as_ref().is_none_or(fits)
    {
        let options = Affine::new().weight(scale).bias(bias).eps(eps);
        return single(x.layer_norm_with(sizes, options));
    }
    let precise = statistics_dtype(c, x.dtype())?;
    let (y, mean, spread) = layer_normalize(&x, &scale, bias.as_ref(), from, eps, precise);
    Ok(vec![y.into(), mean.into(), spread.into()])
}

/// A layer normalisation over the dims from `from`, the mean and the reciprocal of the deviation, computed in a dtype.
pub(super) fn layer_normalize(
    x: &Tensor,
    scale: &Tensor,
    bias: Option<&Tensor>,
    from: usize,
    eps: f64,
    precise: DType,
) -> (Tensor, Tensor, Tensor) {
    let over: Vec<usize> = (from..x.ndim()).collect();
    let wide = x.to_dtype(precise);
    let mean = wide.mean(keep(over.clone()));
    let centred = &wide - &mean;
    let spread = ((&centred * &centred).mean(keep(over)) + eps).rsqrt();
    let y = (centred * &spread).to_dtype(x.dtype()) * scale;
    let y = bias.map_or(y.clone(), |bias| y + bias);
    (y, mean, spread)
}

/// A normalisation by the root of the mean square over the dims from `from`, computed in a dtype.
pub(super) fn rms_normalize(
    x: &Tensor,
    scale: &Tensor,
    from: usize,
    eps: f64,
    precise: DType,
) -> Tensor {
    let over: Vec<usize> = (from..x.ndim()).collect();
    let wide = x.to_dtype(precise);
    let mean = (&wide * &wide).mean(keep(over));
    (wide * (mean + eps).rsqrt()).to_dtype(x.dtype()) * scale
}

fn local_response(c: &Call) -> Results {
    let x = c.tensor(0)?;
    let size = c.int("size", 0)?;
    let options = LocalResponse::new(size)
        .alpha(c.float("alpha", 1e-4)?)
        .beta(c.float("beta", 0.75)?)
        .k(c.float("bias", 1.0)?);
    // Of an even number of channels, PyTorch has the odd one before, ONNX behind.
    if size % 2 == 0 {
        return single(x.flip(1).local_response_norm(options).flip(1));
    }
    if numel(x.dims()).is(0) {
        return single(x);
    }
    single(x.local_response_norm(options))
}
