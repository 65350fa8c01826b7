//! Losses.

use super::rows;
use kiln_tensor::{
    BinaryCrossEntropy, BinaryCrossEntropyWithLogits, CosineEmbedding, CrossEntropy, Ctc,
    GaussianNll, HingeEmbedding, Huber, KlDiv, MarginRanking, MultiLabelSoftMargin, MultiMargin,
    Nll, PoissonNll, Reduction, Result, SmoothL1, Tensor, TripletMargin, TripletMarginWithDistance,
};

rows! {
    (x: &Tensor, y: &Tensor, z: &Tensor, target: &Tensor, weight: Option<&Tensor>, reduction: Reduction);
    "torch.nn.functional.mse_loss" = { x.mse_loss(target) };
    "torch.nn.functional.mse_loss(reduction)" = { x.mse_loss_with(target, reduction) } "no `weight`; losses with more options have `.reduction(..)` among them";
    "torch.nn.functional.l1_loss" = { x.l1_loss(target) };
    "torch.nn.functional.l1_loss(reduction)" = { x.l1_loss_with(target, reduction) };
    "torch.nn.functional.smooth_l1_loss" = { x.smooth_l1_loss(target) };
    "torch.nn.functional.smooth_l1_loss(beta)" = { x.smooth_l1_loss_with(target, SmoothL1::new().beta(0.5)) };
    "torch.nn.functional.huber_loss" = { x.huber_loss(target) };
    "torch.nn.functional.huber_loss(delta)" = { x.huber_loss_with(target, Huber::new().delta(0.5)) };
    "torch.nn.functional.cross_entropy" = { x.cross_entropy(target) };
    "torch.nn.functional.cross_entropy(weight, label_smoothing, …)" = { x.cross_entropy_with(target, CrossEntropy::new().weight(weight).label_smoothing(0.1).ignore_index(-1).reduction(reduction)) };
    "torch.nn.functional.nll_loss" = { x.nll_loss(target) };
    "torch.nn.functional.nll_loss(weight, ignore_index)" = { x.nll_loss_with(target, Nll::new().weight(weight).ignore_index(-1)) };
    "torch.nn.functional.ctc_loss" = { x.ctc_loss(target, y, z) };
    "torch.nn.functional.ctc_loss(blank, zero_infinity)" = { x.ctc_loss_with(target, y, z, Ctc::new().blank(4).zero_infinity(true)) } "gradients are those of the function itself, without PyTorch's `exp(log_probs)`, which `log_softmax` takes away";
    "torch.nn.functional.kl_div" = { x.kl_div(target) } "`batchmean` is `Reduction::Sum` divided by the batch";
    "torch.nn.functional.kl_div(log_target=True)" = { x.kl_div_with(target, KlDiv::new().log_target(true)) };
    "torch.nn.functional.binary_cross_entropy" = { x.binary_cross_entropy(target) };
    "torch.nn.functional.binary_cross_entropy(weight)" = { x.binary_cross_entropy_with(target, BinaryCrossEntropy::new().weight(weight)) };
    "torch.nn.functional.binary_cross_entropy_with_logits" = { x.binary_cross_entropy_with_logits(target) };
    "torch.nn.functional.binary_cross_entropy_with_logits(pos_weight)" = { x.binary_cross_entropy_with_logits_with(target, BinaryCrossEntropyWithLogits::new().pos_weight(weight)) } "and `.weight(..)`";
    "torch.nn.functional.gaussian_nll_loss" = { x.gaussian_nll_loss(target, y) };
    "torch.nn.functional.gaussian_nll_loss(full, eps)" = { x.gaussian_nll_loss_with(target, y, GaussianNll::new().full(true).eps(1e-3)) };
    "torch.nn.functional.poisson_nll_loss" = { x.poisson_nll_loss(target) };
    "torch.nn.functional.poisson_nll_loss(log_input, full, eps)" = { x.poisson_nll_loss_with(target, PoissonNll::new().log_input(false).full(true).eps(1e-3)) };
    "torch.nn.functional.hinge_embedding_loss" = { x.hinge_embedding_loss(target) };
    "torch.nn.functional.hinge_embedding_loss(margin)" = { x.hinge_embedding_loss_with(target, HingeEmbedding::new().margin(0.5)) };
    "torch.nn.functional.cosine_embedding_loss" = { x.cosine_embedding_loss(y, target) };
    "torch.nn.functional.cosine_embedding_loss(margin)" = { x.cosine_embedding_loss_with(y, target, CosineEmbedding::new().margin(0.5)) };
    "torch.nn.functional.margin_ranking_loss" = { x.margin_ranking_loss(y, target) };
    "torch.nn.functional.margin_ranking_loss(margin)" = { x.margin_ranking_loss_with(y, target, MarginRanking::new().margin(0.5)) };
    "torch.nn.functional.soft_margin_loss" = { x.soft_margin_loss(target) };
    "torch.nn.functional.soft_margin_loss(reduction)" = { x.soft_margin_loss_with(target, reduction) };
    "torch.nn.functional.multi_margin_loss" = { x.multi_margin_loss(target) };
    "torch.nn.functional.multi_margin_loss(p, margin, weight)" = { x.multi_margin_loss_with(target, MultiMargin::new().p(2).margin(0.5).weight(weight)) };
    "torch.nn.functional.multilabel_margin_loss" = { x.multilabel_margin_loss(target) };
    "torch.nn.functional.multilabel_margin_loss(reduction)" = { x.multilabel_margin_loss_with(target, reduction) };
    "torch.nn.functional.multilabel_soft_margin_loss" = { x.multilabel_soft_margin_loss(target) };
    "torch.nn.functional.multilabel_soft_margin_loss(weight)" = { x.multilabel_soft_margin_loss_with(target, MultiLabelSoftMargin::new().weight(weight)) };
    "torch.nn.functional.triplet_margin_loss" = { x.triplet_margin_loss(y, z) };
    "torch.nn.functional.triplet_margin_loss(margin, p, swap)" = { x.triplet_margin_loss_with(y, z, TripletMargin::new().margin(0.5).p(1.0).swap(true)) } "and `.eps(..)`";
    "torch.nn.functional.triplet_margin_with_distance_loss" = { x.triplet_margin_with_distance_loss(y, z, |a, b| a.dist(b)) };
    "torch.nn.functional.triplet_margin_with_distance_loss(margin, swap)" = { x.triplet_margin_with_distance_loss_with(y, z, |a, b| a.dist(b), TripletMarginWithDistance::new().swap(true)) };
}
