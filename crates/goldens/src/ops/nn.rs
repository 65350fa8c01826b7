//! Activations, convolutions, normalisation and attention.

use super::{Outputs, rejected, typed_input, unsupported};
use crate::args::{Arg, Args, Failure, Parsed};
use kiln_tensor::{
    Affine, Attention, Conv, ConvTranspose, Cosine, GridSample, InProjection, IntList,
    InterpolateMode, InterpolateSize, LocalResponse, MultiHeadAttention, Normalize, Padding,
    Pairwise, RunningStats, SoftPlus, Tensor, Var, cdist_with,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let name = op.strip_prefix("nn.functional.").unwrap_or(op);
    if let Some(y) = activation(name, a)? {
        return Ok(y.into());
    }
    if let Some(y) = normalisation(name, a)? {
        return Ok(y);
    }
    Ok(match name {
        "conv1d" | "conv2d" | "conv3d" => convolution(name, a)?,
        "conv_transpose1d" | "conv_transpose2d" | "conv_transpose3d" => transposed(name, a)?,
        "scaled_dot_product_attention" => {
            let (key, value) = (a.tensor(1, "key")?, a.tensor(2, "value")?);
            let mask = a.opt_tensor(3, "attn_mask")?;
            let p = a.float_or(4, "dropout_p", 0.0)?;
            if p != 0.0 {
                return Err(unsupported("dropout, which is random"));
            }
            let causal = a.bool_or(5, "is_causal", false)?;
            let scale = a.opt_float(6, "scale")?;
            let query = a.tensor(0, "query")?;
            let grouped = a.bool_or(7, "enable_gqa", false)?;
            query.scaled_dot_product_attention_with(
                &key,
                &value,
                Attention::new()
                    .attn_mask(&mask)
                    .dropout_p(p)
                    .is_causal(causal)
                    .scale(scale)
                    .enable_gqa(grouped),
            )
        }
        "multi_head_attention_forward" => return multi_head(a),
        "interpolate" => interpolate(a)?,
        "grid_sample" => {
            let mode = a.opt_text(2, "mode")?.unwrap_or("bilinear".into());
            let padding = a.opt_text(3, "padding_mode")?.unwrap_or("zeros".into());
            let options = GridSample {
                mode: mode.parse().map_err(rejected)?,
                padding_mode: padding.parse().map_err(rejected)?,
                align_corners: a.bool_or(4, "align_corners", false)?,
            };
            a.input()?.grid_sample_with(&a.tensor(1, "grid")?, options)
        }
        "cosine_similarity" => {
            let (dim, eps) = (a.int_or(2, "dim", 1)?, a.float_or(3, "eps", 1e-8)?);
            a.tensor(0, "x1")?
                .cosine_similarity_with(&a.tensor(1, "x2")?, Cosine::new().dim(dim).eps(eps))
        }
        "pairwise_distance" => {
            let (p, eps) = (a.float_or(2, "p", 2.0)?, a.float_or(3, "eps", 1e-6)?);
            let keepdim = a.bool_or(4, "keepdim", false)?;
            a.tensor(0, "x1")?.pairwise_distance_with(
                &a.tensor(1, "x2")?,
                Pairwise::new().p(p).eps(eps).keepdim(keepdim),
            )
        }
        "pdist" => a.input()?.pdist_with(a.float_or(1, "p", 2.0)?),
        "cdist" => {
            a.opt_text(3, "compute_mode")?;
            cdist_with(
                &a.tensor(0, "x1")?,
                &a.tensor(1, "x2")?,
                a.float_or(2, "p", 2.0)?,
            )
        }
        "dist" => a
            .input()?
            .dist_with(&a.tensor(1, "other")?, a.float_or(2, "p", 2.0)?),
        _ => return Err(Failure::Unknown),
    }
    .into())
}

