//! The calls of `reference.py`, under the same names.

use kiln_tensor::*;

/// The shapes of the float operands, and the call.
pub type Call = (Vec<Vec<usize>>, Box<dyn Fn(&[Tensor]) -> Tensor>);

macro_rules! calls {
    ($($name:literal [$($shape:expr),*] |$x:ident| $call:expr;)*) => {
        vec![$(($name, (
            vec![$($shape.to_vec()),*],
            Box::new(|$x: &[Tensor]| -> Tensor { $call }) as Box<dyn Fn(&[Tensor]) -> Tensor>,
        ))),*]
    };
}

macro_rules! unary {
    ($($name:ident)*) => {
        vec![$((stringify!($name), (
            vec![vec![4]],
            Box::new(|x: &[Tensor]| x[0].$name()) as Box<dyn Fn(&[Tensor]) -> Tensor>,
        ))),*]
    };
}

const M: [usize; 2] = [4, 4];
const V: [usize; 1] = [4];
const B: [usize; 3] = [2, 4, 4];
const C: [usize; 4] = [2, 4, 6, 6];
const CUBE: [usize; 5] = [2, 3, 4, 4, 4];

fn labels() -> Tensor {
    Tensor::from([0i64, 1, 2, 3])
}

fn indices(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::I64)
}

pub fn all() -> Vec<(&'static str, Call)> {
    let mut all = products();
    all.extend(unary! {
        acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
        sqrt sin cos tanh sigmoid erf relu abs floor gelu silu softplus
    });
    all.extend(numbers());
    all.extend(losses());
    all.extend(images());
    all.extend(joins());
    #[cfg(feature = "linalg")]
    all.extend(factors());
    all
}

fn products() -> Vec<(&'static str, Call)> {
    calls! {
        "conv1d" [[2, 3, 8], [4, 3, 3], V] |x| x[0].conv1d_with(&x[1], Conv::new().bias(&x[2]));
        "conv2d" [[2, 3, 8, 8], [4, 3, 3, 3], V] |x| x[0].conv2d_with(&x[1], Conv::new().bias(&x[2]));
        "conv3d" [CUBE, [4, 3, 2, 2, 2], V] |x| x[0].conv3d_with(&x[1], Conv::new().bias(&x[2]));
        "conv_transpose1d" [[2, 3, 8], [3, 4, 3], V] |x|
            x[0].conv_transpose1d_with(&x[1], ConvTranspose::new().bias(&x[2]));
        "conv_transpose2d" [[2, 3, 4, 4], [3, 4, 3, 3], V] |x|
            x[0].conv_transpose2d_with(&x[1], ConvTranspose::new().bias(&x[2]));
        "conv_transpose3d" [CUBE, [3, 4, 2, 2, 2], V] |x|
            x[0].conv_transpose3d_with(&x[1], ConvTranspose::new().bias(&x[2]));
        "prelu" [M, [1]] |x| x[0].prelu(&x[1]);
        "addmm" [M, M, M] |x| x[0].addmm(&x[1], &x[2]);
        "addmv" [V, M, V] |x| x[0].addmv(&x[1], &x[2]);
        "addr" [M, V, V] |x| x[0].addr(&x[1], &x[2]);
        "matmul" [B, M] |x| x[0].matmul(&x[1]);
        "einsum" [M, M] |x| einsum("ij,jk->ik", x);
        "mm" [M, M] |x| x[0].mm(&x[1]);
        "mv" [M, V] |x| x[0].mv(&x[1]);
        "vecdot" [M, M] |x| x[0].vecdot(&x[1], -1);
        "linear" [M, M, V] |x| x[0].linear_with(&x[1], &x[2]);
        "addbmm" [M, B, B] |x| x[0].addbmm(&x[1], &x[2]);
        "baddbmm" [B, B, B] |x| x[0].baddbmm(&x[1], &x[2]);
        "bmm" [B, B] |x| x[0].bmm(&x[1]);
        "multi_dot" [M, M, M] |x| multi_dot(x);
        "scaled_dot_product_attention" [C, C, C] |x| x[0].scaled_dot_product_attention(&x[1], &x[2]);
    }
}

