//! Every candidate for a launch gives the reference's results, and spills no register.

use super::families::{Case, FLOATS, epilogue, finite};
use super::library::samples;
use super::{Expected, parsed};
use crate::device;
use crate::run::{decompose_for_cuda, run_compiled};
use crate::transposed::{NORM, graph};
use kiln_base::{DType, Dim, Gpu, Machine};
use kiln_codegen::{Approximation, Options, Program, Sequence, lower};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::{Rng, random_inputs};
use kiln_ir::{Builder, Graph, Op, ops};
use kiln_runtime::cuda::Code;
use kiln_testkit::sweep::Sweep;

/// Lowers with all candidates.
pub fn lowered(graph: &Graph) -> Program {
    lowered_for(Gpu::H100, graph)
}

pub fn lowered_for(gpu: Gpu, graph: &Graph) -> Program {
    let options = Options {
        machine: Machine::Gpu(gpu),
        candidates: true,
        ..Options::default()
    };
    lower(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

/// Returns the programs of [`every`] whose candidates are exact, with their names.
fn exact_candidates(program: &Program) -> Vec<(String, Sequence)> {
    let candidates = every(program).into_iter();
    let exact = candidates.filter(|(_, approximation, _)| approximation.is_none());
    exact.map(|(name, _, sequence)| (name, sequence)).collect()
}

/// For each candidate of each task that has several, returns its name, its approximation, and the program with it.
pub fn every(program: &Program) -> Vec<(String, Option<Approximation>, Sequence)> {
    let mut programs = Vec::new();
    for (t, task) in program.tasks.iter().enumerate() {
        let several = task.candidates.iter().filter(|_| task.candidates.len() > 1);
        for (c, candidate) in several.enumerate() {
            let mut program = program.clone();
            program.tasks[t].chosen = c;
            programs.push((
                candidate.name(),
                candidate.approximation,
                program.sequence(),
            ));
        }
    }
    programs
}

/// Returns the default and a third of the other candidates, in turn by the number of the program; all of them in a full
/// sweep.
pub fn share<T>(candidates: Vec<T>, program: usize) -> Vec<T> {
    let is_full = Sweep::wanted().is_some();
    let candidates = candidates.into_iter().enumerate();
    let taken = candidates.filter(|(i, _)| is_full || *i == 0 || i % 3 == program % 3);
    taken.map(|(_, candidate)| candidate).collect()
}

/// Returns the kernels of several sequences as one unit.
pub fn together<'a>(sequences: impl IntoIterator<Item = &'a Sequence>) -> Sequence {
    let mut sequences = sequences.into_iter();
    let mut unit = sequences.next().expect("a sequence").clone();
    for sequence in sequences {
        unit.launches.extend(sequence.launches.clone());
    }
    unit
}

/// Checks every candidate; returns their names.
#[track_caller]
fn check(graph: &Graph, inputs: &[Array], label: &str) -> Vec<String> {
    let expected = Expected::of(graph, inputs).unwrap();
    let candidates = exact_candidates(&lowered(&expected.lowered));
    assert!(!candidates.is_empty(), "{label} has one candidate only");
    let compiled = device::compile(&together(candidates.iter().map(|(_, p)| p)));
    for (name, program) in &candidates {
        let symbols = &expected.symbols;
        let got = run_compiled(program, inputs, symbols, &compiled);
        let got = got.unwrap_or_else(|| panic!("{label} by {name}: a false data error"));
        if let Err(e) = expected.compare(&got) {
            panic!("{label} by {name}: {e}\n{graph}");
        }
    }
    candidates.into_iter().map(|(name, _)| name).collect()
}

impl Case {
    /// Checks all candidates for the results; returns their names.
    #[track_caller]
    pub fn check_candidates(mut self, results: &[kiln_ir::Value], label: &str) -> Vec<String> {
        results.iter().for_each(|r| self.graph.add_output(*r));
        check(&self.graph, &self.inputs, label)
    }
}

/// Checks a product with its epilogue; the right side may be transposed.
fn product(dtype: DType, [m, k, n]: [usize; 3], transposed: bool, rng: &mut Rng) -> Vec<String> {
    let mut case = Case::default();
    let a = case.input(finite(dtype, &[m, k], rng));
    let shape = if transposed { [n, k] } else { [k, n] };
    let mut b = case.input(finite(dtype, &shape, rng));
    if transposed {
        b = case.builder().permute(&b, &[1, 0]).unwrap();
    }
    let y = case.op(ops::MatMul {}, &[a, b]);
    let results = epilogue(&mut case, y, rng);
    case.check_candidates(&results, &format!("{dtype} {m}x{k}x{n}"))
}

#[test]
fn products() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(21);
    for dtype in FLOATS {
        for (i, size) in [
            [1, 530, 70], // one row
            [67, 530, 1],
            [2, 3, 33],
            [37, 0, 41],
            [131, 33, 70],
            [40, 64, 48], // copied by 8 elements
        ]
        .into_iter()
        .enumerate()
        {
            let names = product(dtype, size, i % 2 == 0, &mut rng);
            let parts = names.iter().filter(|n| !n.ends_with("parts=1")).count();
            assert_eq!(parts > 1, size[1] > 500, "{names:?}");
            let mut unique = names.clone();
            unique.sort();
            unique.dedup();
            assert_eq!(unique.len(), names.len(), "names are unique");
        }
    }
}

