//! Errors of approximate candidates stay within their stated bounds.

use super::candidates::{convolution, every, lowered, share, together};
use super::families::{Case, finite};
use super::library::samples;
use super::{parsed, sources};
use crate::device;
use crate::run::{decompose_for_cuda, run_compiled};
use kiln_base::DType;
use kiln_codegen::{Approximation, Sequence};
use kiln_ir::eval::{Array, Data, Mode, evaluate};
use kiln_ir::fuzz::Rng;
use kiln_ir::{Graph, Pw, ops};
use kiln_plan::Algorithm;
use kiln_runtime::cuda::Code;

/// Half the distance from 1 to the next f32.
const U: f64 = f32::EPSILON as f64 / 2.0;

type Approximate = (String, Approximation, Sequence);

/// Returns the approximate candidates of a graph.
fn approximate(graph: &Graph) -> Vec<Approximate> {
    let candidates = every(&lowered(&decompose_for_cuda(graph))).into_iter();
    candidates
        .filter_map(|(name, a, program)| Some((name, a?, program)))
        .collect()
}

/// Returns the first result of each approximate candidate of a graph.
fn results(graph: &Graph, inputs: &[Array]) -> Vec<(String, Approximation, Vec<f64>)> {
    let candidates = approximate(graph);
    assert!(
        !candidates.is_empty(),
        "no candidate is approximate:\n{graph}"
    );
    let compiled = device::compile(&together(candidates.iter().map(|(_, _, p)| p)));
    let run = |(name, approximation, program): Approximate| {
        let got = run_compiled(&program, inputs, &[], &compiled);
        let got = got.expect("no data error").swap_remove(0);
        let got = got.expect("it is computed").to_f64();
        (name, approximation, got)
    };
    candidates.into_iter().map(run).collect()
}

fn exact(graph: &Graph, inputs: &[Array]) -> Vec<f64> {
    evaluate(graph, inputs, &[], Mode::Exact).unwrap()[0].to_f64()
}

fn absolute(x: &Array) -> Array {
    let data: Vec<f64> = x.to_f64().iter().map(|v| v.abs()).collect();
    Array::new(x.dtype(), x.shape(), Data::Float(data)).unwrap()
}

/// Checks the errors of all candidates of a contraction with `terms` products in each sum.
#[track_caller]
fn check_errors(graph: &Graph, inputs: &[Array], terms: usize) {
    let expected = exact(graph, inputs);
    let magnitudes = exact(graph, &inputs.iter().map(absolute).collect::<Vec<_>>());
    let gamma = terms as f64 * U;
    let mut checked = Vec::new();
    let candidates = results(graph, inputs).into_iter();
    for (name, approximation, got) in
        candidates.filter(|w| !matches!(w.1, Approximation::Algorithm(_)))
    {
        let bound = approximation.error() + approximation.growth() * gamma / (1.0 - gamma) + U;
        let mut max_error = 0f64;
        for (i, ((got, expected), magnitude)) in
            got.iter().zip(&expected).zip(&magnitudes).enumerate()
        {
            let error = (got - expected).abs();
            assert!(
                error <= bound * magnitude,
                "{name}: element {i} is {got}, not {expected}: {error:e} of {magnitude}\n{graph}"
            );
            max_error = max_error.max(error / magnitude.max(1e-30));
        }
        // TF32 rounds operands; three products of split operands hardly do.
        match approximation {
            Approximation::Tf32 => assert!(
                max_error > 2e-5 / (terms as f64).sqrt(),
                "{name}: {max_error:e}"
            ),
            _ => assert!(max_error < 1e-6, "{name}: {max_error:e}"),
        }
        if !checked.contains(&approximation) {
            checked.push(approximation);
        }
    }
    assert_eq!(checked, [Approximation::Tf32, Approximation::Tf32x3]);
}

fn product_of(a: Array, b: Array, transposed: [bool; 2]) -> (Graph, Vec<Array>) {
    let mut case = Case::default();
    let operands = [a, b].map(|x| case.input(x));
    let operands: Vec<_> = (operands.into_iter().zip(transposed))
        .map(|(x, transposed)| match transposed {
            true => case.op(
                ops::Permute {
                    perm: [1, 0].into_iter().collect(),
                },
                &[x],
            ),
            false => x,
        })
        .collect();
    let y = case.op(ops::MatMul {}, &operands);
    case.graph.add_output(y);
    (case.graph, case.inputs)
}

