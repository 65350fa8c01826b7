//! Kernels merged into one launch compute the same as separate ones, and fit the architectures.

use super::families::finite;
use super::{check_as, lowered, lowered_for, parsed};
use crate::device;
use kiln_base::{Gpu, Machine};
use kiln_codegen::{Launch, Sequence, fit_in_a_launch, merge_launches};
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;
use kiln_ir::{Graph, Op};
use kiln_plan::Kernel;
use kiln_runtime::cuda::Code;

/// Merges launches greedily: each joins the first legal group after its dependencies.
fn merge_greedily(sequence: Sequence) -> Sequence {
    let launches = &sequence.launches;
    let writes_args_of = |writer: &Launch, other: &Launch| {
        let mut written = writer.args.iter().zip(&writer.written).filter(|a| *a.1);
        written.any(|(b, _)| other.args.contains(b))
    };
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (l, launch) in launches.iter().enumerate() {
        let conflicts = |other: &usize| {
            let other = &launches[*other];
            writes_args_of(other, launch) || writes_args_of(launch, other)
        };
        let dependency = groups.iter().rposition(|g| g.iter().any(conflicts));
        let first_group = dependency.map_or(0, |g| g + 1);
        let fits = |g: &usize| {
            let group = groups[*g].iter().chain([&l]).map(|l| &launches[*l]);
            fit_in_a_launch(&sequence, &group.collect::<Vec<_>>())
        };
        match (first_group..groups.len()).find(fits) {
            Some(g) => groups[g].push(l),
            None => groups.push(vec![l]),
        }
    }
    merge_launches(&sequence, &groups)
}

/// Returns mostly independent ops: products, two of which have the same shape, a weight gradient of a convolution,
/// reductions of rows and columns, and pointwise ops.
fn independent_ops(dtype: &str, [m, k, n]: [usize; 3]) -> Graph {
    parsed(&format!(
        "%0: {dtype}[{m}, {k}] = input(index: 0, role: Data)
         %1: {dtype}[{k}, {n}] = input(index: 1, role: Data)
         %2: {dtype}[{m}, {n}] = input(index: 2, role: Data)
         %3: {dtype}[{k}, {n}] = input(index: 3, role: Data)
         %4: {dtype}[2, 3, 9, 7] = input(index: 4, role: Data)
         %5: {dtype}[2, 5, 9, 7] = input(index: 5, role: Data)
         %6: {dtype}[{m}, {n}] = matmul %0, %1
         %7: {dtype}[{m}, {n}] = matmul %0, %3
         %8: {dtype}[{k}, {m}] = permute(perm: [1, 0]) %0
         %9: {dtype}[{k}, {n}] = matmul %8, %2
         %10: {dtype}[{k}, {n}] = relu %9
         %11: {dtype}[5, 3, 3, 3] = conv_weight(conv: (stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), kernel: [3, 3]) %4, %5
         %12: {dtype}[{n}] = reduce(kind: Sum, axes: [0]) %2
         %13: {dtype}[{k}] = reduce(kind: Max, axes: [1]) %1
         %14: {dtype}[{k}, {n}] = neg %1
         %15: {dtype}[{m}, {k}] = exp %0
         %16: {dtype}[{m}, {n}] = tanh %6
         return %16, %7, %10, %11, %12, %13, %14, %15"
    ))
}

/// Returns random inputs of a graph.
fn inputs(graph: &Graph, rng: &mut Rng) -> Vec<Array> {
    let shapes = graph.inputs().into_iter().map(|id| {
        let Op::Input(input) = &graph.node(id).op else {
            unreachable!("inputs() returns inputs")
        };
        let extent = |d: &kiln_base::Dim| d.as_const().expect("a number") as usize;
        let shape: Vec<usize> = input.fact.shape.iter().map(extent).collect();
        (input.fact.dtype, shape)
    });
    shapes
        .map(|(dtype, shape)| finite(dtype, &shape, rng))
        .collect()
}

#[test]
fn merged_kernels_equal_separate_ones() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(31);
    let sizes = [
        [33, 17, 5],
        [64, 64, 64],
        [1, 70, 130],
        [0, 3, 4],
        [40, 0, 7],
    ];
    for (i, size) in sizes.into_iter().enumerate() {
        let dtype = ["f32", "bf16", "f64", "f16"][i % 4];
        let graph = independent_ops(dtype, size);
        let separate = lowered(&graph, false)
            .expect("these have a printer")
            .sequence()
            .launches
            .len();
        let ran = check_as(&graph, &inputs(&graph, &mut rng), true, |sequence| {
            let merged = merge_greedily(sequence);
            let (count, name) = (merged.launches.len(), "_beside_");
            assert!(count < separate, "{count} of {separate}");
            let launches = merged.launches.iter();
            assert!(launches.into_iter().any(|l| l.kernel.name().contains(name)));
            merged
        });
        assert_eq!(ran, Ok(true), "{dtype} {size:?}");
    }
}

