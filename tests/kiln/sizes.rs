//! Hostile sizes and numbers: every call returns a value, or an error at its line, within a short time.

use crate::is_alone;
use kiln::{
    Affine, Attention, AvgPool, BinCount, Combinations, Conv, ConvTranspose, Cosine, CrossEntropy,
    DType, Device, Diagonal, Diff, ErrorKind, Histogram, Huber, Im2Col, InterpolateMode,
    InterpolateSize, Interpolation, LocalResponse, MultiMargin, Multinomial, NanToNum, Nll,
    Normalize, PadMode, Pairwise, Pool, SmoothL1, SoftPlus, Strided, Tensor, Tolerance, TopK,
    Unpool, Window, keep, step,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::time::Duration;

#[test]
fn what_is_too_large_for_the_reference_says_the_limit() {
    let x = Tensor::zeros([4, 1i64 << 31, 0], DType::F32);
    assert!(x.to_vec::<f32>().unwrap().is_empty());
    let e = kiln::evaluate_reference(&x).err().unwrap();
    assert_eq!(e.kind(), ErrorKind::Data);
    assert!(e.message().contains("at most 1073741824"), "{e}");
}

#[test]
fn counts_up_to_the_largest_number_are_refused() {
    let e = Tensor::from([1, i64::MAX])
        .bincount()
        .check()
        .err()
        .unwrap();
    assert!(e.message().contains("2^63 bytes"), "{e}");
}

const SIZES: [i64; 12] = [
    0,
    1,
    -1,
    i64::MIN,
    i64::MIN + 1,
    i64::MAX,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    3689348814741910324,
    -(1 << 40),
];
const NUMBERS: [f64; 7] = [0.0, -1.0, 1e300, -1e300, f64::NAN, f64::INFINITY, 1e-300];

/// The tensors that a call returns, whatever its type.
trait Given {
    fn tensors(self) -> Vec<kiln::Result<Tensor>>;
}
impl Given for Tensor {
    fn tensors(self) -> Vec<kiln::Result<Tensor>> {
        vec![Ok(self)]
    }
}
impl Given for Vec<Tensor> {
    fn tensors(self) -> Vec<kiln::Result<Tensor>> {
        self.into_iter().map(Ok).collect()
    }
}
impl Given for (Tensor, Tensor) {
    fn tensors(self) -> Vec<kiln::Result<Tensor>> {
        vec![Ok(self.0), Ok(self.1)]
    }
}
impl Given for kiln::Result<()> {
    fn tensors(self) -> Vec<kiln::Result<Tensor>> {
        self.map_or_else(|e| vec![Err(e)], |()| Vec::new())
    }
}

/// True if an error points to a line of this file that contains the call's name.
fn is_at(e: &kiln::Error, call: &str) -> bool {
    let line = include_str!("sizes.rs")
        .lines()
        .nth((e.loc().line() as usize).wrapping_sub(1));
    let name = call.split('(').next().unwrap_or(call);
    let name = name.rsplit(['.', ':', ' ']).next().unwrap_or(name);
    e.loc().file().ends_with("sizes.rs") && line.is_some_and(|line| line.contains(name))
}

/// Fails if the result of a call is wrong.
fn judged(given: Vec<kiln::Result<Tensor>>, call: &str) -> Result<(), String> {
    for t in given.into_iter().take(8) {
        let read = t.and_then(|t| {
            let shape = t.check()?.shape()?;
            let bytes = shape
                .iter()
                .try_fold(t.element_size(), |n, d| n.checked_mul(*d));
            let found = t.to_bytes()?;
            Ok((Some(found.len()) != bytes).then(|| format!("{shape:?} in {} bytes", found.len())))
        });
        match read {
            Ok(None) => {}
            Ok(Some(wrong)) => return Err(wrong),
            Err(e)
                if e.kind() == ErrorKind::Internal || e.to_string().contains("internal error") =>
            {
                return Err(e.to_string());
            }
            Err(e) if e.op().is_empty() || e.message().is_empty() => return Err(format!("{e:?}")),
            // Running out of memory is found only when values are read.
            Err(e) if e.kind() == ErrorKind::Memory => {}
            Err(e) if !is_at(&e, call) => return Err(format!("{e}, which is not its line")),
            Err(_) => {}
        }
    }
    Ok(())
}

struct Sweep {
    wrong: Vec<String>,
    at: mpsc::Sender<String>,
}

impl Sweep {
    /// Also prints the message at once, since a later call may end the process.
    fn note(&mut self, wrong: String) {
        eprintln!("{wrong}");
        self.wrong.push(wrong);
    }

    fn case<T: Given>(&mut self, text: String, call: impl FnOnce() -> T) {
        // The receiver exists until all calls are done.
        let _ = self.at.send(text.clone());
        let judge = || judged(call().tensors(), &text);
        match catch_unwind(AssertUnwindSafe(judge)) {
            Ok(Ok(())) => {}
            Ok(Err(wrong)) => self.note(format!("{text}: {wrong}")),
            Err(_) => self.note(format!("{text}: a panic")),
        }
    }
}

/// Calls each function with each number in place of `$v`.
macro_rules! sweep {
    ($sweep:ident, $values:expr, $v:ident: $($call:expr;)*) => {
        for $v in $values {
            $($sweep.case(
                format!("{} with {:?}", stringify!($call), $v),
                || $call,
            );)*
        }
    };
}

fn sweep_sizes(s: &mut Sweep) {
    let f = |shape: &[usize]| Tensor::ones(shape, DType::F32);
    let (x, image, vector) = (f(&[2, 2]), f(&[1, 2, 4, 4]), f(&[4]));
    let (x, image, vector) = (&x, &image, &vector);
    let lines = &f(&[1, 2, 6]);
    let volume = &f(&[1, 1, 3, 3, 3]);
    let empty = &Tensor::zeros([0, 3], DType::F32);
    let bytes = &Tensor::ones([2, 2], DType::U8);
    let index = &Tensor::from_slice(&[0i64, 1], [2]);
    let weight = &f(&[2, 2, 3, 3]);
    let filter = &f(&[2, 2, 3]);
    sweep!(s, SIZES, v:
        x.reshape([v]); x.reshape([v, -1]); x.reshape([5, v]); x.reshape([v, v]); x.reshape([v, v, 2]);
        empty.reshape([v, v]); empty.reshape([v, -1]); empty.reshape([0, v, v]); x.view([v, v]);
        bytes.reshape([v, 4]); x.unflatten(0, [v, v]); x.unflatten(0, [v, -1]);
        x.expand([v, 2, 2]); x.expand([v, v, 2, 2]); f(&[1]).expand([v]); bytes.expand([v, 2, 2]);
        x.broadcast_to([v, 2, 2]); f(&[1]).broadcast_to([v]); x.flatten((v, 1)); x.flatten((0, v));
        x.repeat([v, 1]); x.repeat([v, v]); x.repeat([2, v, v]); x.tile([v]); x.tile([v, v]);
        bytes.tile([v, v]); empty.repeat([v, v]); x.repeat_interleave(v, 0); x.repeat_interleave(v, ());
        x.repeat_interleave_each([v, 1], 0); x.repeat_interleave_each([v, v], 0);
        x.narrow(0, v, 1); x.narrow(0, 0, v); x.narrow(v, 0, 1); x.narrow(0, v, v); x.select(0, v);
        x.select(v, 0); x.i(step(v.., 1)); x.i(step(..v, 1)); x.i(step(.., v));
        x.i(step(v..v, v)); x.i(step(v..5, v)); x.split(v, 0); x.split_with_sizes([v, 1], 0);
        x.split_with_sizes([v, v], 0); x.chunk(v, 0); x.tensor_split(v, 0); x.tensor_split_at([v], 0);
        x.tensor_split_at([v, v], 1); x.unfold(0, v); x.unfold(0, Window::new(1).step(v));
        x.unfold(0, Window::new(v).step(v));
        x.roll(v, 0); x.roll([v, v], [0, 1]); x.roll(v, ()); x.i(v); x.i(v..); x.i(..v); x.i((.., v));
        x.set(v, 1.0); x.set(v.., 1.0); x.set(..v, 2.0); x.unsqueeze(v); x.squeeze(v); x.unbind(v);
        x.transpose(v, 0); x.permute([v, 0]); x.movedim(v, 0); x.flip(v); x.rot90(v, [0, 1]);
        x.as_strided(Strided::new([v]).stride([1])); x.as_strided(Strided::new([2]).stride([v]));
        x.as_strided(Strided::new([2]).stride([1]).storage_offset(v));
        x.as_strided(Strided::new([v, v]).stride([v, v]).storage_offset(v));
        x.as_strided(Strided::new([v, v]).stride([0, 0]));
        x.diag_with(v); vector.diag_with(v); x.diagonal_with(Diagonal::new().offset(v));
        vector.diag_embed_with(Diagonal::new().offset(v).dim1(0).dim2(1)); x.tril_with(v); x.triu_with(v);
        x.diagonal_scatter_with(vector, Diagonal::new().offset(v));
        vector.diag_embed_with(Diagonal::new().dim1(v).dim2(1));
        Tensor::tril_indices(v, 2); Tensor::tril_indices(v, v); Tensor::triu_indices_with(2, v, v);
        Tensor::triu_indices_with(v, v, v); Tensor::tril_indices_with(3, 3, v);
        Tensor::eye(v, DType::F32); Tensor::eye((v, v), DType::Bool); Tensor::eye((2, v), DType::F64);
        x.topk(TopK::new(v).dim(0)); x.kthvalue(v, 0); x.sort(v); x.cumsum(v);
        index.one_hot(v); index.bincount_with(BinCount::new().minlength(v));
        vector.histc(Histogram::new(v).max(1.0)); vector.vander_with(v);
        vector.combinations(v); vector.combinations(Combinations::new(v).with_replacement(true));
        x.diff_with(Diff::new().n(v).dim(0));
        x.matrix_power(v); x.polygamma(v); x.mvlgamma(v); x.round_decimals(v);
        x.tensordot(x, v); x.tensordot_dims(x, [v], [0]); x.cross(x, v); x.vecdot(x, v);
        x.multinomial(Multinomial::new(v).replacement(true)); x.multinomial(v); Tensor::randperm(v);
        Tensor::randint(v, i64::MAX, [2]); Tensor::randint(i64::MIN, v, [2]); Tensor::randint(v, v, [2]);
        Tensor::linspace(0, 1, v, DType::F32); Tensor::logspace(0, 1, v, 10.0, DType::F64);
        Tensor::linspace(v, i64::MAX, 3, DType::I64); Tensor::arange(0, v, 1); Tensor::arange(v, 5, 1);
        Tensor::arange(v, i64::MAX, v); Tensor::arange(i64::MIN, i64::MAX, v); Tensor::arange(0, 3, v);
        Tensor::arange_dtype(v, i64::MAX, 1, DType::U8); Tensor::arange_dtype(0, v, 1, DType::I32);
        x.layer_norm([v]); x.layer_norm([v, v]);
        x.rms_norm([v]); image.group_norm(v);
        image.local_response_norm(LocalResponse::new(v).alpha(1.0).beta(1.0));
        image.pixel_shuffle(v); image.pixel_unshuffle(v); image.channel_shuffle(v);
        x.softmax(v); x.glu(v); x.sum(v); x.argmax(v); x.gather(v, index);
        x.index_select(v, index); x.select_scatter(vector, 0, v);
        x.slice_scatter(x, 0, v..); x.slice_scatter(x, 0, step(..v, v));
        x.nll_loss_with(index, Nll::new().ignore_index(v));
        x.cross_entropy_with(index, CrossEntropy::new().ignore_index(v));
        x.multi_margin_loss_with(index, MultiMargin::new().p(v)); x.cat_with(v); x.stack_with(v);
    );
    sweep!(s, SIZES, v:
        image.pad([v, 0], PadMode::ZEROS); image.pad([v, v], PadMode::ZEROS);
        image.pad([v, v, v, v], PadMode::ZEROS); image.pad([0, v], PadMode::Reflect);
        image.pad([v, v, v, v], PadMode::Reflect); image.pad([v, v], PadMode::Replicate);
        image.pad([v, v, 1, v], PadMode::Replicate); image.pad([v, v], PadMode::Circular);
        bytes.pad([v, v], PadMode::ZEROS); bytes.pad([v, v, v, v], PadMode::ZEROS);
        image.max_pool2d(v); image.max_pool2d(Pool::new(2).stride(v).ceil_mode(true));
        image.max_pool2d(Pool::new(2).stride(1).padding(v));
        image.max_pool2d(Pool::new(2).stride(1).dilation(v));
        image.max_pool2d(Pool::new([v, 1]).stride([v, v]).padding([0, v]).ceil_mode(true));
        image.max_pool2d(Pool::new(v).stride(v).padding(v).dilation(v).ceil_mode(true));
        image.max_pool2d_with_indices(Pool::new(2).stride(v).padding(1).ceil_mode(true));
        image.max_pool2d_with_indices(Pool::new(v).stride(v).padding(v).dilation(v));
        lines.max_pool1d(v);
        lines.max_pool1d_with_indices(Pool::new(2).stride(1).dilation(v).ceil_mode(true));
        volume.max_pool3d(Pool::new(2).stride(v).ceil_mode(true));
        volume.max_pool3d(Pool::new(v).stride(1).padding(v));
        image.avg_pool2d(v);
        image.avg_pool2d(AvgPool::new(2).stride(v).ceil_mode(true).count_include_pad(false));
        image.avg_pool2d(AvgPool::new(2).stride(1).padding(v).ceil_mode(true));
        image.avg_pool2d(AvgPool::new(2).stride(1).divisor_override(v));
        image.avg_pool2d(AvgPool::new(v).stride(v).padding(v).ceil_mode(true).count_include_pad(false).divisor_override(v));
        lines.avg_pool1d(AvgPool::new(v).stride(v).padding(v).ceil_mode(true));
        volume.avg_pool3d(AvgPool::new(v).stride(v).padding(v).ceil_mode(true));
        image.adaptive_avg_pool2d(v); image.adaptive_avg_pool2d([v, 2]); lines.adaptive_avg_pool1d(v);
        image.adaptive_max_pool2d(v); image.adaptive_max_pool2d_with_indices([2, v]);
        volume.adaptive_max_pool3d(v); volume.adaptive_avg_pool3d([v, v, 1]);
        image.im2col(v); image.im2col(Im2Col::new(2).dilation(v)); image.im2col(Im2Col::new(2).padding(v));
        image.im2col(Im2Col::new(2).stride(v)); image.im2col(Im2Col::new(v).stride(v).padding(v).dilation(v));
        image.max_unpool2d(image.zeros_like().to_dtype(DType::I64), v);
        image.max_unpool2d(image.zeros_like().to_dtype(DType::I64), Unpool::new(2).stride(v));
        image.max_unpool2d(image.zeros_like().to_dtype(DType::I64), Unpool::new(2).stride(2).padding(v));
        image.max_unpool2d(image.zeros_like().to_dtype(DType::I64), Unpool::new(2).stride(2).output_size([v, v]));
        lines.max_unpool1d(lines.zeros_like().to_dtype(DType::I64), Unpool::new(v).stride(v).padding(v).output_size([v]));
        image.conv2d_with(weight, Conv::new().stride(v)); image.conv2d_with(weight, Conv::new().padding(v));
        image.conv2d_with(weight, Conv::new().dilation(v)); image.conv2d_with(weight, Conv::new().groups(v));
        image.conv2d_with(weight, Conv::new().stride(v).padding(v).dilation(v));
        image.conv2d_with(weight, Conv::new().stride([1, v]).padding([v, 0]));
        lines.conv1d_with(filter, Conv::new().stride(v).padding(v));
        lines.conv1d_with(filter, Conv::new().padding(v).dilation(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().stride(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().padding(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().stride(2).output_padding(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().groups(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().dilation(v));
        image.conv_transpose2d_with(weight, ConvTranspose::new().stride(v).padding(v).output_padding(v).dilation(v));
        lines.conv_transpose1d_with(filter, ConvTranspose::new().stride(v).padding(v).output_padding(v).dilation(v));
        lines.conv_transpose1d_with(filter, ConvTranspose::new().stride(v).dilation(v));
        image.interpolate(InterpolateSize::Size(v.into()), InterpolateMode::Nearest);
        image.interpolate(InterpolateSize::Size([v, v].into()), InterpolateMode::NearestExact);
        image.interpolate(InterpolateSize::Size([v, 1].into()), InterpolateMode::Area);
        image.interpolate(InterpolateSize::Size(v.into()), InterpolateMode::Bicubic { align_corners: true });
        image.interpolate(InterpolateSize::Size(v.into()), InterpolateMode::Linear { align_corners: false });
    );
    let sizes = SIZES.iter().map(|v| *v as usize).chain([usize::MAX - 1]);
    sweep!(s, sizes.clone(), v:
        Tensor::zeros([v], DType::F32); Tensor::zeros([v, v], DType::Bool); Tensor::zeros([v, 0], DType::F64);
        Tensor::ones([2, v], DType::F16); Tensor::full([v, v, v], 1, DType::I64);
        Tensor::rand([v], DType::F32);
        Tensor::rand([v, v], DType::F64); Tensor::randn([v], DType::BF16); Tensor::randn([v, 4], DType::F32);
        Tensor::randint(0, 4, [v, v]); Tensor::randint(0, 4, [v]); Tensor::from_slice(&[1.0f32; 4], [v]);
        Tensor::from_slice(&[1.0f32; 4], [v, v]); Tensor::from_slice::<f32>(&[], [v, v]);
        Tensor::from_bytes(&[0; 8], DType::F32, [v, v]); Tensor::from_bytes(&[0; 8], DType::U8, [v, 4]);
    );
}

fn sweep_numbers(s: &mut Sweep) {
    let x = &Tensor::ones([2, 3], DType::F32);
    let image = &Tensor::ones([1, 2, 4, 4], DType::F32);
    let target = &Tensor::from_slice(&[0i64, 1], [2]);
    let scale = |v: f64| InterpolateSize::ScaleFactor(vec![v]);
    sweep!(s, NUMBERS, v:
        Tensor::arange(0.0, v, 1.0); Tensor::arange(v, 5.0, 1.0); Tensor::arange(0.0, 5.0, v);
        Tensor::arange(v, v, v); Tensor::arange_dtype(0.0, v, 1.0, DType::I64);
        Tensor::arange_dtype(0.0, v, v, DType::F16); Tensor::linspace(v, 1.0, 3, DType::F32);
        Tensor::linspace(0.0, v, 3, DType::I64); Tensor::logspace(0.0, v, 3, v, DType::F64);
        Tensor::full([2], v, DType::I64); Tensor::full([2], v, DType::F16); Tensor::full([2], v, DType::Bool);
        image.interpolate(scale(v), InterpolateMode::Nearest);
        image.interpolate(scale(v), InterpolateMode::NearestExact);
        image.interpolate(scale(v), InterpolateMode::Area);
        image.interpolate(scale(v), InterpolateMode::Bicubic { align_corners: false });
        image.interpolate(scale(v), InterpolateMode::Linear { align_corners: true });
        image.interpolate(InterpolateSize::ScaleFactor(vec![v, 1.0]), InterpolateMode::Nearest);
        x.var_with((), v); x.std_with(keep(1), v); x.vector_norm(v, ()); x.renorm(v, 0, 1.0);
        x.renorm(2.0, 0, v); x.normalize_with(1, Normalize::new().p(v).eps(v));
        x.pairwise_distance_with(x, Pairwise::new().p(v).eps(v).keepdim(true)); x.dist_with(x, v);
        x.pdist_with(v); kiln::cdist_with(x, x, v); x.dropout(v); x.bernoulli_with(v); x.histc_of(v);
        x.quantile(v, ()); x.quantile_with(v, keep(1), Interpolation::Nearest);
        x.layer_norm_with([3], Affine::new().eps(v)); image.group_norm_with(2, Affine::new().eps(v));
        image.local_response_norm(LocalResponse::new(3).alpha(v).beta(v).k(v)); x.clamp(v, v); x.elu_with(v);
        x.celu_with(v); x.logit_with(v);
        x.hardtanh_with(v, 1.0); x.threshold(v, v); x.softplus_with(SoftPlus::new().beta(v).threshold(v));
        x.nan_to_num_with(NanToNum::new().nan(v).posinf(v).neginf(v));
        x.smooth_l1_loss_with(x, SmoothL1::new().beta(v)); x.huber_loss_with(x, Huber::new().delta(v));
        x.cross_entropy_with(target, CrossEntropy::new().label_smoothing(v));
        x.isclose_with(x, Tolerance::new().rtol(v).atol(v).equal_nan(true));
        x.addcmul_with(x, x, v); x.pad([1, 1], PadMode::Constant(v.into()));
        x.cosine_similarity_with(x, Cosine::new().eps(v));
        x.scaled_dot_product_attention_with(x, x, Attention::new().dropout_p(v));
        x.scaled_dot_product_attention_with(x, x, Attention::new().scale(v));
    );
}

/// Calls that take sizes from something other than an argument.
trait Others {
    fn cat_with(&self, dim: i64) -> Tensor;
    fn stack_with(&self, dim: i64) -> Tensor;
    fn histc_of(&self, edge: f64) -> Tensor;
}

impl Others for Tensor {
    /// Concatenates tensors expanded along `dim`: the sum of their sizes may not be representable.
    #[track_caller]
    fn cat_with(&self, dim: i64) -> Tensor {
        let one = Tensor::ones([1, 1], DType::U8);
        let long = one.expand([dim, 1]);
        kiln::cat(&[&long, &long, &long, &long], 0)
    }
    #[track_caller]
    fn stack_with(&self, dim: i64) -> Tensor {
        let long = Tensor::ones([1], DType::U8).expand([dim]);
        kiln::stack(&[&long, &long, &long, &long], 0)
    }
    #[track_caller]
    fn histc_of(&self, edge: f64) -> Tensor {
        self.histc(Histogram::new(4).min(edge).max(edge))
    }
}

/// Runs in a process of its own with a small memory limit.
#[test]
fn hostile_numbers_give_values_or_errors_soon() {
    if !is_alone(
        "sizes::hostile_numbers_give_values_or_errors_soon",
        &[("RUST_BACKTRACE", "0")],
    ) {
        return;
    }
    Device::Cpu.set_memory_limit(Some(64 << 20));
    limit_address_space(4 << 30);
    let (at, ended) = mpsc::channel();
    let sweep = std::thread::Builder::new()
        .stack_size(32 << 20)
        .spawn(move || {
            let mut sweep = Sweep {
                wrong: Vec::new(),
                at,
            };
            sweep_sizes(&mut sweep);
            sweep_numbers(&mut sweep);
            sweep.wrong
        });
    let (mut last, mut count) = (String::new(), 0);
    loop {
        match ended.recv_timeout(Duration::from_secs(30)) {
            Ok(text) => (last, count) = (text, count + 1),
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("this does not end: {last}"),
        }
    }
    let wrong = sweep.unwrap().join().unwrap();
    assert!(
        wrong.is_empty(),
        "{} of {count}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(count > 2000, "{count}");
}

/// Limits the address space, so that an allocation beyond Kiln's limits fails early.
fn limit_address_space(bytes: u64) {
    #[cfg(target_os = "linux")]
    // SAFETY: sets a limit of this process.
    unsafe {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: bytes,
        };
        assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &raw const limit), 0);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = bytes;
}
