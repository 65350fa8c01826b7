//! Products and convolutions whose operands prologues compute, by every candidate.

use super::families::{Case, FLOATS, epilogue, finite, with_infinities};
use super::{lowered, parsed};
use crate::device;
use crate::run::decompose_for_cuda;
use kiln_base::{DType, Dim};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Builder, Graph, Pw, Value, ops};

/// Counts the operands that prologues compute in a program.
fn count_prologues(graph: &Graph) -> usize {
    let program = lowered(&decompose_for_cuda(graph), true).unwrap();
    let prologues = program.tasks.iter().flat_map(|t| t.work.prologues());
    prologues.flatten().count()
}

/// The prologue of an operand.
#[derive(Copy, Clone, Debug)]
pub enum Prologue {
    Nothing,
    /// A bias per column and an activation.
    Activated,
    /// Small integers, scaled by row.
    Dequantized,
    /// A cast, whose result is transposed.
    Transposed,
    /// A concatenation of two arrays.
    Concatenated,
}
pub use Prologue::*;

fn bytes(shape: &[usize], rng: &mut Rng) -> Array {
    let count: usize = shape.iter().product();
    let data: Vec<f64> = (0..count).map(|_| rng.below(16) as f64).collect();
    Array::from_f64(DType::U8, shape, &data).unwrap()
}

/// Returns an operand of a shape, computed by a prologue.
pub fn operand(
    case: &mut Case,
    dtype: DType,
    shape: &[usize],
    prologue: Prologue,
    rng: &mut Rng,
) -> Value {
    let dims: Vec<Dim> = shape.iter().map(|d| Dim::from(*d)).collect();
    let rank = shape.len();
    match prologue {
        Nothing => case.input(finite(dtype, shape, rng)),
        Activated => {
            let x = case.input(finite(dtype, shape, rng));
            let bias = case.input(finite(dtype, &shape[rank - 1..], rng));
            let mut b = case.builder();
            let bias = b.broadcast_to(&bias, &dims).unwrap();
            let sum = b.pointwise(Pw::Add, &[x, bias]).unwrap();
            b.pointwise(Pw::Tanh, &[sum]).unwrap()
        }
        Dequantized => {
            let x = case.input(bytes(shape, rng));
            let scale = [&shape[..rank - 1], &[1]].concat();
            let scale = case.input(finite(dtype, &scale, rng));
            let mut b = case.builder();
            let x = b.cast(&x, dtype).unwrap();
            let scale = b.broadcast_to(&scale, &dims).unwrap();
            b.pointwise(Pw::Mul, &[x, scale]).unwrap()
        }
        Transposed => {
            let mut transposed = shape.to_vec();
            transposed.swap(rank - 1, rank - 2);
            let other = if dtype == DType::F32 {
                DType::BF16
            } else {
                DType::F32
            };
            let x = case.input(finite(other, &transposed, rng));
            let mut perm: Vec<usize> = (0..rank).collect();
            perm.swap(rank - 1, rank - 2);
            let mut b = case.builder();
            let x = b.cast(&x, dtype).unwrap();
            let x = b.pointwise(Pw::Relu, &[x]).unwrap();
            b.permute(&x, &perm).unwrap()
        }
        Concatenated => {
            let mut parts = [shape.to_vec(), shape.to_vec()];
            parts[0][rank - 1] = shape[rank - 1] / 3;
            parts[1][rank - 1] -= shape[rank - 1] / 3;
            let parts = parts.map(|s| case.input(finite(dtype, &s, rng)));
            let axis = rank - 1;
            case.op(ops::Concat { axis }, &parts)
        }
    }
}

#[test]
fn every_candidate_computes_prologues() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(61);
    let prologues = [
        [Activated, Nothing],
        [Nothing, Dequantized],
        [Transposed, Concatenated],
        [Dequantized, Transposed],
        [Concatenated, Activated],
    ];
    let sizes: &[(&[usize], [usize; 3])] = &[
        (&[], [67, 33, 41]),
        (&[2], [5, 70, 131]),
        (&[], [1, 530, 40]), // K is split
        (&[2, 3], [33, 7, 9]),
        (&[], [37, 0, 11]),
        (&[], [40, 64, 48]), // the other operand is copied by 8 elements
        (&[], [70, 19, 1]),
    ];
    for (d, dtype) in FLOATS.into_iter().enumerate() {
        for (s, (batch, [m, k, n])) in sizes.iter().enumerate() {
            let prologue = prologues[(d + s) % prologues.len()];
            let mut case = Case::default();
            let lhs = [batch, &[*m, *k][..]].concat();
            let lhs = operand(&mut case, dtype, &lhs, prologue[0], &mut rng);
            let rhs = [batch, &[*k, *n][..]].concat();
            let rhs = operand(&mut case, dtype, &rhs, prologue[1], &mut rng);
            let y = case.op(ops::MatMul {}, &[lhs, rhs]);
            let results = epilogue(&mut case, y, &mut rng);
            let label = format!("{dtype} {batch:?} {m}x{k}x{n} {prologue:?}");
            let mut graph = case.graph.clone();
            results.iter().for_each(|r| graph.add_output(*r));
            if *k > 0 {
                let expected = prologue.iter().filter(|f| !matches!(f, Nothing)).count();
                assert_eq!(count_prologues(&graph), expected, "{label}");
            }
            case.check_candidates(&results, &label);
        }
    }
}