fn multi_head(a: &Args) -> Parsed<Outputs> {
    let optional = |i: usize, name: &str| a.opt_tensor(i, name);
    let (query, key, value) = (
        a.tensor(0, "query")?,
        a.tensor(1, "key")?,
        a.tensor(2, "value")?,
    );
    let e = a.int(3, "embed_dim_to_check")?;
    if query.shape().map_err(rejected)?.last().copied() != Some(e as usize) {
        return Err(rejected(format!("the query's embedding is not {e}")));
    }
    let packed = optional(5, "in_proj_weight")?;
    let bias = optional(6, "in_proj_bias")?;
    let bias_kv = optional(7, "bias_k")?.zip(optional(8, "bias_v")?);
    let (dropout_p, training) = (
        a.float_or(10, "dropout_p", 0.0)?,
        a.bool_or(13, "training", true)?,
    );
    if dropout_p != 0.0 && training {
        return Err(unsupported("dropout, which is random"));
    }
    let out = a.tensor(11, "out_proj_weight")?;
    let out_bias = optional(12, "out_proj_bias")?;
    let (padding, mask) = (
        optional(14, "key_padding_mask")?,
        optional(16, "attn_mask")?,
    );
    let separate = [
        optional(18, "q_proj_weight")?,
        optional(19, "k_proj_weight")?,
        optional(20, "v_proj_weight")?,
    ];
    let fixed = [optional(21, "static_k")?, optional(22, "static_v")?];
    let is_causal = a.bool_or(24, "is_causal", false)?;
    if is_causal && mask.is_none() {
        return Err(rejected("is_causal needs the mask that it describes"));
    }
    let in_proj_weight = match (&separate, &packed) {
        ([Some(q), Some(k), Some(v)], _) if a.bool_or(17, "use_separate_proj_weight", false)? => {
            InProjection::Separate([q, k, v])
        }
        (_, Some(packed)) => InProjection::Packed(packed),
        _ => return Err(rejected("needs the weights of its projections")),
    };
    a.bool_or(17, "use_separate_proj_weight", false)?;
    let call = MultiHeadAttention {
        num_heads: a.int(4, "num_heads")?,
        in_proj_weight,
        in_proj_bias: bias.as_ref(),
        bias_kv: bias_kv.as_ref().map(|(k, v)| (k, v)),
        add_zero_attn: a.bool_or(9, "add_zero_attn", false)?,
        dropout_p,
        out_proj_weight: &out,
        out_proj_bias: out_bias.as_ref(),
        training,
        key_padding_mask: padding.as_ref(),
        need_weights: a.bool_or(15, "need_weights", true)?,
        attn_mask: mask.as_ref(),
        is_causal,
        average_attn_weights: a.bool_or(23, "average_attn_weights", true)?,
        static_kv: [fixed[0].as_ref(), fixed[1].as_ref()],
    };
    let (y, weights) = query.multi_head_attention_forward(&key, &value, &call);
    let mut out = vec![y];
    out.extend(weights);
    Ok(out.into())
}

fn activation(name: &str, a: &Args) -> Parsed<Option<Tensor>> {
    let dim = || {
        a.opt_int(2, "_stacklevel")?;
        a.int(1, "dim")
    };
    let y = match name {
        "softmax" => typed_input(a)?.softmax(dim()?),
        "log_softmax" => typed_input(a)?.log_softmax(dim()?),
        "softmin" => typed_input(a)?.softmin(dim()?),
        "gelu" => match a.opt_text(1, "approximate")?.as_deref() {
            None | Some("none") => a.input()?.gelu(),
            Some("tanh") => a.input()?.gelu_tanh(),
            Some(other) => return Err(rejected(format!("approximate = {other:?}"))),
        },
        "leaky_relu" => a
            .input()?
            .leaky_relu_with(a.float_or(1, "negative_slope", 0.01)?),
        "prelu" => a.input()?.prelu(&a.tensor(1, "weight")?),
        "elu" => a.input()?.elu_with(a.float_or(1, "alpha", 1.0)?),
        "celu" => a.input()?.celu_with(a.float_or(1, "alpha", 1.0)?),
        "hardtanh" => {
            let (low, high) = (
                a.number_or(1, "min_val", -1i64)?,
                a.number_or(2, "max_val", 1i64)?,
            );
            a.input()?.hardtanh_with(low, high)
        }
        "threshold" => a
            .input()?
            .threshold(a.number(1, "threshold")?, a.number(2, "value")?),
        "hardshrink" => a.input()?.hardshrink_with(a.float_or(1, "lambd", 0.5)?),
        "softshrink" => a.input()?.softshrink_with(a.float_or(1, "lambd", 0.5)?),
        "softplus" => {
            let (beta, threshold) = (
                a.float_or(1, "beta", 1.0)?,
                a.float_or(2, "threshold", 20.0)?,
            );
            a.input()?
                .softplus_with(SoftPlus::new().beta(beta).threshold(threshold))
        }
        "glu" => a.input()?.glu(a.int_or(1, "dim", -1)?),
        "dropout" => return Err(unsupported("dropout, which is random")),
        _ => return Ok(None),
    };
    a.bool_or(usize::MAX, "inplace", false)?;
    Ok(Some(y))
}