fn product([m, k, n]: [usize; 3], transposed: [bool; 2], rng: &mut Rng) -> (Graph, Vec<Array>) {
    let shape = |rows, columns, transposed| match transposed {
        true => [columns, rows],
        false => [rows, columns],
    };
    let a = finite(DType::F32, &shape(m, k, transposed[0]), rng);
    let b = finite(DType::F32, &shape(k, n, transposed[1]), rng);
    product_of(a, b, transposed)
}

#[test]
fn products() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(51);
    for (size, transposed) in [
        ([9, 32, 9], [false, false]),
        ([37, 61, 41], [true, false]),
        ([67, 131, 33], [false, true]),
        ([40, 64, 48], [false, false]), // copied by 16 bytes
        ([72, 40, 136], [true, true]),
        ([13, 1031, 29], [false, true]), // K is split
        ([136, 72, 264], [false, true]), // warpgroups multiply
    ] {
        let (graph, inputs) = product(size, transposed, &mut rng);
        check_errors(&graph, &inputs, size[1]);
        let mut names = approximate(&graph).into_iter().map(|(name, ..)| name);
        let by_warpgroups = names.any(|name| name.starts_with("wgmma_tf32"));
        assert_eq!(by_warpgroups, size == [136, 72, 264], "{size:?}");
    }
}

/// Results of prologues are rounded like other operands.
#[test]
fn products_with_prologues() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(55);
    for [m, k, n] in [[37, 61, 41], [72, 40, 136]] {
        let mut case = Case::default();
        let [a, b] = [[m, k], [k, n]].map(|s| {
            let x = case.input(finite(DType::F32, &s, &mut rng));
            case.op(ops::Pointwise(Pw::Abs), &[x])
        });
        let y = case.op(ops::MatMul {}, &[a, b]);
        case.graph.add_output(y);
        let tasks = lowered(&decompose_for_cuda(&case.graph)).tasks;
        assert!(tasks[0].work.prologues().iter().all(Option::is_some));
        check_errors(&case.graph, &case.inputs, k);
    }
}

/// Small operands, and vectors, gain nothing from tensor cores.
#[test]
fn small_products_are_exact() {
    let mut rng = Rng::new(52);
    for size in [
        [1, 64, 64],
        [64, 1, 64],
        [64, 31, 64],
        [64, 64, 1],
        [8, 64, 64],
        [9, 0, 9],
    ] {
        let (graph, _) = product(size, [false; 2], &mut rng);
        assert!(approximate(&graph).is_empty(), "{size:?}");
    }
    for dtype in ["f64", "f16", "bf16"] {
        let graph = parsed(&format!(
            "%0: {dtype}[64, 64] = input(index: 0, role: Data)
             %1: {dtype}[64, 64] = matmul %0, %0
             return %1"
        ));
        assert!(approximate(&graph).is_empty(), "{dtype}");
    }
    // The error bound of split operands depends on the number of terms, here a symbol.
    let graph = parsed(
        "symbols s0 >= 2 \"k\"
         %0: f32[64, s0] = input(index: 0, role: Data)
         %1: f32[s0, 64] = input(index: 1, role: Data)
         %2: f32[64, 64] = matmul %0, %1
         return %2",
    );
    let candidates = approximate(&graph);
    assert!(!candidates.is_empty() && candidates.iter().all(|w| w.1 == Approximation::Tf32));
}

