//! Functions called with many sizes need few plans.

use crate::is_alone;
use kiln::{
    Affine, AvgPool, BinCount, Combinations, Conv, ConvTranspose, CrossEntropy, DType, Diagonal,
    Diff, Histogram, Im2Col, InterpolateMode, InterpolateSize, LocalResponse, Multinomial, PadMode,
    Pool, Strided, Tensor, TopK, Window, cache_stats, step,
};

fn data(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * 1.7 + 0.3).sin()).collect();
    Tensor::from_slice(&values, shape)
}

/// A function of a size n, as two types of integer, and tensors `[n, 5]`, `[1, 2, n, n + 1]` and `[n]`.
type Function<'a> = &'a dyn Fn(usize, i64, &Tensor, &Tensor, &Tensor) -> Tensor;

/// Records the number of plans of a function for consecutive sizes.
fn plans(name: &str, f: Function, found: &mut Vec<(u64, String)>) {
    let before = cache_stats().compiled;
    for n in 6..=60 {
        let (x, image, v) = (data(&[n, 5]), data(&[1, 2, n, n + 1]), data(&[n]));
        if let Err(e) = f(n, n as i64, &x, &image, &v).realize() {
            panic!("{name} of {n}: {e}");
        }
    }
    found.push((cache_stats().compiled - before, name.to_string()));
}

macro_rules! sweep {
    ($found:ident, |$n:ident, $i:ident, $x:ident, $image:ident, $v:ident|: $($call:expr;)*) => {
        $(plans(
            stringify!($call),
            #[allow(unused_variables)]
            &|$n, $i, $x, $image, $v| $call,
            &mut $found,
        );)*
    };
}

/// The maximum number of plans for a function of 55 sizes. The first three sizes have plans of their own, and a size
/// that divides another may be computed differently from one that does not.
const MOST: u64 = 16;

