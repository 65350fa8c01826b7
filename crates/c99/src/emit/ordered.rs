//! Scans, sorts and scatters.

use super::dialect::{C99, Dialect, memory};
use super::kernel::Emitter;
use super::text::{affine, indices, sum};
use crate::error::Result;
use kiln_base::DType;
use kiln_base::prim::{Reduction, ScatterKind};
use kiln_plan::{ArgSort, Scan, Scatter};

/// Emits a scan.
pub(super) fn scan(k: &mut Emitter<'_>, p: &Scan) -> Result<()> {
    let (outer, len, inner) = (k.number(&p.outer)?, k.number(&p.len)?, k.number(&p.inner)?);
    let (x, out) = (k.arg(p.x), k.arg(p.out));
    let compute = p.dtype.compute();
    let (identity, combine) = match p.kind.reduction() {
        Some(op) => (C99::identity(op, compute), op.combine().name()),
        None => (C99::identity(Reduction::Max, compute), p.kind.name()),
    };
    let combine = C99::function(combine, compute);
    k.body.loop_to("o", outer);
    k.body.loop_to("j", inner);
    let ty = C99::ctype(compute);
    k.body.line(format!("{ty} s = {identity};"));
    k.body.loop_to("i", len);
    let address = match p.reverse {
        true => format!("{} - i", len - 1),
        false => "i".into(),
    };
    k.body.line(format!(
        "const kiln_int at = (o * {len} + {address}) * {inner} + j;"
    ));
    let value = C99::loaded(&format!("{x}[at]"), p.dtype);
    k.body.line(format!("s = {combine}(s, {value});"));
    k.body
        .line(format!("{out}[at] = {};", C99::stored("s", p.dtype)));
    k.body.close_all(3);
    Ok(())
}

/// Emits a sort: a heap sort of indices. No two of them compare as equal, so that it is stable.
pub(super) fn sort(k: &mut Emitter<'_>, p: &ArgSort) -> Result<()> {
    let (lanes, len, kept) = (k.number(&p.lanes)?, k.number(&p.len)?, k.number(&p.kept)?);
    let (x, out) = (k.arg(p.x), k.arg(p.out));
    let (ty, element) = (C99::ctype(p.dtype.compute()), memory(p.dtype));
    let before = format!("{}_before", k.name);
    let nan = match p.dtype.is_float() {
        true => "(p != p) - (q != q)",
        false => "0",
    };
    let (larger, smaller) = match p.descending {
        true => (1, 0),
        false => (0, 1),
    };
    let text = &mut k.before;
    text.open(format!(
        "static int {before}(const {element} *x, int64_t a, int64_t b)"
    ));
    for (name, index) in [("p", "a"), ("q", "b")] {
        let value = C99::loaded(&format!("x[{index}]"), p.dtype);
        text.line(format!("const {ty} {name} = {value};"));
    }
    text.line(format!("const int nan = {nan};"));
    text.line(format!(
        "if (nan != 0) return nan > 0 ? {larger} : {smaller};"
    ));
    text.line(format!("if (p > q) return {larger};"));
    text.line(format!("if (p < q) return {smaller};"));
    text.line("return a < b;");
    text.close();
    text.line("");
    let order = k.array(DType::I64, len)?;
    let body = &mut k.body;
    body.loop_to("lane", lanes);
    body.line(format!("const {element} *v = {x} + lane * {len};"));
    body.line(format!(
        "for (kiln_int i = 0; i < {len}; ++i) {order}[i] = i;"
    ));
    // Builds a heap first, then repeatedly moves its largest element to the end.
    body.open(format!(
        "for (kiln_int n = {len}, start = {} ; n > 1;)",
        len / 2
    ));
    body.line("int64_t moved;");
    body.line("kiln_int at;");
    body.open("if (start > 0)");
    body.line(format!("moved = {order}[--start];"));
    body.line("at = start;");
    body.close();
    body.open("else");
    body.line(format!("moved = {order}[--n];"));
    body.line(format!("{order}[n] = {order}[0];"));
    body.line("at = 0;");
    body.close();
    body.open("for (;;)");
    body.line("kiln_int child = 2 * at + 1;");
    body.line("if (child >= n) break;");
    body.line(format!(
        "if (child + 1 < n && {before}(v, {order}[child], {order}[child + 1])) ++child;"
    ));
    body.line(format!("if (!{before}(v, moved, {order}[child])) break;"));
    body.line(format!("{order}[at] = {order}[child];"));
    body.line("at = child;");
    body.close();
    body.line(format!("{order}[at] = moved;"));
    body.close();
    body.line(format!(
        "for (kiln_int i = 0; i < {kept}; ++i) {out}[lane * {kept} + i] = {order}[i];"
    ));
    body.close();
    Ok(())
}

/// Emits a scatter.
pub(super) fn scatter(k: &mut Emitter<'_>, p: &Scatter) -> Result<()> {
    let (shape, index_shape) = (k.numbers(&p.shape)?, k.numbers(&p.index_shape)?);
    let (x, index, src, out) = (
        k.arg(p.x),
        k.arg(p.index.arg),
        k.arg(p.src.arg),
        k.arg(p.out),
    );
    k.fails();
    let len: i64 = shape.iter().product();
    if x != out {
        k.body.line(format!(
            "memcpy({out}, {x}, (size_t){len} * sizeof *{out});"
        ));
    }
    let names = indices("i", index_shape.len());
    for (name, n) in names.iter().zip(&index_shape) {
        k.body.loop_to(name, *n);
    }
    if index_shape.is_empty() {
        k.body.loop_to("once", 1);
    }
    let strided = |k: &Emitter<'_>, s: &kiln_plan::Strided| -> Result<String> {
        Ok(affine(
            k.number(&s.offset)?,
            &k.numbers(&s.strides)?,
            &names,
        ))
    };
    let (from, value) = (strided(k, &p.index)?, strided(k, &p.src)?);
    let axis = usize::from(p.axis);
    let extent = shape.get(axis).copied().unwrap_or(1);
    let site = k.sites.first().copied().unwrap_or(0) + 1;
    k.body.line(format!("const int64_t to = {index}[{from}];"));
    k.body.line(format!(
        "if (to < 0 || to >= {extent}) {{ kiln_fail(failed, {site}); continue; }}"
    ));
    let mut stride = len;
    let mut terms = Vec::new();
    for (i, n) in shape.iter().enumerate() {
        stride /= (*n).max(1);
        let name = if i == axis { "(kiln_int)to" } else { &names[i] };
        terms.push((stride, name));
    }
    k.body
        .line(format!("const kiln_int at = {};", sum(0, terms)));
    let (old, new) = (
        C99::loaded(&format!("{out}[at]"), p.dtype),
        C99::loaded(&format!("{src}[{value}]"), p.dtype),
    );
    let next = match p.kind {
        ScatterKind::Set => {
            k.body.line(format!("{out}[at] = {src}[{value}];"));
            None
        }
        ScatterKind::Sum => Some("add"),
        ScatterKind::Prod => Some("mul"),
        ScatterKind::Max => Some("max"),
        ScatterKind::Min => Some("min"),
    };
    if let Some(next) = next {
        let next = C99::function(next, p.dtype.compute());
        let next = format!("{next}({old}, {new})");
        k.body
            .line(format!("{out}[at] = {};", C99::stored(&next, p.dtype)));
    }
    k.body.close_all(names.len().max(1));
    Ok(())
}
