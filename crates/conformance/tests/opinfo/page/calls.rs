//! Calls of the rows, with operands for all of them.

use super::*;
use kiln_nn::amp::{Amp, GradScaler, OptLevel, initialize};
use kiln_nn::optim::{Optimizer, SGD};
use kiln_nn::{Linear, Module};
use kiln_tensor::{
    Calibration, Compiled, CustomOp, DType, Device, InProjection, MultiHeadAttention, PrintOptions,
    Reduction, Result, Scalar, Spec, Tensor, Var, compile, custom_function, is_recording, profiler,
    vjp,
};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls that set what other tests of the process see, write files, or copy bytes in a closure of the caller.
const SKIPPED: &[&str] = &[
    "filled",
    "set_threads",
    "set_default_device",
    "manual_seed_all",
    "libraries",
    "backends",
    "export_chrome_trace",
    "set_printoptions",
];

/// A call, and the tensors that it gave.
pub(super) type Called = (&'static str, Result<Vec<Tensor>>);

/// The calls of a group of rows: that of the row of a number, on two tensors.
pub(super) type Group = fn(usize, &Tensor, &Tensor) -> Option<Called>;

/// The groups of operators on tensors, which make none of their own.
pub(super) const OPERATORS: [Group; 10] = [
    ELEMENTWISE,
    REDUCTIONS,
    PRODUCTS,
    LINALG,
    CONVOLUTION,
    LOSSES,
    INDEXING,
    SHAPE,
    SORTING,
    ACTIVATIONS,
];

/// A result of a call.
pub(super) struct CallResult<'a, T>(pub(super) &'a T);

/// The tensors of a result; those of results that hold none are [`Other`]'s.
pub(super) trait Tensors {
    fn tensors(&self) -> Vec<Tensor>;
}

pub(super) trait Other {
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }
}

impl<T> Other for &CallResult<'_, T> {}

impl Tensors for CallResult<'_, Tensor> {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0.clone()]
    }
}

impl Tensors for CallResult<'_, Vec<Tensor>> {
    fn tensors(&self) -> Vec<Tensor> {
        self.0.clone()
    }
}

impl Tensors for CallResult<'_, (Tensor, Tensor)> {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.0.0.clone(), self.0.1.clone()]
    }
}

impl Tensors for CallResult<'_, (Tensor, Option<Tensor>)> {
    fn tensors(&self) -> Vec<Tensor> {
        std::iter::once(self.0.0.clone())
            .chain(self.0.1.clone())
            .collect()
    }
}

impl Tensors for CallResult<'_, (Tensor, Tensor, Tensor, Tensor)> {
    fn tensors(&self) -> Vec<Tensor> {
        let (a, b, c, d) = self.0;
        vec![a.clone(), b.clone(), c.clone(), d.clone()]
    }
}

impl Tensors for CallResult<'_, (Tensor, Tensor, Tensor)> {
    fn tensors(&self) -> Vec<Tensor> {
        let (a, b, c) = self.0;
        vec![a.clone(), b.clone(), c.clone()]
    }
}

pub(super) const ONE: Scalar = Scalar::Float(1.0);

pub(super) const ELEMENTWISE: Group =
    |row, x, y| elementwise::call(row, x, y, y, &x.gt(y), ONE, x.dtype());
pub(super) const REDUCTIONS: Group = |row, x, _| reductions::call(row, x, 1, &[0, 1]);
pub(super) const PRODUCTS: Group =
    |row, x, y| products::call(row, x, y, y, y, y, 0, ONE, ONE, 3.0, false);
pub(super) const LINALG: Group = |row, x, y| linalg::call(row, x, y, y);
pub(super) const CONVOLUTION: Group =
    |row, x, y| convolution::call(row, x, y, None, y, y, 2, 1, 1, 1, 1, 0, false, false);
pub(super) const LOSSES: Group =
    |row, x, y| losses::call(row, x, y, y, y, Some(y), Reduction::Mean);
