//! The text of kernels, and their machine code on real architectures.

use super::candidates::together;
use super::elements::every_row;
use super::{lowered, lowered_for, parsed, sources};
use crate::device;
use crate::fuzz::{config, env_number};
use crate::run::{decompose, decompose_for_cuda};
use kiln_base::DType;
use kiln_codegen::Sequence;
use kiln_runtime::cuda::{Code, Nvrtc, Resources};
use kiln_testkit::programs::differentiated;

/// Returns the kernels of a graph.
fn emit(text: &str) -> String {
    let graph = decompose(&parsed(text));
    let program = lowered(&graph, true).expect("these have a printer");
    sources(&program.sequence())
}

const POINTWISE: &str = "%0: bf16[8, 16] = input(index: 0, role: Data)
     %1: bf16[16] = input(index: 1, role: Data)
     %2: bf16[8, 16] = broadcast %1
     %3: bf16[8, 16] = mul %0, %2
     %4: bf16[8, 16] = relu %3
     return %4";

const SOFTMAX: &str = "%0: f32[32, 1000] = input(index: 0, role: Data)
     %1: f32[32, 1000] = softmax(axis: 1, log: false) %0
     return %1";

const LAYER_NORM: &str = "%0: bf16[512, 768] = input(index: 0, role: Data)
     %1: bf16[768] = input(index: 1, role: Data)
     %2: f32[512, 768] = cast %0
     %3: f32[512] = reduce(kind: Sum, axes: [1]) %2
     %4: f32[] = full(value: Float(0.0013020833721384406))
     %5: f32[512] = broadcast %4
     %6: f32[512] = mul %3, %5
     %7: f32[512, 1] = reshape %6
     %8: f32[512, 768] = broadcast %7
     %9: f32[512, 768] = sub %2, %8
     %10: f32[512, 768] = square %9
     %11: f32[512] = reduce(kind: Sum, axes: [1]) %10
     %12: f32[512] = mul %11, %5
     %13: f32[512] = rsqrt %12
     %14: f32[512, 1] = reshape %13
     %15: f32[512, 768] = broadcast %14
     %16: f32[512, 768] = mul %9, %15
     %17: f32[768] = cast %1
     %18: f32[512, 768] = broadcast %17
     %19: f32[512, 768] = mul %16, %18
     %20: bf16[512, 768] = cast %19
     return %20, %6, %13";

const COLUMNS: &str = "%0: f32[256, 100] = input(index: 0, role: Data)
     %1: f32[100] = reduce(kind: Sum, axes: [0]) %0
     %2: i64[100] = arg_reduce(kind: Max, axis: 0) %0
     return %1, %2";

const SYMBOLIC: &str = "symbols s0 >= 2 \"rows\"
     %0: i64[s0] = input(index: 0, role: Data)
     %1: f32[100, 16] = input(index: 1, role: Parameter)
     %2: i64[s0, 1] = reshape %0
     %3: i64[s0, 16] = broadcast %2
     %4: f32[s0, 16] = gather(axis: 0) %1, %3
     %5: f32[s0, 18] = pad(low: [0, 1], high: [0, 1], value: Float(0.0)) %4
     return %5";

#[test]
fn pointwise() {
    insta::assert_snapshot!(emit(POINTWISE));
}

#[test]
fn softmax() {
    insta::assert_snapshot!(emit(SOFTMAX));
}

#[test]
fn layer_norm() {
    insta::assert_snapshot!(emit(LAYER_NORM));
}

#[test]
fn columns() {
    insta::assert_snapshot!(emit(COLUMNS));
}

#[test]
fn symbolic() {
    insta::assert_snapshot!(emit(SYMBOLIC));
}

/// A product with a prologue, whose epilogue reduces rows, is one kernel.
#[test]
fn around_a_product() {
    insta::assert_snapshot!(emit(
        "%0: f16[64, 48] = input(index: 0, role: Data)
         %1: u8[48, 40] = input(index: 1, role: Data)
         %2: f16[40] = input(index: 2, role: Data)
         %3: f16[64, 48] = relu %0
         %4: f16[48, 40] = cast %1
         %5: f16[48, 40] = broadcast %2
         %6: f16[48, 40] = mul %4, %5
         %7: f16[64, 40] = matmul %3, %6
         %8: f16[64, 40] = softmax(axis: 1, log: false) %7
         return %8"
    ));
}

/// An image with a prologue.
#[test]
fn in_front_of_a_convolution() {
    insta::assert_snapshot!(emit(
        "%0: f32[2, 8, 14, 14] = input(index: 0, role: Data)
         %1: f32[8, 1, 1] = input(index: 1, role: Data)
         %2: f32[16, 8, 3, 3] = input(index: 2, role: Data)
         %3: f32[2, 8, 14, 14] = broadcast %1
         %4: f32[2, 8, 14, 14] = mul %0, %3
         %5: f32[2, 16, 7, 7] = conv(stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %4, %2
         return %5"
    ));
}

#[test]
fn nothing_spills() {
    let Some(nvrtc) = device::nvrtc() else { return };
    let graphs = [POINTWISE, SOFTMAX, LAYER_NORM, COLUMNS, SYMBOLIC].map(parsed);
    let rows = [DType::F32, DType::I64].map(|d| every_row(d).0);
    for (graph, fuse) in graphs
        .iter()
        .map(|g| (g, true))
        .chain(rows.iter().map(|g| (g, false)))
    {
        let program = lowered(&decompose(graph), fuse).expect("these have a printer");
        for capability in [80, 90] {
            let spilled = spilled(nvrtc, capability, &program.sequence());
            assert!(spilled.is_empty(), "{spilled:?}");
        }
    }
}

/// Returns the kernels of launches that spill registers.
fn spilled(nvrtc: &Nvrtc, capability: u32, sequence: &Sequence) -> Vec<Resources> {
    let unit = device::unit(sequence);
    let compiled = nvrtc.compile(&unit, Code::Cubin(capability)).unwrap();
    let mut resources = compiled.resources();
    assert!(!resources.is_empty(), "{}", compiled.log);
    assert!(resources.iter().all(|r| r.registers > 0), "{resources:?}");
    resources.retain(|r| r.spilled > 0);
    resources
}

/// `KILN_FUZZ` sets the number of programs.
#[test]
fn random_gradients_spill_nothing() {
    const PROGRAMS_PER_UNIT: usize = 12;
    let Some(nvrtc) = device::nvrtc() else { return };
    let count = env_number("KILN_FUZZ", 24) as usize;
    for (capability, gpu) in device::architectures() {
        let graphs = (0..).filter_map(|seed| differentiated(config().graph(seed)));
        let programs = graphs.filter_map(|g| lowered_for(gpu, &decompose_for_cuda(&g), true));
        let programs: Vec<Sequence> = programs.map(|p| p.sequence()).take(count).collect();
        let spilled = programs
            .chunks(PROGRAMS_PER_UNIT)
            .map(|chunk| spilled(nvrtc, capability, &together(chunk)));
        let spilled: Vec<Resources> = spilled.flatten().collect();
        assert!(spilled.is_empty(), "sm_{capability}: {spilled:#?}");
    }
}
