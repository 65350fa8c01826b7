//! Losses.

use super::{Outputs, rejected, unsupported};
use crate::args::{Args, Failure, Operand, Parsed};
use kiln_tensor::{
    BinaryCrossEntropy, BinaryCrossEntropyWithLogits, CosineEmbedding, CrossEntropy, GaussianNll,
    HingeEmbedding, Huber, KlDiv, MarginRanking, MultiLabelSoftMargin, MultiMargin, Nll,
    PoissonNll, Reduction, SmoothL1, TripletMargin,
};

pub(super) fn call(op: &str, a: &Args) -> Parsed<Outputs> {
    let Some(name) = op.strip_prefix("nn.functional.") else {
        return Err(Failure::Unknown);
    };
    let target = || a.tensor(1, "target");
    let reduction = || -> Parsed<Reduction> {
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
    // Arguments that are given by keyword only.
    let float = |name: &str, default: f64| a.float_or(usize::MAX, name, default);
    let ignore_index = || a.int_or(usize::MAX, "ignore_index", -100);
    Ok(match name {
        "mse_loss" => match a.keyword("weight") {
            None | Some(crate::Arg::None) => a.input()?.mse_loss_with(&target()?, reduction()?),
            Some(_) => return Err(unsupported("a weighted mse_loss")),
        },
        "l1_loss" => a.input()?.l1_loss_with(&target()?, reduction()?),
        "smooth_l1_loss" => {
            let (beta, reduction) = (float("beta", 1.0)?, reduction()?);
            let options = SmoothL1 { beta, reduction };
            a.input()?.smooth_l1_loss_with(&target()?, options)
        }
        "huber_loss" => {
            let (delta, reduction) = (float("delta", 1.0)?, reduction()?);
            let options = Huber { delta, reduction };
            a.input()?.huber_loss_with(&target()?, options)
        }
        "kl_div" => {
            let options = KlDiv::new().log_target(a.bool_or(usize::MAX, "log_target", false)?);
            let (x, y) = (a.input()?, target()?);
            if a.opt_text(usize::MAX, "reduction")?.as_deref() == Some("batchmean") {
                let n = x.shape().map_err(rejected)?.first().copied().unwrap_or(1);
                x.kl_div_with(&y, options.reduction(Reduction::Sum))
                    .div(n as f64)
            } else {
                x.kl_div_with(&y, options.reduction(reduction()?))
            }
        }
        "binary_cross_entropy" => {
            let (weight, reduction) = (weight()?, reduction()?);
            let options = BinaryCrossEntropy { weight, reduction };
            a.input()?.binary_cross_entropy_with(&target()?, options)
        }
        "binary_cross_entropy_with_logits" => {
            let options = BinaryCrossEntropyWithLogits {
                weight: weight()?,
                pos_weight: a.opt_tensor(usize::MAX, "pos_weight")?,
                reduction: reduction()?,
            };
            a.input()?
                .binary_cross_entropy_with_logits_with(&target()?, options)
        }
        "nll_loss" => {
            let options = Nll {
                weight: weight()?,
                ignore_index: ignore_index()?,
                reduction: reduction()?,
            };
            a.input()?.nll_loss_with(&target()?, options)
        }
        "cross_entropy" => {
            let options = CrossEntropy {
                weight: weight()?,
                ignore_index: ignore_index()?,
                label_smoothing: float("label_smoothing", 0.0)?,
                reduction: reduction()?,
            };
            a.input()?.cross_entropy_with(&target()?, options)
        }
        "margin_ranking_loss" => {
            let (margin, reduction) = (a.float_or(3, "margin", 0.0)?, reduction()?);
            let options = MarginRanking { margin, reduction };
            let (x, y) = (a.tensor(0, "input1")?, a.tensor(1, "input2")?);
            x.margin_ranking_loss_with(&y, &a.tensor(2, "target")?, options)
        }
        "cosine_embedding_loss" => {
            let (margin, reduction) = (a.float_or(3, "margin", 0.0)?, reduction()?);
            let options = CosineEmbedding { margin, reduction };
            let (x, y) = (a.tensor(0, "input1")?, a.tensor(1, "input2")?);
            x.cosine_embedding_loss_with(&y, &a.tensor(2, "target")?, options)
        }
        "hinge_embedding_loss" => {
            let (margin, reduction) = (a.float_or(2, "margin", 1.0)?, reduction()?);
            let options = HingeEmbedding { margin, reduction };
            a.input()?.hinge_embedding_loss_with(&target()?, options)
        }
        "multi_margin_loss" => {
            let options = MultiMargin {
                p: a.int_or(2, "p", 1)?,
                margin: a.float_or(3, "margin", 1.0)?,
                weight: a.opt_tensor(4, "weight")?,
                reduction: reduction()?,
            };
            a.input()?.multi_margin_loss_with(&target()?, options)
        }
        "multilabel_margin_loss" => {
            let (target, reduction) = (target()?, reduction()?);
            a.input()?.multilabel_margin_loss_with(&target, reduction)
        }
        "multilabel_soft_margin_loss" => {
            let (weight, reduction) = (weight()?, reduction()?);
            let options = MultiLabelSoftMargin { weight, reduction };
            a.input()?
                .multilabel_soft_margin_loss_with(&target()?, options)
        }
        "poisson_nll_loss" => {
            let options = PoissonNll {
                log_input: a.bool_or(2, "log_input", true)?,
                full: a.bool_or(3, "full", false)?,
                eps: float("eps", 1e-8)?,
                reduction: reduction()?,
            };
            a.input()?.poisson_nll_loss_with(&target()?, options)
        }
        "gaussian_nll_loss" => {
            let var = match a.operand(2, "var")? {
                Operand::Tensor(t) => t,
                Operand::Number(n) => a.input()?.full_like(n),
            };
            let options = GaussianNll {
                full: a.bool_or(3, "full", false)?,
                eps: a.float_or(4, "eps", 1e-6)?,
                reduction: reduction()?,
            };
            a.input()?.gaussian_nll_loss_with(&target()?, &var, options)
        }
        "triplet_margin_loss" | "triplet_margin_with_distance_loss" => {
            let (positive, negative) = (a.tensor(1, "positive")?, a.tensor(2, "negative")?);
            let has_distance = name == "triplet_margin_with_distance_loss";
            let (p, eps) = match has_distance {
                true => (2.0, 1e-6),
                false => (a.float_or(4, "p", 2.0)?, a.float_or(5, "eps", 1e-6)?),
            };
            let options = TripletMargin {
                margin: a.float_or(if has_distance { usize::MAX } else { 3 }, "margin", 1.0)?,
                p,
                eps,
                swap: a.bool_or(if has_distance { usize::MAX } else { 6 }, "swap", false)?,
                reduction: reduction()?,
            };
            a.tensor(0, "anchor")?
                .triplet_margin_loss_with(&positive, &negative, options)
        }
        "soft_margin_loss" => a.input()?.soft_margin_loss_with(&target()?, reduction()?),
        _ => return Err(Failure::Unknown),
    }
    .into())
}
