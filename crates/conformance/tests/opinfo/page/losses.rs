//! Losses.

use super::rows;
use kiln_tensor::{Reduction, Result, Tensor};

rows! {
    (x: &Tensor, y: &Tensor, z: &Tensor, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction);
    "torch.nn.functional.mse_loss" = { x.mse_loss(target, reduction) } "no `weight`";
    "torch.nn.functional.l1_loss" = { x.l1_loss(target, reduction) };
    "torch.nn.functional.smooth_l1_loss" = { x.smooth_l1_loss(target, reduction, 1.0) };
    "torch.nn.functional.huber_loss" = { x.huber_loss(target, reduction, 1.0) };
    "torch.nn.functional.cross_entropy" = { x.cross_entropy(target, weight, -100, reduction, 0.0) } "`ignore_index`, then `label_smoothing` last";
    "torch.nn.functional.nll_loss" = { x.nll_loss(target, weight, -100, reduction) };
    "torch.nn.functional.kl_div" = { x.kl_div(target, reduction, false) } "`batchmean` is `Reduction::Sum` divided by the batch";
    "torch.nn.functional.binary_cross_entropy" = { x.binary_cross_entropy(target, weight, reduction) };
    "torch.nn.functional.binary_cross_entropy_with_logits" = { x.binary_cross_entropy_with_logits(target, weight, reduction, None) } "`pos_weight` last";
    "torch.nn.functional.gaussian_nll_loss" = { x.gaussian_nll_loss(target, y, false, 1e-6, reduction) } "negative variances count as `eps`; PyTorch rejects them";
    "torch.nn.functional.poisson_nll_loss" = { x.poisson_nll_loss(target, true, false, 1e-8, reduction) };
    "torch.nn.functional.hinge_embedding_loss" = { x.hinge_embedding_loss(target, 1.0, reduction) };
    "torch.nn.functional.cosine_embedding_loss" = { x.cosine_embedding_loss(y, target, 0.0, reduction) };
    "torch.nn.functional.margin_ranking_loss" = { x.margin_ranking_loss(y, target, 0.0, reduction) };
    "torch.nn.functional.soft_margin_loss" = { x.soft_margin_loss(target, reduction) };
    "torch.nn.functional.multi_margin_loss" = { x.multi_margin_loss(target, 1, 1.0, weight, reduction) };
    "torch.nn.functional.multilabel_margin_loss" = { x.multilabel_margin_loss(target, reduction) };
    "torch.nn.functional.multilabel_soft_margin_loss" = { x.multilabel_soft_margin_loss(target, weight, reduction) };
    "torch.nn.functional.triplet_margin_loss" = { x.triplet_margin_loss(y, z, 1.0, 2.0, 1e-6, false, reduction) } "`margin`, `p`, `eps`, `swap`";
    "torch.nn.functional.triplet_margin_with_distance_loss" = { x.triplet_margin_with_distance_loss(y, z, |a, b| a.dist(b, 2.0), 1.0, false, reduction) };
}
