//! Every structured op.

use crate::differences::{Operand, check, check_op};
use kiln_base::prim::{Reduction, ScanKind, ScatterKind};
use kiln_base::{DType, Dim, Scalar};
use kiln_ir::fuzz::Rng;
use kiln_ir::ops::{self, Conv, SliceAxis};
use kiln_ir::{Builder, Shape};

fn rng() -> Rng {
    Rng::new(31)
}

fn random(shape: &[usize]) -> Operand {
    Operand::random(&mut rng(), shape, -1.5, 1.5)
}

fn dims(sizes: &[i64]) -> Shape {
    sizes.iter().map(|n| Dim::Const(*n)).collect()
}

#[test]
fn views() {
    let broadcast = |to: &[i64]| ops::Broadcast { shape: dims(to) };
    check_op("broadcast", broadcast(&[2, 3, 4]), &[random(&[3, 1])]);
    check_op("broadcast", broadcast(&[2, 0]), &[random(&[2, 1])]);
    check_op(
        "reshape",
        ops::Reshape {
            shape: dims(&[3, 2]),
        },
        &[random(&[2, 3])],
    );
    let permute = ops::Permute {
        perm: [2, 0, 1].into_iter().collect(),
    };
    check_op("permute", permute, &[random(&[2, 3, 4])]);
    let pad = ops::Pad {
        low: dims(&[1, 0]),
        high: dims(&[0, 2]),
        value: Scalar::Float(3.0),
    };
    check_op("pad", pad, &[random(&[2, 3])]);
    check_op(
        "concat",
        ops::Concat { axis: 1 },
        &[random(&[2, 3]), random(&[2, 0]), random(&[2, 1])],
    );
    check("cast", &[random(&[3])], true, |b, x| {
        b.cast(&x[0], DType::F64)
    });
}

#[test]
fn slices() {
    for (start, len, step) in [
        (0, 3, 2),
        (1, 2, 3),
        (5, 3, -2),
        (6, 7, -1),
        (4, 1, 1),
        (2, 0, 1),
    ] {
        let axes = vec![
            SliceAxis {
                start: Dim::Const(start),
                len: Dim::Const(len),
                step,
            },
            SliceAxis::all(&Dim::Const(2)),
        ];
        check_op("slice", ops::Slice { axes }, &[random(&[7, 2])]);
    }
}

#[test]
fn reductions() {
    for kind in [
        Reduction::Sum,
        Reduction::Prod,
        Reduction::Max,
        Reduction::Min,
    ] {
        for axes in [vec![0], vec![1], vec![0, 2], vec![0, 1, 2]] {
            let op = ops::Reduce {
                kind,
                axes: axes.into_iter().collect(),
            };
            check_op(kind.name(), op, &[random(&[2, 3, 2])]);
        }
    }
    let empty = ops::Reduce {
        kind: Reduction::Prod,
        axes: [1].into_iter().collect(),
    };
    check_op("prod of nothing", empty, &[random(&[2, 0])]);
}

#[test]
fn scans() {
    for kind in ScanKind::ALL.iter().copied() {
        for reverse in [false, true] {
            for axis in [0, 1] {
                let op = ops::Scan {
                    kind,
                    axis,
                    reverse,
                };
                // The derivative of a cumulative product divides; at a kink there is none.
                let twice = !matches!(kind, ScanKind::Max | ScanKind::Min);
                check(kind.name(), &[random(&[3, 4])], twice, |b, x| b.op(op, x));
            }
        }
    }
}