/// Instructions that a GPU lacks are not replaced by others: names are unique.
#[test]
fn candidates_need_instructions_of_the_gpu() {
    let graph = parsed(
        "%0: f32[512, 512] = input(index: 0, role: Data)
         %1: f32[512, 512] = input(index: 1, role: Data)
         %2: f32[512, 512] = permute(perm: [1, 0]) %1
         %3: f32[512, 512] = matmul %0, %2
         return %3",
    );
    for (_, gpu) in device::architectures() {
        let candidates = every(&lowered_for(gpu, &graph)).into_iter();
        let names: Vec<String> = candidates.map(|(name, ..)| name).collect();
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), names.len(), "{names:?}");
        let wgmma = names.iter().any(|n| n.starts_with("wgmma"));
        assert_eq!(wgmma, gpu.arch == (9, 0), "{names:?}");
    }
}

#[test]
fn names() {
    let names = |m: i64, k: i64, n: i64, dtype: &str| -> Vec<String> {
        let graph = parsed(&format!(
            "%0: {dtype}[{m}, {k}] = input(index: 0, role: Data)
             %1: {dtype}[{k}, {n}] = input(index: 1, role: Data)
             %2: {dtype}[{m}, {n}] = matmul %0, %1
             return %2"
        ));
        let names = every(&lowered(&graph)).into_iter().map(|(name, ..)| name);
        names.collect()
    };
    insta::assert_debug_snapshot!([
        names(4096, 4096, 4096, "f32"),
        names(4096, 4096, 1, "f32"),
        names(8, 4096, 4096, "bf16")
    ]);
}

#[test]
fn defaults_follow_the_size_of_the_gpu() {
    let product = "%0: f32[64, 8192] = input(index: 0, role: Data)
         %1: f32[8192, 64] = input(index: 1, role: Data)
         %2: f32[64, 64] = matmul %0, %1
         return %2";
    let reduction = |sizes: [usize; 2], axis: usize| {
        format!(
            "%0: f32{sizes:?} = input(index: 0, role: Data)
             %1: f32[64] = reduce(kind: Sum, axes: [{axis}]) %0
             return %1"
        )
    };
    let (along, across) = (reduction([64, 4096], 1), reduction([4096, 64], 0));
    let default = |gpu: Gpu, text: &str| every(&lowered_for(gpu, &parsed(text))).remove(0).0;
    let (large, small) = (
        Gpu::H100,
        Gpu {
            processors: 16,
            threads: 1024,
            shared: 2 << 10,
            ..Gpu::H100
        },
    );
    insta::assert_debug_snapshot!(
        [large, small].map(|gpu| { [product, &along, &across].map(|text| default(gpu, text)) })
    );
}

#[test]
fn rows_and_columns() {
    if device::nvrtc().is_none() {
        return;
    }
    for (dtype, sizes) in [(DType::F32, [700, 390]), (DType::BF16, [2048, 129])] {
        let (graph, inputs) = graph(dtype, sizes, NORM);
        let names = check(&graph, &inputs, "rows and columns");
        assert!(names.len() > 2, "{names:?}");
    }
}

#[test]
fn products_of_symbolic_sizes() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(22);
    for (dtype, [m, k, n]) in [(DType::F32, [70, 20, 9]), (DType::BF16, [3, 70, 131])] {
        let mut case = Case::default();
        let (rows, inner) = (case.symbol(), case.symbol());
        let a = case.shaped(finite(dtype, &[m, k], &mut rng), vec![rows, inner.clone()]);
        let b = finite(dtype, &[k, n], &mut rng);
        let b = case.shaped(b, vec![inner, Dim::from(n)]);
        let y = case.op(ops::MatMul {}, &[a, b]);
        let results = epilogue(&mut case, y, &mut rng);
        case.check_candidates(&results, &format!("{dtype} {m}x{k}x{n}"));
    }
}

