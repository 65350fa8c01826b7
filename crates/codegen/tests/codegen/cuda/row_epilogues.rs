//! Products whose epilogues reduce rows, which blocks hold entirely.

use super::candidates::{self, every};
use super::families::{Case, FLOATS, case_count, epilogue, finite, with_infinities};
use super::prologues::{Activated, Concatenated, Dequantized, Nothing, Transposed, operand};
use super::{lowered, parsed};
use crate::device;
use crate::run::decompose_for_cuda;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Graph, GraphBuilder, Pw, Value, ops};

/// Returns the launches of a program: true for those that reduce.
fn launches(graph: &Graph) -> Vec<bool> {
    let program = lowered(&decompose_for_cuda(graph), true).unwrap();
    let tasks = program.tasks.iter();
    let reduces = tasks.map(|t| t.work.kernels().any(|k| !k.inner.is_empty()));
    reduces.collect()
}

/// An epilogue that reduces rows.
#[derive(Copy, Clone, Debug)]
enum RowEpilogue {
    Softmax,
    /// The index of the largest probability, and all probabilities.
    Argmax,
    /// A residual and a norm, with two consecutive reductions.
    Norm,
    /// Minus the logarithm of the probability of a class, given its index.
    Entropy,
    /// The sum and the maximum of rows, and no matrix.
    Reductions,
}
use RowEpilogue::*;

/// Appends an epilogue to a product.
fn append_epilogue(case: &mut Case, y: Value, kind: RowEpilogue, rng: &mut Rng) -> Vec<Value> {
    let fact = case.graph.fact(y).clone();
    let axis = fact.shape.len() - 1;
    let sizes: Vec<usize> = (fact.shape.iter())
        .map(|d| d.as_const().unwrap_or(1) as usize)
        .collect();
    let n = sizes[axis];
    match kind {
        Softmax => vec![case.op(ops::Softmax { axis, log: false }, &[y])],
        Argmax => {
            let y = case.op(ops::Softmax { axis, log: false }, &[y]);
            let op = ops::ArgReduce {
                kind: Reduction::Max,
                axis,
            };
            vec![case.op(op, &[y]), y]
        }
        Norm => {
            let residual = case.input(finite(fact.dtype, &sizes, rng));
            let scale = case.input(finite(fact.dtype, &[n], rng));
            let mut b = case.builder();
            let y = b.pointwise(Pw::Add, &[y, residual]).unwrap();
            let mean = |b: &mut GraphBuilder, y: &Value| {
                let sum = b.reduce_keepdim(Reduction::Sum, y, &[axis]).unwrap();
                b.with(Pw::Div, &sum, n as f64).unwrap()
            };
            let center = mean(&mut b, &y);
            let y = b.pointwise(Pw::Sub, &[y, center]).unwrap();
            let square = b.pointwise(Pw::Square, &[y]).unwrap();
            let variance = mean(&mut b, &square);
            let variance = b.with(Pw::Add, &variance, 0.01).unwrap();
            let factor = b.pointwise(Pw::Rsqrt, &[variance]).unwrap();
            let y = b.pointwise(Pw::Mul, &[y, factor]).unwrap();
            vec![b.pointwise(Pw::Mul, &[y, scale]).unwrap()]
        }
        Entropy => {
            let rows = [&sizes[..axis], &[1][..]].concat();
            let count: usize = rows.iter().product();
            let labels: Vec<f64> = (0..count).map(|_| rng.below(n) as f64).collect();
            let labels = case.input(Array::from_f64(DType::I64, &rows, &labels).unwrap());
            let log = case.op(ops::Softmax { axis, log: true }, &[y]);
            let classes = case.op(ops::Iota { len: n.into() }, &[]);
            let mut b = case.builder();
            let is_label = b.pointwise(Pw::Eq, &[labels, classes]).unwrap();
            let zero = b.scalar_like(0.0, &log).unwrap();
            let chosen = b.pointwise(Pw::Select, &[is_label, log, zero]).unwrap();
            let sum = b.sum(&chosen, &[axis]).unwrap();
            vec![b.pointwise(Pw::Neg, &[sum]).unwrap()]
        }
        Reductions => {
            let bias = case.input(finite(fact.dtype, &[n], rng));
            let mut b = case.builder();
            let y = b.pointwise(Pw::Maximum, &[y, bias]).unwrap();
            let max = b.reduce_keepdim(Reduction::Max, &y, &[axis]).unwrap();
            vec![b.sum(&y, &[axis]).unwrap(), max]
        }
    }
}

#[test]
fn every_candidate_reduces_rows() {
    if device::nvrtc().is_none() {
        return;
    }
    let (mut rng, mut candidate_count) = (Rng::new(71), 0);
    let sizes: &[(&[usize], [usize; 3])] = &[
        (&[], [67, 33, 41]),
        (&[2], [5, 40, 128]),
        (&[], [33, 64, 64]),
        (&[3], [70, 7, 2]),
        (&[], [37, 0, 11]),
        (&[], [40, 64, 104]), // copied by 8 elements
        (&[2, 2], [3, 9, 65]),
    ];
    let epilogues = [Softmax, Argmax, Norm, Entropy, Reductions];
    for (d, dtype) in FLOATS.into_iter().enumerate() {
        for (s, (batch, [m, k, n])) in sizes.iter().enumerate() {
            let kind = epilogues[(d + s) % epilogues.len()];
            let mut case = Case::default();
            let a = case.input(finite(dtype, &[batch, &[*m, *k][..]].concat(), &mut rng));
            let b = case.input(finite(dtype, &[batch, &[*k, *n][..]].concat(), &mut rng));
            let y = case.op(ops::MatMul {}, &[a, b]);
            let results = append_epilogue(&mut case, y, kind, &mut rng);
            let mut graph = case.graph.clone();
            results.iter().for_each(|r| graph.add_output(*r));
            let text = format!("{dtype} {batch:?} {m}x{k}x{n} {kind:?}");
            if *k > 0 {
                assert_eq!(launches(&graph), [true], "{text}\n{graph}");
            }
            // A small product has one candidate.
            match every(&candidates::lowered(&decompose_for_cuda(&graph))).is_empty() {
                true => case.check(&results, &text),
                false => candidate_count += case.check_candidates(&results, &text).len(),
            }
        }
    }
    assert!(candidate_count > 40, "{candidate_count}");
}

