//! Operands and results of contractions: affine accesses as C++.

use super::call::Call;
use super::prologue;
use crate::cuda::source::Source;
use crate::cuda::values::decomposed;
use crate::kir;
use crate::work::Slot;
use kiln_base::{DType, Dim};
use kiln_plan::contraction::{Access, BATCH, COLUMNS, Contraction, ROWS, TERMS};
use std::fmt::Write;
use std::ops::Range;

/// The C++ of an operand: a class that returns lines, and the access mode for reading it.
pub(super) struct Operand {
    /// Declarations and, last, the operand's object, named `a` or `b`.
    pub text: String,
    /// True if neighbours along k are contiguous, and not neighbouring lines.
    pub along_k: bool,
    /// True if eight neighbours, of bytes sixteen, are contiguous at an aligned address.
    pub vector: bool,
    /// True if, of as many neighbours, all or none exist.
    pub whole: bool,
}

/// True if a number is a multiple of eight.
pub(super) fn is_multiple_of_8(d: &Dim) -> bool {
    d.as_const().is_some_and(|n| n % 8 == 0)
}

/// Returns declarations of the indices of loops of these extents from their number, and the names of these.
pub(super) fn split(
    source: &mut Source,
    extents: &[Dim],
    [prefix, number]: [&str; 2],
) -> (String, Vec<String>) {
    let mut names = Vec::new();
    let text = source.capture(|s| names = decomposed(s, prefix, extents, number, &|_| true));
    (text, names)
}

/// Returns an affine function of the loops of some kinds, whose indices have these names.
pub(super) fn affine(
    source: &mut Source,
    offset: &Dim,
    strides: &[Dim],
    names: &[(Range<usize>, &[String])],
) -> String {
    let of = |(range, names): &(Range<usize>, &[String])| {
        let all = range.clone().zip(names.to_vec());
        all.map(|(at, name)| (strides[at].clone(), name))
            .collect::<Vec<_>>()
    };
    let (strides, names): (Vec<Dim>, Vec<String>) = names.iter().flat_map(of).unzip();
    source.affine(offset, &strides, &names)
}

/// Returns the operand `a` or `b` of a contraction, which a prologue may compute. Its text comes after the numbers
/// `batch`, `m`, `n` and `k`.
pub(super) fn operand(
    source: &mut Source,
    call: &Call,
    c: &Contraction,
    side: usize,
    dtypes: [DType; 2],
    (slot, prologue): (Slot, Option<&kir::Kernel>),
) -> Operand {
    let (name, count, lines) = [("a", "m", ROWS), ("b", "n", COLUMNS)][side];
    let c = &c.seen_by(&c.operands[side]);
    let x = &c.result;
    let (mut text, batch) = split(source, &c.loops[BATCH], [&format!("{name}_batch"), "batch"]);
    let (class, pointer) = match prologue {
        None => {
            let (class, pointer) = ("const Elem*".to_string(), call.pointer(slot));
            match dtypes[side] == dtypes[0] {
                true => (class, pointer),
                // Bytes with another sign.
                false => (class, format!("(const Elem*){pointer}")),
            }
        }
        Some(prologue) => {
            text += &prologue::function(source, call, prologue, name);
            let class = format!("Place<decltype(make_{name})>");
            (class.clone(), format!("{class}{{make_{name}, 0}}"))
        }
    };
    let batch = [(c.range(BATCH), &batch[..])];
    let at = affine(source, &x.offset, &x.strides, &batch);
    let _ = writeln!(text, "const Index {name}_at = {at};");
    let (line, term) = (c.range(lines), c.range(TERMS));
    if is_plain(c, lines) {
        let stride = |r: Range<usize>| x.strides.get(r.start).filter(|_| !r.is_empty());
        let strides = [line, term].map(|r| source.dim(stride(r).unwrap_or(&Dim::ZERO)));
        let [l, k] = strides;
        let _ = match prologue {
            None => writeln!(
                text,
                "const Strided {name} = {{{pointer} + {name}_at, {count}, {l}, {k}}};"
            ),
            Some(_) => writeln!(
                text,
                "const Prologue<decltype(make_{name})> {name} = {{make_{name}, {name}_at, {count}, {l}, {k}}};"
            ),
        };
    } else {
        text += &gathered(source, c, &batch, [name, count, &class, &pointer], lines);
    }
    let (along_k, vector, whole) = access_mode(c, x, lines, dtypes[0]);
    Operand {
        text,
        along_k,
        vector: vector && prologue.is_none() && call.work.is_aligned(slot),
        whole,
    }
}

/// Returns an estimate, from the machine code of kernels, of the instructions of a thread that bring an element of an
/// operand to shared memory.
pub(super) fn finding(
    c: &Contraction,
    side: usize,
    dtype: DType,
    prologue: Option<&kir::Kernel>,
) -> f64 {
    let lines = [ROWS, COLUMNS][side];
    let c = &c.seen_by(&c.operands[side]);
    let (_, vector, _) = access_mode(c, &c.result, lines, dtype);
    match (is_plain(c, lines), vector && prologue.is_none()) {
        _ if prologue.is_some_and(prologue::is_costly) => 40.0,
        (true, true) => 0.7,
        (true, false) => 6.0,
        (false, true) => 2.5,
        (false, false) => 13.0,
    }
}