fn numbers() -> Vec<(&'static str, Call)> {
    calls! {
        "pow" [V, V] |x| x[0].pow(&x[1]);
        "add" [V, V] |x| x[0].add(&x[1]);
        "mul" [V, V] |x| x[0].mul(&x[1]);
        "div" [V, V] |x| x[0].div(&x[1]);
        "addcdiv" [V, V, V] |x| x[0].addcdiv(&x[1], &x[2]);
        "addcmul" [V, V, V] |x| x[0].addcmul(&x[1], &x[2]);
        "atan2" [V, V] |x| x[0].atan2(&x[1]);
        "layer_norm" [M, V, V] |x| x[0].layer_norm_with(4, Affine::new().weight(&x[1]).bias(&x[2]));
        "rms_norm" [M, V] |x| x[0].rms_norm_with(4, Affine::new().weight(&x[1]));
        "group_norm" [C, V, V] |x| x[0].group_norm_with(2, Affine::new().weight(&x[1]).bias(&x[2]));
        "batch_norm" [C, V, V] |x|
            x[0].batch_norm_with(RunningStats::new().weight(&x[1]).bias(&x[2]).training(true));
        "renorm" [M] |x| x[0].renorm(2.0, 0, 1.0);
        "logsumexp" [M] |x| x[0].logsumexp(1);
        "prod" [M] |x| x[0].prod(1);
        "softmax" [M] |x| x[0].softmax(1);
        "log_softmax" [M] |x| x[0].log_softmax(1);
        "cumprod" [M] |x| x[0].cumprod(1);
        "cumsum" [M] |x| x[0].cumsum(1);
        "vector_norm" [M] |x| x[0].vector_norm(2.0, ());
        "matrix_norm" [M] |x| x[0].matrix_norm(MatrixNorm::Frobenius, [-2, -1]);
        "sum" [M] |x| x[0].sum(1);
        "mean" [M] |x| x[0].mean(1);
        "amax" [M] |x| x[0].amax(1);
        "var" [M] |x| x[0].var(1);
        "quantile" [M] |x| x[0].quantile(0.5, 1);
        "nanquantile" [M] |x| x[0].nanquantile(0.5, 1);
        "trace" [M] |x| x[0].trace();
    }
}

fn losses() -> Vec<(&'static str, Call)> {
    calls! {
        "cosine_similarity" [M, M] |x| x[0].cosine_similarity(&x[1]);
        "poisson_nll_loss" [M, M] |x| x[0].poisson_nll_loss(&x[1]);
        "gaussian_nll_loss" [M, M, M] |x| x[0].gaussian_nll_loss(&x[1], &x[2]);
        "cosine_embedding_loss" [M, M, V] |x| x[0].cosine_embedding_loss(&x[1], &x[2]);
        "nll_loss" [M] |x| x[0].nll_loss(labels());
        "cross_entropy" [M] |x| x[0].cross_entropy(labels());
        "hinge_embedding_loss" [M, M] |x| x[0].hinge_embedding_loss(&x[1]);
        "kl_div" [M, M] |x| x[0].kl_div_with(&x[1], KlDiv::new().reduction(Reduction::Sum));
        "l1_loss" [M, M] |x| x[0].l1_loss(&x[1]);
        "smooth_l1_loss" [M, M] |x| x[0].smooth_l1_loss(&x[1]);
        "huber_loss" [M, M] |x| x[0].huber_loss(&x[1]);
        "mse_loss" [M, M] |x| x[0].mse_loss(&x[1]);
        "margin_ranking_loss" [V, V, V] |x| x[0].margin_ranking_loss(&x[1], &x[2]);
        "multilabel_margin_loss" [M] |x| x[0].multilabel_margin_loss(indices(&M));
        "multilabel_soft_margin_loss" [M, M] |x| x[0].multilabel_soft_margin_loss(&x[1]);
        "soft_margin_loss" [M, M] |x| x[0].soft_margin_loss(&x[1]);
        "triplet_margin_loss" [M, M, M] |x| x[0].triplet_margin_loss(&x[1], &x[2]);
        "multi_margin_loss" [M] |x| x[0].multi_margin_loss(labels());
        "binary_cross_entropy" [M, M] |x| x[0].binary_cross_entropy(&x[1]);
        "binary_cross_entropy_with_logits" [M, M] |x| x[0].binary_cross_entropy_with_logits(&x[1]);
        "ctc_loss" [[6, 2, 4]] |x| {
            let sixes = Tensor::from([6i64, 6]);
            x[0].ctc_loss(Tensor::ones([2, 3], DType::I64), sixes, Tensor::from([3i64, 3]))
        };
        "dist" [V, V] |x| x[0].dist(&x[1]);
        "pdist" [M] |x| x[0].pdist();
        "cdist" [M, M] |x| cdist(&x[0], &x[1]);
    }
}

