//! The text of a kernel that merges others: each block runs one of them.
//!
//! Each merged kernel is a function of its block index, in a namespace with its device code. Their shared memory is one
//! union.

use kiln_base::Dim;
use kiln_plan::Footprint;
use kiln_plan::cuda::{Blocks, CudaKernel, Pointer, SharedLaunch, Text};
use std::fmt::Write;

/// Merges kernels of equal block sizes and known grids, without scalars and sites. Equal kernels are consecutive.
pub(super) fn merge(kernels: &[&CudaKernel]) -> CudaKernel {
    let (mut scope, mut union) = (String::new(), String::new());
    let mut body = "    const unsigned block = blockIdx.x;\n".to_string();
    let (mut first_arg, mut begin) = (0, 0);
    for (number, equal) in kernels.chunk_by(|a, b| a.entry == b.entry).enumerate() {
        let kernel = equal[0];
        scope += &emit_function(kernel, number);
        if let Some(class) = &kernel.text.shared {
            let _ = write!(union, " part{number}::{class} part{number};");
        }
        let blocks = kernel.grid[0].count(&[]);
        let end = begin + blocks * equal.len() as i64;
        if blocks > 0 {
            body += &emit_call(kernel, number, equal.len(), first_arg, [begin, blocks, end]);
        }
        first_arg += kernel.args.len() * equal.len();
        begin = end;
    }
    let shared = (!union.is_empty()).then(|| "Shared".to_string());
    if shared.is_some() {
        let _ = writeln!(scope, "union Shared {{{union} }};");
    }
    let args = kernels.iter().flat_map(|k| &k.args);
    let may_alias = |a: &Pointer| Pointer { alone: false, ..*a };
    let points = Dim::Const(begin);
    let kernel = CudaKernel {
        name: format!("{}_beside_{}_more", kernels[0].name, kernels.len() - 1),
        entry: String::new(),
        text: Text {
            scope,
            shared,
            body,
            shared_launch: SharedLaunch::Nothing,
        },
        args: args.map(may_alias).collect(),
        scalars: Vec::new(),
        sites: 0,
        footprints: concat_footprints(kernels),
        grid: [Blocks { points, each: 1 }, Blocks::one(), Blocks::one()],
        block: kernels[0].block,
        cluster: 1,
        resident: kernels.iter().map(|k| k.resident).min().unwrap_or(1),
        shared: 0,
        maps: Vec::new(),
    };
    kernel.named()
}

/// Returns the footprints of kernels whose arguments are concatenated.
fn concat_footprints(kernels: &[&CudaKernel]) -> Vec<Footprint> {
    let mut footprints = Vec::new();
    let mut first_arg = 0;
    for kernel in kernels {
        footprints.extend(kernel.footprints.iter().map(|r| Footprint {
            arg: first_arg + r.arg,
            ..r.clone()
        }));
        first_arg += kernel.args.len() as u16;
    }
    footprints
}

/// Returns the text of a kernel as a function.
fn emit_function(kernel: &CudaKernel, number: usize) -> String {
    let Text {
        scope,
        shared,
        body,
        ..
    } = &kernel.text;
    let shared = shared.iter().map(|class| format!("{class}& shared"));
    let pointers = kernel.args.iter().enumerate();
    let pointers = pointers.map(|(i, a)| a.parameter(&format!("arg{i}")));
    let parameters: Vec<String> = shared.chain(pointers).collect();
    format!(
        "namespace part{number} {{\n{scope}static __device__ __forceinline__ void run(const uint3 blockIdx, {}) {{\n{body}}}\n}}\n",
        parameters.join(", ")
    )
}

/// Returns the call of a function for `copies` equal kernels of `blocks` blocks each. Theirs are blocks `begin..end`,
/// and their arguments begin at `first_arg`.
fn emit_call(
    kernel: &CudaKernel,
    number: usize,
    copies: usize,
    first_arg: usize,
    [begin, blocks, end]: [i64; 3],
) -> String {
    let mut text = format!("    if (block < {end}u) {{\n");
    let mut block = format!("block - {begin}u");
    if copies > 1 {
        let _ = writeln!(text, "        const unsigned copy = ({block}) / {blocks}u;");
        block = format!("({block}) % {blocks}u");
    }
    let count = kernel.args.len();
    let pointer = |i: usize| {
        let arg = |copy: usize| format!("arg{}", first_arg + copy * count + i);
        (0..copies - 1).rev().fold(arg(copies - 1), |later, copy| {
            format!("copy == {copy}u ? {} : {later}", arg(copy))
        })
    };
    let shared = kernel.text.shared.iter();
    let shared = shared.map(|_| format!("shared.part{number}"));
    let args: Vec<String> = shared.chain((0..count).map(pointer)).collect();
    text + &format!(
        "        return part{number}::run(uint3{{{block}, 0u, 0u}}, {});\n    }}\n",
        args.join(", ")
    )
}