/// Sums that nearly cancel: results are much smaller than terms.
#[test]
fn products_that_cancel() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(53);
    let [m, k, n] = [19, 74, 23];
    let mut a = finite(DType::F32, &[m, k], &mut rng).to_f64();
    let mut b = finite(DType::F32, &[k, n], &mut rng).to_f64();
    for p in (0..k).step_by(2) {
        (0..m).for_each(|i| a[i * k + p + 1] = -a[i * k + p]);
        let near = 1.0 + f64::from(f32::EPSILON) * rng.below(9) as f64;
        (0..n).for_each(|j| b[(p + 1) * n + j] = f64::from((b[p * n + j] * near) as f32));
    }
    let matrix =
        |shape: [usize; 2], data: &[f64]| Array::from_f64(DType::F32, &shape, data).unwrap();
    let (graph, inputs) = product_of(matrix([m, k], &a), matrix([k, n], &b), [false; 2]);
    let expected = exact(&graph, &inputs);
    assert!(expected.iter().all(|x| x.abs() < 1e-4), "sums cancel");
    let magnitudes = exact(&graph, &inputs.iter().map(absolute).collect::<Vec<_>>());
    for (name, approximation, got) in results(&graph, &inputs) {
        let bound = approximation.error() + (1.0 + approximation.growth()) * k as f64 * U;
        for ((got, expected), magnitude) in got.iter().zip(&expected).zip(&magnitudes) {
            assert!(
                (got - expected).abs() <= bound * magnitude,
                "{name}: {got}, not {expected}"
            );
        }
    }
}

/// NaN stays NaN, and results without NaN and infinities stay finite. Only TF32 keeps infinities.
#[test]
fn nan_and_infinities() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(54);
    let [m, k, n] = [21, 35, 17];
    let mut a = finite(DType::F32, &[m, k], &mut rng).to_f64();
    let b = finite(DType::F32, &[k, n], &mut rng);
    a[3 * k + 5] = f64::INFINITY;
    a[4 * k + 7] = f64::NEG_INFINITY;
    a[4 * k + 8] = f64::INFINITY;
    a[5 * k] = f64::NAN;
    // Rounding turns the largest number into an infinity, but not one that is 1/2048 smaller.
    (a[6 * k], a[7 * k]) = (
        f64::from(f32::MAX),
        f64::from(f32::MAX) * (1.0 - 1.0 / 2048.0),
    );
    (1..k).for_each(|p| (a[6 * k + p], a[7 * k + p]) = (0.0, 0.0));
    // Subnormal numbers may become 0.
    (0..k).for_each(|p| a[8 * k + p] = 1e-40);
    let a = Array::from_f64(DType::F32, &[m, k], &a).unwrap();
    let (graph, inputs) = product_of(a, b, [false; 2]);
    let expected = exact(&graph, &inputs);
    for (name, approximation, got) in results(&graph, &inputs) {
        let tf32 = approximation == Approximation::Tf32;
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let row = i / n;
            let is_correct = match row {
                3 | 4 if tf32 => got == expected || got.is_nan() && expected.is_nan(),
                3..=5 => got.is_nan(),
                6 => !got.is_finite(),
                7 => (got / expected - 1.0).abs() < 1e-3,
                8 => got.abs() < 1e-37,
                _ => got.is_finite(),
            };
            assert!(is_correct, "{name}: {got} in row {row}, not {expected}");
        }
    }
}

/// A convolution of odd sizes and each of its gradients.
#[test]
fn convolutions() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(55);
    for role in 0..3 {
        for (groups, stride) in [(1, 1), (2, 2)] {
            let (batch, ins, outs) = (3, [11, 9, 5][role], [9, 11, 13][role]);
            let sizes = [batch, groups, ins, outs];
            let (op, shapes, terms) = convolution(role, sizes, [7, 11], stride);
            let mut case = Case::default();
            let operands = shapes.map(|s| case.input(finite(DType::F32, &s, &mut rng)));
            let result = case.op(op, &operands);
            case.graph.add_output(result);
            check_errors(&case.graph, &case.inputs, terms);
        }
    }
}

/// The sizes of a 3 × 3 convolution with a stride of 1.
struct PlainConvolution {
    batch: usize,
    groups: usize,
    channels: [usize; 2],
    input: [usize; 2],
    padding: [(usize, usize); 2],
}