fn images() -> Vec<(&'static str, Call)> {
    calls! {
        "interpolate" [C] |x| x[0].interpolate(InterpolateSize::Size([9, 9].into()), InterpolateMode::Nearest);
        "interpolate_bilinear" [C] |x|
            x[0].interpolate(
                InterpolateSize::Size([9, 9].into()),
                InterpolateMode::Linear { align_corners: false },
            );
        "grid_sample" [C, [2, 3, 3, 2]] |x| x[0].grid_sample(&x[1]);
        "avg_pool2d" [C] |x| x[0].avg_pool2d(2);
        "avg_pool3d" [C] |x| x[0].avg_pool3d(2);
        "max_pool2d" [C] |x| x[0].max_pool2d(2);
        "max_pool3d" [C] |x| x[0].max_pool3d(2);
        "adaptive_avg_pool2d" [C] |x| x[0].adaptive_avg_pool2d(2);
        "adaptive_avg_pool3d" [C] |x| x[0].adaptive_avg_pool3d(2);
        "adaptive_max_pool3d" [C] |x| x[0].adaptive_max_pool3d(2);
        "fractional_max_pool2d" [C] |x| x[0].fractional_max_pool2d(FractionalPool::new(2).output_size(3));
        "fractional_max_pool3d" [C] |x|
            x[0].fractional_max_pool3d(FractionalPool::new(2).output_size([2, 3, 3]));
        "max_unpool2d" [[2, 4, 2, 2]] |x| x[0].max_unpool2d(indices(&[2, 4, 2, 2]), 2);
        "max_unpool3d" [[2, 2, 2, 2]] |x| x[0].max_unpool3d(indices(&[2, 2, 2, 2]), 2);
        "reflection_pad1d" [B] |x| x[0].pad([1, 1], PadMode::Reflect);
        "reflection_pad2d" [C] |x| x[0].pad([1; 4], PadMode::Reflect);
        "reflection_pad3d" [CUBE] |x| x[0].pad([1; 6], PadMode::Reflect);
        "replication_pad1d" [B] |x| x[0].pad([1, 1], PadMode::Replicate);
        "replication_pad2d" [C] |x| x[0].pad([1; 4], PadMode::Replicate);
        "replication_pad3d" [CUBE] |x| x[0].pad([1; 6], PadMode::Replicate);
        "pad_circular2d" [C] |x| x[0].pad([1; 4], PadMode::Circular);
        "pad_constant" [C] |x| x[0].pad([1, 1], PadMode::ZEROS);
    }
}

fn joins() -> Vec<(&'static str, Call)> {
    calls! {
        "bilinear" [M, M, [3, 4, 4], [3]] |x| x[0].bilinear_with(&x[1], &x[2], &x[3]);
        "cross" [[4, 3], [4, 3]] |x| x[0].cross(&x[1], 1);
        "dot" [V, V] |x| x[0].dot(&x[1]);
        "index_put" [V, [1]] |x| x[0].index_put(Tensor::from([1i64]), &x[1]);
        "index_copy" [M, [1, 4]] |x| x[0].index_copy(0, Tensor::from([1i64]), &x[1]);
        "tensordot" [M, M] |x| x[0].tensordot(&x[1], 1);
        "scatter_add" [M, M] |x| x[0].scatter_add(0, indices(&M), &x[1]);
        "cat" [M, M] |x| cat(x, 0);
        "stack" [M, M] |x| stack(x, 0);
    }
}

#[cfg(feature = "linalg")]
fn factors() -> Vec<(&'static str, Call)> {
    calls! {
        "inv" [M] |x| x[0].inv();
        "cholesky" [M] |x| (Tensor::eye(4, x[0].dtype()) + &x[0] * 0.0).cholesky();
        "qr" [M] |x| x[0].qr().0;
        "svd" [M] |x| x[0].svd().0;
        "cholesky_inverse" [M] |x| x[0].cholesky_inverse();
        "cholesky_solve" [M, M] |x| x[0].cholesky_solve(&x[1]);
        "lstsq" [M, M] |x| x[0].lstsq(&x[1]).0;
        "eigh" [M] |x| x[0].eigh().0;
        "cond" [M] |x| x[0].cond(1.0);
        "svdvals" [M] |x| x[0].svdvals();
        "eigvalsh" [M] |x| x[0].eigvalsh();
        "solve" [M, M] |x| x[0].solve(&x[1]);
    }
}