/// Returns a convolution of 3 × 3 with zero padding, or the gradient of its images or weights, the shapes of its
/// operands, and the number of products in a sum. The sizes are images, groups, and a group's input and output
/// channels.
pub fn convolution(
    role: usize,
    [batch, groups, ins, outs]: [usize; 4],
    input: [usize; 2],
    stride: usize,
) -> (Op, [[usize; 4]; 2], usize) {
    let output = input.map(|n| (n - 1) / stride + 1);
    let conv = ops::Conv {
        stride: [stride; 2].into_iter().collect(),
        padding: [(1, 1); 2].into_iter().collect(),
        dilation: [1, 1].into_iter().collect(),
        groups,
    };
    let x = [batch, groups * ins, input[0], input[1]];
    let w = [groups * outs, ins, 3, 3];
    let y = [batch, groups * outs, output[0], output[1]];
    match role {
        0 => (conv.into(), [x, w], ins * 9),
        1 => {
            let input = input.into_iter().map(Dim::from).collect();
            let op = ops::ConvTranspose { conv, input };
            (op.into(), [y, w], outs * 9)
        }
        _ => {
            let kernel = [3, 3].into_iter().collect();
            let op = ops::ConvWeight { conv, kernel };
            (op.into(), [x, y], batch * output[0] * output[1])
        }
    }
}

/// A convolution or one of its gradients, whose sums are long enough to be split.
#[test]
fn convolutions() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(23);
    for (i, dtype) in FLOATS.into_iter().enumerate() {
        for role in 0..3 {
            let (batch, groups, ins, outs) = (2, 1 + i % 2, [32, 3, 5][role], [7, 33, 9][role]);
            let stride = 1 + (i + role) % 2;
            let sizes = [batch, groups, ins, outs];
            let (op, shapes, _) = convolution(role, sizes, [13, 12], stride);
            let mut case = Case::default();
            let operands = shapes.map(|s| case.input(finite(dtype, &s, &mut rng)));
            let result = case.op(op, &operands);
            let results = epilogue(&mut case, result, &mut rng);
            case.check_candidates(
                &results,
                &format!("role {role} of {dtype}, groups {groups}"),
            );
        }
    }
}

/// Checks every candidate of a graph on random inputs.
#[track_caller]
fn check_text(text: &str) -> Vec<String> {
    if device::nvrtc().is_none() {
        return Vec::new();
    }
    let graph = parsed(text);
    check(&graph, &random_inputs(&graph, 3), text)
}

#[test]
fn rows() {
    let softmax = |dtype: &str, rows: &str, len: &str, axis: usize| {
        format!(
            "%0: {dtype}[{rows}, {len}] = input(index: 0, role: Data)
             %1: {dtype}[{rows}, {len}] = softmax(axis: {axis}, log: false) %0
             return %1"
        )
    };
    for (dtype, rows, len) in [
        ("f32", 3, 131),
        ("f32", 70, 64),
        ("bf16", 9, 1024),
        ("f64", 2, 5000),
    ] {
        let names = check_text(&softmax(dtype, &rows.to_string(), &len.to_string(), 1));
        let rereading = names.iter().filter(|n| n.ends_with("read again")).count();
        assert!(
            rereading <= 1 && (names.len() > 2 || names.is_empty()),
            "{names:?}"
        );
    }
    check_text(&softmax("f32", "130", "33", 0));
    check_text(&softmax("f16", "600", "7", 0));
    let symbols = "symbols s0 >= 2 \"rows\", s1 >= 2 \"length\"";
    for axis in [0, 1] {
        check_text(&format!("{symbols}\n{}", softmax("f32", "s0", "s1", axis)));
    }
    for (dtype, shape, axis) in [
        ("i32", [5, 300], 1),
        ("f32", [300, 70], 0),
        ("f64", [1, 700], 1),
    ] {
        let result_len = shape[1 - axis];
        check_text(&format!(
            "%0: {dtype}[{}, {}] = input(index: 0, role: Data)
             %1: {dtype}[{result_len}] = reduce(kind: Sum, axes: [{axis}]) %0
             %2: i64[{result_len}] = arg_reduce(kind: Max, axis: {axis}) %0
             %3: {dtype}[{result_len}] = reduce(kind: Min, axes: [{axis}]) %0
             return %1, %2, %3",
            shape[0], shape[1]
        ));
    }
}

#[test]
fn points() {
    for (dtype, len, widths) in [
        ("f32", 48, 4),
        ("bf16", 32, 5),
        ("f64", 6, 2),
        ("u8", 16, 5),
    ] {
        let names = check_text(&format!(
            "%0: {dtype}[5, {len}] = input(index: 0, role: Data)
             %1: {dtype}[{len}] = input(index: 1, role: Data)
             %2: {dtype}[5, {len}] = broadcast %1
             %3: {dtype}[5, {len}] = add %0, %2
             %4: {dtype}[5, {len}] = maximum %3, %0
             return %4, %3"
        ));
        assert!(
            names.len() == widths || names.is_empty(),
            "{dtype}: {names:?}"
        );
    }
    // Rows of 13 elements have no vectors, so there is one candidate.
    let graph = parsed(
        "%0: f32[7, 13] = input(index: 0, role: Data)
         %1: f32[7, 13] = relu %0
         return %1",
    );
    assert!(exact_candidates(&lowered(&graph)).is_empty());
}

