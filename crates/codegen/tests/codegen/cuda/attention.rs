//! Attention in CUDA C++, executed on an emulated device, equals the reference.

use super::families::{Case, FLOATS, case_count, epilogue, finite};
use super::{Expected, lowered, with_bug};
use crate::device;
use crate::run::run_compiled;
use kiln_base::{DType, Dim, Scalar};
use kiln_codegen::Sequence;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Value, ops};
use kiln_plan::Kernel;

/// The masks that hide keys.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Mask {
    None,
    /// One mask for all batches.
    Keeps,
    Adds,
    Causal,
}

const MASKS: [Mask; 4] = [Mask::None, Mask::Keeps, Mask::Adds, Mask::Causal];

/// Sizes of a case.
#[derive(Copy, Clone, Debug)]
struct Sizes {
    length: usize,
    keys: usize,
    width: usize,
    columns: usize,
}

/// `[2, 3, rows, columns]` in the memory layout of projected heads: `[2, rows, 3, columns]`, permuted.
fn heads(case: &mut Case, x: Array) -> Value {
    let x = case.input(x);
    case.builder().permute(&x, &[0, 2, 1, 3]).unwrap()
}

fn mask(case: &mut Case, kind: Mask, dtype: DType, s: Sizes, rng: &mut Rng) -> Option<Value> {
    let hidden = |rng: &mut Rng, i: usize| rng.chance(0.3) || i == 1; // row 1 is masked entirely
    let rows = |rng: &mut Rng, hide: f64, keep: f64| -> Vec<f64> {
        (0..s.length * s.keys)
            .map(|i| if hidden(rng, i / s.keys) { hide } else { keep })
            .collect()
    };
    let dims = [2, 3, s.length, s.keys].map(Dim::from);
    let (dtype, data) = match kind {
        Mask::None | Mask::Causal => return None,
        Mask::Keeps => (DType::Bool, rows(rng, 0.0, 1.0)),
        Mask::Adds => (dtype, rows(rng, f64::NEG_INFINITY, 0.5)),
    };
    let x = Array::from_f64(dtype, &[s.length, s.keys], &data).unwrap();
    let x = case.input(x);
    Some(case.builder().broadcast_to(&x, &dims).unwrap())
}

/// Returns an attention op of random scale, sometimes with dropout.
fn random_op(
    case: &mut Case,
    kind: Mask,
    operands: &mut Vec<Value>,
    rng: &mut Rng,
) -> ops::Attention {
    let drops = rng.chance(0.4);
    if drops {
        let key = [-3.0, rng.one([0.0, 5.0])];
        let key = Array::from_f64(DType::I64, &[2], &key).unwrap();
        operands.push(case.input(key));
    }
    ops::Attention {
        scale: Scalar::Float(rng.one([0.3, 1.0, -0.5])),
        causal: kind == Mask::Causal,
        dropout: drops.then_some(Scalar::Float(0.3)),
    }
}

/// Checks attention with a mask.
fn check_attention(dtype: DType, kind: Mask, s: Sizes, rng: &mut Rng) {
    let mut case = Case::default();
    let mut array = |rows: usize, columns: usize| finite(dtype, &[2, rows, 3, columns], rng);
    let operands = [
        array(s.length, s.width),
        array(s.keys, s.width),
        array(s.keys, s.columns),
    ];
    let mut operands = operands.map(|x| heads(&mut case, x)).to_vec();
    operands.extend(mask(&mut case, kind, dtype, s, rng));
    let op = random_op(&mut case, kind, &mut operands, rng);
    let y = case.op(op, &operands);
    let results = epilogue(&mut case, y, rng);
    case.check(&results, &format!("{dtype} {kind:?} {s:?}"));
}

impl Sizes {
    /// Returns random sizes near those of tiles.
    fn random(rng: &mut Rng) -> Sizes {
        Sizes {
            length: rng.one([0, 1, 2, 31, 33, 65]),
            keys: rng.one([0, 1, 3, 32, 63, 65, 130]),
            width: rng.one([0, 1, 5, 16, 33]),
            columns: rng.one([0, 1, 7, 16, 40, 65]),
        }
    }
}