impl PlainConvolution {
    fn case(&self, rng: &mut Rng) -> Case {
        let [ins, outs] = self.channels;
        let conv = ops::Conv {
            stride: [1, 1].into_iter().collect(),
            padding: self.padding.into_iter().collect(),
            dilation: [1, 1].into_iter().collect(),
            groups: self.groups,
        };
        let mut case = Case::default();
        let x = [self.batch, self.groups * ins, self.input[0], self.input[1]];
        let w = [self.groups * outs, ins, 3, 3];
        let operands = [&x, &w].map(|s| case.input(finite(DType::F32, s, rng)));
        let y = case.op(conv, &operands);
        case.graph.add_output(y);
        case
    }

    /// Returns the results of Winograd's algorithms.
    fn results(case: &Case) -> Vec<(Algorithm, Vec<f64>)> {
        let candidates = results(&case.graph, &case.inputs).into_iter();
        let winograd = candidates.filter_map(|(_, approximation, got)| match approximation {
            Approximation::Algorithm(algorithm) => Some((algorithm, got)),
            _ => None,
        });
        winograd.collect()
    }
}

/// Winograd's algorithms on maps of any size, with their documented bound; epilogues are applied.
#[test]
fn winograd() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(58);
    for (i, (batch, groups, channels, input, padding)) in [
        (1, 1, [1, 1], [3, 3], [(0, 0); 2]),
        (2, 1, [3, 5], [7, 11], [(1, 1); 2]),
        (3, 2, [17, 9], [13, 5], [(1, 0), (0, 2)]),
        (1, 3, [8, 37], [1, 1], [(1, 1); 2]),
        (2, 1, [64, 70], [16, 16], [(2, 2); 2]),
    ]
    .into_iter()
    .enumerate()
    {
        let plain = PlainConvolution {
            batch,
            groups,
            channels,
            input,
            padding,
        };
        let mut case = plain.case(&mut rng);
        let relu = i % 2 == 1;
        if relu {
            let y = case.graph.outputs[0].value;
            let y = case.op(ops::Pointwise(Pw::Relu), &[y]);
            case.graph.outputs.clear();
            case.graph.add_output(y);
        }
        let expected = exact(&case.graph, &case.inputs);
        let max_abs = |a: &Array| a.to_f64().iter().fold(0f64, |m, x| m.max(x.abs()));
        let size = max_abs(&case.inputs[0]) * max_abs(&case.inputs[1]);
        let terms = (channels[0] * 9) as f64;
        let candidates = PlainConvolution::results(&case);
        let names: Vec<Algorithm> = candidates.iter().map(|w| w.0).collect();
        assert_eq!(names, [Algorithm::Winograd2, Algorithm::Winograd4]);
        for (algorithm, got) in candidates {
            let bound = algorithm.error_growth() * (terms + 28.0) * U * terms * size;
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                assert!(
                    (got - expected).abs() <= bound,
                    "{algorithm}: element {i} is {got}, not {expected}"
                );
            }
        }
    }
    // Winograd's algorithms are not for strides, other filters and other dtypes.
    for (dtype, stride, kernel) in [("f32", 2, 3), ("f32", 1, 5), ("f64", 1, 3)] {
        let output = (16 - kernel) / stride + 1;
        let graph = parsed(&format!(
            "%0: {dtype}[1, 4, 16, 16] = input(index: 0, role: Data)
             %1: {dtype}[4, 4, {kernel}, {kernel}] = input(index: 1, role: Data)
             %2: {dtype}[1, 4, {output}, {output}] = conv(stride: [{stride}, {stride}], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1) %0, %1
             return %2"
        ));
        let candidates = approximate(&graph);
        let winograd = |w: &Approximate| matches!(w.1, Approximation::Algorithm(_));
        assert!(
            !candidates.iter().any(winograd),
            "{dtype} {stride} {kernel}"
        );
    }
}