fn normalisation(name: &str, a: &Args) -> Parsed<Option<Outputs>> {
    let y = match name {
        "batch_norm" | "instance_norm" => return statistics(name, a).map(Some),
        "layer_norm" => {
            let (weight, bias) = (a.opt_tensor(2, "weight")?, a.opt_tensor(3, "bias")?);
            let eps = a.float_or(4, "eps", 1e-5)?;
            let shape = a.ints(1, "normalized_shape")?;
            a.input()?
                .layer_norm_with(shape, Affine::new().weight(&weight).bias(&bias).eps(eps))
        }
        "rms_norm" => {
            let weight = a.opt_tensor(2, "weight")?;
            let eps = a.opt_float(3, "eps")?;
            a.input()?.rms_norm_with(
                a.ints(1, "normalized_shape")?,
                Affine::new().weight(&weight).eps(eps),
            )
        }
        "group_norm" => {
            let (weight, bias) = (a.opt_tensor(2, "weight")?, a.opt_tensor(3, "bias")?);
            let eps = a.float_or(4, "eps", 1e-5)?;
            let groups = a.int(1, "num_groups")?;
            a.input()?
                .group_norm_with(groups, Affine::new().weight(&weight).bias(&bias).eps(eps))
        }
        "normalize" => {
            let (p, dims) = (a.float_or(1, "p", 2.0)?, a.ints_or(2, "dim", &[1])?);
            a.input()?.normalize_with(
                dims,
                Normalize::new().p(p).eps(a.float_or(3, "eps", 1e-12)?),
            )
        }
        "renorm" => {
            let (p, dim) = (a.float_or(1, "p", 2.0)?, a.int(2, "dim")?);
            a.input()?.renorm(p, dim, a.float_or(3, "maxnorm", 1.0)?)
        }
        "local_response_norm" => {
            let (alpha, beta) = (a.float_or(2, "alpha", 1e-4)?, a.float_or(3, "beta", 0.75)?);
            let k = a.float_or(4, "k", 1.0)?;
            a.input()?.local_response_norm(
                LocalResponse::new(a.int(1, "size")?)
                    .alpha(alpha)
                    .beta(beta)
                    .k(k),
            )
        }
        _ => return Ok(None),
    };
    Ok(Some(y.into()))
}

/// Normalisations that keep running statistics.
fn statistics(name: &str, a: &Args) -> Parsed<Outputs> {
    let running = |i: usize, what: &str| -> Parsed<Option<(String, Var)>> {
        let Some(t) = a.opt_tensor(i, what)? else {
            return Ok(None);
        };
        let input = a.tensor_name(i, what).unwrap_or_default().to_string();
        Ok(Some((input, Var::new(&t).map_err(rejected)?)))
    };
    let (mean, var) = (running(1, "running_mean")?, running(2, "running_var")?);
    let (weight, bias) = (a.opt_tensor(3, "weight")?, a.opt_tensor(4, "bias")?);
    let cell = |running: &Option<(String, Var)>| running.as_ref().map(|(_, cell)| cell.clone());
    let (momentum, eps) = (a.float_or(6, "momentum", 0.1)?, a.float_or(7, "eps", 1e-5)?);
    let options = RunningStats::new()
        .running_mean(cell(&mean))
        .running_var(cell(&var))
        .weight(&weight)
        .bias(&bias)
        .momentum(momentum)
        .eps(eps);
    let x = a.input()?;
    let y = match name {
        "batch_norm" => x.batch_norm_with(options.training(a.bool_or(5, "training", false)?)),
        _ => x.instance_norm_with(options.training(a.bool_or(5, "use_input_stats", true)?)),
    };
    Ok(Outputs {
        tensors: vec![y],
        assigned: mean
            .into_iter()
            .chain(var)
            .map(|(input, var)| (input, var.get()))
            .collect(),
    })
}

