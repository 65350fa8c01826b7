//! Scans, sorts and scatters.

use super::dialect::{C99, Dialect, memory};
use super::kernel::{Emitter, packed_strides};
use super::text::{affine, indices};
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
    let ty = C99::ctype(compute);
    let position = match p.reverse {
        true => format!("{} - i", len - 1),
        false => "i".into(),
    };
    let value = C99::loaded(&format!("{x}[at]"), p.dtype);
    let result = C99::stored("s", p.dtype);
    k.body.block(&format!(
        "\
for (kiln_int o = 0; o < {outer}; ++o) {{
  for (kiln_int j = 0; j < {inner}; ++j) {{
    {ty} s = {identity};
    for (kiln_int i = 0; i < {len}; ++i) {{
      const kiln_int at = (o * {len} + {position}) * {inner} + j;
      s = {combine}(s, {value});
      {out}[at] = {result};
    }}
  }}
}}"
    ));
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
    let [p, q] = ["x[a]", "x[b]"].map(|element| C99::loaded(element, p.dtype));
    k.before.block(&format!(
        "\
static int {before}(const {element} *x, int64_t a, int64_t b) {{
  const {ty} p = {p};
  const {ty} q = {q};
  const int nan = {nan};
  if (nan != 0) return nan > 0 ? {larger} : {smaller};
  if (p > q) return {larger};
  if (p < q) return {smaller};
  return a < b;
}}

"
    ));
    let order = k.array(DType::I64, len)?;
    let half = len / 2;
    // Builds a heap first, then repeatedly moves its largest element to the end.
    k.body.block(&format!(
        "\
for (kiln_int lane = 0; lane < {lanes}; ++lane) {{
  const {element} *v = {x} + lane * {len};
  for (kiln_int i = 0; i < {len}; ++i) {order}[i] = i;
  for (kiln_int n = {len}, start = {half}; n > 1;) {{
    int64_t moved;
    kiln_int at;
    if (start > 0) {{
      moved = {order}[--start];
      at = start;
    }} else {{
      moved = {order}[--n];
      {order}[n] = {order}[0];
      at = 0;
    }}
    for (;;) {{
      kiln_int child = 2 * at + 1;
      if (child >= n) break;
      if (child + 1 < n && {before}(v, {order}[child], {order}[child + 1])) ++child;
      if (!{before}(v, moved, {order}[child])) break;
      {order}[at] = {order}[child];
      at = child;
    }}
    {order}[at] = moved;
  }}
  for (kiln_int i = 0; i < {kept}; ++i) {out}[lane * {kept} + i] = {order}[i];
}}"
    ));
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
        k.body.copy(&out, &x, len);
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
    let mut position = names.clone();
    if let Some(index) = position.get_mut(axis) {
        *index = "(kiln_int)to".into();
    }
    let at = affine(0, &packed_strides(&shape, 1), &position);
    let value = format!("{src}[{value}]");
    let combine = match p.kind {
        ScatterKind::Set => None,
        ScatterKind::Sum => Some("add"),
        ScatterKind::Prod => Some("mul"),
        ScatterKind::Max => Some("max"),
        ScatterKind::Min => Some("min"),
    };
    let value = combine.map_or(value.clone(), |name| {
        let [old, new] = [&format!("{out}[at]"), &value].map(|x| C99::loaded(x, p.dtype));
        let function = C99::function(name, p.dtype.compute());
        C99::stored(&format!("{function}({old}, {new})"), p.dtype)
    });
    k.body.block(&format!(
        "\
const int64_t to = {index}[{from}];
if (to < 0 || to >= {extent}) {{ kiln_fail(failed, {site}); continue; }}
const kiln_int at = {at};
{out}[at] = {value};"
    ));
    k.body.close_all(names.len().max(1));
    Ok(())
}
