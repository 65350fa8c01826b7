//! Matrix products: blocks of rows of C, accumulated over blocks of rows of B.

use super::dialect::memory;
use super::kernel::{Emitter, View};
use super::text::{affine, indices, sum};
use crate::error::{Error, Result};
use kiln_plan::{MatMul, Matrix};

/// The number of elements of a block of C, which stays in the second-level cache.
pub(super) const BLOCK: i64 = 1 << 15;
/// The number of rows of B that are accumulated into a block of C at a time.
pub(super) const DEEP: i64 = 128;

/// A matrix operand with the values of its sizes.
pub(super) struct Operand {
    pub array: String,
    pub offset: i64,
    pub batch: Vec<i64>,
    pub row: i64,
    pub col: i64,
}

impl Operand {
    pub fn new(k: &Emitter<'_>, m: &Matrix, array: String) -> Result<Operand> {
        Ok(Operand {
            array,
            offset: k.number(&m.offset)?,
            batch: k.numbers(&m.batch_strides)?,
            row: k.number(&m.row)?,
            col: k.number(&m.col)?,
        })
    }

    /// A pointer to the start of a batch's matrix; the indices of the batch are `b0`, `b1`, ...
    pub fn start(&self) -> String {
        let offset = affine(self.offset, &self.batch, &indices("b", self.batch.len()));
        match &offset[..] {
            "0" => self.array.clone(),
            offset => format!("{} + {offset}", self.array),
        }
    }
}

/// The operands of a product, which prologues may compute.
pub(super) fn operands(k: &mut Emitter<'_>, p: &MatMul) -> Result<[Operand; 2]> {
    let [left, right] =
        [(&p.lhs, &p.prologues[0]), (&p.rhs, &p.prologues[1])].map(|(m, prologue)| {
            let array = k.operand(m.arg, prologue)?;
            Operand::new(k, m, array)
        });
    Ok([left?, right?])
}

/// Makes the rows of an operand contiguous: in the weights if it is constant, else returns `None`, and its reader
/// copies it.
pub(super) fn make_rows_contiguous(
    k: &mut Emitter<'_>,
    m: &Matrix,
    x: &mut Operand,
    batch: &[i64],
    [rows, columns]: [i64; 2],
) -> Option<()> {
    if x.col == 1 {
        return Some(());
    }
    let arg = &mut k.args[usize::from(m.arg)];
    if !arg.fixed || arg.view.is_some() {
        return None;
    }
    let moving: Vec<usize> = (0..batch.len()).filter(|i| x.batch[*i] != 0).collect();
    let mut extents: Vec<i64> = moving.iter().map(|i| batch[*i]).collect();
    let mut strides: Vec<i64> = moving.iter().map(|i| x.batch[*i]).collect();
    extents.extend([rows, columns]);
    strides.extend([x.row, x.col]);
    let view = View {
        offset: x.offset,
        extents,
        strides,
    };
    let laid = view.packed_strides();
    x.offset = 0;
    for (i, stride) in moving.iter().zip(&laid) {
        x.batch[*i] = *stride;
    }
    (x.row, x.col) = (columns, 1);
    arg.view = Some(view);
    Some(())
}

/// Opens loops over a batch and returns the number of its matrix as text.
pub(super) fn each_matrix(k: &mut Emitter<'_>, batch: &[i64]) -> String {
    let names = indices("b", batch.len());
    let mut stride: i64 = batch.iter().product();
    let number = batch.iter().zip(&names).map(|(n, name)| {
        k.body.loop_to(name, *n);
        stride /= (*n).max(1);
        (stride, &name[..])
    });
    sum(0, number)
}

