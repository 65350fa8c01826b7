//! Kernels whose time is that of memory, and the time of the host.

use super::models::Whole;
use super::{Case, median, randn, table};
use crate::{Failed, Report, Settings};
use kiln_tensor::{Affine, DType, Grad, Result, RunningStats, Tensor, grad_with};
use std::time::Instant;

/// The gradients of `y` for the cotangent `dy`.
fn gradients(y: &Tensor, dy: &Tensor, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
    grad_with(y, inputs, Grad::new().grad_outputs(dy))
}

fn gelu_chain(x: &Tensor) -> Tensor {
    let inner = (x + x * x * x * 0.044715) * 0.797_884_56;
    (x * 0.5 * (inner.tanh() + 1.0)) * x.sigmoid() + x
}

fn layer_norm(x: &[Tensor], width: usize) -> Tensor {
    x[0].layer_norm_with([width], Affine::new().weight(&x[1]).bias(&x[2]))
}

fn batch_norm(x: &Tensor, weight: &Tensor, bias: &Tensor) -> Tensor {
    x.batch_norm_with(RunningStats::new().weight(weight).bias(bias).training(true))
}

/// The element-wise work of AdamW on a parameter, its gradient and both moments.
fn adamw(x: &[Tensor]) -> Vec<Tensor> {
    let (p, g) = (&x[0], &x[1]);
    let m = &x[2] * 0.9 + g * 0.1;
    let v = &x[3].abs() * 0.999 + g * g * 0.001;
    let p = p * (1.0 - 1e-5) - &m / (v.sqrt() + 1e-8) * 1e-3;
    vec![p, m, v]
}

fn cases(small: bool) -> Vec<Case> {
    let dtype = DType::BF16;
    let matrix = |rows: usize, width: usize| match small {
        true => vec![33, 128],
        false => vec![rows, width],
    };
    let images = match small {
        true => vec![2, 9, 9, 16],
        false => vec![64, 56, 56, 256],
    };
    // Bytes of a tensor, for each time that it is read or written at least.
    let bytes = |shape: &[usize], dtype: DType, times: usize| {
        (shape.iter().product::<usize>() * dtype.size() * times) as f64
    };
    let mut cases_list = Vec::new();
    let wide = matrix(16384, 4096);
    let half = |shape: &[usize]| (dtype, shape.to_vec());
    cases_list.push(Case::new(
        "gelu chain",
        vec![half(&wide)],
        bytes(&wide, dtype, 2),
        |x| Ok(vec![gelu_chain(&x[0])]),
    ));
    cases_list.push(Case::new(
        "softmax",
        vec![half(&wide)],
        bytes(&wide, dtype, 2),
        |x| Ok(vec![x[0].softmax(-1)]),
    ));
    let operands = vec![half(&wide), half(&wide)];
    cases_list.push(Case::new(
        "softmax backward",
        operands,
        bytes(&wide, dtype, 3),
        |x| {
            let leaf = x[0].requires_grad_(true);
            gradients(&leaf.softmax(-1), &x[1], &[&leaf])
        },
    ));
    for width in [768, 4096] {
        let shape = matrix(65536 * 1024 / width, width);
        let width = shape[1];
        let row = vec![width];
        let operands = vec![half(&shape), half(&row), half(&row)];
        let name = format!("layer norm of {width}");
        cases_list.push(Case::new(
            name,
            operands.clone(),
            bytes(&shape, dtype, 2),
            move |x| Ok(vec![layer_norm(x, width)]),
        ));
        let operands = operands.into_iter().chain([half(&shape)]).collect();
        let name = format!("layer norm of {width} backward");
        cases_list.push(Case::new(
            name,
            operands,
            bytes(&shape, dtype, 3),
            move |x| {
                let leaves: Vec<Tensor> = x[..3].iter().map(|t| t.requires_grad_(true)).collect();
                let y = layer_norm(&leaves, width);
                gradients(&y, &x[3], &leaves.iter().collect::<Vec<_>>())
            },
        ));
    }
    let classes = matrix(8192, 50257);
    let labels = (DType::I64, vec![classes[0]]);
    let operands = vec![half(&classes), labels];
    cases_list.push(Case::new(
        "cross-entropy and its gradient",
        operands,
        bytes(&classes, dtype, 3),
        |x| {
            let leaf = x[0].requires_grad_(true);
            let loss = leaf.cross_entropy(&x[1]);
            let [gradient] = kiln_tensor::grad(&loss, &[&leaf])?;
            Ok(vec![loss, gradient])
        },
    ));
    let channel = vec![images[3]];
    let operands = vec![half(&images), half(&channel), half(&channel)];
    let channels_first = |t: &Tensor| t.permute([0, 3, 1, 2]);
    let last = |t: Tensor| t.permute([0, 2, 3, 1]);
    cases_list.push(Case::new(
        "batch norm, channels last",
        operands.clone(),
        bytes(&images, dtype, 3),
        move |x| Ok(vec![last(batch_norm(&channels_first(&x[0]), &x[1], &x[2]))]),
    ));
    let operands = operands.into_iter().chain([half(&images)]).collect();
    cases_list.push(Case::new(
        "batch norm backward, channels last",
        operands,
        bytes(&images, dtype, 5),
        move |x| {
            let leaves: Vec<Tensor> = x[..3].iter().map(|t| t.requires_grad_(true)).collect();
            let y = last(batch_norm(
                &channels_first(&leaves[0]),
                &leaves[1],
                &leaves[2],
            ));
            gradients(&y, &x[3], &leaves.iter().collect::<Vec<_>>())
        },
    ));
    let parameters = matrix(4096, 16384);
    let single = (DType::F32, parameters.clone());
    cases_list.push(Case::new(
        "AdamW of f32",
        vec![single; 4],
        bytes(&parameters, DType::F32, 7),
        |x| Ok(adamw(x)),
    ));
    let single = (DType::F32, wide.clone());
    cases_list.push(Case::new(
        "cumulative sum of rows, f32",
        vec![single.clone()],
        bytes(&wide, DType::F32, 2),
        |x| Ok(vec![x[0].cumsum(-1)]),
    ));
    cases_list.push(Case::new(
        "sum of columns, f32",
        vec![single.clone()],
        bytes(&wide, DType::F32, 1),
        |x| Ok(vec![x[0].sum(0)]),
    ));
    cases_list.push(Case::new(
        "transpose, f32",
        vec![single],
        bytes(&wide, DType::F32, 2),
        |x| Ok(vec![x[0].transpose(0, 1).contiguous()]),
    ));
    cases_list
}

