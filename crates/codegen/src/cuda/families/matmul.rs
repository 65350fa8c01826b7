//! Matrix products.

use super::call::{Call, Store};
use super::gemm::{Gemm, Operand};
use super::made;
use crate::cuda::job::Job;
use crate::cuda::source::Source;
use crate::kir;
use crate::work::{Slot, Way};
use kiln_base::{Dim, numel};
use kiln_plan::{MatMul, Matrix};
use std::fmt::Write;

/// The ways of a product that some work is, with what makes its operands.
pub(super) fn print(work: Job, m: &MatMul, made: [Option<&kir::Kernel>; 2], all: bool) -> Vec<Way> {
    let own = || format!("matmul_{}", m.dtype());
    let name = work.fused_name().map_or_else(own, str::to_string);
    let gemm = Gemm {
        work,
        name: &name,
        dtype: m.dtype(),
        batches: numel(&m.batch),
        m: m.m.clone(),
        n: m.n.clone(),
        k: m.k.clone(),
        reach: vec![
            reach(&m.batch, &m.lhs, &m.m, &m.k),
            reach(&m.batch, &m.rhs, &m.k, &m.n),
        ],
        total: &(&numel(&m.batch) * &m.m) * &m.n,
        at: "const Index at = (batch * m + i) * n + j;".into(),
        store: Store::of(work, m.out, m.dtype()),
        reads: made::reads(made, [m.lhs.arg, m.rhs.arg], m.dtype()),
        operands: match made {
            [None, None] => String::new(),
            _ => made::CLASS.into(),
        },
        costly: made.into_iter().flatten().any(made::is_costly),
    };
    let (b, lhs, rhs) = (&m.batch, &m.lhs, &m.rhs);
    gemm.print(all, |source, call| {
        let mut operand = |x, prologue, names, strides| match prologue {
            Some(prologue) => self::made(source, call, prologue, b, x, names, strides),
            None => strided(source, call, b, x, names, strides),
        };
        [
            operand(lhs, made[0], ["a", "m"], [&lhs.row, &lhs.col]),
            operand(rhs, made[1], ["b", "n"], [&rhs.col, &rhs.row]),
        ]
    })
}

/// How far the elements of a matrix of these extents reach.
pub(super) fn reach(batch: &[Dim], x: &Matrix, rows: &Dim, columns: &Dim) -> Dim {
    let ends = batch.iter().chain([rows, columns]);
    let strides = x.batch_strides.iter().chain([&x.row, &x.col]);
    ends.zip(strides)
        .fold(x.offset.clone(), |sum, (end, stride)| {
            &sum + &(end * stride)
        })
}

/// Declares `{name}_at`, where the matrix of number `batch` begins.
pub(super) fn place(source: &mut Source, batch: &[Dim], x: &Matrix, name: &str) -> String {
    let mut text = format!("Index {name}_at = {};\n", source.dim(&x.offset));
    if !batch.is_empty() {
        text += "{\nIndex rest = batch;\n";
        for (extent, stride) in batch.iter().zip(&x.batch_strides).rev() {
            let (extent, stride) = (source.dim(extent), source.dim(stride));
            let _ = write!(
                text,
                "{name}_at += rest % {extent} * {stride};\nrest /= {extent};\n"
            );
        }
        text += "}\n";
    }
    text
}

/// An operand, given its name and that of the number of its lines, and the strides from line to line and
/// along k.
pub(super) fn strided(
    source: &mut Source,
    call: &Call,
    batch: &[Dim],
    x: &Matrix,
    [name, lines]: [&str; 2],
    [line, along]: [&Dim; 2],
) -> Operand {
    let pointer = call.pointer(Slot::Arg(x.arg as usize));
    let mut text = place(source, batch, x, name);
    let (l, k) = (source.dim(line), source.dim(along));
    let _ = writeln!(
        text,
        "const Strided {name} = {{{pointer} + {name}_at, {lines}, {l}, {k}}};"
    );
    let along_k = along.is(1);
    let eights = |d: &Dim| d.as_const().is_some_and(|n| n % 8 == 0);
    let others = if along_k { line } else { along };
    Operand {
        text,
        along_k,
        vector: (along_k || line.is(1))
            && eights(others)
            && eights(&x.offset)
            && x.batch_strides.iter().all(eights),
    }
}

/// An operand that a prologue makes, likewise.
fn made(
    source: &mut Source,
    call: &Call,
    prologue: &kir::Kernel,
    batch: &[Dim],
    x: &Matrix,
    [name, lines]: [&str; 2],
    [line, along]: [&Dim; 2],
) -> Operand {
    let mut text = made::function(source, call, prologue, name);
    text += &place(source, batch, x, name);
    let (l, k) = (source.dim(line), source.dim(along));
    let _ = writeln!(
        text,
        "const Made<decltype(make_{name})> {name} = {{make_{name}, {name}_at, {lines}, {l}, {k}}};"
    );
    Operand {
        text,
        along_k: along.is(1),
        vector: false,
    }
}
