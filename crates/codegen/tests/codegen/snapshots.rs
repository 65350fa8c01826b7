//! Snapshots of fusion, and of the kernels.

use crate::run::{decompose, lower_checked};
use kiln_codegen::{Layout, Options, Program, tile_text};
use kiln_ir::Graph;
use kiln_plan::Kernel;
use std::fmt::Write;

fn program(text: &str) -> Program {
    let graph = Graph::parse(&format!("graph {{\n{text}\n}}")).unwrap_or_else(|e| panic!("{e}"));
    kiln_ir::verify::verify(&graph).unwrap_or_else(|e| panic!("{e:?}\n{graph}"));
    lower_checked(&decompose(&graph), &Options::default())
}

/// Returns the launches, one per line.
fn launches(p: &Program) -> String {
    let mut out = String::new();
    for l in &p.sequence().launches {
        let kind = match &*l.kernel {
            Kernel::Tile(_) => "tile",
            Kernel::MatMul(_) => "matmul",
            Kernel::Conv(_) => "conv",
            Kernel::Scan(_) | Kernel::ArgSort(_) | Kernel::Scatter(_) => "library",
            Kernel::Custom(_) => "custom",
            Kernel::Collective(_) => "collective",
            Kernel::Library(_) => "cublaslt",
            Kernel::Loop(_) | Kernel::If(_) => "control flow",
            Kernel::Cuda(_) => "cuda",
            Kernel::Attention(_) => "attention",
            Kernel::AttentionGrad(_) => "attention_grad",
        };
        let args: Vec<String> = l
            .args
            .iter()
            .zip(&l.written)
            .map(|(a, w)| format!("{}b{}", if *w { "-> " } else { "" }, a.0))
            .collect();
        let only = l.args.iter().zip(&l.written).filter(|a| *a.1);
        let prepare = only
            .into_iter()
            .any(|a| p.buffers[a.0.0 as usize].parameter_only);
        let when = if prepare { "prepare" } else { "run" };
        writeln!(
            out,
            "{when} {kind} {}({})",
            l.kernel.name(),
            args.join(", ")
        )
        .unwrap();
        for why in &p.tasks[l.tasks[0]].why_not {
            writeln!(out, "  {why}").unwrap();
        }
    }
    out
}

/// Returns the launches, Kernel IR and tile programs.
fn everything(p: &Program) -> String {
    let mut out = launches(p);
    for l in &p.sequence().launches {
        let kernels = p.tasks[l.tasks[0]].work.kernels();
        for (k, tile) in kernels.zip(l.kernel.programs()) {
            writeln!(out, "\n{k}\nin place {:?}\n{}", l.in_place, tile_text(tile)).unwrap();
        }
    }
    out
}

#[test]
fn broadcast_elementwise() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[8, 16] = input(index: 0, role: Data)
         %1: f32[16] = input(index: 1, role: Data)
         %2: f32[8, 16] = broadcast %1
         %3: f32[8, 16] = mul %0, %2
         %4: f32[8, 16] = add %3, %0
         %5: f32[8, 16] = relu %4
         return %5"
    )));
}

#[test]
fn softmax() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[32, 100] = input(index: 0, role: Data)
         %1: f32[32, 100] = softmax(axis: 1, log: false) %0
         return %1"
    )));
}

#[test]
fn batch_norm_with_batch_statistics() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[8, 16, 6, 6] = input(index: 0, role: Data)
         %1: f32[16] = input(index: 1, role: Data)
         %2: f32[16] = input(index: 2, role: Data)
         %3: f32[16] = reduce(kind: Sum, axes: [0, 2, 3]) %0
         %4: f32[] = full(value: Float(0.00390625))
         %5: f32[16] = broadcast %4
         %6: f32[16] = mul %3, %5
         %7: f32[16, 1, 1] = reshape %6
         %8: f32[8, 16, 6, 6] = broadcast %7
         %9: f32[8, 16, 6, 6] = sub %0, %8
         %10: f32[8, 16, 6, 6] = square %9
         %11: f32[16] = reduce(kind: Sum, axes: [0, 2, 3]) %10
         %12: f32[16] = mul %11, %5
         %13: f32[8, 16, 6, 6] = batch_norm(eps: Float(1e-5), affine: true) %0, %6, %12, %1, %2
         return %13, %6, %12"
    )));
}

