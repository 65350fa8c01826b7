//! The operands of a product: matrices in memory, or computed by prologues, a part at a time.

use super::MatMul;
use crate::tile;
use crate::tile::{Linked, Runner};
use kiln_kernel::affine::{Affine, eval, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::Failures;
use kiln_kernel::memory::{Storage, room};
use kiln_kernel::simd::Features;
use kiln_plan::tile::Schedule;
use kiln_plan::{self as plan, Prologue};
use smallvec::SmallVec;

/// A matrix operand with known numbers, in elements.
pub(crate) struct Operand {
    /// The argument; unused if there is a prologue.
    pub(super) arg: usize,
    pub(super) offset: i64,
    batch: Vec<i64>,
    pub(crate) row: i64,
    pub(crate) col: i64,
    /// The prologue that computes it, a part at a time.
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
        let (low, high) = map.range(&extents);
        let len = len as i128;
        if !extents.contains(&0) && (low < 0 || high >= len) {
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
        let mut at = self.offset + i * self.row + j * self.col;
        for (stride, extent) in self.batch.iter().zip(batch).rev() {
            at += b % extent * stride;
            b /= extent;
        }
        at
    }

    /// Returns the address of element (i, j) of matrix number `b` of a batch of these extents.
    pub(crate) fn at<T>(
        &self,
        args: &[*mut u8],
        batch: &[i64],
        b: i64,
        i: i64,
        j: i64,
    ) -> *const T {
        let at = self.index(batch, b, i, j);
        args[self.arg].cast::<T>().wrapping_offset(at as isize)
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
    args: SmallVec<[*mut u8; 12]>,
}

impl Materialised {
    /// Runs a prologue over `count` lines of `len` elements of its linear space, `apart` apart. The first line starts
    /// at `at`. The results are contiguous.
    ///
    /// # Safety
    /// See [`Runner::new`] for the arguments; the lines exist. `which` identifies them.
    pub(crate) unsafe fn bring<T>(
        &mut self,
        program: &Linked,
        args: &[*mut u8],
        which: (i64, i64),
        at: i64,
        (count, apart, len): (i64, i64, i64),
        failures: &Failures,
    ) -> Result<*const T> {
        let to = room::<T>(&mut self.storage, count * len)?;
        if self.holds == Some(which) {
            return Ok(to);
        }
        self.args.clear();
        self.args.extend_from_slice(args);
        self.args.push(std::ptr::null_mut());
        let last = args.len();
        // SAFETY: the caller's. The argument points where its element zero would be.
        unsafe {
            let mut runner = Runner::new(program, self.args.as_ptr(), failures)?;
            let result = self.args.as_mut_ptr().add(last);
            let (lines, len) = match apart == len {
                true => (1, count * len),
                false => (count, len),
            };
            for line in 0..lines {
                let from = at + line * apart;
                *result = to.wrapping_offset((line * len - from) as isize).cast();
                runner.range(from, from + len);
            }
        }
        self.holds = Some(which);
        Ok(to)
    }
}

impl MatMul {
    /// Returns some rows of A's matrix number `b`: their address, and the strides down and across.
    ///
    /// # Safety
    /// As [`MatMul::run`]; the rows exist.
    pub(super) unsafe fn rows<T>(
        &self,
        args: &[*mut u8],
        (b, first, count): (i64, i64, i64),
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<(*const T, i64, i64)> {
        // SAFETY: the caller's.
        let (to, [line, along]) =
            unsafe { self.lines(true, args, (b, first, count), materialised, failures)? };
        Ok((to, line, along))
    }

    /// Returns some columns of B's matrix number `b`, as [`MatMul::rows`] does rows.
    ///
    /// # Safety
    /// As [`MatMul::run`]; the columns exist.
    pub(super) unsafe fn columns<T>(
        &self,
        args: &[*mut u8],
        (b, first, count): (i64, i64, i64),
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<(*const T, i64, i64)> {
        // SAFETY: the caller's.
        let (to, [line, along]) =
            unsafe { self.lines(false, args, (b, first, count), materialised, failures)? };
        Ok((to, along, line))
    }

    /// Returns some rows of A if `rows`, else columns of B: their address, their stride, and the stride of their
    /// elements.
    ///
    /// # Safety
    /// As [`MatMul::run`]; they exist.
    unsafe fn lines<T>(
        &self,
        rows: bool,
        args: &[*mut u8],
        (b, first, count): (i64, i64, i64),
        materialised: &mut Materialised,
        failures: &Failures,
    ) -> Result<(*const T, [i64; 2])> {
        let x = if rows { &self.lhs } else { &self.rhs };
        let ((i, j), [line, along]) = match rows {
            true => ((first, 0), [x.row, x.col]),
            false => ((0, first), [x.col, x.row]),
        };
        let Some(program) = &x.prologue else {
            return Ok((self.at(x, args, b, i, j), [line, along]));
        };
        let at = x.index(&self.batch, b, i, j);
        // True if the elements of a line are contiguous; otherwise the lines are.
        let whole = (x.col == 1) == rows;
        let parts = match whole {
            true => (count, line, self.k),
            false => (self.k, along, count),
        };
        // SAFETY: the caller's.
        let to = unsafe { materialised.bring(program, args, (b, first), at, parts, failures)? };
        let apart = match whole {
            true => [self.k, 1],
            false => [1, count],
        };
        Ok((to, apart))
    }

    /// Returns the address of element (i, j) of an operand's matrix number `b`.
    pub(super) fn at<T>(&self, x: &Operand, args: &[*mut u8], b: i64, i: i64, j: i64) -> *const T {
        x.at(args, &self.batch, b, i, j)
    }
}
