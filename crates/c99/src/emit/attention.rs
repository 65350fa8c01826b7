//! Attention: the scores of a block of rows, their softmax, and the sums of values weighted by it.

use super::dialect::{C99, Dialect, memory};
use super::kernel::Emitter;
use super::product::{Operand, each_matrix};
use super::text::{Text, affine, indices};
use crate::error::{Error, Result};
use kiln_base::{DType, Scalar};
use kiln_plan::{Attention, Scores};

/// The number of rows whose scores are computed together.
const ROWS: i64 = 32;

/// Emits attention of f32 or f64.
pub(super) fn emit(k: &mut Emitter<'_>, a: &Attention) -> Result<()> {
    let p = &a.scores;
    if !matches!(p.dtype, DType::F32 | DType::F64) {
        let why = format!("attention of {} is not emitted", p.dtype);
        return Err(Error::kernel("attention", why));
    }
    if p.dropout.is_some() {
        let why = "attention with dropout is not emitted";
        return Err(Error::kernel("attention", why));
    }
    let batch = k.numbers(&p.batch)?;
    let (length, keys) = (k.number(&p.length)?, k.number(&p.keys)?);
    let (width, columns) = (k.number(&p.width)?, k.number(&a.columns)?);
    let (ty, name) = (memory(p.dtype), p.dtype.name());
    let operand = |k: &mut Emitter<'_>, m: &kiln_plan::Matrix| {
        let array = k.arg(m.arg);
        Operand::new(k, m, array)
    };
    let (query, key) = (operand(k, &p.query)?, operand(k, &p.key)?);
    let value = operand(k, &a.value)?;
    let mask = match &p.mask {
        Some((m, dtype)) => Some((operand(k, m)?, *dtype)),
        None => None,
    };
    let scores = k.array(p.dtype, ROWS * keys)?;
    let out = k.destination(&a.epilogue, a.out, (p.dtype, ROWS * columns))?;
    let number = each_matrix(k, &batch);
    for (name, x) in [("q", &query), ("kk", &key), ("v", &value)] {
        k.body
            .line(format!("const {ty} *restrict {name} = {};", x.start()));
    }
    // Transposes the keys, so that sums run over many contiguous keys at once.
    let transposed = Operand {
        row: key.col,
        col: key.row,
        ..key
    };
    let transposed = transposed.pack(k, "kk", p.dtype, [width, keys])?;
    let (v, v_row) = match value.col == 1 {
        true => ("v".to_string(), value.row),
        false => (value.pack(k, "v", p.dtype, [keys, columns])?, columns),
    };
    let body = &mut k.body;
    body.blocks("i", length, ROWS, "m");
    let first_row = format!("(({number}) * {length} + i) * {columns}");
    body.line(format!("{ty} *restrict z = {};", out.block(&first_row)));
    body.zero(&scores, format!("m * {keys}"));
    body.line(format!("kiln_product_{name}(m, {keys}, {width}, q + i * {0}, {0}, {1}, {transposed}, {keys}, {scores}, {keys});", query.row, query.col));
    softmax(body, p, &scores, keys, mask.as_ref());
    body.zero("z", format!("m * {columns}"));
    body.line(format!("kiln_product_{name}(m, {columns}, {keys}, {scores}, {keys}, 1, {v}, {v_row}, z, {columns});"));
    out.finish(&first_row, &format!("m * {columns}"), body);
    body.close_all(1 + batch.len());
    Ok(())
}

/// Emits the scaling, masking and softmax of the scores of a block's rows.
fn softmax(body: &mut Text, p: &Scores, scores: &str, keys: i64, mask: Option<&(Operand, DType)>) {
    let (ty, name) = (memory(p.dtype), p.dtype.name());
    body.open("for (kiln_int r = 0; r < m; ++r)");
    body.line(format!("{ty} *restrict s = {scores} + r * {keys};"));
    let scale = C99::number(Scalar::Float(p.scale), p.dtype.compute());
    body.line(format!(
        "for (kiln_int j = 0; j < {keys}; ++j) s[j] *= {scale};"
    ));
    if let Some((mask, dtype)) = mask {
        let strides = [&mask.batch[..], &[mask.row, mask.col]].concat();
        let mut names = indices("b", mask.batch.len());
        names.extend(["(i + r)", "j"].map(String::from));
        let element = format!("{}[{}]", mask.array, affine(mask.offset, &strides, &names));
        let step = match dtype {
            DType::Bool => format!("if (!{element}) s[j] = -INFINITY"),
            _ => format!("s[j] += {element}"),
        };
        body.line(format!("for (kiln_int j = 0; j < {keys}; ++j) {step};"));
    }
    if p.causal {
        body.line(format!(
            "for (kiln_int j = i + r + 1; j < {keys}; ++j) s[j] = -INFINITY;"
        ));
    }
    let hidden = i32::from(p.causal || mask.is_some());
    body.line(format!("kiln_softmax_{name}({keys}, s, {hidden});"));
    body.close();
}