#[test]
fn layer_norm() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[32, 64] = input(index: 0, role: Data)
         %1: f32[64] = input(index: 1, role: Parameter)
         %2: f32[32] = reduce(kind: Sum, axes: [1]) %0
         %3: f32[] = full(value: Float(0.015625))
         %4: f32[32] = broadcast %3
         %5: f32[32] = mul %2, %4
         %6: f32[32, 1] = reshape %5
         %7: f32[32, 64] = broadcast %6
         %8: f32[32, 64] = sub %0, %7
         %9: f32[32, 64] = square %8
         %10: f32[32] = reduce(kind: Sum, axes: [1]) %9
         %11: f32[32] = rsqrt %10
         %12: f32[32, 1] = reshape %11
         %13: f32[32, 64] = broadcast %12
         %14: f32[32, 64] = mul %8, %13
         %15: f32[32, 64] = broadcast %1
         %16: f32[32, 64] = mul %14, %15
         return %16"
    )));
}

#[test]
fn views() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[4, 6] = input(index: 0, role: Data)
         %1: f32[6, 4] = permute(perm: [1, 0]) %0
         %2: f32[3, 4] = slice(axes: [(start: 5, len: 3, step: -2), (start: 0, len: 4, step: 1)]) %1
         %3: f32[5, 4] = pad(low: [1, 0], high: [1, 0], value: Float(1.0)) %2
         %4: f32[5, 4] = exp %3
         %5: f32[7, 4] = concat(axis: 0) %4, %6
         %6: f32[2, 4] = input(index: 1, role: Data)
         return %5"
            .replace("%5: f32[7, 4] = concat(axis: 0) %4, %6\n", "")
            .replace(
                "%6: f32[2, 4] = input(index: 1, role: Data)\n         return %5",
                "%5: f32[2, 4] = input(index: 1, role: Data)
                 %6: f32[7, 4] = concat(axis: 0) %4, %5
                 return %6"
            )
            .as_str()
    )));
}

#[test]
fn matmul_bias_gelu() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[32, 64] = input(index: 0, role: Data)
         %1: f32[48, 64] = input(index: 1, role: Parameter)
         %2: f32[48] = input(index: 2, role: Parameter)
         %3: f32[64, 48] = permute(perm: [1, 0]) %1
         %4: f32[32, 48] = matmul %0, %3
         %5: f32[32, 48] = broadcast %2
         %6: f32[32, 48] = add %4, %5
         %7: f32[32, 48] = gelu %6
         return %7"
    )));
}

#[test]
fn what_makes_an_operand() {
    insta::assert_snapshot!(everything(&program(
        "%0: u8[32, 40] = input(index: 0, role: Data)
         %1: f16[40, 48] = input(index: 1, role: Data)
         %2: f32[32, 40] = cast %0
         %3: f32[] = full(value: Float(0.0078125))
         %4: f32[32, 40] = broadcast %3
         %5: f32[32, 40] = mul %2, %4
         %6: f32[40, 48] = cast %1
         %7: f32[32, 48] = matmul %5, %6
         return %7"
    )));
}

#[test]
fn rows_of_a_product() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[128, 64] = input(index: 0, role: Data)
         %1: f32[64, 48] = input(index: 1, role: Parameter)
         %2: f32[128, 48] = matmul %0, %1
         %3: f32[128, 48] = softmax(axis: 1, log: false) %2
         %4: i64[128] = arg_reduce(kind: Max, axis: 1) %3
         return %3, %4"
    )));
}

#[test]
fn attention() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[2, 10, 12] = input(index: 0, role: Data)
         %1: f32[2, 10, 3, 4] = reshape %0
         %2: f32[2, 3, 10, 4] = permute(perm: [0, 2, 1, 3]) %1
         %3: f32[2, 3, 4, 10] = permute(perm: [0, 1, 3, 2]) %2
         %4: f32[2, 3, 10, 10] = matmul %2, %3
         %5: f32[] = full(value: Float(0.5))
         %6: f32[2, 3, 10, 10] = broadcast %5
         %7: f32[2, 3, 10, 10] = mul %4, %6
         %8: f32[2, 3, 10, 10] = softmax(axis: 3, log: false) %7
         %9: f32[2, 3, 10, 4] = matmul %8, %2
         %10: f32[2, 10, 3, 4] = permute(perm: [0, 2, 1, 3]) %9
         %11: f32[2, 10, 12] = reshape %10
         return %11"
    )));
}