/// Emits a product.
pub(super) fn emit(k: &mut Emitter<'_>, p: &MatMul) -> Result<()> {
    if p.is_half() {
        return Err(Error::kernel("matmul", "it multiplies f16 or bf16"));
    }
    if !p.sums().is_float() {
        return super::integers::product(k, p);
    }
    let batch = k.numbers(&p.batch)?;
    let (m, deep, n) = (k.number(&p.m)?, k.number(&p.k)?, k.number(&p.n)?);
    let (ty, name) = (memory(p.dtype()), p.dtype().name());
    let [left, mut right] = operands(k, p)?;
    let fixed = p.prologues[1].is_none() && k.args[usize::from(p.rhs.arg)].fixed;
    let dots = left.col == 1 && right.row == 1 && (n < 8 || !fixed && m <= 4);
    let copied = !dots
        && match fixed {
            true => make_rows_contiguous(k, &p.rhs, &mut right, &batch, [deep, n]).is_none(),
            false => right.col != 1,
        };
    let copy = match copied {
        true => Some(k.array(p.dtype(), deep * n)?),
        false => None,
    };
    let even = (BLOCK / n.max(1)).clamp(2, m.max(2)) / 2 * 2;
    let rows = even.min(m.max(1));
    let out = k.destination(&p.epilogue, p.out, (p.dtype(), rows * n))?;
    let number = each_matrix(k, &batch);
    k.body
        .line(format!("const {ty} *restrict x = {};", left.start()));
    k.body
        .line(format!("const {ty} *restrict y = {};", right.start()));
    if let Some(copy) = &copy {
        k.body.loop_to("i", deep);
        k.body.line(format!(
            "for (kiln_int j = 0; j < {n}; ++j) {copy}[{n} * i + j] = y[{} * i + {} * j];",
            right.row, right.col
        ));
        k.body.close();
    }
    let (y, y_row) = match &copy {
        Some(copy) => (&copy[..], n),
        None => ("y", right.row),
    };
    k.body
        .open(format!("for (kiln_int i = 0; i < {m}; i += {rows})"));
    k.body.line(format!(
        "const kiln_int m = {m} - i < {rows} ? {m} - i : {rows};"
    ));
    let first_element = format!("({number}) * {} + i * {n}", m * n);
    k.body
        .line(format!("{ty} *restrict z = {};", out.block(&first_element)));
    match dots {
        true => emit_dot_products(k, (&left, &right), [deep, n], name),
        false => emit_row_sums(k, &left, (y, y_row), [deep, n], name),
    }
    out.finish("z", &first_element, &format!("m * {n}"), &mut k.body);
    k.body.close_all(1 + batch.len());
    Ok(())
}

/// Emits a block of C as dot products of contiguous operands.
fn emit_dot_products(
    k: &mut Emitter<'_>,
    (left, right): (&Operand, &Operand),
    [deep, n]: [i64; 2],
    name: &str,
) {
    k.body.open("for (kiln_int r = 0; r < m; ++r)");
    k.body.line(format!(
        "for (kiln_int j = 0; j < {n}; ++j) z[r * {n} + j] = kiln_dot_{name}({deep}, x + (i + r) * {}, y + j * {});",
        left.row, right.col
    ));
    k.body.close();
}

/// Emits a block of C that accumulates blocks of rows of B.
fn emit_row_sums(
    k: &mut Emitter<'_>,
    left: &Operand,
    (y, y_row): (&str, i64),
    [deep, n]: [i64; 2],
    name: &str,
) {
    let (row, col) = (left.row, left.col);
    k.body
        .line(format!("memset(z, 0, (size_t)(m * {n}) * sizeof *z);"));
    k.body
        .open(format!("for (kiln_int d = 0; d < {deep}; d += {DEEP})"));
    k.body.line(format!(
        "const kiln_int w = {deep} - d < {DEEP} ? {deep} - d : {DEEP};"
    ));
    k.body.line(format!(
        "kiln_product_{name}(m, {n}, w, x + i * {row} + d * {col}, {row}, {col}, {y} + d * {y_row}, {y_row}, z, {n});"
    ));
    k.body.close();
}
