//! The operands of a product: matrices in memory, or parts of matrices that prologues compute.

use crate::tile;
use crate::tile::{Linked, run_lines};
use kiln_kernel::affine::{Affine, eval, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::Storage;
use kiln_kernel::simd::Features;
use kiln_kernel::view::{Arguments, Plain, View, ViewMut};
use kiln_plan::tile::Schedule;
use kiln_plan::{self as plan, Prologue};

/// A matrix operand with known numbers, in elements.
pub(crate) struct Operand {
    /// The argument; unused if there is a prologue.
    pub(super) arg: usize,
    offset: i64,
    batch: Vec<i64>,
    pub(crate) row: i64,
    pub(crate) col: i64,
    /// The prologue that computes parts of it.
    pub(super) prologue: Option<Box<Linked>>,
}

impl Operand {
    /// Checks a batch of `rows` by `cols` matrices, in a buffer of length `len`.
    pub(crate) fn new(
        x: &plan::Matrix,
        (batch, rows, cols): (&[i64], i64, i64),
        values: &[i64],
        len: i64,
    ) -> Result<Operand> {
        let strides = x.batch_strides.iter().chain([&x.row, &x.col]);
        let strides: Vec<_> = strides.cloned().collect();
        let rank = batch.len();
        let map = Affine::new(&x.offset, &strides, rank + 2, values)?;
        let extents: Vec<i64> = batch.iter().copied().chain([rows, cols]).collect();
        let (min, max) = map.range(&extents);
        let len = len as i128;
        if !extents.contains(&0) && (min < 0 || max >= len) {
            return Err(damaged!("a matrix reaches outside its buffer"));
        }
        Ok(Operand {
            arg: x.arg as usize,
            offset: eval(&x.offset, values)?,
            batch: map.strides[..rank].to_vec(),
            row: map.strides[rank],
            col: map.strides[rank + 1],
            prologue: None,
        })
    }

    /// Checks matrices that a prologue computes.
    pub(super) fn of_prologue(
        x: &plan::Matrix,
        prologue: &Prologue,
        (batch, rows, cols): (&[i64], i64, i64),
        values: &[i64],
        lens: &[i64],
        level: Features,
    ) -> Result<Operand> {
        let (linked, len) = link(prologue, values, lens, level)?;
        let operand = Operand::new(x, (batch, rows, cols), values, len)?;
        if operand.col != 1 && operand.row != 1 {
            return Err(damaged!("{} makes no lines", prologue.program.name));
        }
        Ok(Operand {
            prologue: Some(linked),
            ..operand
        })
    }

    /// True if all matrices of a batch of these extents are the same.
    pub(super) fn is_one(&self, batch: &[i64]) -> bool {
        let mut strides = self.batch.iter().zip(batch);
        strides.all(|(stride, extent)| *stride == 0 || *extent == 1)
    }

    /// Returns the index of element (i, j) of matrix number `b` of a batch of these extents.
    pub(super) fn index(&self, batch: &[i64], mut b: i64, i: i64, j: i64) -> i64 {
        let mut offset = self.offset + i * self.row + j * self.col;
        for (stride, extent) in self.batch.iter().zip(batch).rev() {
            offset += b % extent * stride;
            b /= extent;
        }
        offset
    }

    /// Returns the operand from element (i, j) of matrix number `b` of a batch of these extents on.
    pub(crate) fn at<'a, T: Plain>(
        &self,
        args: &Arguments<'a>,
        batch: &[i64],
        b: i64,
        i: i64,
        j: i64,
    ) -> View<'a, T> {
        args.view(self.arg).shift(self.index(batch, b, i, j))
    }
}

/// Links the prologue of an operand, and returns its number of elements too.
pub(crate) fn link(
    Prologue { program }: &Prologue,
    values: &[i64],
    lens: &[i64],
    level: Features,
) -> Result<(Box<Linked>, i64)> {
    let axes = program.axes.iter().map(|d| extent(d, values));
    let len = product(&axes.collect::<Result<Vec<_>>>()?)?;
    let lens: Vec<i64> = lens.iter().copied().chain([len]).collect();
    let bound = tile::bind(program, values, &lens)?;
    let linked = tile::link(&bound, level)?;
    let pointwise = program.inner.is_empty() && program.schedule == Schedule::Lanes;
    if !pointwise || !linked.is_written_in_place(lens.len() - 1) {
        return Err(damaged!("{} makes no operand", program.name));
    }
    Ok((Box::new(linked), len))
}

/// A part of an operand that a thread has computed by a prologue, kept for other blocks that read it.
#[derive(Default)]
pub(crate) struct Materialised {
    storage: Option<Storage>,
    /// The identity of the part. For a matrix: its number, and the first row or column. For images: the first element,
    /// and the number of elements.
    holds: Option<(i64, i64)>,
}

impl Materialised {
    /// Runs a prologue over `count` runs of `len` elements of its linear index space, with this stride. The first run
    /// starts at `first`. The results have this pitch. They are kept if `id` equals that of the last results.
    pub(crate) fn materialise(
        &mut self,
        program: &Linked,
        args: &Arguments,
        id: (i64, i64),
        first: i64,
        ((count, stride, len), pitch): ((i64, i64, i64), i64),
        failures: &Failures,
    ) -> Result<View<'_, u8>> {
        let size = program.in_place.unwrap_or(0) as i64;
        let to = ViewMut::room(&mut self.storage, count * pitch * size)?;
        if self.holds != Some(id) {
            if count * len > 0 {
                run_lines(
                    program,
                    args,
                    (to, pitch),
                    first,
                    (count, stride),
                    len,
                    failures,
                )?;
            }
            self.holds = Some(id);
        }
        Ok(*to)
    }
}
