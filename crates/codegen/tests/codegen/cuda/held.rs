//! Products whose blocks hold whole rows, and epilogues that reduce these.

use super::candidates::{self, every};
use super::families::{Case, FLOATS, cases, epilogue, finite, wild};
use super::made::{Activated, Dequantized, Nothing, Together, Transposed, operand};
use super::{lowered, parsed};
use crate::device;
use crate::run::decomposed_for_cuda;
use kiln_base::prim::Reduction;
use kiln_base::{DType, Dim};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Graph, GraphBuilder, Pw, Value, ops};

/// For each launch of a program, true if it reduces.
fn launches(graph: &Graph) -> Vec<bool> {
    let program = lowered(&decomposed_for_cuda(graph), true).unwrap();
    let tasks = program.tasks.iter();
    let reduces = tasks.map(|t| t.work.kernels().any(|k| !k.inner.is_empty()));
    reduces.collect()
}

/// An epilogue of a product that works on rows.
#[derive(Copy, Clone, Debug)]
enum RowEpilogue {
    Softmax,
    /// The place of the largest probability, and all probabilities.
    Argmax,
    /// Residual and norm, which has two reductions after each other.
    Norm,
    /// Minus the logarithm of the probability of a class, given its index.
    Entropy,
    /// The largest and the sum of a masked row: only numbers.
    Numbers,
}
use RowEpilogue::*;

fn behind(case: &mut Case, y: Value, what: RowEpilogue, rng: &mut Rng) -> Vec<Value> {
    let fact = case.graph.fact(y).clone();
    let axis = fact.shape.len() - 1;
    let sizes: Vec<usize> = (fact.shape.iter())
        .map(|d| d.as_const().unwrap_or(1) as usize)
        .collect();
    let n = sizes[axis];
    match what {
        Softmax => vec![case.op(ops::Softmax { axis, log: false }, &[y])],
        Argmax => {
            let y = case.op(ops::Softmax { axis, log: false }, &[y]);
            let kind = Reduction::Max;
            vec![case.op(ops::ArgReduce { kind, axis }, &[y]), y]
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
            let by = b.pointwise(Pw::Rsqrt, &[variance]).unwrap();
            let y = b.pointwise(Pw::Mul, &[y, by]).unwrap();
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
            let mine = b.pointwise(Pw::Eq, &[labels, classes]).unwrap();
            let zero = b.scalar_like(0.0, &log).unwrap();
            let chosen = b.pointwise(Pw::Select, &[mine, log, zero]).unwrap();
            let sum = b.sum(&chosen, &[axis]).unwrap();
            vec![b.pointwise(Pw::Neg, &[sum]).unwrap()]
        }
        Numbers => {
            let bias = case.input(finite(fact.dtype, &[n], rng));
            let mut b = case.builder();
            let y = b.pointwise(Pw::Maximum, &[y, bias]).unwrap();
            let most = b.reduce_keepdim(Reduction::Max, &y, &[axis]).unwrap();
            vec![b.sum(&y, &[axis]).unwrap(), most]
        }
    }
}

#[test]
fn rows_are_reduced_by_every_way() {
    if device::nvrtc().is_none() {
        return;
    }
    let (mut rng, mut several) = (Rng::new(71), 0);
    let sizes: &[(&[usize], [usize; 3])] = &[
        (&[], [67, 33, 41]),
        (&[2], [5, 40, 128]),
        (&[], [33, 64, 64]),
        (&[3], [70, 7, 2]),
        (&[], [37, 0, 11]),
        (&[], [40, 64, 104]), // copied by eights
        (&[2, 2], [3, 9, 65]),
    ];
    let all = [Softmax, Argmax, Norm, Entropy, Numbers];
    for (d, dtype) in FLOATS.into_iter().enumerate() {
        for (s, (batch, [m, k, n])) in sizes.iter().enumerate() {
            let what = all[(d + s) % all.len()];
            let mut case = Case::default();
            let a = case.input(finite(dtype, &[batch, &[*m, *k][..]].concat(), &mut rng));
            let b = case.input(finite(dtype, &[batch, &[*k, *n][..]].concat(), &mut rng));
            let y = case.op(ops::MatMul {}, &[a, b]);
            let results = behind(&mut case, y, what, &mut rng);
            let mut whole = case.graph.clone();
            results.iter().for_each(|r| whole.add_output(*r));
            let text = format!("{dtype} {batch:?} {m}x{k}x{n} {what:?}");
            if *k > 0 {
                assert_eq!(launches(&whole), [true], "{text}\n{whole}");
            }
            // Short rows, and few of them, leave one candidate.
            match every(&candidates::lowered(&decomposed_for_cuda(&whole))).is_empty() {
                true => case.check(&results, &text),
                false => several += case.check_ways(&results, &text).len(),
            }
        }
    }
    assert!(several > 40, "{several}");
}