/// Registers suffice on both architectures. Candidates that give up precision have a test of their own. A share of the
/// candidates is compiled unless `KILN_FULL_SWEEP=1`.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    let softmax = parsed(
        "%0: f32[512, 1000] = input(index: 0, role: Data)
         %1: f32[512, 1000] = softmax(axis: 1, log: false) %0
         return %1",
    );
    let vector = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[8, 4096] = input(index: 0, role: Data)
             %1: {dtype}[4096, 4096] = input(index: 1, role: Data)
             %2: {dtype}[4096, 8] = permute(perm: [1, 0]) %0
             %3: {dtype}[4096, 8] = matmul %1, %2
             %4: {dtype}[8, 4096] = matmul %0, %1
             return %3, %4"
        ))
    };
    let vectors = ["f32", "f64", "bf16"].map(|dtype| ("vector", vector(dtype)));
    // One operand is costly to compute, the other is small integers.
    let prologues = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[512, 320] = input(index: 0, role: Data)
             %1: {dtype}[320] = input(index: 1, role: Data)
             %2: u8[320, 128] = input(index: 2, role: Data)
             %3: {dtype}[512, 320] = broadcast %1
             %4: {dtype}[512, 320] = add %0, %3
             %5: {dtype}[512, 320] = tanh %4
             %6: {dtype}[320, 128] = cast %2
             %7: {dtype}[512, 128] = matmul %5, %6
             return %7"
        ))
    };
    let prologues = ["f32", "f64", "f16", "bf16"].map(|dtype| ("prologues", prologues(dtype)));
    let row_epilogue = |dtype: &str, n: usize| {
        parsed(&format!(
            "%0: {dtype}[8192, 320] = input(index: 0, role: Data)
             %1: {dtype}[320, {n}] = input(index: 1, role: Data)
             %2: {dtype}[8192, {n}] = input(index: 2, role: Data)
             %3: {dtype}[8192, {n}] = matmul %0, %1
             %4: {dtype}[8192, {n}] = add %3, %2
             %5: {dtype}[8192, {n}] = softmax(axis: 1, log: false) %4
             %6: i64[8192] = arg_reduce(kind: Max, axis: 1) %5
             return %5, %6"
        ))
    };
    let rows = [
        ("f32", 24),
        ("f32", 64),
        ("f32", 128),
        ("f64", 128),
        ("bf16", 64),
        ("f16", 120),
    ];
    let rows = rows.map(|(dtype, n)| ("rows", row_epilogue(dtype, n)));
    let images = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[8, 64, 56, 56] = input(index: 0, role: Data)
             %1: {dtype}[64, 1, 1] = input(index: 1, role: Data)
             %2: {dtype}[64, 64, 3, 3] = input(index: 2, role: Data)
             %3: {dtype}[8, 64, 56, 56] = broadcast %1
             %4: {dtype}[8, 64, 56, 56] = mul %0, %3
             %5: {dtype}[8, 64, 56, 56] = relu %4
             %6: {dtype}[8, 64, 28, 28] = conv(stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %5, %2
             return %6"
        ))
    };
    let images = ["f32", "f64", "f16"].map(|dtype| ("images", images(dtype)));
    let norms = [
        (DType::F32, [4096, 768]),
        (DType::F32, [2048, 513]),
        (DType::F64, [8192, 1024]),
        (DType::BF16, [2048, 8192]),
    ];
    let norms = norms.map(|(dtype, sizes)| ("norm", graph(dtype, sizes, NORM).0));
    let others = vectors
        .into_iter()
        .chain(prologues)
        .chain(norms)
        .chain(rows)
        .chain(images);
    let products = samples()
        .into_iter()
        .filter(|(name, _)| *name != "matmul_f16") // equals that of bf16
        .chain(others)
        .chain([("softmax", softmax)]);
    let mut count = 0;
    for (i, (name, graph)) in products.enumerate() {
        for (capability, gpu) in device::architectures() {
            let candidates = exact_candidates(&lowered_for(gpu, &decompose_for_cuda(&graph)));
            let candidates = share(candidates, i);
            if candidates.is_empty() {
                continue;
            }
            let text = device::unit(&together(candidates.iter().map(|(_, p)| p)));
            let compiled = nvrtc.compile(&text, Code::Cubin(capability));
            for r in compiled
                .unwrap_or_else(|e| panic!("{name}: {e}"))
                .resources()
            {
                assert!(r.spilled == 0 && r.stack == 0, "{name}: {r:?}");
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count}");
}