pub(crate) fn run(settings: &Settings, report: &mut Report) -> std::result::Result<(), Failed> {
    report.note(
        "the bytes of a kernel are those of tensors that it must read and write at least once; a batch norm \
         reads its input twice, its backward pass both of its inputs",
    );
    let cases = cases(settings.emulated()).into_iter();
    table(settings, report, "rows", cases)
}

/// Products of small matrices, each of which is a kernel.
fn chain(length: usize, settings: &Settings) -> Result<Whole> {
    let x = randn([16, 16], DType::F32, settings.device)?;
    Whole::new(format!("{length} kernels"), vec![x], |x| {
        let mut y = x[0].clone();
        for _ in 0..length {
            y = y.matmul(&x[0]) * 0.1;
        }
        Ok(vec![y])
    })
}

pub(crate) fn launches(
    settings: &Settings,
    report: &mut Report,
) -> std::result::Result<(), Failed> {
    let device = settings.device;
    if settings.emulated() {
        report.note("emulated: nothing is timed");
        return Ok(chain(4, settings)?.check(report)?);
    }
    // The host's time alone: so few runs that the device's queue is never full.
    let host = |case: &Whole| -> Result<f64> {
        case.seconds(device)?;
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = Instant::now();
            case.run_once()?;
            times.push(start.elapsed().as_secs_f64());
            device.synchronize()?;
        }
        Ok(median(&times))
    };
    let (short_chain, long_chain) = (chain(32, settings)?, chain(288, settings)?);
    let kernels = |case: &Whole| case.run.explain().kernels_run() as f64;
    let (short, long) = (host(&short_chain)?, host(&long_chain)?);
    let added = (long - short) / (kernels(&long_chain) - kernels(&short_chain));
    report.number("host, a run of a few kernels", "µs", short * 1e6);
    report.number("host, added for each replayed kernel", "µs", added * 1e6);
    let total = long_chain.seconds(device)?;
    report.number(
        "device, each of 288 small products one after the other",
        "µs",
        total * 1e6 / kernels(&long_chain),
    );
    report.check("launches", Ok(()));
    Ok(())
}