#[test]
fn conv_relu() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[2, 3, 8, 8] = input(index: 0, role: Data)
         %1: f32[4, 3, 3, 3] = input(index: 1, role: Parameter)
         %2: f32[4] = input(index: 2, role: Parameter)
         %3: f32[2, 4, 8, 8] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %0, %1
         %4: f32[4, 1, 1] = reshape %2
         %5: f32[2, 4, 8, 8] = broadcast %4
         %6: f32[2, 4, 8, 8] = add %3, %5
         %7: f32[2, 4, 8, 8] = relu %6
         return %7"
    )));
}

/// A convolution stores the result of its ReLU, which windows would compute again and again, and windows read a
/// concatenation from memory.
#[test]
fn windows_over_convolutions() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[1, 8, 32, 32] = input(index: 0, role: Data)
         %1: f32[16, 8, 1, 1] = input(index: 1, role: Parameter)
         %2: f32[16, 1, 1] = input(index: 2, role: Parameter)
         %3: f32[16, 8, 3, 3] = input(index: 3, role: Parameter)
         %4: f32[1, 16, 32, 32] = conv(stride: [1, 1], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1) %0, %1
         %5: f32[1, 16, 32, 32] = broadcast %2
         %6: f32[1, 16, 32, 32] = add %4, %5
         %7: f32[1, 16, 32, 32] = relu %6
         %8: f32[1, 16, 16, 16] = window_reduce(kind: Max, kernel: [3, 3], stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1]) %7
         %9: f32[1, 16, 32, 32] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %0, %3
         %10: f32[1, 16, 32, 32] = relu %9
         %11: f32[1, 16, 32, 32] = conv(stride: [1, 1], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1) %0, %1
         %12: f32[1, 32, 32, 32] = concat(axis: 1) %10, %11
         %13: f32[1, 32, 16, 16] = window_reduce(kind: Max, kernel: [2, 2], stride: [2, 2], padding: [(0, 0), (0, 0)], dilation: [1, 1]) %12
         return %8, %13"
    )));
}

#[test]
fn embedding() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[100, 16] = input(index: 0, role: Parameter)
         %1: i64[5] = input(index: 1, role: Data)
         %2: i64[5, 1] = reshape %1
         %3: i64[5, 16] = broadcast %2
         %4: f32[5, 16] = gather(axis: 0) %0, %3
         %5: f32[5, 16] = relu %4
         return %5"
    )));
}

#[test]
fn one_hot() {
    insta::assert_snapshot!(everything(&program(
        "%0: i64[5] = input(index: 0, role: Data)
         %1: i64[10] = iota
         %2: i64[5, 1] = reshape %0
         %3: i64[5, 10] = broadcast %2
         %4: i64[5, 10] = broadcast %1
         %5: bool[5, 10] = eq %3, %4
         %6: f32[5, 10] = cast %5
         return %6"
    )));
}

#[test]
fn max_pool() {
    insta::assert_snapshot!(everything(&program(
        "%0: f32[2, 3, 8, 8] = input(index: 0, role: Data)
         %1: f32[2, 3, 4, 4] = window_reduce(kind: Max, kernel: [3, 3], stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1]) %0
         return %1"
    )));
}

#[test]
fn parameter_work_is_prepared() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[2, 4, 8, 8] = input(index: 0, role: Data)
         %1: f32[4] = input(index: 1, role: Parameter)
         %2: f32[4] = input(index: 2, role: Parameter)
         %3: f32[4] = input(index: 3, role: Parameter)
         %4: f32[4] = input(index: 4, role: Parameter)
         %5: f32[2, 4, 8, 8] = batch_norm(eps: Float(1e-5), affine: true) %0, %1, %2, %3, %4
         return %5"
    )));
}

#[test]
fn long_sums_run_in_two_steps() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[4096, 1024] = input(index: 0, role: Data)
         %1: f32[4096, 1024] = square %0
         %2: f32[] = reduce(kind: Sum, axes: [0, 1]) %1
         %3: f32[] = sqrt %2
         return %3"
    )));
}

