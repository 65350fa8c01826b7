//! The text of a kernel whose blocks are shared out among the kernels that it is made of.
//!
//! Each of these is a function that is told which of its own blocks it is. Their shared memory is one union,
//! since a block runs one of them.

use super::source::{ENTRY, KERNEL, SHARED, head, named, pointer};
use kiln_base::{Dim, Gpu};
use kiln_plan::cuda::{Blocks, CudaKernel};
use kiln_plan::tile::Arg;
use std::fmt::Write;

/// Kernels of equal blocks, known grids along x, no numbers and no sites as one. Equal ones are neighbours.
pub(super) fn together(gpu: &Gpu, kernels: &[&CudaKernel]) -> CudaKernel {
    let args: Vec<Arg> = kernels.iter().flat_map(|k| k.args.clone()).collect();
    let (mut functions, mut calls, mut room) = (String::new(), String::new(), String::new());
    let (mut first, mut begin) = (0, 0);
    for (number, equal) in kernels.chunk_by(|a, b| a.entry == b.entry).enumerate() {
        let kernel = equal[0];
        functions += &function(kernel, number);
        if kernel.source.contains(SHARED) {
            let _ = write!(room, " {ENTRY}_{number}_scope::Shared part{number};");
        }
        let blocks = kernel.grid[0].count(&[]);
        let end = begin + blocks * equal.len() as i64;
        if blocks > 0 {
            calls += &call(kernel, number, equal.len(), first, [begin, blocks, end]);
        }
        first += kernel.args.len() * equal.len();
        begin = end;
    }
    if !room.is_empty() {
        functions += &format!("union {ENTRY}_room {{{room} }};\n");
        calls = format!("    __shared__ {ENTRY}_room room;\n{calls}");
    }
    let declared = args.iter().enumerate();
    let params: String = declared
        .map(|(i, a)| format!("{} arg{i}, ", pointer(a)))
        .collect();
    let block = kernels[0].block;
    let text = format!(
        "{functions}{} {{\n    const unsigned at = blockIdx.x;\n{calls}}}\n",
        head(
            gpu.resident(),
            block,
            &format!("{params}kiln_errors* errors, int guarded")
        )
    );
    let name = format!("{}_beside_{}_more", kernels[0].name, kernels.len() - 1);
    let (entry, source) = named(&name, &text);
    let points = Dim::Const(begin);
    CudaKernel {
        name,
        source,
        entry,
        args,
        scalars: Vec::new(),
        grid: [Blocks { points, each: 1 }, Blocks::one(), Blocks::one()],
        block,
        shared: 0,
        sites: 0,
    }
}

/// A kernel as a function.
fn function(kernel: &CudaKernel, number: usize) -> String {
    let (globals, function) = (kernel.source).split_at(kernel.source.rfind(KERNEL).unwrap_or(0));
    // Behind the bounds of its launch.
    let parameters = function.splitn(3, '(').nth(2).unwrap_or_default();
    let room = match kernel.source.contains(SHARED) {
        true => format!("{}_scope::Shared& shared, ", kernel.entry),
        false => String::new(),
    };
    let text = format!(
        "{globals}static __device__ __forceinline__ void {}(const uint3 blockIdx, {room}{}",
        kernel.entry,
        parameters.replacen(&format!("    {SHARED}\n"), "", 1)
    );
    text.replace(&kernel.entry, &format!("{ENTRY}_{number}"))
}

/// The call of a function for the blocks of `times` kernels, of `blocks` each, that lie between `begin` and
/// `end` and whose arguments follow each other.
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
    let room = match kernel.source.contains(SHARED) {
        true => format!("room.part{number}, "),
        false => String::new(),
    };
    let pointers: String = (0..each).map(|i| pointer(i) + ", ").collect();
    text + &format!(
        "        return {ENTRY}_{number}(uint3{{{block}, 0u, 0u}}, {room}{pointers}errors, guarded);\n    }}\n"
    )
}
