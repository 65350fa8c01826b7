//! Rows and columns of one matrix are reduced by one kernel.

use crate::cuda;
use crate::cuda::elements::values;
use crate::device;
use crate::fuzz::agrees;
use crate::run::{decompose, lower_checked};
use kiln_base::DType;
use kiln_codegen::{Options, Program};
use kiln_ir::Graph;
use kiln_ir::eval::Array;
use kiln_ir::fuzz::Rng;

/// Returns a graph with matrices `%0` and `%1` of these numbers of rows and columns.
fn parse_matrices(dtype: DType, [rows, columns]: [usize; 2], text: &str) -> Graph {
    let text = text.replace("M,N", &format!("{rows}, {columns}"));
    let text = text.replace("[M]", &format!("[{rows}]"));
    let text = text.replace("[N]", &format!("[{columns}]"));
    let text = format!(
        "graph {{
          %0: f32[{rows}, {columns}] = input(index: 0, role: Data)
          %1: f32[{rows}, {columns}] = input(index: 1, role: Data)
          {text}
        }}"
    );
    Graph::parse(&text.replace("f32", dtype.name())).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Sums of rows and of columns.
const SUMS: &str = "
    %2: f32[M] = reduce(kind: Sum, axes: [1]) %0
    %3: f32[N] = reduce(kind: Sum, axes: [0]) %0
    return %2, %3";

/// Maxima and minima of different values.
const EXTREMES: &str = "
    %2: f32[M] = reduce(kind: Max, axes: [1]) %0
    %3: f32[M,N] = mul %0, %1
    %4: f32[N] = reduce(kind: Min, axes: [0]) %3
    %5: f32[N] = reduce(kind: Max, axes: [0]) %0
    return %2, %4, %5";

/// The derivative of a norm of rows (`%0` normalised, `%1` the derivative of the result): of its operand, scale and
/// shift.
pub const NORM: &str = "
    %2: f32[M,N] = mul %0, %1
    %3: f32[M] = reduce(kind: Sum, axes: [1]) %1
    %4: f32[M] = reduce(kind: Sum, axes: [1]) %2
    %5: f32[M,1] = reshape %3
    %6: f32[M,1] = reshape %4
    %7: f32[M,N] = broadcast %5
    %8: f32[M,N] = broadcast %6
    %9: f32[M,N] = mul %0, %8
    %10: f32[M,N] = add %7, %9
    %11: f32[M,N] = sub %1, %10
    %12: f32[N] = reduce(kind: Sum, axes: [0]) %2
    %13: f32[N] = reduce(kind: Sum, axes: [0]) %1
    return %11, %12, %13";

pub fn graph(dtype: DType, sizes: [usize; 2], text: &str) -> (Graph, Vec<Array>) {
    let text = text.replace("[M,1]", &format!("[{}, 1]", sizes[0]));
    let graph = parse_matrices(dtype, sizes, &text);
    let mut rng = Rng::new((sizes[0] * 1009 + sizes[1]) as u64);
    let inputs = (0..2).map(|_| values(dtype, &sizes, &mut rng));
    (graph, inputs.collect())
}

/// Returns the number of kernels that combine rows.
fn count_combining(program: &Program) -> usize {
    let kernels = program.tasks.iter().flat_map(|t| t.work.kernels());
    kernels.filter(|k| k.serial > 0).count()
}

/// Sizes whose rows are walked in order, all by one thread or in parts.
const SIZES: [[usize; 2]; 8] = [
    [3, 5],
    [2, 2],
    [7, 33],
    [67, 130],
    [257, 17],
    [9000, 2],
    [1024, 129],
    [1300, 101],
];

#[test]
fn results_equal_the_reference() {
    for text in [SUMS, EXTREMES, NORM] {
        for sizes in SIZES {
            for dtype in [DType::F32, DType::F64, DType::I32, DType::F16] {
                let (graph, inputs) = graph(dtype, sizes, text);
                agrees(&graph, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
            }
        }
    }
}

#[test]
fn rows_and_columns_are_one_kernel() {
    for text in [SUMS, EXTREMES, NORM] {
        for [rows, columns] in SIZES {
            let (graph, _) = graph(DType::F32, [rows, columns], text);
            let program = lower_checked(&decompose(&graph), &Options::default());
            // A separate kernel combines the parts of each long sum.
            let is_divided = (rows * columns >= 1 << 17) as usize;
            let count = 1 + is_divided * text.matches("axes: [0]").count();
            assert_eq!(
                (count_combining(&program), program.tasks.len()),
                (1, count),
                "{graph}"
            );
        }
    }
}

/// Reductions stay separate if one depends on the other.
#[test]
fn dependent_reductions_are_two_kernels() {
    let text = "
        %2: f32[N] = reduce(kind: Max, axes: [0]) %0
        %3: f32[M,N] = broadcast %2
        %4: f32[M,N] = sub %0, %3
        %5: f32[M] = reduce(kind: Sum, axes: [1]) %4
        return %2, %5";
    let (graph, inputs) = graph(DType::F32, [64, 48], text);
    let program = lower_checked(&decompose(&graph), &Options::default());
    assert_eq!(count_combining(&program), 0, "{graph}");
    agrees(&graph, &inputs).unwrap_or_else(|e| panic!("{e}\n{graph}"));
}

#[test]
fn results_on_a_device_equal_the_reference() {
    if device::nvrtc().is_none() {
        return;
    }
    for (text, dtype) in [
        (SUMS, DType::F32),
        (EXTREMES, DType::F64),
        (NORM, DType::F32),
    ] {
        for sizes in [[3, 5], [67, 130], [9000, 2], [2048, 129], [64, 2050]] {
            let (graph, inputs) = graph(dtype, sizes, text);
            let program = cuda::lowered(&decompose(&graph), true).unwrap();
            let launches = program.sequence().launches;
            let combines = launches.iter().filter(|l| {
                let text = format!("{:?}", l.kernel);
                text.contains("int step = 0")
            });
            assert_eq!(combines.count(), 1, "{graph}");
            cuda::check(&graph, &inputs, true).unwrap_or_else(|e| panic!("{e}\n{graph}"));
        }
    }
}