/// Random prologues of both operands, with random epilogues.
#[test]
fn random_prologues_and_epilogues() {
    if device::nvrtc().is_none() {
        return;
    }
    let (mut rng, mut single_kernels) = (Rng::new(74), 0);
    for i in 0..case_count() {
        let dtype = FLOATS[i % 4];
        let mut size = || rng.one([2, 3, 7, 16, 31, 33, 64, 65]);
        let [m, k, n] = [size(), size(), size()];
        let batch: Vec<usize> = (0..rng.below(3)).map(|_| rng.one([1, 2, 3])).collect();
        let mut prologue = || rng.one([Nothing, Activated, Dequantized, Transposed, Concatenated]);
        let prologues = [prologue(), prologue()];
        let mut case = Case::default();
        let lhs = [&batch, &[m, k][..]].concat();
        let lhs = operand(&mut case, dtype, &lhs, prologues[0], &mut rng);
        let rhs = [&batch, &[k, n][..]].concat();
        let rhs = operand(&mut case, dtype, &rhs, prologues[1], &mut rng);
        let y = case.op(ops::MatMul {}, &[lhs, rhs]);
        let results = match rng.one([Softmax, Argmax, Norm, Entropy, Reductions]) {
            _ if rng.chance(0.3) => epilogue(&mut case, y, &mut rng),
            // Rounding of 16-bit numbers may change the argmax.
            Argmax if dtype.size() == 2 => append_epilogue(&mut case, y, Softmax, &mut rng),
            kind => append_epilogue(&mut case, y, kind, &mut rng),
        };
        let mut graph = case.graph.clone();
        results.iter().for_each(|r| graph.add_output(*r));
        single_kernels += usize::from(launches(&graph).len() == 1);
        let text = format!("{dtype} {batch:?} {m}x{k}x{n} of {prologues:?}\n{graph}");
        case.check(&results, &text);
    }
    assert!(
        single_kernels * 4 > case_count() * 3,
        "{single_kernels} of {} are one kernel",
        case_count()
    );
}

/// A prologue computes an operand, and the rows of the result are reduced, in one kernel.
#[test]
fn infinities_in_prologues_and_row_epilogues() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(72);
    for (i, dtype) in FLOATS.into_iter().enumerate() {
        let mut case = Case::default();
        let a = case.input(with_infinities(dtype, &[45, 19], &mut rng));
        let b = case.input(finite(DType::F32, &[19, 37], &mut rng));
        let a = case.builder().pointwise(Pw::Relu, &[a]).unwrap();
        let b = case.builder().cast(&b, dtype).unwrap();
        let y = case.op(ops::MatMul {}, &[a, b]);
        let results = append_epilogue(&mut case, y, [Softmax, Reductions][i % 2], &mut rng);
        let mut graph = case.graph.clone();
        results.iter().for_each(|r| graph.add_output(*r));
        assert_eq!(launches(&graph), [true], "{graph}");
        case.check_candidates(&results, &dtype.to_string());
    }
}

#[test]
fn rows_of_symbolic_sizes_are_reduced() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(73);
    for (dtype, [m, k, n]) in [(DType::F32, [70, 20, 9]), (DType::BF16, [3, 70, 113])] {
        let mut case = Case::default();
        let (rows, inner) = (case.symbol(), case.symbol());
        let a = finite(dtype, &[m, k], &mut rng);
        let a = case.shaped(a, vec![rows, inner.clone()]);
        let b = case.shaped(finite(dtype, &[k, n], &mut rng), vec![inner, Dim::from(n)]);
        let y = case.op(ops::MatMul {}, &[a, b]);
        let results = append_epilogue(&mut case, y, Argmax, &mut rng);
        let mut graph = case.graph.clone();
        results.iter().for_each(|r| graph.add_output(*r));
        assert_eq!(launches(&graph), [true], "{graph}");
        case.check_candidates(&results, &format!("{dtype} {m}x{k}x{n}"));
    }
}

/// Long rows, few rows of long sums, and columns are reduced by a launch after the product.
#[test]
fn other_reductions_need_a_launch() {
    let product = |[m, k, n]: [usize; 3], axis: usize| {
        launches(&parsed(&format!(
            "%0: f32[{m}, {k}] = input(index: 0, role: Data)
             %1: f32[{k}, {n}] = input(index: 1, role: Data)
             %2: f32[{m}, {n}] = matmul %0, %1
             %3: f32[{m}, {n}] = softmax(axis: {axis}, log: false) %2
             return %3"
        )))
    };
    assert_eq!(product([4096, 1024, 128], 1), [true]);
    assert_eq!(product([64, 48, 33], 1), [true]);
    assert_eq!(product([4096, 1024, 129], 1).len(), 2);
    assert!(product([128, 1024, 128], 1).len() > 1);
    assert!(product([4096, 64, 64], 0).len() > 1);
}