pub(super) const INDEXING: Group = |row, x, y| {
    let index = match y.dtype().is_float() {
        true => y.zeros_like().to_dtype(DType::I64),
        false => y.clone(),
    };
    indexing::call(row, x, y, y, &index, &x.gt(0.0), x, None, 1)
};
pub(super) const SHAPE: Group = |row, x, y| shape::call(row, x, y, 1, &[2.into(), 5.into()]);
pub(super) const SORTING: Group = |row, x, y| sorting::call(row, x, y, 1, false, false);
pub(super) const ACTIVATIONS: Group = |row, x, y| {
    thread_local! {
        static STATE: [Var; 2] = [0.0, 1.0].map(|v| Var::new(Tensor::full([8], v, DType::F64)).unwrap());
    }
    let [mean, var] = STATE.with(Clone::clone);
    let attention = MultiHeadAttention {
        num_heads: 2,
        in_proj_weight: InProjection::Separate([y; 3]),
        in_proj_bias: None,
        bias_kv: None,
        add_zero_attn: false,
        dropout_p: 0.0,
        out_proj_weight: y,
        out_proj_bias: None,
        training: false,
        key_padding_mask: None,
        need_weights: true,
        attn_mask: None,
        is_causal: false,
        average_attn_weights: true,
        static_kv: [None; 2],
    };
    let mask = x.gt(y);
    activations::call(
        row, x, y, y, y, y, &mean, &var, &mask, y, &attention, 1, true, true,
    )
};
pub(super) const CREATION: Group = |row, x, y| {
    let options = PrintOptions::default();
    skipped(creation::ROWS, row)
        .or_else(|| creation::call(row, x, y, &[0; 3], x.dtype(), options, 2.0))
};
/// Not inside `compile`, where no state is made.
pub(super) const AUTOGRAD: Group = |row, x, y| {
    if is_recording() {
        return None;
    }
    thread_local! {
        static STEP: Compiled<(Tensor, Tensor), Tensor> = {
            let spec = || Spec::new(DType::F32, (2, 3));
            compile((spec(), spec()), |(a, b): (Tensor, Tensor)| a + b).unwrap()
        };
    }
    let one = Tensor::from([1.0f32]).requires_grad_(true);
    let node = (&one * 2.0).grad_fn().unwrap();
    let w = Var::new(Tensor::zeros([4, 5], DType::F32)).unwrap();
    let pull = vjp(|x: Tensor| x * 2.0, one.clone()).unwrap().1;
    let handle = one.register_hook(|_| None).unwrap();
    let spec = Spec::new(DType::F32, (2, 3));
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let op = || {
        // Names are registered once.
        let name = format!("calls::op{}", NUMBER.fetch_add(1, Ordering::Relaxed)).leak();
        let copy = CustomOp::new(
            name,
            |x| Ok(x[0].clone()),
            |x, y| y.write(x[0].as_slice::<f32>()?),
        );
        copy.unwrap()
    };
    let (op, custom) = (op(), op());
    let profile = profiler::profile(|| ()).1;
    let f = |x: Tensor| x.matmul(&x);
    let called = |step: &_| {
        autograd::call(
            row,
            x,
            y,
            x,
            &w,
            f,
            pull,
            y,
            y,
            &w,
            &handle,
            spec,
            step,
            op,
            &custom,
            &profile,
            Device::Cpu,
            &node,
        )
    };
    skipped(autograd::ROWS, row).or_else(|| STEP.with(called))
};
/// Not inside `compile`, where no layer is made.
pub(super) const AMP: Group = |row, x, y| {
    if is_recording() {
        return None;
    }
    let model = Linear::new(3, 3).unwrap();
    let optimizer = || Optimizer::new(model.parameters(), SGD::new().lr(0.1)).unwrap();
    let mut scaled = optimizer();
    let mut amp: Amp = initialize(&model, &mut [&mut scaled], OptLevel::O1).unwrap();
    let w = Var::new(Tensor::zeros([4, 5], DType::F32)).unwrap();
    let f = custom_function(|x: Tensor| (x, ()), |(), g: Tensor| g);
    amp::call(
        row,
        x,
        y,
        &w,
        x,
        y,
        f,
        &model,
        &mut optimizer(),
        &mut GradScaler::new(),
        &mut amp,
        &mut Calibration::new(),
    )
};

/// Nothing, of a call that is not made.
fn skipped(rows: &[Row], row: usize) -> Option<Called> {
    let code = rows.get(row)?.code;
    let skips = SKIPPED.iter().any(|s| code.contains(s));
    skips.then(|| (code, Ok(Vec::new())))
}
