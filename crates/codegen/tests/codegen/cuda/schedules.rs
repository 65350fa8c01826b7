//! Programs whose shapes reach every schedule of rows, columns and points.

use super::{check, lowered, parsed};
use crate::device;
use crate::run::{Engine, run};
use kiln_base::DType;
use kiln_ir::eval::{Array, Mode, evaluate};
use kiln_ir::fuzz::random_inputs;

/// Checks a graph on random inputs.
#[track_caller]
fn check_text(text: &str) {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(text);
    for seed in [1, 7] {
        match check(&graph, &random_inputs(&graph, seed), true) {
            Ok(ran) => assert!(ran, "not printed:\n{text}"),
            Err(e) => panic!("{e}\n{text}"),
        }
    }
}

/// Returns softmax over the last or the first axis.
fn softmax(dtype: &str, rows: &str, len: &str, axis: usize) -> String {
    format!(
        "%0: {dtype}[{rows}, {len}] = input(index: 0, role: Data)
         %1: {dtype}[{rows}, {len}] = softmax(axis: {axis}, log: false) %0
         return %1"
    )
}

#[test]
fn rows_of_all_lengths() {
    // A row for a thread, part of a warp, a warp, several warps or a whole block; with vectors and without; kept in
    // registers and read again.
    for (rows, len) in [
        (3, 1),
        (70, 5),
        (33, 17),
        (5, 64),
        (4, 100),
        (3, 257),
        (2, 1024),
        (2, 5000),
        (1, 40000),
    ] {
        check_text(&softmax("f32", &rows.to_string(), &len.to_string(), 1));
    }
    check_text(&softmax("bf16", "9", "48", 1));
    check_text(&softmax("f64", "3", "130", 1));
    check_text(&softmax("f32", "0", "4", 1));
}

#[test]
fn columns() {
    for (len, columns) in [(1, 5), (40, 7), (64, 33), (300, 130), (6, 600)] {
        check_text(&softmax("f32", &len.to_string(), &columns.to_string(), 0));
        check_text(&format!(
            "%0: f16[{len}, {columns}] = input(index: 0, role: Data)
             %1: f16[{columns}] = reduce(kind: Sum, axes: [0]) %0
             %2: f16[{columns}] = reduce(kind: Max, axes: [0]) %0
             return %1, %2"
        ));
    }
}

#[test]
fn symbolic_sizes() {
    check_text(&format!(
        "symbols s0 >= 2 \"rows\", s1 >= 2 \"length\"\n{}",
        softmax("f32", "s0", "s1", 1)
    ));
    check_text(&format!(
        "symbols s0 >= 2 \"rows\", s1 >= 2 \"length\"\n{}",
        softmax("f32", "s0", "s1", 0)
    ));
    check_text(&format!(
        "symbols s0 >= 2 \"rows\"\n{}",
        softmax("f32", "s0", "36", 1)
    ));
}

#[test]
fn every_reduction_of_every_dtype() {
    for dtype in DType::ALL
        .into_iter()
        .filter(|d| d.computes() && *d != DType::Bool)
    {
        for (rows, len) in [(3, 70), (2, 1), (3, 0)] {
            let mut text = format!("%0: {dtype}[{rows}, {len}] = input(index: 0, role: Data)\n");
            let kinds = if len > 0 {
                ["Sum", "Prod", "Max", "Min"]
            } else {
                ["Sum", "Prod", "Sum", "Prod"]
            };
            for (i, kind) in kinds.iter().enumerate() {
                text += &format!(
                    "%{}: {dtype}[{rows}] = reduce(kind: {kind}, axes: [1]) %0\n",
                    i + 1
                );
            }
            text += "return %1, %2, %3, %4";
            if len > 0 {
                text = text.replace(
                    "return",
                    &format!(
                        "%5: i64[{rows}] = arg_reduce(kind: Max, axis: 1) %0
                         %6: i64[{rows}] = arg_reduce(kind: Min, axis: 1) %0
                         %7: i64[{len}] = arg_reduce(kind: Max, axis: 0) %0
                         return %5, %6, %7,"
                    ),
                );
            }
            check_text(&text);
        }
    }
}

#[test]
fn reductions_in_two_steps() {
    check_text(
        "%0: f32[1000, 80] = input(index: 0, role: Data)
         %1: f32[1000, 80] = square %0
         %2: f32[] = reduce(kind: Sum, axes: [0, 1]) %1
         %3: f32[] = sqrt %2
         return %3",
    );
    check_text(
        "%0: f32[4096, 68] = input(index: 0, role: Data)
         %1: f32[68] = reduce(kind: Sum, axes: [0]) %0
         return %1",
    );
}