#[test]
fn long_column_sums_run_in_two_steps() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[4096, 512] = input(index: 0, role: Data)
         %1: f32[512] = reduce(kind: Sum, axes: [0]) %0
         return %1"
    )));
}

#[test]
fn readers_of_one_value_merge() {
    insta::assert_snapshot!(launches(&program(
        "%0: f32[64, 32] = input(index: 0, role: Data)
         %1: f32[64, 32] = tanh %0
         %2: f32[64, 32] = exp %1
         %3: f32[64] = reduce(kind: Sum, axes: [1]) %1
         %4: f32[64] = reduce(kind: Max, axes: [1]) %1
         return %1, %2, %3, %4"
    )));
}

#[test]
fn composites_are_refused() {
    let graph = Graph::parse(
        "graph {
          %0: f32[4] = input(index: 0, role: Data)
          %1: f32[4] = softmax(axis: 0, log: false) %0
          return %1
        }",
    )
    .unwrap();
    let e = kiln_codegen::lower(&graph, &Options::default()).unwrap_err();
    assert_eq!(
        e.to_string(),
        "%1 can't be lowered: softmax is a composite; decompose it first"
    );
}

/// Sorting and scattering end groups. Views of indices are read in place. For sorting only, an axis other than the last
/// is moved.
#[test]
fn ordered() {
    let p = program(
        "%0: f32[6, 5] = input(index: 0, role: Data)
         %1: i64[9] = input(index: 1, role: Data)
         %2: f32[9, 5] = input(index: 2, role: Data)
         %3: f32[6, 5] = relu %0
         %4: i64[9, 1] = reshape %1
         %5: i64[9, 5] = broadcast %4
         %6: f32[6, 5] = scatter(axis: 0, kind: Sum) %3, %5, %2
         %7: f32[6, 5] = scan(kind: Sum, axis: 0, reverse: false) %6
         %8: f32[6, 5] = neg %7
         %9: i64[2, 5] = arg_sort(axis: 0, descending: true, first: Some(2)) %8
         %10: f32[2, 5] = gather(axis: 0) %8, %9
         return %9, %10",
    );
    let mut text = launches(&p);
    for t in p.tasks.iter().filter(|t| t.work.kernels().next().is_none()) {
        let calls = &t.candidate().calls;
        let (kernel, in_place) = (&calls.steps[0].kernel, &calls.in_place);
        writeln!(text, "{kernel:?}\n  in place {in_place:?}").unwrap();
    }
    insta::assert_snapshot!(text);
}

/// A prologue of images is a part of the convolution that is its only reader, in either layout.
#[test]
fn what_makes_images() {
    let graph = Graph::parse(
        "graph {
         %0: f32[1, 40, 9, 7] = input(index: 0, role: Data)
         %1: f32[64, 40, 1, 1] = input(index: 1, role: Parameter)
         %2: f32[1, 64, 9, 7] = conv(stride: [1, 1], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1) %0, %1
         %3: f32[1, 64, 9, 7] = relu %2
         %4: f32[1, 64] = reduce(kind: Sum, axes: [2, 3]) %3
         %5: f32[64, 64] = input(index: 2, role: Parameter)
         %6: f32[1, 64] = matmul %4, %5
         %7: f32[1, 64, 1, 1] = reshape %6
         %8: f32[1, 64, 9, 7] = broadcast %7
         %9: f32[1, 64, 9, 7] = mul %3, %8
         %10: f32[48, 64, 1, 1] = input(index: 3, role: Parameter)
         %11: f32[1, 48, 9, 7] = conv(stride: [1, 1], padding: [(0, 0), (0, 0)], dilation: [1, 1], groups: 1) %9, %10
         %12: f32[1, 48] = reduce(kind: Sum, axes: [2, 3]) %11
         return %12
         }",
    );
    let graph = graph.unwrap_or_else(|e| panic!("{e}"));
    for layout in [Layout::ChannelsFirst, Layout::ChannelsLast] {
        let options = Options {
            layout,
            ..Options::default()
        };
        let p = lower_checked(&decompose(&graph), &options);
        let made: usize = p
            .tasks
            .iter()
            .map(|t| t.work.prologues().iter().flatten().count())
            .sum();
        assert_eq!(made, 1, "{layout:?}\n{}", launches(&p));
    }
}