fn convolution(name: &str, a: &Args) -> Parsed<Tensor> {
    let (x, weight, bias) = (a.input()?, a.tensor(1, "weight")?, a.opt_tensor(2, "bias")?);
    let stride = a.ints_or(3, "stride", &[1])?;
    let padding: Padding = match a.get(4, "padding") {
        Some(Arg::Text(t)) if t == "same" => Padding::Same,
        Some(Arg::Text(t)) if t == "valid" => 0.into(),
        Some(Arg::Text(t)) => return Err(rejected(format!("padding = {t:?}"))),
        _ => a.ints_or(4, "padding", &[0])?.as_slice().into(),
    };
    let dilation = a.ints_or(5, "dilation", &[1])?;
    let options = Conv {
        stride: stride.into(),
        padding,
        dilation: dilation.into(),
        groups: a.int_or(6, "groups", 1)?,
        bias,
    };
    Ok(match name {
        "conv1d" => x.conv1d_with(&weight, options),
        "conv2d" => x.conv2d_with(&weight, options),
        _ => x.conv3d_with(&weight, options),
    })
}

fn transposed(name: &str, a: &Args) -> Parsed<Tensor> {
    let (x, weight, bias) = (a.input()?, a.tensor(1, "weight")?, a.opt_tensor(2, "bias")?);
    let (stride, padding) = (
        a.ints_or(3, "stride", &[1])?,
        a.ints_or(4, "padding", &[0])?,
    );
    let extra = a.ints_or(5, "output_padding", &[0])?;
    let (groups, dilation) = (a.int_or(6, "groups", 1)?, a.ints_or(7, "dilation", &[1])?);
    let options = ConvTranspose {
        stride: stride.into(),
        padding: padding.into(),
        output_padding: extra.into(),
        groups,
        dilation: dilation.into(),
        bias,
    };
    Ok(match name {
        "conv_transpose1d" => x.conv_transpose1d_with(&weight, options),
        "conv_transpose2d" => x.conv_transpose2d_with(&weight, options),
        _ => x.conv_transpose3d_with(&weight, options),
    })
}

fn interpolate(a: &Args) -> Parsed<Tensor> {
    let x = a.input()?;
    let align_corners = a.bool_or(4, "align_corners", false)?;
    let mode = match a.opt_text(3, "mode")?.as_deref() {
        None | Some("nearest") => InterpolateMode::Nearest,
        Some("nearest-exact") => InterpolateMode::NearestExact,
        Some("linear") | Some("bilinear") | Some("trilinear") => {
            InterpolateMode::Linear { align_corners }
        }
        Some("bicubic") => InterpolateMode::Bicubic { align_corners },
        Some("area") => InterpolateMode::Area,
        Some(other) => return Err(rejected(format!("mode = {other:?}"))),
    };
    let recompute = a.bool_or(5, "recompute_scale_factor", false)?;
    if a.bool_or(6, "antialias", false)? {
        return Err(unsupported("antialias"));
    }
    let factor = |f: &Arg| match f {
        Arg::Number(n) => Some(n.as_f64()),
        _ => None,
    };
    let factors = match a.get(2, "scale_factor") {
        Some(Arg::List(l)) => l.iter().map(factor).collect(),
        Some(single) => factor(single).map(|f| vec![f]),
        None => None,
    };
    let size = match (a.opt_ints(1, "size")?, factors) {
        (Some(size), None) => InterpolateSize::Size(IntList(size)),
        (None, Some(factors)) if recompute => {
            let shape = x.shape().map_err(rejected)?;
            let sizes = shape[2..].iter().enumerate();
            let sizes = sizes.map(|(i, n)| (*n as f64 * factors[i % factors.len()]) as i64);
            InterpolateSize::Size(IntList(sizes.collect()))
        }
        (None, Some(factors)) => InterpolateSize::ScaleFactor(factors),
        _ => return Err(rejected("needs either a size or a scale factor")),
    };
    Ok(x.interpolate(size, mode))
}
