//! The text of library kernels, and their machine code on real architectures.

use super::{check, lowered, lowered_for, parsed, sources};
use crate::device;
use kiln_ir::Graph;
use kiln_ir::fuzz::random_inputs;
use kiln_plan::Kernel;
use kiln_runtime::cuda::Code;

/// Returns a program for each family, and for each loop that reads its operands.
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
        insta::assert_snapshot!(format!("family_{name}"), sources(&program.sequence()));
    }
}

/// No kernel spills on either architecture, and 16-bit operands are multiplied by tensor cores.
#[test]
fn machine_code() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    for (name, graph) in samples() {
        for (capability, gpu) in device::architectures() {
            let program = lowered_for(gpu, &graph, true).unwrap().sequence();
            let text = device::unit(&program);
            let compiled = nvrtc.compile(&text, Code::Cubin(capability));
            let resources = compiled
                .unwrap_or_else(|e| panic!("{name}: {e}"))
                .resources();
            assert_eq!(resources.len(), program.launches.len(), "{name}");
            for r in resources {
                let mut kernels = program.launches.iter().map(|l| match &*l.kernel {
                    Kernel::Cuda(kernel) => kernel,
                    _ => unreachable!("all are CUDA kernels"),
                });
                let kernel = kernels.find(|k| k.entry == r.entry).unwrap();
                let threads: u32 = kernel.block.iter().product();
                let blocks = if kernel.maps.is_empty() {
                    kernel.resident
                } else {
                    1
                };
                let fits = blocks * threads * r.registers <= 65536 && 2 * r.shared <= 160 << 10;
                assert!(fits && r.spilled == 0 && r.stack == 0, "{name}: {r:?}");
            }
        }
        let [(_, ampere), _] = device::architectures();
        let program = lowered_for(ampere, &graph, true).unwrap().sequence();
        let text = device::unit(&program);
        let ptx = nvrtc.compile(&text, Code::Ptx(80)).unwrap().image;
        let ptx = String::from_utf8_lossy(&ptx);
        let is_16_bit = matches!(
            name,
            "matmul_f16" | "matmul_bf16" | "conv_f16" | "attention_bf16"
        );
        assert_eq!(
            is_16_bit,
            ptx.contains("mma.sync.aligned.m16n8k16"),
            "{name}"
        );
        assert!(!is_16_bit || ptx.contains("cp.async.cg"), "{name}");
    }
}

/// Tensor cores multiply f16 and bf16 even if operands are cast to f32, and through views.
#[test]
fn widened_operands_with_a_bias() {
    let Some(nvrtc) = device::nvrtc() else {
        return;
    };
    for dtype in ["f16", "bf16"] {
        let linear = parsed(
            &"%0: f16[70, 136] = input(index: 0, role: Data)
             %1: f16[72, 136] = input(index: 1, role: Data)
             %2: f16[72] = input(index: 2, role: Data)
             %3: f32[70, 136] = cast %0
             %4: f32[72, 136] = cast %1
             %5: f32[136, 72] = permute(perm: [1, 0]) %4
             %6: f32[70, 72] = matmul %3, %5
             %7: f32[72] = cast %2
             %8: f32[70, 72] = broadcast %7
             %9: f32[70, 72] = add %6, %8
             %10: f16[70, 72] = cast %9
             return %10, %6"
                .replace("f16", dtype),
        );
        let conv = parsed(
            &"%0: f16[2, 16, 9, 8] = input(index: 0, role: Data)
             %1: f16[24, 16, 3, 3] = input(index: 1, role: Data)
             %2: f16[24, 1, 1] = input(index: 2, role: Data)
             %3: f32[2, 16, 9, 8] = cast %0
             %4: f32[24, 16, 3, 3] = cast %1
             %5: f32[2, 24, 9, 8] = conv(stride: [1, 1], padding: [(1, 1), (1, 1)], dilation: [1, 1], groups: 1) %3, %4
             %6: f32[24, 1, 1] = cast %2
             %7: f32[2, 24, 9, 8] = broadcast %6
             %8: f32[2, 24, 9, 8] = add %5, %7
             %9: f16[2, 24, 9, 8] = cast %8
             return %9"
                .replace("f16", dtype),
        );
        // The product in f32 is the only result.
        let mut product = linear.clone();
        product.outputs.remove(0);
        for (name, graph) in [("linear", linear), ("product", product), ("conv", conv)] {
            let [(_, ampere), _] = device::architectures();
            let program = lowered_for(ampere, &graph, true).unwrap().sequence();
            assert_eq!(program.launches.len(), 1, "{name}");
            let ptx = nvrtc
                .compile(&device::unit(&program), Code::Ptx(80))
                .unwrap();
            let ptx = String::from_utf8_lossy(&ptx.image).into_owned();
            assert!(ptx.contains("mma.sync.aligned.m16n8k16"), "{name}");
            let inputs = random_inputs(&graph, 5);
            check(&graph, &inputs, true).unwrap_or_else(|e| panic!("{name} {dtype}: {e}"));
        }
    }
}