/// Any prologues of both operands, with any epilogue.
#[test]
fn random_products_take_in_what_is_around_them() {
    if device::nvrtc().is_none() {
        return;
    }
    let (mut rng, mut alone) = (Rng::new(74), 0);
    for i in 0..cases() {
        let dtype = FLOATS[i % 4];
        let mut size = || rng.one([2, 3, 7, 16, 31, 33, 64, 65]);
        let [m, k, n] = [size(), size(), size()];
        let batch: Vec<usize> = (0..rng.below(3)).map(|_| rng.one([1, 2, 3])).collect();
        let mut front = || rng.one([Nothing, Activated, Dequantized, Transposed, Together]);
        let fronts = [front(), front()];
        let mut case = Case::default();
        let lhs = [&batch, &[m, k][..]].concat();
        let lhs = operand(&mut case, dtype, &lhs, fronts[0], &mut rng);
        let rhs = [&batch, &[k, n][..]].concat();
        let rhs = operand(&mut case, dtype, &rhs, fronts[1], &mut rng);
        let y = case.op(ops::MatMul {}, &[lhs, rhs]);
        let results = match rng.one([Softmax, Argmax, Norm, Entropy, Numbers]) {
            _ if rng.chance(0.3) => epilogue(&mut case, y, &mut rng),
            // With few bits, several numbers are near the largest.
            Argmax if dtype.size() == 2 => behind(&mut case, y, Softmax, &mut rng),
            what => behind(&mut case, y, what, &mut rng),
        };
        let mut whole = case.graph.clone();
        results.iter().for_each(|r| whole.add_output(*r));
        alone += usize::from(launches(&whole).len() == 1);
        let text = format!("{dtype} {batch:?} {m}x{k}x{n} of {fronts:?}\n{whole}");
        case.check(&results, &text);
    }
    assert!(
        alone * 4 > cases() * 3,
        "{alone} of {} are one kernel",
        cases()
    );
}

/// A prologue computes an operand, and the rows of the result are reduced, in one kernel.
#[test]
fn rows_of_infinities_behind_made_operands() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(72);
    for (i, dtype) in FLOATS.into_iter().enumerate() {
        let mut case = Case::default();
        let a = case.input(wild(dtype, &[45, 19], &mut rng));
        let b = case.input(finite(DType::F32, &[19, 37], &mut rng));
        let a = case.builder().pointwise(Pw::Relu, &[a]).unwrap();
        let b = case.builder().cast(&b, dtype).unwrap();
        let y = case.op(ops::MatMul {}, &[a, b]);
        let results = behind(&mut case, y, [Softmax, Numbers][i % 2], &mut rng);
        let mut whole = case.graph.clone();
        results.iter().for_each(|r| whole.add_output(*r));
        assert_eq!(launches(&whole), [true], "{whole}");
        case.check_ways(&results, &dtype.to_string());
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
        let results = behind(&mut case, y, Argmax, &mut rng);
        let mut whole = case.graph.clone();
        results.iter().for_each(|r| whole.add_output(*r));
        assert_eq!(launches(&whole), [true], "{whole}");
        case.check_ways(&results, &format!("{dtype} {m}x{k}x{n}"));
    }
}

/// Long rows, few rows of long sums, and columns are reduced by a launch after the product.
#[test]
fn what_no_block_holds_is_reduced_apart() {
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