#[test]
fn gathers_and_scatters() {
    let index = Operand::ints(&[2, 4], &[0, 2, 2, 1, 1, 1, 0, 2]);
    check_op(
        "gather",
        ops::Gather { axis: 1 },
        &[random(&[2, 3]), index.clone()],
    );
    for kind in [
        ScatterKind::Sum,
        ScatterKind::Prod,
        ScatterKind::Max,
        ScatterKind::Min,
    ] {
        let op = ops::Scatter { axis: 1, kind };
        check(
            kind.name(),
            &[
                random(&[2, 3]),
                index.clone(),
                Operand::random(&mut Rng::new(2), &[2, 4], -2.0, 2.0),
            ],
            kind == ScatterKind::Sum,
            |b, x| b.op(op, x),
        );
    }
    let unique = Operand::ints(&[1, 2], &[2, 0]);
    let set = ops::Scatter {
        axis: 1,
        kind: ScatterKind::Set,
    };
    check_op("set", set, &[random(&[2, 3]), unique, random(&[1, 2])]);
}

#[test]
fn products() {
    check_op(
        "matmul",
        ops::MatMul {},
        &[random(&[2, 3, 4]), random(&[2, 4, 2])],
    );
    check_op(
        "matmul",
        ops::MatMul {},
        &[random(&[3, 0]), random(&[0, 2])],
    );
    let conv = Conv {
        stride: [2, 1].into_iter().collect(),
        padding: vec![(1, 0), (2, 1)],
        dilation: [1, 2].into_iter().collect(),
        groups: 2,
    };
    let (x, w) = (random(&[2, 4, 6, 5]), random(&[2, 2, 3, 2]));
    check_op("conv", conv.clone(), &[x.clone(), w.clone()]);
    let transpose = ops::ConvTranspose {
        conv: conv.clone(),
        input: dims(&[6, 5]),
    };
    check_op("conv_transpose", transpose, &[random(&[2, 2, 3, 6]), w]);
    let weight = ops::ConvWeight {
        conv,
        kernel: [3, 2].into_iter().collect(),
    };
    check_op("conv_weight", weight, &[x, random(&[2, 2, 3, 6])]);
}

#[test]
fn windows() {
    for kind in [Reduction::Sum, Reduction::Max, Reduction::Min] {
        for (stride, padding, dilation) in [
            (1, (0, 0), 1),
            (2, (1, 1), 1),
            (3, (0, 1), 2),
            (2, (1, 0), 2),
        ] {
            let op = ops::WindowReduce {
                kind,
                kernel: [3, 2].into_iter().collect(),
                stride: [stride, 2].into_iter().collect(),
                padding: vec![padding, (0, 0)],
                dilation: [dilation, 1].into_iter().collect(),
            };
            check_op(kind.name(), op, &[random(&[2, 7, 5])]);
        }
    }
}

#[test]
fn composites() {
    for log in [false, true] {
        for axis in [0, 1] {
            check_op("softmax", ops::Softmax { axis, log }, &[random(&[3, 4])]);
        }
    }
    let positive = Operand::random(&mut rng(), &[2], 0.5, 2.0);
    let eps = Scalar::Float(1e-5);
    let operands = [
        random(&[3, 2, 4]),
        random(&[2]),
        positive,
        random(&[2]),
        random(&[2]),
    ];
    check_op(
        "batch_norm",
        ops::BatchNorm { eps, affine: true },
        &operands,
    );
    check_op(
        "batch_norm",
        ops::BatchNorm { eps, affine: false },
        &operands[..3],
    );
    let scale = Scalar::Float(0.6);
    let qkv = [
        random(&[2, 3, 4]),
        random(&[2, 5, 4]),
        random(&[2, 5, 2]),
        random(&[2, 3, 5]),
    ];
    check_op(
        "attention",
        ops::Attention {
            scale,
            causal: true,
            dropout: None,
        },
        &qkv[..3],
    );
    check_op(
        "attention",
        ops::Attention {
            scale,
            causal: false,
            dropout: None,
        },
        &qkv,
    );
    let [q, k, v, mask] = qkv;
    let g = random(&[2, 3, 2]);
    for (causal, operands) in [
        (true, vec![q.clone(), k.clone(), v.clone(), g.clone()]),
        (false, vec![q, k, v, g, mask]),
    ] {
        let of = ops::Attention {
            scale,
            causal,
            dropout: None,
        };
        check_op("attention_grad", ops::AttentionGrad { of }, &operands);
    }
}
