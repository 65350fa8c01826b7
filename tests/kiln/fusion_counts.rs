//! How many kernels small pieces of networks become, on the CPU and on a GPU, and that these are right.

use crate::cuda;
use kiln::{DType, Device, Spec, Tensor, compile, with_seed};

type Program = fn(&[Tensor]) -> Vec<Tensor>;

/// A piece of a network, the shapes of what it reads, and its kernels on the CPU and on a GPU.
type Piece = (
    &'static str,
    &'static [&'static [usize]],
    [usize; 2],
    Program,
);

const PIECES: &[Piece] = &[
    ("softmax", &[&[64, 33]], [1, 1], |x| vec![x[0].softmax(1)]),
    ("argmax after softmax", &[&[64, 33]], [1, 1], |x| {
        vec![x[0].softmax(1).argmax(1, false)]
    }),
    ("layer norm", &[&[64, 48], &[48]], [1, 1], |x| {
        vec![x[0].layer_norm([48], Some(&x[1]), None, 1e-5)]
    }),
    ("RMS norm", &[&[64, 48], &[48]], [1, 1], |x| {
        vec![x[0].rms_norm([48], Some(&x[1]), 1e-5)]
    }),
    ("group norm", &[&[8, 32, 7, 7], &[32]], [1, 1], |x| {
        vec![x[0].group_norm(4, Some(&x[1]), None, 1e-5)]
    }),
    (
        "batch norm of a batch and ReLU",
        &[&[8, 32, 7, 7], &[32]],
        [1, 1],
        |x| {
            vec![
                x[0].batch_norm(None, None, Some(&x[1]), Some(&x[1]), true, 0.1, 1e-5)
                    .relu(),
            ]
        },
    ),
    (
        "cross entropy with its softmax",
        &[&[64, 33]],
        [1, 1],
        |x| {
            let log = x[0].log_softmax(1);
            vec![-(&log * x[0].softmax(1)).sum([1], false)]
        },
    ),
    ("a long chain", &[&[64, 48]], [1, 1], |x| {
        // A kernel holds 128 operations, of which functions count as several.
        let step = |y: Tensor, i: i32| (&y * 0.9 - i as f64 * 0.01).relu() + &x[0];
        vec![(0..30).fold(x[0].clone(), step)]
    }),
    (
        "a product with scale, bias, residual, activation and cast",
        &[&[64, 48], &[48, 32], &[64, 32], &[32]],
        [1, 1],
        |x| {
            let y = x[0].matmul(&x[1]) * 0.125 + &x[3];
            vec![(y + &x[2]).gelu().to_dtype(DType::F16)]
        },
    ),
    ("sums along either axis", &[&[64, 48]], [2, 2], |x| {
        let y = x[0].exp();
        vec![y.sum([0], false), y.sum([1], false)]
    }),
    ("a column sum behind a chain", &[&[64, 48]], [1, 1], |x| {
        vec![(x[0].exp() * 0.5 + 1.0).sum([0], false)]
    }),
];

fn check(device: Device, at: usize) -> kiln::Result<()> {
    let mut other = Vec::new();
    for (name, shapes, counts, piece) in PIECES {
        let inputs: Vec<Tensor> = with_seed(3, || {
            let random = |s: &&[usize]| Tensor::randn(*s, DType::F32).to(device);
            shapes.iter().map(random).collect()
        });
        let specs: kiln::Result<Vec<Spec>> = inputs.iter().map(Spec::like).collect();
        let program = compile(&specs?, piece)?;
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        let verified = program.verify(&inputs)?;
        assert!(verified.is_right(), "{name}: {verified}");
        let explain = program.explain();
        println!("{name}: {} kernels", explain.kernels_run());
        if explain.kernels_run() != counts[at] {
            other.push(format!("{name}, not {}:\n{explain}", counts[at]));
        }
    }
    assert!(other.is_empty(), "{}", other.join("\n"));
    Ok(())
}

#[test]
fn pieces_are_few_kernels() -> kiln::Result<()> {
    check(Device::Cpu, 0)
}

#[test]
fn pieces_are_few_kernels_on_a_gpu() -> kiln::Result<()> {
    match cuda::device() {
        Some(gpu) => check(gpu, 1),
        None => Ok(()),
    }
}