#[test]
fn any_size_and_mask() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(11);
    for i in 0..case_count() {
        let s = Sizes::random(&mut rng);
        check_attention(FLOATS[i % 4], MASKS[i / 4 % 4], s, &mut rng);
    }
    // Sizes of 16-byte copies and several strips.
    let s = Sizes {
        length: 40,
        keys: 72,
        width: 64,
        columns: 136,
    };
    for (dtype, kind) in [(DType::F16, Mask::Causal), (DType::F32, Mask::None)] {
        check_attention(dtype, kind, s, &mut rng);
    }
}

/// Checks the gradients. In grouped attention, all heads share one key and one value.
fn check_gradients(dtype: DType, kind: Mask, s: Sizes, grouped: bool, rng: &mut Rng) {
    let mut case = Case::default();
    let mut operand = |case: &mut Case, rows: usize, columns: usize, shared: bool| {
        let heads = if shared { 1 } else { 3 };
        let x = self::heads(case, finite(dtype, &[2, rows, heads, columns], rng));
        let dims = [2, 3, rows, columns].map(Dim::from);
        case.builder().broadcast_to(&x, &dims).unwrap()
    };
    let query = operand(&mut case, s.length, s.width, false);
    let key = operand(&mut case, s.keys, s.width, grouped);
    let value = operand(&mut case, s.keys, s.columns, grouped);
    let gradient = operand(&mut case, s.length, s.columns, false);
    let mut operands = vec![query, key, value, gradient];
    operands.extend(mask(&mut case, kind, dtype, s, rng));
    let of = random_op(&mut case, kind, &mut operands, rng);
    let y = case.op(ops::AttentionGrad { of }, &operands);
    case.check(&[y], &format!("gradients {dtype} {kind:?} {s:?}"));
}

#[test]
fn gradients_of_any_size_and_mask() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(21);
    for i in 0..case_count() {
        let s = Sizes::random(&mut rng);
        check_gradients(FLOATS[i % 4], MASKS[i / 4 % 4], s, i % 3 == 0, &mut rng);
    }
    // Sizes of 16-byte copies and several strips.
    let s = Sizes {
        length: 40,
        keys: 72,
        width: 256,
        columns: 136,
    };
    for (dtype, kind) in [(DType::F16, Mask::Causal), (DType::F32, Mask::None)] {
        check_gradients(dtype, kind, s, true, &mut rng);
    }
}

#[test]
fn symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(12);
    for dtype in [DType::F32, DType::BF16] {
        let mut case = Case::default();
        let (length, keys) = (case.symbol(), case.symbol());
        let mut input = |rows: &Dim, n: usize| {
            let shape = vec![Dim::from(2usize), rows.clone(), Dim::from(24usize)];
            case.shaped(finite(dtype, &[2, n, 24], &mut rng), shape)
        };
        let operands = [input(&length, 37), input(&keys, 70), input(&keys, 70)];
        let op = ops::Attention {
            scale: Scalar::Float(0.2),
            causal: true,
            dropout: None,
        };
        let y = case.op(op, &operands);
        let inputs = [operands[0], operands[1], operands[2], y];
        let gradients = case.op(ops::AttentionGrad { of: op }, &inputs);
        case.check(&[y, gradients], &format!("{dtype}"));
    }
}

/// NaN and infinities affect only the rows that read them.
#[test]
fn extreme_numbers() {
    if device::nvrtc().is_none() {
        return;
    }
    for (dtype, length, width) in [(DType::F32, 5, 8), (DType::F16, 5, 8), (DType::F16, 70, 64)] {
        for extreme in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut case = Case::default();
            let mut operand = |rows: usize, extreme_index: Option<usize>| {
                let mut data: Vec<f64> = (0..rows * width).map(|i| (i % 7) as f64 / 4.0).collect();
                if let Some(i) = extreme_index {
                    data[i] = extreme;
                }
                case.input(Array::from_f64(dtype, &[rows, width], &data).unwrap())
            };
            let operands = [
                operand(length, Some(17)),
                operand(9, None),
                operand(9, Some(70)),
            ];
            let gradient = operand(length, None);
            let op = ops::Attention {
                scale: Scalar::Float(4.0 / width as f64),
                causal: false,
                dropout: None,
            };
            let y = case.op(op, &operands);
            let inputs = [operands[0], operands[1], operands[2], gradient];
            let gradients = case.op(ops::AttentionGrad { of: op }, &inputs);
            case.check(&[y, gradients], &format!("{dtype} {extreme}"));
        }
    }
}