/// True if lines and terms of the result, in whose place an operand is seen, are at even distances.
pub(super) fn is_plain(c: &Contraction, lines: usize) -> bool {
    c.result.bounds.is_empty() && c.range(lines).len() <= 1 && c.range(TERMS).len() <= 1
}

/// Returns the text of an operand whose lines and terms are several loops, or some of whose elements lie outside.
fn gathered(
    source: &mut Source,
    c: &Contraction,
    batch: &[(Range<usize>, &[String])],
    [name, count, class, pointer]: [&str; 4],
    lines: usize,
) -> String {
    let mut text = String::new();
    let x = &c.result;
    for (n, b) in x.bounds.iter().enumerate() {
        let from = affine(source, &b.offset, &b.strides, batch);
        let _ = writeln!(text, "const Index {name}_from{n} = {from};");
    }
    let bounds = x.bounds.len();
    for (kind, function, number, is_line) in
        [(lines, "line", "i", true), (TERMS, "term", "k", false)]
    {
        let (declared, names) = split(source, &c.loops[kind], [number, number]);
        let names = [(c.range(kind), &names[..])];
        let mut part = |from: String, strides: &[Dim]| {
            let moved = affine(source, &Dim::ZERO, strides, &names);
            match (is_line, &moved[..]) {
                (true, "0") => from,
                (true, _) => format!("{from} + {moved}"),
                (false, _) => moved,
            }
        };
        let at = part(format!("{name}_at"), &x.strides);
        let parts = x.bounds.iter().enumerate();
        let parts: Vec<String> = parts
            .map(|(n, b)| part(format!("{name}_from{n}"), &b.strides))
            .collect();
        let _ = writeln!(
            text,
            "const auto {name}_{function} = [&](const Index {number}) -> Parts<{bounds}> {{\n\
             {declared}return {{{at}, {{{}}}, true}};\n}};",
            parts.join(", ")
        );
    }
    let extents: Vec<String> = x.bounds.iter().map(|b| source.dim(&b.extent)).collect();
    let _ = writeln!(
        text,
        "const Gathered<{class}, decltype({name}_line), decltype({name}_term), {bounds}> {name} = \
         {{{pointer}, {name}_line, {name}_term, {count}, {{{}}}}};",
        extents.join(", ")
    );
    text
}

/// Returns the fields `along_k`, `vector` and `whole` of an [`Operand`].
fn access_mode(c: &Contraction, x: &Access, lines: usize, dtype: DType) -> (bool, bool, bool) {
    let is_byte = dtype.is_byte();
    let is_even = |d: &Dim| {
        let each = if is_byte { 16 } else { 8 };
        d.as_const().is_some_and(|n| n % each == 0)
    };
    let run_of = |kind: usize| {
        let Some(last) = c.range(kind).last() else {
            return (false, false);
        };
        let extent = &c.loops[kind][c.loops[kind].len() - 1];
        let mut others = x.strides.iter().enumerate().filter(|(at, _)| *at != last);
        let vector = x.strides[last].is(1)
            && x.bounds.iter().all(|b| b.strides[last].is(0))
            && (c.loops[kind].len() == 1 || is_even(extent))
            && is_even(&x.offset)
            && others.all(|(_, s)| is_even(s));
        (vector, is_even(extent))
    };
    let ((by_terms, whole_terms), (by_lines, whole_lines)) = (run_of(TERMS), run_of(lines));
    if by_terms || by_lines {
        return match by_terms {
            true => (true, true, whole_terms),
            // Bytes must be contiguous along k in shared memory.
            false => (false, !is_byte, whole_lines),
        };
    }
    // Neighbours of the longer loop that has them.
    let run = |kind: usize| match c.range(kind).last() {
        Some(last) if x.strides[last].is(1) => {
            let extent = c.loops[kind].last();
            extent.and_then(Dim::as_const).unwrap_or(i64::MAX)
        }
        _ => 0,
    };
    (run(TERMS) > run(lines), false, false)
}

/// Declares `at`, the place in the result of row `i` and column `j` of product `batch`. Continues with the next one if
/// it has no place.
pub(super) fn result(source: &mut Source, c: &Contraction) -> String {
    let c = &c.seen_by(&c.result);
    let mut text = String::new();
    let mut all = Vec::new();
    for (kind, number) in [(BATCH, "batch"), (ROWS, "i"), (COLUMNS, "j")] {
        let (declared, names) = split(source, &c.loops[kind], [&format!("{number}_at"), number]);
        text += &declared;
        all.push((c.range(kind), names));
    }
    let names: Vec<(Range<usize>, &[String])> = all
        .iter()
        .map(|(range, names)| (range.clone(), &names[..]))
        .collect();
    for b in &c.result.bounds {
        let index = affine(source, &b.offset, &b.strides, &names);
        let extent = source.dim(&b.extent);
        let _ = writeln!(text, "if ((UIndex)({index}) >= (UIndex){extent}) continue;");
    }
    let at = affine(source, &c.result.offset, &c.result.strides, &names);
    text + &format!("Index at = {at};")
}

/// Returns the length of the runs of rows or columns that are contiguous in the result.
pub(super) fn run(c: &Contraction, kind: usize) -> Option<Dim> {
    let c = c.seen_by(&c.result);
    let last = c.range(kind).last()?;
    let mut bounds = c.result.bounds.iter();
    let is_run = c.result.strides[last].is(1) && bounds.all(|b| b.strides[last].is(0));
    c.loops[kind].last().filter(|_| is_run).cloned()
}