/// Infinities and NaN pass through. Elements outside of an operand are 0 and not the prologue of 0.
#[test]
fn infinities_in_prologues() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(62);
    for dtype in FLOATS {
        let mut case = Case::default();
        let a = case.input(with_infinities(dtype, &[37, 45], &mut rng));
        let b = case.input(finite(dtype, &[45, 11], &mut rng));
        // exp(0) is not 0.
        let a = case.builder().pointwise(Pw::Exp, &[a]).unwrap();
        let b = case.builder().pointwise(Pw::Exp, &[b]).unwrap();
        let y = case.op(ops::MatMul {}, &[a, b]);
        case.graph.add_output(y);
        assert_eq!(count_prologues(&case.graph), 2);
        case.check_candidates(&[], &dtype.to_string());
    }
}

#[test]
fn prologues_of_symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(63);
    for (dtype, [m, k, n]) in [(DType::F32, [70, 20, 9]), (DType::BF16, [3, 70, 131])] {
        let mut case = Case::default();
        let (rows, inner) = (case.symbol(), case.symbol());
        let a = finite(DType::F64, &[m, k], &mut rng);
        let a = case.shaped(a, vec![rows.clone(), inner.clone()]);
        let scale = case.shaped(
            finite(dtype, &[m, 1], &mut rng),
            vec![rows.clone(), 1.into()],
        );
        let b = finite(dtype, &[k, n], &mut rng);
        let b = case.shaped(b, vec![inner.clone(), Dim::from(n)]);
        let mut builder = case.builder();
        let a = builder.cast(&a, dtype).unwrap();
        let scale = builder.broadcast_to(&scale, &[rows, inner]).unwrap();
        let a = builder.pointwise(Pw::Mul, &[a, scale]).unwrap();
        let b = builder.pointwise(Pw::Relu, &[b]).unwrap();
        let y = case.op(ops::MatMul {}, &[a, b]);
        case.graph.add_output(y);
        assert_eq!(count_prologues(&case.graph), 2);
        case.check_candidates(&[], &format!("{dtype} {m}x{k}x{n}"));
    }
}

/// Checks a convolution of images with a prologue, and the expected number of prologues. Elements in the padding are 0
/// and not the prologue of 0.
fn check_convolution(
    dtype: DType,
    [batch, groups, ins, outs]: [usize; 4],
    [kernel, stride, padding]: [usize; 3],
    expected: usize,
    rng: &mut Rng,
) {
    let input = [9, 14];
    let mut case = Case::default();
    let shape = [batch, groups * ins, input[0], input[1]];
    let (x, symbol) = (with_infinities(dtype, &shape, rng), case.symbol());
    let mut dims = shape.map(Dim::from);
    if stride > 1 {
        dims[0] = symbol.clone();
    }
    let x = case.shaped(x, dims.to_vec());
    let scale = case.input(finite(DType::F32, &[groups * ins, 1, 1], rng));
    let w = case.input(finite(dtype, &[groups * outs, ins, kernel, kernel], rng));
    let mut b = case.builder();
    let scale = b.cast(&scale, dtype).unwrap();
    let x = b.pointwise(Pw::Mul, &[x, scale]).unwrap();
    let x = b.pointwise(Pw::Exp, &[x]).unwrap();
    let conv = ops::Conv {
        stride: [stride; 2].into_iter().collect(),
        padding: [(padding, padding); 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        groups,
    };
    let y = case.op(conv, &[x, w]);
    let label = format!("{dtype} {groups} groups of {ins} to {outs}, {kernel} by {stride}");
    // No input of the graph has the symbol.
    if stride == 1 {
        case.graph.symbols.clear();
    }
    let mut graph = case.graph.clone();
    graph.add_output(y);
    assert_eq!(count_prologues(&graph), expected, "{label}");
    let results = epilogue(&mut case, y, rng);
    case.check_candidates(&results, &label);
}

#[test]
fn every_candidate_of_convolutions_computes_prologues() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(64);
    for dtype in FLOATS {
        // Winograd's algorithms for 3x3 filters of f32 have no prologues.
        let expected = usize::from(dtype != DType::F32);
        check_convolution(dtype, [2, 1, 5, 33], [3, 1, 1], expected, &mut rng);
        check_convolution(dtype, [2, 2, 3, 40], [3, 2, 1], 1, &mut rng);
        check_convolution(dtype, [3, 2, 8, 35], [1, 1, 0], 1, &mut rng); // a plain product
        check_convolution(dtype, [2, 1, 70, 36], [2, 1, 1], 1, &mut rng);
    }
}

/// An operand is stored if many blocks would compute it, or if it has other readers.
#[test]
fn shared_operands_are_stored() {
    let product = |n: usize, dtype: &str, results: &str| {
        count_prologues(&parsed(&format!(
            "%0: {dtype}[4096, 1024] = input(index: 0, role: Data)
             %1: {dtype}[1024, {n}] = input(index: 1, role: Data)
             %2: {dtype}[4096, 1024] = relu %0
             %3: {dtype}[4096, 1024] = add %2, %0
             %4: {dtype}[4096, {n}] = matmul %3, %1
             return %4{results}"
        )))
    };
    assert_eq!(product(512, "f32", ""), 1);
    assert_eq!(product(4096, "f32", ""), 0);
    assert_eq!(product(64, "f16", ""), 1);
    // Warpgroups compute it beneath their products.
    assert_eq!(product(1024, "f16", ""), 1);
    assert_eq!(product(512, "f32", ", %3"), 0);
}