/// The memory layout of an operand.
#[derive(Copy, Clone, Debug, PartialEq)]
enum Order {
    /// Rows are contiguous.
    Rows,
    /// Columns are contiguous.
    Columns,
    /// Rows are contiguous, and all heads share one matrix.
    Shared,
}

/// Returns an operand of shape `[2, 3, rows, columns]`.
fn operand_with_order(
    case: &mut Case,
    dtype: DType,
    [rows, columns]: [usize; 2],
    order: Order,
    rng: &mut Rng,
) -> Value {
    let (shape, perm) = match order {
        Order::Rows => ([2, rows, 3, columns], [0, 2, 1, 3]),
        Order::Columns => ([2, columns, 3, rows], [0, 2, 3, 1]),
        Order::Shared => ([2, rows, 1, columns], [0, 2, 1, 3]),
    };
    let x = case.input(finite(dtype, &shape, rng));
    let mut b = case.builder();
    let x = b.permute(&x, &perm).unwrap();
    let dims = [2, 3, rows, columns].map(Dim::from);
    b.broadcast_to(&x, &dims).unwrap()
}

/// Checks results of attention by warpgroups.
#[track_caller]
fn check_warpgroups(case: Case, results: &[Value], label: &str) {
    let mut graph = case.graph.clone();
    results.iter().for_each(|r| graph.add_output(*r));
    let program = lowered(&graph, true).unwrap();
    let maps = |k: &Kernel| matches!(k, Kernel::Cuda(k) if k.maps.len() >= 3);
    let launches = program.sequence().launches;
    assert!(launches.iter().any(|l| maps(&l.kernel)), "{label}\n{graph}");
    case.check(results, label);
}

/// Tails of rows, keys and widths, and every mask and order of operands.
#[test]
fn warpgroups_of_any_size_and_mask() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(15);
    let sizes = [
        [130, 300, 64, 64],
        [129, 128, 128, 128],
        [72, 136, 128, 64],
        [264, 8, 40, 104],
    ];
    for (i, [length, keys, width, columns]) in sizes.into_iter().enumerate() {
        for (j, kind) in MASKS.into_iter().enumerate() {
            let dtype = [DType::BF16, DType::F16][(i + j) % 2];
            let s = Sizes {
                length,
                keys,
                width,
                columns,
            };
            let orders = match (i, j % 2) {
                (2 | 3, 0) => [Order::Columns; 3],
                (_, 0) => [Order::Rows, Order::Shared, Order::Shared],
                _ => [Order::Rows; 3],
            };
            let mut case = Case::default();
            let extents = [[length, width], [keys, width], [keys, columns]];
            let operands = [0, 1, 2]
                .map(|x| operand_with_order(&mut case, dtype, extents[x], orders[x], &mut rng));
            let mut operands = operands.to_vec();
            operands.extend(mask(&mut case, kind, dtype, s, &mut rng));
            let op = random_op(&mut case, kind, &mut operands, &mut rng);
            let y = case.op(op, &operands);
            let results = epilogue(&mut case, y, &mut rng);
            check_warpgroups(
                case,
                &results,
                &format!("{dtype} {kind:?} {s:?} {orders:?}"),
            );
        }
    }
}