/// NaN stays within the tiles that read it, and is not lost.
#[test]
fn winograd_of_nan() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(59);
    let plain = PlainConvolution {
        batch: 1,
        groups: 1,
        channels: [2, 3],
        input: [17, 15],
        padding: [(1, 1); 2],
    };
    let mut case = plain.case(&mut rng);
    let mut x = case.inputs[0].to_f64();
    (x[8 * 15 + 7], x[15 * 17 + 3]) = (f64::NAN, f64::INFINITY);
    case.inputs[0] = Array::from_f64(DType::F32, &[1, 2, 17, 15], &x).unwrap();
    let expected = exact(&case.graph, &case.inputs);
    for (algorithm, got) in PlainConvolution::results(&case) {
        let tile = if algorithm == Algorithm::Winograd2 {
            2
        } else {
            4
        };
        for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (row, column) = (i / 15 % 17, i % 15);
            let reads = |r: usize, c: usize| row.abs_diff(r) <= tile && column.abs_diff(c) <= tile;
            let may_be_nan = reads(8, 7) || reads(0, 3);
            assert!(expected.is_finite() || !got.is_finite(), "{algorithm}: {i}");
            assert!(
                got.is_finite() || may_be_nan,
                "{algorithm}: {i} is {got}, not {expected}"
            );
        }
    }
}

/// Tensor cores multiply on both architectures, and registers suffice, for products, convolutions and their gradients. A
/// share of the candidates is compiled unless `KILN_FULL_SWEEP=1`.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    let convolution = parsed(
        "%0: f32[8, 64, 56, 56] = input(index: 0, role: Data)
         %1: f32[64, 64, 3, 3] = input(index: 1, role: Data)
         %2: f32[8, 64, 56, 56] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %0, %1
         %3: f32[8, 64, 56, 56] = tanh %2
         return %3",
    );
    let names = ["matmul_f32", "conv_transpose_f32", "conv_weight_f32"];
    let samples = samples().into_iter();
    let samples = samples.filter(|(name, _)| names.contains(name));
    let graphs = samples.chain([("conv_f32", convolution)]).enumerate();
    for (i, (name, graph)) in graphs {
        let default = device::unit(&lowered(&graph).sequence());
        let candidates = share(approximate(&graph), i);
        let text = device::unit(&together(candidates.iter().map(|(_, _, p)| p)));
        let products = |text: &str| {
            let ptx = nvrtc.compile(text, Code::Ptx(80)).unwrap().image;
            let ptx = String::from_utf8_lossy(&ptx);
            ptx.matches("m16n8k8.row.col.f32.tf32.tf32.f32").count()
        };
        let multiplies = products(&text);
        assert!(multiplies > 0 && products(&default) == 0, "{name}");
        for capability in [80, 90] {
            let compiled = nvrtc.compile(&text, Code::Cubin(capability)).unwrap();
            let instructions = count_hmma(&compiled.image);
            assert_eq!(instructions, multiplies, "{name} for sm_{capability}");
            for r in compiled.resources() {
                assert!(r.spilled == 0 && r.stack == 0, "{name}: {r:?}");
            }
        }
    }
}

/// Counts the HMMA instructions in a cubin. An instruction has 16 bytes, whose low 12 bits are its opcode.
fn count_hmma(cubin: &[u8]) -> usize {
    const HMMA: u16 = 0x23c;
    let read_u64 = |at: usize| u64::from_le_bytes(cubin[at..at + 8].try_into().unwrap()) as usize;
    let read_u16 = |at: usize| u16::from_le_bytes([cubin[at], cubin[at + 1]]);
    // The section headers of a 64-bit ELF file. Flag 4 marks code.
    let (headers, size, count) = (read_u64(40), read_u16(58) as usize, read_u16(60) as usize);
    let sections = (0..count).map(|s| headers + s * size);
    let code = sections.filter(|at| read_u64(at + 8) & 4 != 0);
    let instructions = code.flat_map(|at| {
        let (offset, len) = (read_u64(at + 24), read_u64(at + 32));
        cubin[offset..offset + len].chunks(16)
    });
    let opcode = |word: &[u8]| u16::from_le_bytes([word[0], word[1]]) & 0xfff;
    instructions.filter(|word| opcode(word) == HMMA).count()
}