#[test]
fn sizes() {
    if !is_alone("plans::sizes", &[]) {
        return;
    }
    let mut found = Vec::new();
    let size = |n: i64| InterpolateSize::Size(n.into());
    let by = |f: f64| InterpolateSize::ScaleFactor(vec![f]);
    let linear = InterpolateMode::Linear {
        align_corners: false,
    };
    let corners = InterpolateMode::Linear {
        align_corners: true,
    };
    let cubic = InterpolateMode::Bicubic {
        align_corners: false,
    };
    let index = |n: i64| Tensor::from_slice(&(0..n).collect::<Vec<_>>(), [n as usize]);
    sweep!(found, |n, i, x, image, v|:
        image.interpolate(size(i), InterpolateMode::Nearest);
        image.interpolate(by(2.0), InterpolateMode::Nearest);
        image.interpolate(by(1.7), InterpolateMode::Nearest);
        image.interpolate(by(2.0), InterpolateMode::NearestExact);
        image.interpolate(by(2.0), linear);
        image.interpolate(by(0.5), linear);
        image.interpolate(by(1.3), corners);
        image.interpolate(size(11), linear);
        image.interpolate(size(i * 2), cubic);
        image.interpolate(by(2.0), InterpolateMode::Area);
        image.interpolate(size(3), InterpolateMode::Area);
        image.adaptive_avg_pool2d(1);
        image.adaptive_max_pool2d(1); image.adaptive_max_pool2d(3);
        image.adaptive_max_pool2d(i / 2);
        data(&[1, 2, n]).adaptive_avg_pool1d(i / 2);
        Tensor::linspace(0, 1, i, DType::F32); Tensor::logspace(0, 1, i, 10.0, DType::F64);
        Tensor::linspace(0, 1, i, DType::F32) * v;
        Tensor::arange(0, i, 1); Tensor::arange(i, 80, 1); Tensor::arange(0, 40, i); Tensor::eye(i, DType::F32);
        Tensor::tril_indices(i, i); Tensor::triu_indices_with(i, 7, 1); Tensor::tril_indices_with(60, 60, i - 30);
        x.pdist(); kiln::cdist(x, x); v.combinations(2); v.combinations(Combinations::new(3).with_replacement(true));
        x.unfold(0, 3); x.unfold(0, Window::new(3).step(2)); x.unfold(0, i / 2); data(&[80, 5]).unfold(0, Window::new(i).step(3));
        x.diag_with(0); v.diag_with(0); data(&[80, 80]).diag_with(i - 30); x.diagonal_with(Diagonal::new().offset(-1));
        data(&[80, 80]).diagonal_with(Diagonal::new().offset(i - 30)); v.diag_embed_with(Diagonal::new().offset(2).dim1(0).dim2(1));
        v.diag_embed_with(Diagonal::new().offset(i).dim1(0).dim2(1));
        data(&[80, 80]).tril_with(i - 30); x.triu_with(1);
        x.repeat_interleave(3, 0); data(&[4, 5]).repeat_interleave(i, 0); x.repeat_interleave_each((0..i).collect::<Vec<_>>(), 0);
        kiln::cat((0..n).map(|k| data(&[2 + k, 3])).collect::<Vec<_>>(), 0);
        kiln::cat((0..n).map(|_| data(&[2, 3])).collect::<Vec<_>>(), 0);
        kiln::stack((0..n).map(|_| data(&[2, 3])).collect::<Vec<_>>(), 0);
        kiln::cat([x, &data(&[3, 5])], 0);
        x.reshape([-1]); x.reshape([5, i]); x.expand([2, i, 5]); x.repeat([2, 3]); data(&[2, 3]).repeat([i, 1]); x.tile([2, 1]);
        x.flatten((0, 1)); x.transpose(0, 1).contiguous(); x.narrow(0, 2, i - 3); x.narrow(0, i - 2, 2); x.select(0, i - 1);
        x.i(step(i - 4.., 1)); x.i(step(.., 2)); x.i(step(..i - 2, 3));
        x.chunk(2, 0)[1].clone(); x.split(3, 0)[1].clone(); x.tensor_split(3, 0)[2].clone(); x.split_with_sizes([2, i - 2], 0)[1].clone();
        x.roll(2, 0); x.roll(i - 1, 0); x.roll(1, ()); x.flip(0); x.rot90(1, [0, 1]);
        x.as_strided(Strided::new([i, 2]).stride([2, 1]));
        x.tril_with(0); x.topk(TopK::new(3).dim(0)).0; x.kthvalue(2, 0).0; x.sort(0).0; x.argsort(0); x.cumsum(0); x.cumprod(0); x.median(0).0;
        index(i).one_hot(i); index(i).bincount_with(BinCount::new().minlength(4)); v.histc(Histogram::new(4).max(1.0)); v.vander_with(4); v.vander_with(i);
        v.histc(Histogram::new(i).max(1.0));
        x.diff_with(Diff::new().n(1).dim(0)); x.diff_with(Diff::new().n(2).dim(0));
        x.matmul(data(&[5, 3])); x.matmul(x.t()); x.t().matmul(x); x.tensordot(x.t(), 1); x.softmax(0); x.log_softmax(1); x.layer_norm([5]); x.layer_norm([i, 5]);
        x.rms_norm([5]); image.group_norm(1); image.group_norm_with(2, Affine::new()); image.local_response_norm(LocalResponse::new(3).alpha(1.0).beta(0.5));
        data(&[1, 4, n, n]).pixel_shuffle(2); data(&[1, 2, 2 * n, 2 * n]).pixel_unshuffle(2); data(&[1, 2 * n, 3, 3]).channel_shuffle(2);
        x.gather(0, index(i).unsqueeze(1)); x.index_select(0, index(i)); x.i(index(i)); x.i(index(i).lt(4)); x.masked_select(x.gt(0.0)); x.masked_fill(x.gt(0.0), 1.0);
        x.nonzero(); x.unique(()).0; x.index_add(0, index(i), x); x.scatter(0, index(i).unsqueeze(1), x.narrow(1, 0, 1));
        x.select_scatter(data(&[5]), 0, i - 1); x.slice_scatter(data(&[2, 5]), 0, 1..3); x.slice_scatter(data(&[2, 5]), 0, i - 2..);
        x.cross_entropy_with(index(i) % 5, CrossEntropy::new()); x.sum(0); x.mean(()); x.var(0); x.std(()); x.argmax(0); x.prod(0); x.vector_norm(2.0, ()); x.logsumexp(0);
        v.abs().multinomial(3); v.abs().multinomial(Multinomial::new(i).replacement(true)); Tensor::randperm(i); Tensor::rand([n], DType::F32); Tensor::randint(0, i, [4]); x.dropout(0.5);
        image.pad([1, 2], PadMode::ZEROS); image.pad([1, 2, 2, 1], PadMode::Reflect); image.pad([1, 1, 1, 1], PadMode::Replicate); image.pad([2, 2, 2, 2], PadMode::Circular);
        data(&[2, 3]).pad([i, 0], PadMode::ZEROS); data(&[1, 2, 80]).pad([i, 0], PadMode::Reflect); data(&[1, 2, 80]).pad([i, 0], PadMode::Circular);
        image.max_pool2d(2); image.max_pool2d(Pool::new(3).stride(2).padding(1)); image.max_pool2d(Pool::new(2).stride(2).ceil_mode(true));
        image.max_pool2d_with_indices(2).1; image.avg_pool2d(AvgPool::new(3).stride(2)); image.im2col(Im2Col::new(3));
        image.conv2d_with(data(&[2, 2, 3, 3]), Conv::new()); image.conv2d_with(data(&[2, 2, 3, 3]), Conv::new().stride(2).padding(1));
        image.conv_transpose2d_with(data(&[2, 2, 3, 3]), ConvTranspose::new().stride(2));
        x.t().matmul(x).matrix_power(3); x.t().matmul(x).det(); (x.t().matmul(x) + Tensor::eye(5, DType::F32)).inv(); x.matmul(x.t()).trace(); v.outer(v); x.kron(data(&[2, 2])); v.cumsum(0);
    );
    found.retain(|(count, _)| *count > MOST);
    assert!(found.is_empty(), "more than {MOST} plans: {found:#?}");
}
