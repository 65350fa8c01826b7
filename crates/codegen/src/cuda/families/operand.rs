//! Operands and results of contractions: affine accesses as C++.

use super::call::Call;
use super::prologue;
use crate::cuda::source::Source;
use crate::cuda::values::declare_indices;
use crate::kir;
use crate::work::Slot;
use kiln_base::{DType, Dim};
use kiln_plan::contraction::{Access, BATCH, COLUMNS, Contraction, ROWS, TERMS};
use std::fmt::Write;
use std::ops::Range;

/// An operand of a contraction in C++.
pub(super) struct Operand {
    /// Declarations and, last, the operand's object, named `a` or `b`.
    pub text: String,
    /// True if contiguous along K, not along lines.
    pub along_k: bool,
    /// True if vectors of eight elements, of bytes sixteen, are contiguous and aligned.
    pub vector: bool,
    /// True if no such vector is partly outside.
    pub whole: bool,
}

/// True if a number is a multiple of eight.
pub(super) fn is_multiple_of_8(d: &Dim) -> bool {
    d.as_const().is_some_and(|n| n % 8 == 0)
}

/// Returns declarations of the indices of nested loops, given a linear index `number`, and the indices' names.
pub(super) fn split(
    source: &mut Source,
    extents: &[Dim],
    [prefix, number]: [&str; 2],
) -> (String, Vec<String>) {
    let mut names = Vec::new();
    let text = source.capture(|s| names = declare_indices(s, prefix, extents, number, &|_| true));
    (text, names)
}

/// Returns an affine function of the loops of some kinds, whose indices have these names.
pub(super) fn affine(
    source: &mut Source,
    offset: &Dim,
    strides: &[Dim],
    names: &[(Range<usize>, &[String])],
) -> String {
    let terms = |(range, names): &(Range<usize>, &[String])| {
        let terms = range.clone().zip(names.to_vec());
        terms
            .map(|(axis, name)| (strides[axis].clone(), name))
            .collect::<Vec<_>>()
    };
    let (strides, names): (Vec<Dim>, Vec<String>) = names.iter().flat_map(terms).unzip();
    source.affine(offset, &strides, &names)
}

/// Returns the operand `a` or `b` of a contraction, which a prologue may compute. Its text follows declarations of
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
                // Bytes of the other signedness.
                false => (class, format!("(const Elem*){pointer}")),
            }
        }
        Some(prologue) => {
            text += &prologue::declare(source, call, prologue, name);
            let class = format!("Position<decltype(make_{name})>");
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
        text += &declare_gathered(source, c, &batch, [name, count, &class, &pointer], lines);
    }
    let (along_k, vector, whole) = access_mode(c, x, lines, dtypes[0]);
    Operand {
        text,
        along_k,
        vector: vector && prologue.is_none(),
        whole,
    }
}

/// Returns an estimate of the instructions that load an element of an operand into shared memory, from machine code.
pub(super) fn load_instructions(
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

/// True if lines and terms of the result have constant strides and no bounds.
pub(super) fn is_plain(c: &Contraction, lines: usize) -> bool {
    c.result.bounds.is_empty() && c.range(lines).len() <= 1 && c.range(TERMS).len() <= 1
}

/// Returns the declaration of an operand whose lines or terms are several loops, or which has padding.
fn declare_gathered(
    source: &mut Source,
    c: &Contraction,
    batch: &[(Range<usize>, &[String])],
    [name, count, class, pointer]: [&str; 4],
    lines: usize,
) -> String {
    let mut text = String::new();
    let x = &c.result;
    for (n, b) in x.bounds.iter().enumerate() {
        let start = affine(source, &b.offset, &b.strides, batch);
        let _ = writeln!(text, "const Index {name}_from{n} = {start};");
    }
    let bounds = x.bounds.len();
    for (kind, function, number, is_line) in
        [(lines, "line", "i", true), (TERMS, "term", "k", false)]
    {
        let (declared, names) = split(source, &c.loops[kind], [number, number]);
        let names = [(c.range(kind), &names[..])];
        let mut part = |start: String, strides: &[Dim]| {
            let offset = affine(source, &Dim::ZERO, strides, &names);
            match (is_line, &offset[..]) {
                (true, "0") => start,
                (true, _) => format!("{start} + {offset}"),
                (false, _) => offset,
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
    let is_vectors = |d: &Dim| {
        let vector = if is_byte { 16 } else { 8 };
        d.as_const().is_some_and(|n| n % vector == 0)
    };
    let vectors = |kind: usize| {
        let Some(last) = c.range(kind).last() else {
            return (false, false);
        };
        let extent = &c.loops[kind][c.loops[kind].len() - 1];
        let mut strides = x.strides.iter().enumerate().filter(|(i, _)| *i != last);
        let vector = x.strides[last].is(1)
            && x.bounds.iter().all(|b| b.strides[last].is(0))
            && (c.loops[kind].len() == 1 || is_vectors(extent))
            && is_vectors(&x.offset)
            && strides.all(|(_, s)| is_vectors(s));
        (vector, is_vectors(extent))
    };
    let ((by_terms, whole_terms), (by_lines, whole_lines)) = (vectors(TERMS), vectors(lines));
    if by_terms || by_lines {
        return match by_terms {
            true => (true, true, whole_terms),
            // Bytes must be contiguous along k in shared memory.
            false => (false, !is_byte, whole_lines),
        };
    }
    // Along the longer contiguous loop.
    let extent = |kind: usize| match c.range(kind).last() {
        Some(last) if x.strides[last].is(1) => {
            let extent = c.loops[kind].last();
            extent.and_then(Dim::as_const).unwrap_or(i64::MAX)
        }
        _ => 0,
    };
    (extent(TERMS) > extent(lines), false, false)
}

/// Returns the declaration of `at`, the offset in the result of row `i` and column `j` of product `batch`, and a
/// `continue` for elements outside of the result.
pub(super) fn declare_result_offset(source: &mut Source, c: &Contraction) -> String {
    let c = &c.seen_by(&c.result);
    let mut text = String::new();
    let mut indices = Vec::new();
    for (kind, number) in [(BATCH, "batch"), (ROWS, "i"), (COLUMNS, "j")] {
        let (declared, names) = split(source, &c.loops[kind], [&format!("{number}_at"), number]);
        text += &declared;
        indices.push((c.range(kind), names));
    }
    let names: Vec<(Range<usize>, &[String])> = indices
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
pub(super) fn contiguous_run(c: &Contraction, kind: usize) -> Option<Dim> {
    let c = c.seen_by(&c.result);
    let last = c.range(kind).last()?;
    let mut bounds = c.result.bounds.iter();
    let is_run = c.result.strides[last].is(1) && bounds.all(|b| b.strides[last].is(0));
    c.loops[kind].last().filter(|_| is_run).cloned()
}
