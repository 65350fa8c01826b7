//! The text of library kernels, and what becomes of it on real architectures.

use super::{lowered, parsed, sources};
use crate::device;
use kiln_base::plan::Kernel;
use kiln_ir::Graph;
use kiln_runtime::cuda::Code;

/// One program of each family and of each way to read memory.
pub fn samples() -> Vec<(&'static str, Graph)> {
    let attention = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[8, 512, 12, 64] = input(index: 0, role: Data)
             %1: {dtype}[8, 512, 12, 64] = input(index: 1, role: Data)
             %2: {dtype}[8, 512, 12, 64] = input(index: 2, role: Data)
             %3: {dtype}[8, 12, 512, 64] = permute(perm: [0, 2, 1, 3]) %0
             %4: {dtype}[8, 12, 512, 64] = permute(perm: [0, 2, 1, 3]) %1
             %5: {dtype}[8, 12, 512, 64] = permute(perm: [0, 2, 1, 3]) %2
             %6: {dtype}[8, 12, 512, 64] = attention(scale: Float(0.125), causal: true) %3, %4, %5
             return %6"
        ))
    };
    let product = |dtype: &str| {
        parsed(&format!(
            "%0: {dtype}[1024, 256] = input(index: 0, role: Data)
             %1: {dtype}[256, 2048] = input(index: 1, role: Data)
             %2: {dtype}[1024, 2048] = matmul %0, %1
             %3: {dtype}[1024, 2048] = relu %2
             return %3"
        ))
    };
    vec![
        ("attention_f32", attention("f32")),
        ("attention_bf16", attention("bf16")),
        ("matmul_f32", product("f32")),
        ("matmul_f64", product("f64")),
        ("matmul_f16", product("f16")),
        ("matmul_bf16", product("bf16")),
        (
            "conv_f16",
            parsed(
                "%0: f16[8, 64, 56, 56] = input(index: 0, role: Data)
                 %1: f16[64, 64, 3, 3] = input(index: 1, role: Data)
                 %2: f16[8, 64, 56, 56] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %0, %1
                 return %2",
            ),
        ),
        (
            "conv_transpose_f32",
            parsed(
                "%0: f32[8, 64, 28, 28] = input(index: 0, role: Data)
                 %1: f32[64, 64, 3, 3] = input(index: 1, role: Data)
                 %2: f32[8, 64, 56, 56] = conv_transpose(conv: (stride: [2, 2], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), input: [56, 56]) %0, %1
                 return %2",
            ),
        ),
        (
            "conv_weight_f32",
            parsed(
                "%0: f32[8, 64, 56, 56] = input(index: 0, role: Data)
                 %1: f32[8, 64, 56, 56] = input(index: 1, role: Data)
                 %2: f32[64, 64, 3, 3] = conv_weight(conv: (stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1), kernel: [3, 3]) %0, %1
                 return %2",
            ),
        ),
        (
            "scan_f16",
            parsed(
                "%0: f16[8, 70000] = input(index: 0, role: Data)
                 %1: f16[8, 70000] = scan(kind: Sum, axis: 1, reverse: false) %0
                 return %1",
            ),
        ),
        (
            "sort_f32",
            parsed(
                "%0: f32[8, 5000] = input(index: 0, role: Data)
                 %1: i64[8, 10] = arg_sort(axis: 1, descending: true, first: Some(10)) %0
                 return %1",
            ),
        ),
        (
            "scatter_f32",
            parsed(
                "%0: f32[1000, 64] = input(index: 0, role: Data)
                 %1: i64[512, 64] = input(index: 1, role: Data)
                 %2: f32[512, 64] = input(index: 2, role: Data)
                 %3: f32[1000, 64] = scatter(axis: 0, kind: Sum) %0, %1, %2
                 return %3",
            ),
        ),
    ]
}

#[test]
fn sources_are_as_reviewed() {
    for (name, graph) in samples() {
        let program = lowered(&graph, true).unwrap();
        insta::assert_snapshot!(format!("family_{name}"), sources(&program));
    }
}

/// Registers suffice on both architectures, and tensor cores do what they are for.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    for (name, graph) in samples() {
        let program = lowered(&graph, true).unwrap();
        let text = device::unit(&program);
        for capability in [80, 90] {
            let compiled = nvrtc.compile(&text, Code::Cubin(capability));
            let resources = compiled
                .unwrap_or_else(|e| panic!("{name}: {e}"))
                .resources();
            assert_eq!(resources.len(), program.launches.len(), "{name}");
            for (launch, r) in program.launches.iter().zip(resources) {
                let Kernel::Cuda(kernel) = &launch.kernel else {
                    unreachable!("everything runs as CUDA kernels")
                };
                // A multiprocessor holds two blocks at least.
                let threads: u32 = kernel.block.iter().product();
                let fits = 2 * threads * r.registers <= 65536 && 2 * r.shared <= 160 << 10;
                assert!(fits && r.spilled == 0 && r.stack == 0, "{name}: {r:?}");
            }
        }
        let ptx = nvrtc.compile(&text, Code::Ptx(80)).unwrap().image;
        let ptx = String::from_utf8_lossy(&ptx);
        let half = matches!(
            name,
            "matmul_f16" | "matmul_bf16" | "conv_f16" | "attention_bf16"
        );
        assert_eq!(half, ptx.contains("mma.sync.aligned.m16n8k16"), "{name}");
        assert_eq!(half, ptx.contains("cp.async.cg"), "{name}");
    }
}
