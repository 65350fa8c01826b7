//! The text of a kernel whose blocks are divided among the kernels that it is made of.
//!
//! Each of these is a function that takes the index of its own block, in a namespace with the text from before it.
//! Their shared memory is one union, since a block runs only one of them.

use kiln_base::Dim;
use kiln_plan::Footprint;
use kiln_plan::cuda::{Blocks, CudaKernel, Pointer, SharedLaunch, Text};
use std::fmt::Write;

/// Merges kernels of equal blocks, known grids along x, no numbers and no sites into one. Equal ones are neighbours.
pub(super) fn merge(kernels: &[&CudaKernel]) -> CudaKernel {
    let (mut scope, mut room) = (String::new(), String::new());
    let mut body = "    const unsigned at = blockIdx.x;\n".to_string();
    let (mut first, mut begin) = (0, 0);
    for (number, equal) in kernels.chunk_by(|a, b| a.entry == b.entry).enumerate() {
        let kernel = equal[0];
        scope += &function(kernel, number);
        if let Some(class) = &kernel.text.shared {
            let _ = write!(room, " part{number}::{class} part{number};");
        }
        let blocks = kernel.grid[0].count(&[]);
        let end = begin + blocks * equal.len() as i64;
        if blocks > 0 {
            body += &call(kernel, number, equal.len(), first, [begin, blocks, end]);
        }
        first += kernel.args.len() * equal.len();
        begin = end;
    }
    let shared = (!room.is_empty()).then(|| "Room".to_string());
    if shared.is_some() {
        let _ = writeln!(scope, "union Room {{{room} }};");
    }
    let args = kernels.iter().flat_map(|k| &k.args);
    let shares = |a: &Pointer| Pointer { alone: false, ..*a };
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
        args: args.map(shares).collect(),
        scalars: Vec::new(),
        sites: 0,
        footprints: footprints(kernels),
        grid: [Blocks { points, each: 1 }, Blocks::one(), Blocks::one()],
        block: kernels[0].block,
        cluster: 1,
        resident: kernels.iter().map(|k| k.resident).min().unwrap_or(1),
        shared: 0,
        maps: Vec::new(),
    };
    kernel.named()
}

/// Returns the footprints of kernels whose arguments follow each other.
fn footprints(kernels: &[&CudaKernel]) -> Vec<Footprint> {
    let mut all = Vec::new();
    let mut first = 0;
    for kernel in kernels {
        all.extend(kernel.footprints.iter().map(|r| Footprint {
            arg: first + r.arg,
            ..r.clone()
        }));
        first += kernel.args.len() as u16;
    }
    all
}

/// Emits a kernel as a function.
fn function(kernel: &CudaKernel, number: usize) -> String {
    let Text {
        scope,
        shared,
        body,
        ..
    } = &kernel.text;
    let room = shared.iter().map(|class| format!("{class}& shared"));
    let pointers = kernel.args.iter().enumerate();
    let pointers = pointers.map(|(i, a)| a.parameter(&format!("arg{i}")));
    let parameters: Vec<String> = room.chain(pointers).collect();
    format!(
        "namespace part{number} {{\n{scope}static __device__ __forceinline__ void run(const uint3 blockIdx, {}) {{\n{body}}}\n}}\n",
        parameters.join(", ")
    )
}

/// Emits the call of a function for the blocks of `times` kernels, of `blocks` each. The blocks lie between `begin` and
/// `end`, and the kernels' arguments follow each other.
fn call(
    kernel: &CudaKernel,
    number: usize,
    times: usize,
    first: usize,
    [begin, blocks, end]: [i64; 3],
) -> String {
    let mut text = format!("    if (at < {end}u) {{\n");
    let mut block = format!("at - {begin}u");
    if times > 1 {
        let _ = writeln!(text, "        const unsigned one = ({block}) / {blocks}u;");
        block = format!("({block}) % {blocks}u");
    }
    let each = kernel.args.len();
    let pointer = |i: usize| {
        let of = |one: usize| format!("arg{}", first + one * each + i);
        (0..times - 1).rev().fold(of(times - 1), |rest, one| {
            format!("one == {one}u ? {} : {rest}", of(one))
        })
    };
    let room = kernel.text.shared.iter();
    let given = room.map(|_| format!("shared.part{number}"));
    let given: Vec<String> = given.chain((0..each).map(pointer)).collect();
    text + &format!(
        "        return part{number}::run(uint3{{{block}, 0u, 0u}}, {});\n    }}\n",
        given.join(", ")
    )
}