/// Bugs that hardware may hide for long.
const BUGS: [[&str; 3]; 8] = [
    [
        "queries are read before they arrive",
        "wait(shared.query_barriers.full[0], query_ring.parity);",
        "",
    ],
    [
        "keys are read before they arrive",
        "Acc x[SCORES];\n        wait(shared.barriers.full[ring.stage], ring.parity);",
        "Acc x[SCORES];",
    ],
    [
        "values are read before they arrive",
        "wait(shared.barriers.full[ring.stage], ring.parity);\n        const unsigned v",
        "const unsigned v",
    ],
    [
        "a stage is filled before it is empty",
        "wait(barriers.empty[ring.stage], ring.parity ^ 1);",
        "",
    ],
    [
        "scores are read before they are finished",
        "finish_products<0>(x, sums);",
        "finish_products<1>(x, sums);",
    ],
    [
        "weights are not fenced",
        "begin_products(sums, weights);",
        "",
    ],
    [
        "barriers are not visible to copies",
        "asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");",
        "",
    ],
    [
        "two columns of weights are exchanged",
        "narrow({x[c], x[c + 1]})",
        "narrow({x[c + 1], x[c]})",
    ],
];

#[test]
fn seeded_bugs_of_warpgroups_are_found() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(17);
    let mut case = Case::default();
    let operands = [128, 640, 640].map(|rows| {
        let x = finite(DType::BF16, &[rows, 64], &mut rng);
        case.input(x)
    });
    let op = ops::Attention {
        scale: Scalar::Float(2.0),
        causal: false,
        dropout: None,
    };
    let y = case.op(op, &operands);
    case.graph.add_output(y);
    let expected = Expected::of(&case.graph, &case.inputs).unwrap();
    let run = |sequence: &Sequence, compiled: &device::Compiled| {
        let got = run_compiled(sequence, &case.inputs, &expected.symbols, compiled);
        expected.compare(&got.ok_or("a false data error")?)
    };
    let correct = lowered(&expected.lowered, true).unwrap().sequence();
    assert_eq!(run(&correct, &device::compile(&correct)), Ok(()));
    for [label, right, wrong] in BUGS {
        let sequence = with_bug(&correct, label, [right, wrong]);
        let compiled = device::compile(&sequence);
        let run = || run(&sequence, &compiled);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert!(!matches!(result, Ok(Ok(_))), "not found: {label}");
    }
}

/// Symbolic sizes of interleaved heads.
#[test]
fn warpgroups_of_symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(16);
    for (causal, length, keys) in [(true, 150, 150), (false, 3, 260)] {
        let mut case = Case::default();
        let sizes = [case.symbol(), case.symbol()];
        let mut input = |rows: &Dim, n: usize| {
            let shape = vec![rows.clone(), Dim::from(3usize), Dim::from(64usize)];
            let x = case.shaped(finite(DType::BF16, &[n, 3, 64], &mut rng), shape);
            case.builder().permute(&x, &[1, 0, 2]).unwrap()
        };
        let operands = [
            input(&sizes[0], length),
            input(&sizes[1], keys),
            input(&sizes[1], keys),
        ];
        let op = ops::Attention {
            scale: Scalar::Float(0.2),
            causal,
            dropout: None,
        };
        let y = case.op(op, &operands);
        check_warpgroups(case, &[y], &format!("{length} rows, {keys} keys"));
    }
}

#[test]
fn scores_stay_on_chip() {
    let mut case = Case::default();
    let mut rng = Rng::new(13);
    let x = [0; 3].map(|_| case.input(finite(DType::F32, &[2, 100, 16], &mut rng)));
    let op = ops::Attention {
        scale: Scalar::Float(0.25),
        causal: false,
        dropout: None,
    };
    let y = case.op(op, &x);
    case.graph.add_output(y);
    let program = lowered(&case.graph, true).unwrap();
    let sequence = program.sequence();
    assert_eq!(sequence.launches.len(), 1);
    assert_eq!(sequence.buffers.len(), 4);
}

/// Besides operands and the result, only three numbers per row are in memory.
#[test]
fn scores_of_gradients_stay_on_chip() {
    let mut case = Case::default();
    let mut rng = Rng::new(14);
    let x = [0; 4].map(|_| case.input(finite(DType::BF16, &[2, 100, 16], &mut rng)));
    let of = ops::Attention {
        scale: Scalar::Float(0.25),
        causal: true,
        dropout: None,
    };
    let y = case.op(ops::AttentionGrad { of }, &x);
    case.graph.add_output(y);
    let program = lowered(&case.graph, true).unwrap();
    let sequence = program.sequence();
    assert_eq!(sequence.launches.len(), 4);
    assert_eq!(sequence.buffers.len(), 6);
}
