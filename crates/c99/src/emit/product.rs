//! Matrix products.

use super::contraction::{Loop, Products};
use super::dialect::memory;
use super::kernel::{Emitter, View};
use super::text::{affine, indices, sum};
use crate::error::{Error, Result};
use kiln_plan::{MatMul, Matrix};

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

    /// Makes the rows contiguous in the weights if the operand is constant. Returns true if it did.
    fn lay_out(
        &mut self,
        k: &mut Emitter<'_>,
        arg: u16,
        batch: &[i64],
        [rows, columns]: [i64; 2],
    ) -> bool {
        let moving: Vec<usize> = (0..batch.len()).filter(|i| self.batch[*i] != 0).collect();
        let mut extents: Vec<i64> = moving.iter().map(|i| batch[*i]).collect();
        let mut strides: Vec<i64> = moving.iter().map(|i| self.batch[*i]).collect();
        extents.extend([rows, columns]);
        strides.extend([self.row, self.col]);
        let view = View {
            offset: self.offset,
            extents,
            strides,
        };
        let laid = view.packed_strides();
        if k.args[usize::from(arg)].lay_out(view).is_some() {
            return false;
        }
        self.offset = 0;
        for (i, stride) in moving.iter().zip(&laid) {
            self.batch[*i] = *stride;
        }
        (self.row, self.col) = (columns, 1);
        true
    }

    /// Returns the array of the matrix at the pointer `from` after its rows are made contiguous.
    pub fn pack(
        &self,
        k: &mut Emitter<'_>,
        from: &str,
        dtype: kiln_base::DType,
        extents: [i64; 2],
    ) -> Result<String> {
        let view = View {
            offset: 0,
            extents: extents.to_vec(),
            strides: vec![self.row, self.col],
        };
        let copy = k.array(dtype, extents.iter().product())?;
        k.pack(&copy, from, &view);
        Ok(copy)
    }
}

/// Opens loops over a batch and returns the number of its matrix as text.
pub(super) fn each_matrix(k: &mut Emitter<'_>, batch: &[i64]) -> String {
    let names = indices("b", batch.len());
    let mut stride: i64 = batch.iter().product();
    let number = batch.iter().zip(&names).map(|(n, name)| {
        k.body.loop_to(name, n);
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
    let batch = k.numbers(&p.batch)?;
    let (m, deep, n) = (k.number(&p.m)?, k.number(&p.k)?, k.number(&p.n)?);
    let dtypes = [p.dtypes[0], p.dtypes[1], p.sums()];
    let [a, b, ty] = dtypes.map(memory);
    let lhs = k.operand(p.lhs.arg, &p.prologues[0])?;
    let lhs = Operand::new(k, &p.lhs, lhs)?;
    let rhs = k.operand(p.rhs.arg, &p.prologues[1])?;
    let mut rhs = Operand::new(k, &p.rhs, rhs)?;
    let fixed = p.prologues[1].is_none() && k.args[usize::from(p.rhs.arg)].fixed;
    let short = n < 8 || !fixed && m <= 4;
    let dots = p.sums().is_float() && lhs.col == 1 && rhs.row == 1 && short;
    let is_laid = dots || rhs.col == 1 || fixed && rhs.lay_out(k, p.rhs.arg, &batch, [deep, n]);
    let mut rows = Loop::new("r", m, [lhs.row, 0, n]);
    let block = rows.block(n);
    let out = k.destination(&p.epilogue, p.out, (p.sums(), block * n))?;
    let number = each_matrix(k, &batch);
    k.body
        .line(format!("const {b} *restrict y = {};", rhs.start()));
    let (y, y_row) = match is_laid {
        true => ("y".to_string(), rhs.row),
        false => (rhs.pack(k, "y", p.dtypes[1], [deep, n])?, n),
    };
    rows.open_blocks(k, block);
    let start = lhs.start();
    k.body.line(format!(
        "const {a} *restrict x = {start} + i * {};",
        lhs.row
    ));
    let first_element = format!("({number}) * {} + i * {n}", m * n);
    k.body
        .line(format!("{ty} *restrict z = {};", out.block(&first_element)));
    if dots {
        k.body.loop_to("r", "rows");
        k.body.loop_to("j", n);
        k.body.line(format!(
            "z[r * {n} + j] = kiln_dot_{}({deep}, x + r * {}, y + j * {});",
            p.sums().name(),
            lhs.row,
            rhs.col
        ));
        k.body.close_all(2);
    } else {
        k.body.zero("z", format!("rows * {n}"));
        let products = Products {
            dtypes,
            outer: Vec::new(),
            inner: Vec::new(),
            m: rows,
            n: Loop::new("j", n, [0, 1, 1]),
            k: Loop::new("q", deep, [lhs.col, y_row, 0]),
            skips: Vec::new(),
            start: 0,
        };
        products.emit(k, ["x", &y, "z"]);
    }
    out.finish(&first_element, &format!("rows * {n}"), &mut k.body);
    k.body.close_all(1 + batch.len());
    Ok(())
}
