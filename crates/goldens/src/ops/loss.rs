//! Losses.

use super::{Outputs, rejected, unsupported};
use crate::args::{Args, Failure, Found, Operand};
use kiln_tensor::Reduction;

pub(super) fn call(op: &str, a: &Args) -> Found<Outputs> {
    let Some(name) = op.strip_prefix("nn.functional.") else {
        return Err(Failure::Unknown);
    };
    let target = || a.tensor(1, "target");
    let reduction = || -> Found<Reduction> {
        for old in ["size_average", "reduce"] {
            if a.keyword(old)
                .is_some_and(|v| !matches!(v, crate::Arg::None))
            {
                return Err(unsupported("an outdated argument"));
            }
        }
        match a.opt_text(usize::MAX, "reduction")? {
            Some(text) => text.parse().map_err(rejected),
            None => Ok(Reduction::Mean),
        }
    };
    let weight = || a.opt_tensor(2, "weight");
    Ok(match name {
        "mse_loss" => match a.keyword("weight") {
            None | Some(crate::Arg::None) => a.input()?.mse_loss(&target()?, reduction()?),
            Some(_) => return Err(unsupported("a weighted mse_loss")),
        },
        "l1_loss" => a.input()?.l1_loss(&target()?, reduction()?),
        "smooth_l1_loss" => {
            let beta = a.float_or(usize::MAX, "beta", 1.0)?;
            a.input()?.smooth_l1_loss(&target()?, reduction()?, beta)
        }
        "huber_loss" => {
            let delta = a.float_or(usize::MAX, "delta", 1.0)?;
            a.input()?.huber_loss(&target()?, reduction()?, delta)
        }
        "kl_div" => {
            let log_target = a.bool_or(usize::MAX, "log_target", false)?;
            let (x, y) = (a.input()?, target()?);
            if a.opt_text(usize::MAX, "reduction")?.as_deref() == Some("batchmean") {
                let n = x.shape().map_err(rejected)?.first().copied().unwrap_or(1);
                x.kl_div(&y, Reduction::Sum, log_target).div(n as f64)
            } else {
                x.kl_div(&y, reduction()?, log_target)
            }
        }
        "binary_cross_entropy" => {
            a.input()?
                .binary_cross_entropy(&target()?, weight()?.as_ref(), reduction()?)
        }
        "binary_cross_entropy_with_logits" => {
            let positive = a.opt_tensor(usize::MAX, "pos_weight")?;
            let (weight, reduction) = (weight()?, reduction()?);
            a.input()?.binary_cross_entropy_with_logits(
                &target()?,
                weight.as_ref(),
                reduction,
                positive.as_ref(),
            )
        }
        "nll_loss" => {
            let ignore = a.int_or(usize::MAX, "ignore_index", -100)?;
            a.input()?
                .nll_loss(&target()?, weight()?.as_ref(), ignore, reduction()?)
        }
        "cross_entropy" => {
            let ignore = a.int_or(usize::MAX, "ignore_index", -100)?;
            let smoothing = a.float_or(usize::MAX, "label_smoothing", 0.0)?;
            let (weight, reduction) = (weight()?, reduction()?);
            a.input()?
                .cross_entropy(&target()?, weight.as_ref(), ignore, reduction, smoothing)
        }
        "margin_ranking_loss" => {
            let margin = a.float_or(3, "margin", 0.0)?;
            let (x, y) = (a.tensor(0, "input1")?, a.tensor(1, "input2")?);
            x.margin_ranking_loss(&y, &a.tensor(2, "target")?, margin, reduction()?)
        }
        "cosine_embedding_loss" => {
            let margin = a.float_or(3, "margin", 0.0)?;
            let (x, y) = (a.tensor(0, "input1")?, a.tensor(1, "input2")?);
            x.cosine_embedding_loss(&y, &a.tensor(2, "target")?, margin, reduction()?)
        }
        "hinge_embedding_loss" => {
            let margin = a.float_or(2, "margin", 1.0)?;
            a.input()?
                .hinge_embedding_loss(&target()?, margin, reduction()?)
        }
        "multi_margin_loss" => {
            let (p, margin) = (a.int_or(2, "p", 1)?, a.float_or(3, "margin", 1.0)?);
            let weight = a.opt_tensor(4, "weight")?;
            let reduction = reduction()?;
            a.input()?
                .multi_margin_loss(&target()?, p, margin, weight.as_ref(), reduction)
        }
        "multilabel_margin_loss" => a.input()?.multilabel_margin_loss(&target()?, reduction()?),
        "multilabel_soft_margin_loss" => {
            a.input()?
                .multilabel_soft_margin_loss(&target()?, weight()?.as_ref(), reduction()?)
        }
        "poisson_nll_loss" => {
            let log = a.bool_or(2, "log_input", true)?;
            let full = a.bool_or(3, "full", false)?;
            let eps = a.float_or(usize::MAX, "eps", 1e-8)?;
            a.input()?
                .poisson_nll_loss(&target()?, log, full, eps, reduction()?)
        }
        "gaussian_nll_loss" => {
            let var = match a.operand(2, "var")? {
                Operand::Tensor(t) => t,
                Operand::Number(n) => a.input()?.full_like(n),
            };
            let (full, eps) = (a.bool_or(3, "full", false)?, a.float_or(4, "eps", 1e-6)?);
            a.input()?
                .gaussian_nll_loss(&target()?, &var, full, eps, reduction()?)
        }
        "triplet_margin_loss" | "triplet_margin_with_distance_loss" => {
            let (positive, negative) = (a.tensor(1, "positive")?, a.tensor(2, "negative")?);
            let with = name == "triplet_margin_with_distance_loss";
            let margin = a.float_or(if with { usize::MAX } else { 3 }, "margin", 1.0)?;
            let (p, eps) = match with {
                true => (2.0, 1e-6),
                false => (a.float_or(4, "p", 2.0)?, a.float_or(5, "eps", 1e-6)?),
            };
            let swap = a.bool_or(if with { usize::MAX } else { 6 }, "swap", false)?;
            let (anchor, reduction) = (a.tensor(0, "anchor")?, reduction()?);
            anchor.triplet_margin_loss(&positive, &negative, margin, p, eps, swap, reduction)
        }
        "soft_margin_loss" => a.input()?.soft_margin_loss(&target()?, reduction()?),
        _ => return Err(Failure::Unknown),
    }
    .into())
}
