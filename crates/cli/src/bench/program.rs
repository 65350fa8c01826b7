//! A workload as a compiled program with its inputs.

use crate::spec::{Conv, Unary, Workload};
use kiln::nn::{Conv1d, Conv2d, Conv3d, Forward, Kernel, Module, Sequential};
use kiln::{
    CompileOptions, DType, Device, Grad, Pool, Result, RunningStats, Tensor, compile_with,
    grad_with, no_grad,
};
use kiln_models::workloads::{self, Setup};

pub use workloads::Workload as Program;

/// Builds and compiles a workload, with random data of a dtype on a device. Training steps in f16 or bf16 are steps
/// of f32 inside `autocast`.
///
/// # Errors
/// If the sizes don't go together, or the device fails.
pub fn program(
    workload: &Workload,
    dtype: DType,
    device: Device,
    options: &CompileOptions,
) -> Result<Program> {
    let random = |shape: &[usize]| Tensor::randn(shape, dtype).to(device);
    match workload {
        Workload::Model(name) => {
            let setup = Setup {
                options,
                device,
                dtype,
            };
            workloads::make(name, setup)
        }
        Workload::MatMul(sizes) => {
            let (batch, [m, k, n]) = sizes.split_last_chunk().unwrap_or((&[], &[1, 1, 1]));
            let shape = |rows: usize, columns: usize| [batch, &[rows, columns]].concat();
            let inputs = vec![random(&shape(*m, *k)), random(&shape(*k, *n))];
            compile_module(Sequential::new(), inputs, options, |_, x| {
                x[0].matmul(&x[1])
            })
        }
        Workload::Conv(conv) if conv.gradients => gradients(conv, random, options),
        Workload::Conv(conv) => convolution(conv, random(&conv.input), options),
        Workload::Unary(op, shape) => {
            let count = match op {
                Unary::Add => 2,
                Unary::Gelu => 4,
                _ => 1,
            };
            let mut inputs: Vec<Tensor> = (0..count).map(|_| random(shape)).collect();
            if let (Unary::Gather, Some(rows)) = (op, shape.first()) {
                let max_rows = (*rows).max(1) as i64;
                inputs.push(Tensor::randint(0, max_rows, [*rows]).to(device));
            }
            compile_module(Sequential::new(), inputs, options, |_, x| unary(*op, x))
        }
        Workload::Attention(shape) => {
            let inputs = (0..3).map(|_| random(shape)).collect();
            compile_module(Sequential::new(), inputs, options, |_, x| {
                x[0].scaled_dot_product_attention(&x[1], &x[2])
            })
        }
    }
}

/// The weight is a parameter, as in a network: work that depends on it alone is prepared once.
fn convolution(conv: &Conv, input: Tensor, options: &CompileOptions) -> Result<Program> {
    let [stride, padding] = [conv.stride, conv.padding].map(|n| n as i64);
    let (channels, out) = (conv.input[1], conv.weight[0]);
    let kernel: Vec<i64> = conv.weight[1..].iter().map(|n| *n as i64).collect();
    macro_rules! of {
        ($layer:ident, $kernel:expr) => {{
            let kernel_options = Kernel::new($kernel).stride(stride).padding(padding);
            let layer = $layer::new(
                channels,
                out,
                kernel_options.bias(false).groups(conv.groups),
            )?;
            layer.to(input.device())?;
            layer.to_dtype(input.dtype())?;
            compile_module(layer, vec![input], options, |layer, x| layer.call(&x[0]))
        }};
    }
    match kernel[..] {
        [length] => of!(Conv1d, [length]),
        [depth, height, width] => of!(Conv3d, [depth, height, width]),
        _ => of!(Conv2d, [kernel[0], kernel[1]]),
    }
}

/// The gradients of input and weight, of a random gradient of the result.
fn gradients(
    conv: &Conv,
    random: impl Fn(&[usize]) -> Tensor,
    options: &CompileOptions,
) -> Result<Program> {
    let mut weight = conv.weight.clone();
    weight.insert(1, conv.input[1] / conv.groups.max(1));
    let inputs = [random(&conv.input), random(&weight)];
    let [stride, padding, groups] = [conv.stride, conv.padding, conv.groups].map(|n| n as i64);
    let conv_options = kiln::Conv::new()
        .stride(stride)
        .padding(padding)
        .groups(groups);
    let result = |x: &Tensor, w: &Tensor| match weight.len() {
        3 => x.conv1d_with(w, conv_options.clone()),
        5 => x.conv3d_with(w, conv_options.clone()),
        _ => x.conv2d_with(w, conv_options.clone()),
    };
    let shape = result(&inputs[0], &inputs[1]).shape()?;
    let [x, w] = inputs;
    let inputs = vec![x, w, random(&shape)];
    let program = compile_with(&inputs, options, |operands| {
        let (x, g) = (&operands[..2], &operands[2]);
        let leaves: Vec<Tensor> = x.iter().map(|t| t.requires_grad_(true)).collect();
        let y = result(&leaves[0], &leaves[1]);
        grad_with(y, leaves, Grad::new().grad_outputs(g))
    })?;
    Ok(Program {
        model: Box::new(Sequential::new()),
        inputs,
        program,
    })
}

fn unary(op: Unary, x: &[Tensor]) -> Tensor {
    let last = || {
        x[0].shape()
            .ok()
            .and_then(|s| s.last().copied())
            .unwrap_or(1)
    };
    match op {
        Unary::Copy => -&x[0],
        Unary::Add => &x[0] + &x[1],
        Unary::Gelu => (&x[0] * &x[1] + &x[2]).gelu() * &x[3],
        Unary::Sum => x[0].sum(-1),
        Unary::ColumnSum => x[0].sum(0),
        Unary::Softmax => x[0].softmax(-1),
        Unary::MaxPool => x[0].max_pool2d(Pool::new(3).stride(2).padding(1)),
        Unary::Gather => x[0].index_select(0, &x[1]),
        Unary::Sort => x[0].sort(-1).0,
        Unary::Cumsum => x[0].cumsum(-1),
        Unary::LayerNorm => x[0].layer_norm([last()]),
        Unary::BatchNorm => x[0]
            .batch_norm_with(RunningStats::new().training(true))
            .relu(),
    }
}

fn compile_module<M: Module + 'static>(
    model: M,
    inputs: Vec<Tensor>,
    options: &CompileOptions,
    f: impl FnOnce(&M, &[Tensor]) -> Tensor,
) -> Result<Program> {
    let program = compile_with(&inputs, options, |x| no_grad(|| vec![f(&model, &x)]))?;
    Ok(Program {
        model: Box::new(model),
        inputs,
        program,
    })
}
