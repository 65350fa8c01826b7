//! The work in front of products that these compute: where the model of their schedules says that it takes no longer
//! than a kernel of its own. No compiler is needed.

use super::{lowered_for, parsed};
use crate::device;
use kiln_base::Gpu;
use kiln_codegen::{Program, Schedule};
use kiln_plan::schedule::{Multiply, kernel_cycles};

const SIZE: i64 = 4096;

/// Returns the program of `prologue`, whose last value is multiplied with matrices of `columns` columns.
fn program(gpu: Gpu, dtype: &str, prologue: &[&str], columns: &[i64], fuse: bool) -> Program {
    let mut text = format!("%0: {dtype}[{SIZE}, {SIZE}] = input(index: 0, role: Data)\n");
    for (at, n) in columns.iter().enumerate() {
        let value = at + 1;
        text += &format!("%{value}: bf16[{SIZE}, {n}] = input(index: {value}, role: Data)\n");
    }
    let (mut next, mut operand) = (columns.len() + 1, 0);
    for op in prologue {
        text += &format!("%{next}: bf16[{SIZE}, {SIZE}] = {op} %{operand}\n");
        (operand, next) = (next, next + 1);
    }
    let mut results = Vec::new();
    for (at, n) in columns.iter().enumerate() {
        text += &format!(
            "%{next}: bf16[{SIZE}, {n}] = matmul %{operand}, %{}\n",
            at + 1
        );
        results.push(format!("%{next}"));
        next += 1;
    }
    text += &format!("return {}", results.join(", "));
    lowered_for(gpu, &parsed(&text), fuse).unwrap()
}

/// Returns the cycles of the products of a program, and the number of prologues.
fn products(program: &Program) -> (f64, usize) {
    let candidates = program.tasks.iter().map(|t| t.candidate());
    let prologues = program.tasks.iter().flat_map(|t| t.work.prologues());
    (
        candidates.filter_map(|c| c.predicted).sum(),
        prologues.flatten().count(),
    )
}

/// Work that a warpgroup hides under the products of others is absorbed; work that takes longer stays a kernel,
/// if it is computed often.
#[test]
fn prologues_take_no_longer_than_kernels() {
    for (dtype, prologue, columns, expected) in [
        ("bf16", &["relu"][..], &[4096][..], 1),
        ("bf16", &["relu"], &[256], 1),
        ("f16", &["cast"], &[128], 1),
        // Elements of 4 bytes are read once or twice, but not by 16 blocks.
        ("f32", &["cast"], &[256], 1),
        ("f32", &["cast"], &[8192], 0),
        ("bf16", &["gelu"], &[4096], 0),
        ("bf16", &["exp"], &[1024], 0),
        // Several products compute it, unless a kernel for all of them takes less.
        ("bf16", &["relu"], &[4096, 1024], 2),
        ("f32", &["cast"], &[4096, 4096, 4096], 0),
    ] {
        let fused = program(Gpu::H100, dtype, prologue, columns, true);
        let plain = program(Gpu::H100, dtype, prologue, columns, false);
        let size = if dtype == "f32" { 4 } else { 2 };
        let kernel = kernel_cycles(&Gpu::H100, (size + 2) * SIZE * SIZE);
        let ((cycles, prologues), (reading, _)) = (products(&fused), products(&plain));
        let what = format!("{dtype} {prologue:?} {columns:?}");
        println!(
            "{what}: {prologues} prologues, {cycles:.0} cycles; {reading:.0} and {kernel:.0} for a kernel"
        );
        assert_eq!(prologues, expected, "{what}");
        assert_eq!(
            fused.tasks.len(),
            columns.len() + usize::from(expected == 0)
        );
        assert!(expected == 0 || cycles <= reading + kernel, "{what}");
    }
}

/// Warpgroups make one operand, not both: the other stays a kernel, or threads would multiply.
#[test]
fn one_operand_has_a_prologue() {
    let graph = parsed(
        "%0: bf16[4096, 4096] = input(index: 0, role: Data)
         %1: bf16[4096, 4096] = input(index: 1, role: Data)
         %2: bf16[4096, 4096] = relu %0
         %3: bf16[4096, 4096] = relu %1
         %4: bf16[4096, 4096] = matmul %2, %3
         return %4",
    );
    let program = lowered_for(Gpu::H100, &graph, true).unwrap();
    assert_eq!((program.tasks.len(), products(&program).1), (2, 1));
    let product = program.tasks.last().unwrap().candidate();
    let Schedule::Gpu(schedule) = product.schedule else {
        panic!("{}", product.name())
    };
    assert_eq!(schedule.multiply, Multiply::Wgmma);
}

/// Threads that read and compute element by element do so for few blocks alone.
#[test]
fn threads_compute_for_few_blocks() {
    let [(_, ampere), _] = device::architectures();
    for (columns, expected) in [(64, 1), (4096, 0)] {
        let program = program(ampere, "bf16", &["relu"], &[columns], true);
        assert_eq!(products(&program).1, expected, "{columns}");
    }
}
