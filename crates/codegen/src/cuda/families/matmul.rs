//! Matrix products.

use super::gemm::{Gemm, Operand};
use super::{Call, Store};
use crate::cuda::source::Source;
use crate::cuda::{Printed, Slot};
use crate::program::Launch;
use kiln_base::plan::{MatMul, Matrix};
use kiln_base::{Dim, numel};
use std::fmt::Write;

pub(super) fn print(launch: &Launch, m: &MatMul) -> Printed {
    let name = match &launch.kir {
        Some(kir) => kir.name.clone(),
        None => format!("matmul_{}", m.dtype),
    };
    let extent = |x: &Matrix, row: &Dim, col: &Dim| {
        let ends = m.batch.iter().chain([row, col]);
        let strides = x.batch_strides.iter().chain([&x.row, &x.col]);
        ends.zip(strides)
            .fold(x.offset.clone(), |sum, (end, stride)| {
                &sum + &(end * stride)
            })
    };
    let gemm = Gemm {
        launch,
        name: &name,
        dtype: m.dtype,
        batches: numel(&m.batch),
        m: m.m.clone(),
        n: m.n.clone(),
        k: m.k.clone(),
        reach: vec![extent(&m.lhs, &m.m, &m.k), extent(&m.rhs, &m.k, &m.n)],
        at: "(batch * m + i) * n + j".into(),
        store: Store::of(launch, m.out, m.dtype),
        reads: [m.lhs.arg, m.rhs.arg],
        operands: String::new(),
    };
    gemm.print(|source, call| {
        [
            operand(source, call, m, &m.lhs, 'a', [&m.lhs.row, &m.lhs.col]),
            operand(source, call, m, &m.rhs, 'b', [&m.rhs.col, &m.rhs.row]),
        ]
    })
}

/// An operand of which these are the strides from line to line and along k.
fn operand(
    source: &mut Source,
    call: &Call,
    m: &MatMul,
    x: &Matrix,
    name: char,
    strides: [&Dim; 2],
) -> Operand {
    let [line, along] = strides;
    let pointer = call.pointer(Slot::Arg(x.arg as usize));
    let mut text = format!("Index {name}_at = {};\n", source.dim(&x.offset));
    if !m.batch.is_empty() {
        text += "{\nIndex rest = batch;\n";
        for (extent, stride) in m.batch.iter().zip(&x.batch_strides).rev() {
            let (extent, stride) = (source.dim(extent), source.dim(stride));
            let _ = write!(
                text,
                "{name}_at += rest % {extent} * {stride};\nrest /= {extent};\n"
            );
        }
        text += "}\n";
    }
    let lines = if name == 'a' { "m" } else { "n" };
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
