//! Gradients where a function has no derivative, at ties and kinks, and where it is zero. The expected values are
//! PyTorch's (2.15, on a CPU, in f64).
//!
//! PyTorch does not define the choice among equal elements of `sort`, `topk`, `kthvalue`, `median` along a dim and
//! `quantile`. Here sorts are stable, and the table has the cases that agree. Some gradients are zero where PyTorch
//! has NaN: `hypot` and `xlogy` of zeros. PyTorch has no gradient of `nextafter`. Some follow the mathematical
//! definition: extremes of a scatter without its own element (PyTorch counts that among the equals), several largest
//! differences in `cdist` of order infinity (each has the whole gradient there), and a median that is NaN.

use kiln::{
    BagMode, Bags, BinaryCrossEntropy, DType, Factors, GridMode, GridSample, HingeEmbedding, Huber,
    MarginRanking, MultiMargin, Pairwise, Pool, Reduction, RoundingMode, ScatterReduction,
    SmoothL1, SoftPlus, Tensor, TripletMargin, cdist, cdist_with, where_,
};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

fn f64s(values: &[f64]) -> Tensor {
    Tensor::from_slice(values, [values.len()])
}

/// Shape and elements.
type Data = (&'static [usize], &'static [f64]);

/// A function's name, the function, its operands, and the gradients of its sum.
type Row = (
    &'static str,
    fn(&[Tensor]) -> Tensor,
    &'static [Data],
    &'static [&'static [f64]],
);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Extremes.
    ("max(dim)", |x| x[0].max(0).0, &[(&[5], &[0.0, 2.0, 2.0, -1.0, -1.0])], &[&[0.0, 1.0, 0.0, 0.0, 0.0]]),
    ("min(dim)", |x| x[0].min(0).0, &[(&[5], &[0.0, 2.0, 2.0, -1.0, -1.0])], &[&[0.0, 0.0, 0.0, 1.0, 0.0]]),
    ("max(dim) of NaN", |x| x[0].max(0).0, &[(&[3], &[1.0, NAN, NAN])], &[&[0.0, 1.0, 0.0]]),
    ("amax", |x| x[0].amax(0), &[(&[5], &[0.0, 2.0, 2.0, -1.0, -1.0])], &[&[0.0, 0.5, 0.5, 0.0, 0.0]]),
    ("amin", |x| x[0].amin(0), &[(&[5], &[0.0, 2.0, 2.0, -1.0, -1.0])], &[&[0.0, 0.0, 0.0, 0.5, 0.5]]),
    ("amax of all", |x| x[0].amax(()), &[(&[2, 2], &[1.0, 3.0, 3.0, 3.0])], &[&[0.0, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333]]),
    ("amin of infinities", |x| x[0].amin(0), &[(&[3], &[-INF, -INF, 1.0])], &[&[0.5, 0.5, 0.0]]),
    ("aminmax", |x| { let (a, b) = x[0].aminmax(()); a + b }, &[(&[5], &[0.0, 2.0, 2.0, -1.0, -1.0])], &[&[0.0, 0.5, 0.5, 0.5, 0.5]]),
    ("aminmax of equals", |x| { let (a, b) = x[0].aminmax(0); a + b }, &[(&[2], &[1.0, 1.0])], &[&[1.0, 1.0]]),
    ("maximum", |x| x[0].maximum(&x[1]), &[(&[8], &[1.0, 2.0, 0.0, NAN, 1.0, NAN, 0.0, INF]), (&[8], &[1.0, 0.0, 2.0, 1.0, NAN, NAN, -0.0, INF])], &[&[0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.5], &[0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5]]),
    ("minimum", |x| x[0].minimum(&x[1]), &[(&[8], &[1.0, 2.0, 0.0, NAN, 1.0, NAN, 0.0, INF]), (&[8], &[1.0, 0.0, 2.0, 1.0, NAN, NAN, -0.0, INF])], &[&[0.5, 0.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5], &[0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 0.5, 0.5]]),
    ("fmax", |x| x[0].fmax(&x[1]), &[(&[8], &[1.0, 2.0, 0.0, NAN, 1.0, NAN, 0.0, INF]), (&[8], &[1.0, 0.0, 2.0, 1.0, NAN, NAN, -0.0, INF])], &[&[0.5, 1.0, 0.0, 0.0, 1.0, 1.0, 0.5, 0.5], &[0.5, 0.0, 1.0, 1.0, 0.0, 0.0, 0.5, 0.5]]),
    ("fmin", |x| x[0].fmin(&x[1]), &[(&[8], &[1.0, 2.0, 0.0, NAN, 1.0, NAN, 0.0, INF]), (&[8], &[1.0, 0.0, 2.0, 1.0, NAN, NAN, -0.0, INF])], &[&[0.5, 0.0, 1.0, 0.0, 1.0, 1.0, 0.5, 0.5], &[0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.5]]),
    ("cummax", |x| x[0].cummax(0).0, &[(&[4], &[2.0, 1.0, 2.0, 2.0])], &[&[2.0, 0.0, 1.0, 1.0]]),
    ("cummin", |x| x[0].cummin(0).0, &[(&[4], &[3.0, 1.0, 1.0, 2.0])], &[&[1.0, 1.0, 2.0, 0.0]]),
    ("median of all", |x| x[0].median_all(), &[(&[4], &[2.0, 1.0, 2.0, 2.0])], &[&[0.3333333333333333, 0.0, 0.3333333333333333, 0.3333333333333333]]),
    ("nanmedian of all", |x| x[0].nanmedian_all(), &[(&[4], &[1.0, 1.0, NAN, 2.0])], &[&[0.5, 0.5, 0.0, 0.0]]),
    ("mode", |x| x[0].mode(0).0, &[(&[4], &[2.0, 1.0, 2.0, 2.0])], &[&[0.0, 0.0, 0.0, 1.0]]),
    ("msort", |x| x[0].msort().narrow(0, 0, 1), &[(&[4], &[2.0, 1.0, 2.0, 2.0])], &[&[0.0, 1.0, 0.0, 0.0]]),
    ("sort", |x| x[0].sort(0).0.narrow(0, 2, 1), &[(&[4], &[2.0, 1.0, 2.0, 2.0])], &[&[0.0, 0.0, 1.0, 0.0]]),
    ("logsumexp", |x| x[0].logsumexp(0), &[(&[2], &[1.0, 1.0])], &[&[0.49999999999999994, 0.49999999999999994]]),
    // Bounds.
    ("clamp(0, 1)", |x| x[0].clamp(0.0, 1.0), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN])], &[&[0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]),
    ("clamp(0, 1) at the page", |x| x[0].clamp(0.0, 1.0), &[(&[4], &[0.0, 2.0, 2.0, -1.0])], &[&[0.0, 0.0, 0.0, 0.0]]),
    ("clamp(1, 0)", |x| x[0].clamp(1.0, 0.0), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN])], &[&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]),
    ("clamp(1, 1)", |x| x[0].clamp(1.0, 1.0), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN])], &[&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]),
    ("clamp_min(0)", |x| x[0].clamp_min(0.0), &[(&[7], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN, INF])], &[&[0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0]]),
    ("clamp_max(1)", |x| x[0].clamp_max(1.0), &[(&[7], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN, -INF])], &[&[1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]]),
    ("clamp to tensors", |x| x[0].clamp(&x[1], &x[2]), &[(&[33], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, NAN, NAN, 0.0, 1.0, 0.0, 1.0]), (&[33], &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0, 1.0, NAN, NAN, 1.0, 0.0]), (&[33], &[0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 0.0, 1.0, 2.0, 1.0, 0.0, 1.0, 0.0, NAN, NAN])], &[&[1.0, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0], &[0.0, 0.5, 0.5, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.5, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.5, 1.0, 1.0, 0.5, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]]),
    ("clamp_min of a tensor", |x| x[0].clamp_min(&x[1]), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN]), (&[6], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0])], &[&[0.0, 0.5, 1.0, 1.0, 1.0, 1.0], &[1.0, 0.5, 0.0, 0.0, 0.0, 1.0]]),
    ("clamp_max of a tensor", |x| x[0].clamp_max(&x[1]), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN]), (&[6], &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0])], &[&[1.0, 1.0, 1.0, 0.5, 0.0, 1.0], &[0.0, 0.0, 0.0, 0.5, 1.0, 1.0]]),
    ("hardtanh(0, 1)", |x| x[0].hardtanh_with(0.0, 1.0), &[(&[6], &[-1.0, 0.0, 0.5, 1.0, 2.0, NAN])], &[&[0.0, 0.0, 1.0, 0.0, 0.0, 1.0]]),
    ("hardtanh", |x| x[0].hardtanh(), &[(&[4], &[-1.0, 1.0, 0.0, NAN])], &[&[0.0, 0.0, 1.0, 1.0]]),
    ("relu6", |x| x[0].relu6(), &[(&[6], &[0.0, 6.0, -0.0, 3.0, 7.0, NAN])], &[&[0.0, 0.0, 0.0, 1.0, 0.0, 1.0]]),
    ("logit(0.25)", |x| x[0].logit_with(0.25), &[(&[6], &[0.0, 0.25, 0.5, 0.75, 1.0, 0.1])], &[&[0.0, 5.333333333333333, 4.0, 5.333333333333333, 0.0, 0.0]]),
    // Activations.
    ("relu", |x| x[0].relu(), &[(&[5], &[0.0, -0.0, 1.0, -1.0, NAN])], &[&[0.0, 0.0, 1.0, 0.0, 1.0]]),
    ("leaky_relu", |x| x[0].leaky_relu_with(0.25), &[(&[5], &[0.0, -0.0, 1.0, -1.0, NAN])], &[&[0.25, 0.25, 1.0, 0.25, 0.25]]),
    ("prelu", |x| x[0].prelu(&x[1]), &[(&[4], &[0.0, -0.0, 1.0, -1.0]), (&[1], &[0.25])], &[&[0.25, 0.25, 1.0, 0.25], &[-1.0]]),
    ("threshold", |x| x[0].threshold(1.0, 5.0), &[(&[4], &[0.0, 1.0, 2.0, NAN])], &[&[0.0, 0.0, 1.0, 1.0]]),
    ("hardsigmoid", |x| x[0].hardsigmoid(), &[(&[4], &[-3.0, 3.0, 0.0, NAN])], &[&[0.0, 0.0, 1.0 / 6.0, 0.0]]),
    ("hardswish", |x| x[0].hardswish(), &[(&[6], &[-3.0, 3.0, 0.0, NAN, -4.0, 4.0])], &[&[0.0, 1.0, 0.5, 1.0, 0.0, 1.0]]),
    ("elu", |x| x[0].elu(), &[(&[7], &[0.0, -0.0, 1.0, -1.0, NAN, 1000.0, -1000.0])], &[&[1.0, 1.0, 1.0, 0.36787944117144233, 1.0, 1.0, 0.0]]),
    ("elu_with(2)", |x| x[0].elu_with(2.0), &[(&[7], &[0.0, -0.0, 1.0, -1.0, NAN, 1000.0, -1000.0])], &[&[2.0, 2.0, 1.0, 0.7357588823428847, 1.0, 1.0, 0.0]]),
    ("celu(2)", |x| x[0].celu_with(2.0), &[(&[6], &[0.0, -0.0, 1.0, -1.0, NAN, 3000.0])], &[&[1.0, 1.0, 1.0, 0.6065306597126334, 1.0, 1.0]]),
    ("selu", |x| x[0].selu(), &[(&[6], &[0.0, -0.0, 1.0, -1.0, NAN, 1000.0])], &[&[1.7580993408473766, 1.7580993408473766, 1.0507009873554805, 0.646768603034814, 1.0507009873554805, 1.0507009873554805]]),
    ("softshrink", |x| x[0].softshrink(), &[(&[6], &[0.5, -0.5, 0.0, 1.0, -1.0, NAN])], &[&[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]),
    ("hardshrink", |x| x[0].hardshrink(), &[(&[6], &[0.5, -0.5, 0.0, 1.0, -1.0, NAN])], &[&[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]]),
    ("softplus_with(threshold 2)", |x| x[0].softplus_with(SoftPlus::new().threshold(2.0)), &[(&[4], &[2.0, 0.0, 3.0, 1000.0])], &[&[0.8807970779778824, 0.5, 1.0, 1.0]]),
    ("log_sigmoid", |x| x[0].logsigmoid(), &[(&[3], &[0.0, 1000.0, -1000.0])], &[&[0.5, 0.0, 1.0]]),
    ("softsign", |x| x[0].softsign(), &[(&[2], &[0.0, -0.0])], &[&[1.0, 1.0]]),
    ("abs", |x| x[0].abs(), &[(&[4], &[0.0, -0.0, 2.0, -2.0])], &[&[0.0, 0.0, 1.0, -1.0]]),
    ("sign", |x| x[0].sign(), &[(&[2], &[0.0, 2.0])], &[&[0.0, 0.0]]),
    // Pooling.
    ("max_pool1d", |x| x[0].max_pool1d(Pool::new(2).stride(2)), &[(&[1, 1, 4], &[2.0, 2.0, 1.0, 3.0])], &[&[1.0, 0.0, 0.0, 1.0]]),
    ("max_pool1d, windows that overlap", |x| x[0].max_pool1d(Pool::new(3).stride(1).padding(1)), &[(&[1, 1, 4], &[2.0, 2.0, 2.0, 1.0])], &[&[2.0, 1.0, 1.0, 0.0]]),
    ("max_pool1d of infinities", |x| x[0].max_pool1d(Pool::new(2).stride(2).padding(1)), &[(&[1, 1, 3], &[-INF, -INF, -INF])], &[&[1.0, 1.0, 0.0]]),
    ("max_pool2d", |x| x[0].max_pool2d(Pool::new(2).stride(2)), &[(&[1, 1, 2, 2], &[1.0, 1.0, 1.0, 1.0])], &[&[1.0, 0.0, 0.0, 0.0]]),
    ("adaptive_max_pool1d", |x| x[0].adaptive_max_pool1d(1), &[(&[1, 1, 4], &[2.0, 2.0, 1.0, 2.0])], &[&[1.0, 0.0, 0.0, 0.0]]),
    // Losses.
    ("smooth_l1_loss", |x| x[0].smooth_l1_loss_with(&x[1], SmoothL1::new().reduction(Reduction::None)), &[(&[6], &[0.0, 1.0, -1.0, 2.0, -2.0, 0.5]), (&[6], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0])], &[&[0.0, 1.0, -1.0, 1.0, -1.0, 0.5], &[0.0, -1.0, 1.0, -1.0, 1.0, -0.5]]),
    ("smooth_l1_loss, beta 0", |x| x[0].smooth_l1_loss_with(&x[1], SmoothL1::new().reduction(Reduction::None).beta(0.0)), &[(&[3], &[0.0, 1.0, -1.0]), (&[3], &[0.0, 0.0, 0.0])], &[&[0.0, 1.0, -1.0], &[-0.0, -1.0, 1.0]]),
    ("huber_loss", |x| x[0].huber_loss_with(&x[1], Huber::new().reduction(Reduction::None)), &[(&[6], &[0.0, 1.0, -1.0, 2.0, -2.0, 0.5]), (&[6], &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0])], &[&[0.0, 1.0, -1.0, 1.0, -1.0, 0.5], &[0.0, -1.0, 1.0, -1.0, 1.0, -0.5]]),
    ("l1_loss", |x| x[0].l1_loss_with(&x[1], Reduction::None), &[(&[3], &[0.0, 1.0, -1.0]), (&[3], &[0.0, 0.0, 0.0])], &[&[0.0, 1.0, -1.0], &[-0.0, -1.0, 1.0]]),
    ("hinge_embedding_loss", |x| x[0].hinge_embedding_loss_with(f64s(&[-1.0, -1.0, -1.0, 1.0]), HingeEmbedding::new().reduction(Reduction::None)), &[(&[4], &[0.0, 1.0, 2.0, 0.0])], &[&[-1.0, 0.0, 0.0, 1.0]]),
    ("margin_ranking_loss", |x| x[0].margin_ranking_loss_with(&x[1], f64s(&[1.0; 3]), MarginRanking::new().reduction(Reduction::None)), &[(&[3], &[0.0, 1.0, -1.0]), (&[3], &[0.0, 0.0, 0.0])], &[&[-0.0, -0.0, -1.0], &[0.0, 0.0, 1.0]]),
    ("multi_margin_loss", |x| x[0].multi_margin_loss_with(Tensor::from_slice(&[0i64], [1]), MultiMargin::new().reduction(Reduction::None)), &[(&[1, 3], &[1.0, 0.0, 0.5])], &[&[-0.3333333333333333, 0.0, 0.3333333333333333]]),
    ("multilabel_margin_loss", |x| x[0].multilabel_margin_loss_with(Tensor::from_slice(&[0i64, -1, -1], [1, 3]), Reduction::None), &[(&[1, 3], &[1.0, 0.0, 0.5])], &[&[-0.3333333333333333, 0.0, 0.3333333333333333]]),
    ("triplet_margin_loss", |x| x[0].triplet_margin_loss_with(&x[1], &x[2], TripletMargin::new().eps(0.0).reduction(Reduction::None)), &[(&[1, 2], &[0.0, 0.0]), (&[1, 2], &[0.0, 0.0]), (&[1, 2], &[1.0, 0.0])], &[&[0.0, 0.0], &[-0.0, -0.0], &[-0.0, 0.0]]),
    ("binary_cross_entropy", |x| x[0].binary_cross_entropy_with(f64s(&[0.0, 1.0]), BinaryCrossEntropy::new().reduction(Reduction::None)), &[(&[2], &[0.0, 1.0])], &[&[0.0, 0.0]]),
    // Norms and spreads.
    ("cdist(0.0) of equals", |x| cdist_with(&x[0], &x[1], 0.0), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(0.0)", |x| cdist_with(&x[0], &x[1], 0.0), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, 0.0, 0.0], &[0.0, 0.0, 0.0]]),
    ("vector_norm(0.5) of zeros", |x| x[0].vector_norm(0.5, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(0.5)", |x| x[0].vector_norm(0.5, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -2.0, 2.0]]),
    ("cdist(0.5) of equals", |x| cdist_with(&x[0], &x[1], 0.5), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(0.5)", |x| cdist_with(&x[0], &x[1], 0.5), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, -2.0, 2.0], &[0.0, 2.0, -2.0]]),
    ("pairwise_distance(0.5) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(0.5).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(1.0) of zeros", |x| x[0].vector_norm(1.0, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(1.0)", |x| x[0].vector_norm(1.0, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -1.0, 1.0]]),
    ("cdist(1.0) of equals", |x| cdist_with(&x[0], &x[1], 1.0), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(1.0)", |x| cdist_with(&x[0], &x[1], 1.0), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, -1.0, 1.0], &[0.0, 1.0, -1.0]]),
    ("pairwise_distance(1.0) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(1.0).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(1.5) of zeros", |x| x[0].vector_norm(1.5, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(1.5)", |x| x[0].vector_norm(1.5, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -0.7937005259840998, 0.7937005259840998]]),
    ("cdist(1.5) of equals", |x| cdist_with(&x[0], &x[1], 1.5), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(1.5)", |x| cdist_with(&x[0], &x[1], 1.5), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, -0.7937005259840998, 0.7937005259840998], &[0.0, 0.7937005259840998, -0.7937005259840998]]),
    ("pairwise_distance(1.5) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(1.5).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(2.0) of zeros", |x| x[0].vector_norm(2.0, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(2.0)", |x| x[0].vector_norm(2.0, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -FRAC_1_SQRT_2, FRAC_1_SQRT_2]]),
    ("cdist(2.0) of equals", |x| cdist(&x[0], &x[1]), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(2.0)", |x| cdist(&x[0], &x[1]), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, -0.7071067811865475, 0.7071067811865475], &[0.0, 0.7071067811865475, -0.7071067811865475]]),
    ("pairwise_distance(2.0) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(3.0) of zeros", |x| x[0].vector_norm(3.0, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(3.0)", |x| x[0].vector_norm(3.0, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -0.6299605249474367, 0.6299605249474367]]),
    ("cdist(3.0) of equals", |x| cdist_with(&x[0], &x[1], 3.0), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("cdist(3.0)", |x| cdist_with(&x[0], &x[1], 3.0), &[(&[1, 3], &[1.0, 2.0, 3.0]), (&[1, 3], &[1.0, 4.0, 1.0])], &[&[0.0, -0.6299605249474365, 0.6299605249474365], &[0.0, 0.6299605249474365, -0.6299605249474365]]),
    ("pairwise_distance(3.0) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(3.0).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(inf) of zeros", |x| x[0].vector_norm(f64::INFINITY, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(inf)", |x| x[0].vector_norm(f64::INFINITY, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -0.5, 0.5]]),
    ("cdist(inf) of equals", |x| cdist_with(&x[0], &x[1], f64::INFINITY), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    ("pairwise_distance(inf) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(f64::INFINITY).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("vector_norm(-inf) of zeros", |x| x[0].vector_norm(f64::NEG_INFINITY, ()), &[(&[2], &[0.0, 0.0])], &[&[0.0, 0.0]]),
    ("vector_norm(-inf)", |x| x[0].vector_norm(f64::NEG_INFINITY, ()), &[(&[3], &[0.0, -3.0, 3.0])], &[&[0.0, -0.0, 0.0]]),
    ("pairwise_distance(-inf) of equals", |x| x[0].pairwise_distance_with(&x[1], Pairwise::new().p(f64::NEG_INFINITY).eps(0.0)), &[(&[1, 2], &[1.0, 2.0]), (&[1, 2], &[1.0, 2.0])], &[&[0.0, 0.0], &[-0.0, -0.0]]),
    ("normalize of zeros", |x| x[0].normalize(0), &[(&[2], &[0.0, 0.0])], &[&[1000000000000.0, 1000000000000.0]]),
    ("renorm", |x| x[0].renorm(2.0, 0, 1.0), &[(&[2, 2], &[0.0, 0.0, 1.0, 0.0])], &[&[1.0, 1.0, 1.0, 1.0]]),
    ("std of equals", |x| x[0].std(()), &[(&[2], &[1.0, 1.0])], &[&[0.0, 0.0]]),
    ("var of equals", |x| x[0].var(()), &[(&[2], &[1.0, 1.0])], &[&[0.0, 0.0]]),
    // Scatters.
    ("scatter_reduce amax, with self", |x| x[0].scatter_reduce(0, Tensor::from_slice(&[0i64, 0, 1], [3]), &x[1], ScatterReduction::Amax), &[(&[3], &[1.0, 2.0, 3.0]), (&[3], &[1.0, 1.0, 0.0])], &[&[0.3333333333333333, 1.0, 1.0], &[0.3333333333333333, 0.3333333333333333, 0.0]]),
    ("scatter_reduce amin, with self", |x| x[0].scatter_reduce(0, Tensor::from_slice(&[0i64, 0, 1], [3]), &x[1], ScatterReduction::Amin), &[(&[3], &[1.0, 2.0, 3.0]), (&[3], &[1.0, 1.0, 0.0])], &[&[0.3333333333333333, 0.0, 1.0], &[0.3333333333333333, 0.3333333333333333, 1.0]]),
    ("embedding_bag of maxima", |x| x[0].embedding_bag_with(Tensor::from_slice(&[0i64, 1, 2], [1, 3]), Bags::new().mode(BagMode::Max)), &[(&[3, 2], &[1.0, 2.0, 1.0, 3.0, 0.0, 3.0])], &[&[1.0, 0.0, 0.0, 1.0, 0.0, 0.0]]),
    // Powers, angles and products.
    ("pow", |x| x[0].pow(&x[1]), &[(&[4], &[0.0, 0.0, 2.0, 0.0]), (&[4], &[0.0, 2.0, 0.0, 1.0])], &[&[0.0, 0.0, 0.0, 1.0], &[0.0, 0.0, LN_2, 0.0]]),
    ("pow(0)", |x| x[0].pow(0.0), &[(&[2], &[0.0, 2.0])], &[&[0.0, 0.0]]),
    ("pow(1)", |x| x[0].pow(1.0), &[(&[2], &[0.0, 2.0])], &[&[1.0, 1.0]]),
    ("sqrt", |x| x[0].sqrt(), &[(&[1], &[0.0])], &[&[INF]]),
    ("prod with zeros", |x| x[0].prod(()), &[(&[3], &[0.0, 2.0, 3.0])], &[&[6.0, 0.0, 0.0]]),
    ("cumprod with zeros", |x| x[0].cumprod(0), &[(&[4], &[2.0, 0.0, 3.0, 0.0])], &[&[1.0, 8.0, 0.0, 0.0]]),
    ("atan2 of zeros", |x| x[0].atan2(&x[1]), &[(&[1], &[0.0]), (&[1], &[0.0])], &[&[0.0], &[-0.0]]),
    ("logaddexp of equals", |x| x[0].logaddexp(&x[1]), &[(&[1], &[0.0]), (&[1], &[0.0])], &[&[0.5], &[0.5]]),
    ("hypot of zeros", |x| x[0].hypot(&x[1]), &[(&[2], &[0.0, 3.0]), (&[2], &[0.0, 4.0])], &[&[0.0, 0.6], &[0.0, 0.8]]),
    ("xlogy of zeros", |x| x[0].xlogy(&x[1]), &[(&[1], &[0.0]), (&[1], &[0.0])], &[&[0.0], &[0.0]]),
    ("entr", |x| x[0].entr(), &[(&[2], &[0.0, 1.0])], &[&[INF, -1.0]]),
    ("nextafter of equals", |x| x[0].nextafter(&x[1]), &[(&[1], &[1.0]), (&[1], &[1.0])], &[&[1.0], &[0.0]]),
    ("xlogy", |x| x[0].xlogy(&x[1]), &[(&[2], &[0.0, 1.0]), (&[2], &[1.0, 1.0])], &[&[0.0, 0.0], &[0.0, 1.0]]),
    ("sinc", |x| x[0].sinc(), &[(&[2], &[0.0, 1.0])], &[&[0.0, -1.0]]),
    // Steps: no derivative but zero.
    ("floor", |x| x[0].floor(), &[(&[2], &[1.0, 0.5])], &[&[0.0, 0.0]]),
    ("ceil", |x| x[0].ceil(), &[(&[2], &[1.0, 0.5])], &[&[0.0, 0.0]]),
    ("round", |x| x[0].round(), &[(&[2], &[1.0, 0.5])], &[&[0.0, 0.0]]),
    ("trunc", |x| x[0].trunc(), &[(&[2], &[1.0, 0.5])], &[&[0.0, 0.0]]),
    ("copysign", |x| x[0].copysign(&x[1]), &[(&[4], &[0.0, 1.0, -0.0, -2.0]), (&[4], &[1.0, -1.0, -1.0, 1.0])], &[&[0.0, -1.0, 0.0, -1.0], &[0.0, 0.0, 0.0, 0.0]]),
    ("nan_to_num", |x| x[0].nan_to_num(), &[(&[4], &[NAN, INF, -INF, 1.0])], &[&[0.0, 0.0, 0.0, 1.0]]),
    ("fmod", |x| x[0].fmod(&x[1]), &[(&[2], &[4.0, -4.0]), (&[2], &[2.0, 2.0])], &[&[1.0, 1.0], &[-2.0, 2.0]]),
    ("remainder", |x| x[0].remainder(&x[1]), &[(&[2], &[4.0, -4.0]), (&[2], &[2.0, 2.0])], &[&[1.0, 1.0], &[-2.0, 2.0]]),
    ("div rounded", |x| x[0].div_rounding(&x[1], RoundingMode::Floor), &[(&[2], &[4.0, 5.0]), (&[2], &[2.0, 2.0])], &[&[0.0, 0.0], &[0.0, 0.0]]),
    // Connected, with a derivative of zero.
    ("baddbmm, beta 0", |x| x[0].baddbmm_with(&x[1], &x[2], Factors::new().beta(0.0)), &[(&[1, 1, 1], &[1.0]), (&[1, 1, 1], &[2.0]), (&[1, 1, 1], &[3.0])], &[&[0.0], &[3.0], &[2.0]]),
    ("addmm, beta 0", |x| x[0].addmm_with(&x[1], &x[2], Factors::new().beta(0.0)), &[(&[1], &[5.0]), (&[1, 1], &[2.0]), (&[1, 1], &[3.0])], &[&[0.0], &[3.0], &[2.0]]),
    ("addmv, beta 0", |x| x[0].addmv_with(&x[1], &x[2], Factors::new().beta(0.0)), &[(&[1], &[5.0]), (&[1, 1], &[2.0]), (&[1], &[3.0])], &[&[0.0], &[3.0], &[2.0]]),
    ("addr, beta 0", |x| x[0].addr_with(&x[1], &x[2], Factors::new().beta(0.0)), &[(&[1, 1], &[5.0]), (&[1], &[2.0]), (&[1], &[3.0])], &[&[0.0], &[3.0], &[2.0]]),
    ("addbmm, beta 0", |x| x[0].addbmm_with(&x[1], &x[2], Factors::new().beta(0.0)), &[(&[1, 1], &[1.0]), (&[1, 1, 1], &[2.0]), (&[1, 1, 1], &[3.0])], &[&[0.0], &[3.0], &[2.0]]),
    ("baddbmm, alpha 0", |x| x[0].baddbmm_with(&x[1], &x[2], Factors::new().alpha(0.0)), &[(&[1, 1, 1], &[1.0]), (&[1, 1, 1], &[2.0]), (&[1, 1, 1], &[3.0])], &[&[1.0], &[0.0], &[0.0]]),
    ("matrix_power(0)", |x| x[0].matrix_power(0), &[(&[2, 2], &[1.0, 2.0, 3.0, 4.0])], &[&[0.0, 0.0, 0.0, 0.0]]),
    ("grid_sample, nearest", |x| x[0].grid_sample_with(&x[1], GridSample::new().mode(GridMode::Nearest)), &[(&[1, 1, 2, 2], &[1.0, 2.0, 3.0, 4.0]), (&[1, 1, 1, 2], &[0.1, 0.2])], &[&[0.0, 0.0, 0.0, 1.0], &[0.0, 0.0]]),
    ("times 0", |x| x[0].mul(0.0), &[(&[2], &[1.0, 2.0])], &[&[0.0, 0.0]]),
    ("where nothing is taken", |x| where_(Tensor::from_slice(&[false, false], [2]), &x[0], 1.0), &[(&[2], &[1.0, 2.0])], &[&[0.0, 0.0]]),
    ("part of nothing", |x| x[0].narrow(0, 0, 0), &[(&[2], &[1.0, 2.0])], &[&[0.0, 0.0]]),];

/// The gradients of the sum of a function's result.
fn gradients(row: &Row, dtype: DType) -> Vec<Option<Vec<f64>>> {
    let (_, function, operands, _) = row;
    let leaf = |(shape, values): &Data| {
        let t = Tensor::from_slice(values, *shape);
        t.to_dtype(dtype).detach().requires_grad_(true)
    };
    let leaves: Vec<Tensor> = operands.iter().map(leaf).collect();
    function(&leaves).sum(()).backward().unwrap();
    let found = |t: &Tensor| Some(t.grad()?.to_dtype(DType::F64).to_vec::<f64>().unwrap());
    leaves.iter().map(found).collect()
}

fn agree(found: &[f64], expected: &[f64], tolerance: f64) -> bool {
    let near = |a: f64, b: f64| {
        a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= tolerance * b.abs().max(1.0)
    };
    let pairs = found.iter().zip(expected);
    found.len() == expected.len() && pairs.into_iter().all(|(a, b)| near(*a, *b))
}

#[test]
fn gradients_at_ties_and_kinks_are_pytorchs() {
    let mut wrong = Vec::new();
    for row in ROWS {
        for (dtype, tolerance) in [(DType::F64, 1e-12), (DType::F32, 1e-5)] {
            let found = gradients(row, dtype);
            for (i, (found, expected)) in found.iter().zip(row.3).enumerate() {
                let right = found
                    .as_ref()
                    .is_some_and(|g| agree(g, expected, tolerance));
                if !right {
                    let name = row.0;
                    wrong.push(format!(
                        "{name}, operand {i}, {dtype}: {found:?}, not {expected:?}"
                    ));
                }
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