#[test]
fn products_with_prologues_and_row_epilogues_merge() {
    if device::nvrtc().is_none() {
        return;
    }
    let mut rng = Rng::new(32);
    for dtype in ["f32", "f16"] {
        let graph = parsed(&format!(
            "%0: {dtype}[37, 19] = input(index: 0, role: Data)
             %1: f32[19, 33] = input(index: 1, role: Data)
             %2: {dtype}[19, 40] = input(index: 2, role: Data)
             %3: {dtype}[37, 19] = input(index: 3, role: Data)
             %4: {dtype}[37, 19] = exp %0
             %5: {dtype}[19, 33] = cast %1
             %6: {dtype}[37, 33] = matmul %4, %5
             %7: {dtype}[37, 33] = softmax(axis: 1, log: false) %6
             %8: {dtype}[37, 19] = exp %3
             %9: {dtype}[37, 40] = matmul %8, %2
             %10: {dtype}[37, 40] = softmax(axis: 1, log: true) %9
             return %7, %10"
        ));
        let ran = check_as(&graph, &inputs(&graph, &mut rng), false, |sequence| {
            let merged = merge_greedily(sequence);
            assert_eq!(merged.launches.len(), 1, "{dtype}");
            merged
        });
        assert_eq!(ran, Ok(true), "{dtype}");
    }
}

/// A merged kernel needs no more registers and shared memory than the largest of its kernels.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    for dtype in ["f32", "bf16"] {
        for (capability, gpu) in device::architectures() {
            let program = lowered_for(gpu, &independent_ops(dtype, [512, 256, 768]), true).unwrap();
            let program = merge_greedily(program.sequence());
            let products = |l: &&Launch| l.kernel.name().contains("_beside_");
            assert!(program.launches.iter().filter(products).count() > 0);
            let compiled = nvrtc.compile(&device::unit(&program), Code::Cubin(capability));
            for r in compiled
                .unwrap_or_else(|e| panic!("{dtype}: {e}"))
                .resources()
            {
                let is_resource =
                    |l: &&Launch| matches!(&*l.kernel, Kernel::Cuda(k) if k.entry == r.entry);
                let Some(Kernel::Cuda(kernel)) = program
                    .launches
                    .iter()
                    .find(is_resource)
                    .map(|l| &*l.kernel)
                else {
                    unreachable!("entries are CUDA kernels")
                };
                let threads: u32 = kernel.block.iter().product();
                // A kernel of warpgroups has a multiprocessor to itself.
                let min_threads = if kernel.maps.is_empty() { 512 } else { 0 };
                let fits = r.registers * threads.max(min_threads) <= 65536 && r.shared <= 48 << 10;
                assert!(fits && r.spilled == 0 && r.stack == 0, "{dtype}: {r:?}");
                println!("{dtype} sm_{capability}: {r:?}");
            }
        }
    }
}

#[test]
fn different_kernels_stay_separate() {
    let program = |text: &str| lowered(&parsed(text), true).unwrap().sequence();
    let product = |m: usize| {
        program(&format!(
            "%0: f32[{m}, 64] = input(index: 0, role: Data)
             %1: f32[64, 1024] = input(index: 1, role: Data)
             %2: f32[{m}, 1024] = matmul %0, %1
             return %2"
        ))
    };
    let pointwise = |n: usize| {
        program(&format!(
            "%0: f32[{n}] = input(index: 0, role: Data)
             %1: f32[{n}] = exp %0
             return %1"
        ))
    };
    let (small, similar, large) = (product(512), product(500), product(65536));
    let fit = |programs: &[&Sequence]| {
        let launches: Vec<&Launch> = programs.iter().map(|p| &p.launches[0]).collect();
        fit_in_a_launch(programs[0], &launches)
    };
    assert!(fit(&[&small, &similar]));
    // One of them fills a GPU for long.
    assert!(!fit(&[&small, &large]));
    // Blocks of 128 and of 256 threads.
    assert!(!fit(&[&small, &pointwise(10)]));
    assert!(fit(&[&pointwise(7), &pointwise(100_000)]));
    assert!(!fit(&[&small; 5]), "five products");
    // One of them fills a small GPU.
    let on_gpu = |processors: u32, mut program: Sequence| {
        program.machine = Machine::Gpu(Gpu {
            processors,
            ..Gpu::H100
        });
        program
    };
    assert!(fit(&[&on_gpu(132, small.clone()), &small]));
    assert!(!fit(&[&on_gpu(4, small.clone()), &small]));
}