#[test]
fn several_inner_axes() {
    check_text(
        "%0: f32[6, 5, 4, 8] = input(index: 0, role: Data)
         %1: f32[5] = reduce(kind: Sum, axes: [0, 2, 3]) %0
         %2: f32[5, 1, 1] = reshape %1
         %3: f32[6, 5, 4, 8] = broadcast %2
         %4: f32[6, 5, 4, 8] = sub %0, %3
         %5: f32[6, 5, 4, 8] = square %4
         %6: f32[5] = reduce(kind: Sum, axes: [0, 2, 3]) %5
         %7: f32[5, 1, 1] = reshape %6
         %8: f32[6, 5, 4, 8] = broadcast %7
         %9: f32[6, 5, 4, 8] = div %4, %8
         return %9, %1, %6",
    );
}

#[test]
fn views_and_gathers() {
    check_text(
        "%0: f32[6, 8] = input(index: 0, role: Data)
         %1: f32[8, 6] = permute(perm: [1, 0]) %0
         %2: f32[8, 6] = exp %1
         %3: f32[8, 10] = pad(low: [0, 3], high: [0, 1], value: Float(9.0)) %2
         %4: f32[8, 10] = neg %3
         %5: f32[3, 10] = slice(axes: [(start: 5, len: 3, step: -2), (start: 0, len: 10, step: 1)]) %4
         return %4, %5",
    );
    // Gathered rows are read as vectors.
    let indices: String = (["63", "00", "11", "22", "63"].iter())
        .map(|low| format!("{low}00000000000000"))
        .collect();
    check_text(
        &"%0: f32[100, 16] = input(index: 0, role: Parameter)
         %1: i64[5, 1] = constant(hex: \"INDICES\")
         %2: i64[5, 16] = broadcast %1
         %3: f32[5, 16] = gather(axis: 0) %0, %2
         %4: f32[5, 16] = relu %3
         return %4"
            .replace("INDICES", &indices),
    );
}

/// Bits and uniforms equal those of the reference, and normals approximate them.
#[test]
fn random_numbers() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: i64[2] = input(index: 0, role: RandomKey)
         %1: i64[7, 9] = random(kind: Bits) %0
         %2: f32[7, 9] = random(kind: Uniform) %0
         %3: f64[7, 9] = random(kind: Uniform) %0
         %4: f32[7, 9] = random(kind: Normal) %0
         %5: f64[7, 9] = random(kind: Normal) %0
         %6: bf16[7, 9] = random(kind: Uniform) %0
         return %1, %2, %3, %6, %4, %5",
    );
    let inputs =
        [Array::from_i64(DType::I64, &[2], &[0x1234_5678_9abc_def0, (1 << 32) - 20]).unwrap()];
    let expected = evaluate(&graph, &inputs, &[], Mode::Rounded).unwrap();
    let program = lowered(&graph, true).expect("random numbers have a printer");
    let got = run(&program, &inputs, &[], Engine::Device).unwrap();
    for (o, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let got = got.as_ref().unwrap();
        if o < 4 {
            assert_eq!(got.data(), expected.data(), "output {o}");
            continue;
        }
        // The angle of a normal is rounded, in f64.
        let limit = |e: f64| match o {
            4 => 4.0 * f32::EPSILON as f64 * e.abs().max(1e-8),
            _ => 8.0 * f64::EPSILON,
        };
        for (g, e) in got.to_f64().iter().zip(expected.to_f64()) {
            assert!((g - e).abs() <= limit(e), "output {o}: {g} and not {e}");
        }
    }
}

/// An index out of range and a division by zero are reported, but not for elements that no result reads.
#[test]
fn data_errors() {
    if device::nvrtc().is_none() {
        return;
    }
    let graph = parsed(
        "%0: f32[3] = input(index: 0, role: Data)
         %1: i64[2] = input(index: 1, role: Data)
         %2: i64[2] = input(index: 2, role: Data)
         %3: i64[2] = floor_divide %1, %2
         %4: f32[2] = gather(axis: 0) %0, %3
         %5: f32[4] = pad(low: [1], high: [1], value: Float(9.0)) %4
         return %5",
    );
    let x = Array::from_f64(DType::F32, &[3], &[0.0, 0.5, 1.0]).unwrap();
    let ints = |v: [i64; 2]| Array::from_i64(DType::I64, &[2], &v).unwrap();
    let program = lowered(&graph, true).unwrap().sequence();
    let kinds: Vec<&str> = program.launches[0]
        .sites
        .iter()
        .map(|s| s.op.as_str())
        .collect();
    assert_eq!(kinds, ["floor_divide", "gather"]);
    let compiled = device::compile(&program);
    for (index, by, state) in [
        ([4, 3], [2, 2], 0),
        ([4, 3], [2, 0], 1),
        ([9, 3], [2, 1], 2),
        ([-1, 3], [1, 3], 2),
    ] {
        let inputs = [x.clone(), ints(index), ints(by)];
        let mut memory: Vec<_> = inputs.iter().map(|a| a.data().clone()).collect();
        memory.push(kiln_ir::eval::Data::Float(vec![0.0; 4]));
        let dtypes = [DType::F32, DType::I64, DType::I64, DType::F32];
        assert_eq!(
            compiled.run(&program.launches[0], &dtypes, &mut memory, &[]),
            state
        );
    }
}
