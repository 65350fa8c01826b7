//! Kernels whose time is that of memory, and the time of the host.

use super::{Case, median, randn, seconds, table};
use crate::driver::Driver;
use crate::{Failed, Report, Settings};
use kiln_tensor::{Affine, DType, Grad, Result, RunningStats, Tensor, grad_with};
use std::time::Instant;

/// The bandwidth of copies in bytes a second, of bytes read and written.
fn copies(driver: &Driver, bytes: usize) -> std::result::Result<f64, Failed> {
    let copy = driver.copier(bytes)?;
    copy(3)?;
    let mut rates = Vec::new();
    for _ in 0..super::ROUNDS {
        let start = Instant::now();
        copy(50)?;
        rates.push(100.0 * bytes as f64 / start.elapsed().as_secs_f64());
    }
    Ok(median(rates))
}

/// The gradients of `y` for the cotangent `dy`.
fn gradients(y: &Tensor, dy: &Tensor, of: &[&Tensor]) -> Result<Vec<Tensor>> {
    grad_with(y, of, Grad::new().grad_outputs(dy))
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

/// A case's name, its inputs' shapes, how often its first input's bytes move at least, and its function.
type Row = (
    &'static str,
    Vec<Vec<usize>>,
    f64,
    fn(&[Tensor]) -> Result<Vec<Tensor>>,
);

fn cases(small: bool) -> Vec<Row> {
    let (rows, width) = if small { (33, 128) } else { (4096, 8192) };
    let images = if small {
        vec![2, 8, 9, 16]
    } else {
        vec![32, 64, 128, 128]
    };
    let channels = vec![images[1]];
    let matrix = vec![rows, width];
    let row = vec![width];
    vec![
        ("gelu chain", vec![matrix.clone()], 2.0, |x| {
            Ok(vec![gelu_chain(&x[0])])
        }),
        ("softmax", vec![matrix.clone()], 2.0, |x| {
            Ok(vec![x[0].softmax(-1)])
        }),
        (
            "layer norm",
            vec![matrix.clone(), row.clone(), row.clone()],
            2.0,
            |x| {
                let width = x[0].shape()?[1];
                Ok(vec![layer_norm(x, width)])
            },
        ),
        (
            "layer norm backward",
            vec![matrix.clone(), row.clone(), row, matrix.clone()],
            3.0,
            |x| {
                let width = x[0].shape()?[1];
                let leaves: Vec<Tensor> = x[..3].iter().map(|t| t.requires_grad_(true)).collect();
                let y = layer_norm(&leaves, width);
                gradients(&y, &x[3], &leaves.iter().collect::<Vec<_>>())
            },
        ),
        ("softmax backward", vec![matrix.clone(), matrix], 3.0, |x| {
            let leaf = x[0].requires_grad_(true);
            gradients(&leaf.softmax(-1), &x[1], &[&leaf])
        }),
        (
            "batch norm",
            vec![images.clone(), channels.clone(), channels.clone()],
            3.0,
            |x| Ok(vec![batch_norm(&x[0], &x[1], &x[2])]),
        ),
        (
            "batch norm backward",
            vec![images.clone(), channels.clone(), channels, images],
            5.0,
            |x| {
                let leaves: Vec<Tensor> = x[..3].iter().map(|t| t.requires_grad_(true)).collect();
                let y = batch_norm(&leaves[0], &leaves[1], &leaves[2]);
                gradients(&y, &x[3], &leaves.iter().collect::<Vec<_>>())
            },
        ),
    ]
}

pub(crate) fn bandwidth(
    settings: &Settings,
    report: &mut Report,
) -> std::result::Result<(), Failed> {
    let device = settings.device;
    let mut peak = f64::NAN;
    if !settings.emulated() {
        peak = copies(&Driver::open()?, 256 << 20)?;
        report.figure(
            "copies on the device, read and written",
            "GB/s",
            peak / 1e9,
            None,
        );
        report.note(
            "the bytes of a kernel are those of tensors that it must read and write at least once; a batch norm \
             reads its input twice, its backward pass both of its inputs",
        );
    }
    let made = cases(settings.emulated()).into_iter();
    let made = made.map(|(name, shapes, times, f)| {
        let inputs = shapes.iter().map(|s| randn(s, DType::F32, device));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let bytes = 4.0 * shapes[0].iter().product::<usize>() as f64 * times;
        Ok((Case::new(name, inputs, f)?, bytes))
    });
    let share = |time: f64, bytes: f64| 100.0 * bytes / time / peak;
    table(settings, report, "bandwidth", "% of copies", made, share)
}

/// Products of small matrices, each of which is a kernel.
fn chain(length: usize, settings: &Settings) -> Result<Case> {
    let x = randn([16, 16], DType::F32, settings.device)?;
    Case::new(format!("{length} kernels"), vec![x], |x| {
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
    let host = |case: &Case| -> Result<f64> {
        seconds(device, || case.once().map(drop))?;
        let mut times = Vec::new();
        for _ in 0..200 {
            let start = Instant::now();
            case.once()?;
            times.push(start.elapsed().as_secs_f64());
            device.synchronize()?;
        }
        Ok(median(times))
    };
    let (few, many) = (chain(32, settings)?, chain(288, settings)?);
    let kernels = |case: &Case| case.run.explain().kernels_run() as f64;
    let (short, long) = (host(&few)?, host(&many)?);
    let added = (long - short) / (kernels(&many) - kernels(&few));
    report.figure("host, a run of a few kernels", "µs", short * 1e6, None);
    report.figure(
        "host, added for each replayed kernel",
        "µs",
        added * 1e6,
        None,
    );
    let all = seconds(device, || many.once().map(drop))?;
    report.figure(
        "device, each of 288 small products one after the other",
        "µs",
        all * 1e6 / kernels(&many),
        None,
    );
    report.held += 2;
    Ok(())
}