/// The approximate form of each function over its range, and at special numbers.
#[test]
fn functions() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(56);
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        f64::NAN,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::from(f32::MAX),
        f64::from(f32::MIN_POSITIVE),
        1e-40,
        -200.0,
        200.0,
    ];
    let wide = |rng: &mut Rng| f64::exp2(rng.unit() * 250.0 - 125.0);
    let near = |rng: &mut Rng, size: f64| (rng.unit() - 0.5) * size;
    for (function, form) in [
        ("exp", "__expf"),
        ("sigmoid", "__expf"),
        ("log", "__logf"),
        ("log2", "__log2f"),
        ("log10", "__log10f"),
        ("reciprocal", "kiln_fast_div"),
        ("sqrt", "kiln_fast_sqrt"),
        ("tanh", "kiln_fast_tanh"),
        ("div", "kiln_fast_div"),
    ] {
        let mut inputs = Vec::new();
        for _ in 0..2 {
            let mut data = special.to_vec();
            for _ in 0..1500 {
                data.extend(match function {
                    "exp" | "sigmoid" | "tanh" => [near(&mut rng, 170.0), near(&mut rng, 2.0)],
                    _ => [wide(&mut rng), 1.0 + near(&mut rng, 0.1)],
                });
            }
            let rotated = rng.below(data.len());
            data.rotate_left(rotated);
            inputs.push(Array::from_f64(DType::F32, &[data.len()], &data).unwrap());
        }
        let len = inputs[0].shape()[0];
        let (operands, inputs) = match function {
            "div" => ("%0, %1", inputs),
            _ => ("%0", inputs[..1].to_vec()),
        };
        let graph = parsed(&format!(
            "%0: f32[{len}] = input(index: 0, role: Data)
             {}
             %2: f32[{len}] = {function} {operands}
             return %2",
            match function {
                "div" => format!("%1: f32[{len}] = input(index: 1, role: Data)"),
                _ => format!("%1: f32[{len}] = neg %0"),
            }
        ));
        let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap()[0].to_f64();
        let text = sources(&approximate(&graph)[0].2);
        assert!(text.contains(form), "{text}");
        for (name, approximation, got) in results(&graph, &inputs) {
            let bound = approximation.error() + U;
            for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
                // Logarithms are near 0 at 1, and subnormal results lose bits.
                let size = match function.starts_with("log") {
                    true => expected.abs().max(1.0),
                    false => expected.abs(),
                };
                let same = got == expected || got.is_nan() && expected.is_nan();
                let close = (got - expected).abs() <= bound * size + 1e-37;
                let x = inputs[0].to_f64()[i];
                assert!(
                    same || close,
                    "{name}: {function} of {x} is {got}, not {expected}"
                );
            }
        }
    }
}

/// Kernels with approximate functions among others. Kernels without them have no approximate candidate.
#[test]
fn fused_kernels() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(57);
    for (rows, len) in [(1, 1), (3, 131), (70, 64), (2, 4099)] {
        for body in [
            "%1: f32[R, L] = softmax(axis: 1, log: false) %0",
            "%1: f32[R, L] = tanh %0
             %2: f32[R, L] = exp %1
             %3: f32[R, L] = div %1, %2",
        ] {
            let text = format!(
                "%0: f32[R, L] = input(index: 0, role: Data)
                 {body}
                 return %{}",
                body.matches('=').count()
            );
            let text = text.replace('R', &rows.to_string());
            let graph = parsed(&text.replace('L', &len.to_string()));
            let inputs = [finite(DType::F32, &[rows, len], &mut rng)];
            let expected = exact(&graph, &inputs);
            for (name, approximation, got) in results(&graph, &inputs) {
                let bound = 3.0 * approximation.error() + 64.0 * U;
                for (got, expected) in got.iter().zip(&expected) {
                    let close = (got - expected).abs() <= bound * expected.abs();
                    assert!(close, "{name}: {got}, not {expected}\n{graph}");
                }
            }
        }
    }
    for body in [
        "%0: f64[8, 64] = input(index: 0, role: Data)
         %1: f64[8, 64] = softmax(axis: 1, log: false) %0
         return %1",
        "%0: f32[8, 64] = input(index: 0, role: Data)
         %1: f32[8, 64] = sin %0
         %2: f32[8] = reduce(kind: Sum, axes: [1]) %1
         return %2",
        "%0: f32[8, 64] = input(index: 0, role: Data)
         %1: f32[8, 64] = exp %0
         %2: i64[8] = arg_reduce(kind: Max, axis: 1) %1
         return %2",
    ] {
        assert!(approximate(&parsed(body)).is_empty(), "{body}");
    }
}
